"""One resource and the kubelet: serve, register, notice a lost registration, start over. Never gives up, never spins.

What the kubelet does, and what follows for us (pkg/kubelet/cm/devicemanager; observed with 1.36.3):
- Inside Register it dials us, for up to 10 s, and calls GetDevicePluginOptions: we serve first, and wait longer than
  that.
- A nil answer to Register means "connected", no more; the stream comes afterwards. Without a stream we start over.
- It never re-opens a stream. The stream's end takes all devices away from the node, so we register again at once.
- Up to 1.36 the end of an older registration of the same name takes the newer one down with it; from 1.37 on a socket
  is refused while it is still connected, and the kubelet then does not notice when it ends (hand_over). So every
  registration has a server on its own socket, and the one before is stopped first. When we leave for good, hand_over
  registers another plugin that stays.
- When it starts it removes every socket in its folder, ours too, and makes a new kubelet.sock. One that we had made
  just before would be gone when it dials, and it would dial for 10 s: a socket is made once a kubelet listens.
- The newest registration of a name replaces another plugin's: `guard` checks before we register. When another plugin
  replaces ours, our stream stays open, and when that plugin ends the name has no devices. Only the kubelet's list of
  allocatable devices shows that, so we check the list now and then. It also shows another plugin that comes with our
  devices under another name: then we stop serving them, as if that plugin had come first.

The folder is polled every quarter of a second, not watched by inotify: a watch ends with the folder that it is on, is
silent on some file systems, and a stat of two names costs microseconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

import grpc.aio
import structlog
from msgspec import Struct
from nodedevices_common.backoff import Backoff
from nodedevices_common.periodic import within
from nodedevices_probe.protocol import MAX_MESSAGE, text

from nodedevices_plugin.kubelet import rpc, sockets
from nodedevices_plugin.kubelet.api import deviceplugin_v1beta1_pb2 as api
from nodedevices_plugin.kubelet.guard import RECHECK_SECONDS, Guard
from nodedevices_plugin.kubelet.server import ResourceServer, Serving, options
from nodedevices_plugin.model import (
    KubeletCall,
    Method,
    Registration,
    RegistrationState,
    Result,
)

CHECK_SECONDS = 0.25
STREAM_LOST_DELAY_SECONDS = 0.02  # at once; the kubelet has then finished with the old stream
SHORT_STREAM_SECONDS = 5.0  # a stream that ended earlier counts as one that failed
QUICK_RETRIES = 3  # so many short streams in a row are renewed at once, the next ones with back-off
LISTED_SECONDS = 5.0  # between two checks of the kubelet's list; its rate limit is shared by all callers
LISTED_FIRST_SECONDS = 0.5  # from the stream; the kubelet has its first message after some milliseconds
LISTED_AGAIN_SECONDS = 1.0  # after a check without our devices, and while another plugin's socket is new
MISSED = 2  # checks without our devices in a row
NO_ANSWER = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
BACKOFF = Backoff(initial_seconds=0.5, max_seconds=30.0)

Keep = Callable[[str, Callable[[], Awaitable[None]]], Coroutine[Any, Any, None]]  # supervise.Supervisor.keep

log = structlog.get_logger(__name__)


class Deadlines(Struct, frozen=True, kw_only=True):
    """Time limits for the kubelet's answers."""

    register_seconds: float = 15.0  # the kubelet dials us for up to 10 s inside Register
    stream_seconds: float = 10.0  # from Register's answer to ListAndWatch; normally milliseconds


class LossReason(Enum):
    """Why a registration was lost, for people."""

    STREAM = "the kubelet ended its stream; registering again"
    NEVER_CAME = "the kubelet accepted {name}, but did not call ListAndWatch within {seconds:g} s"
    KUBELET = "kubelet.sock was recreated; registering again"
    SOCKET = "the plugin's socket was removed; registering again"
    FORGOTTEN = (
        "the kubelet no longer lists its devices, possibly because another plugin of that name ended; registering again"
    )
    ANOTHER = "another device plugin has come that serves its devices; registering again"


class ListedCheck:
    """Checks whether the kubelet still lists a registration's devices. Their absence counts only after they were listed
    once; so the first check comes soon: a registration replaced before it would not be noticed."""

    def __init__(self, *, now: float) -> None:
        self._seen = False
        self._missed = 0
        self._next = now + LISTED_FIRST_SECONDS

    def due(self, now: float) -> bool:
        return now >= self._next

    def soon(self, *, now: float) -> None:
        """Make the next check come soon: something may have changed."""
        self._next = min(self._next, now + LISTED_AGAIN_SECONDS)

    def observed(self, listed: bool | None, *, now: float) -> bool:
        """True when the devices are gone. `listed` None: the kubelet does not answer, or no device is healthy."""
        self._seen = self._seen or listed is True
        self._missed = self._missed + 1 if listed is False and self._seen else 0
        self._next = now + (LISTED_AGAIN_SECONDS if self._missed else LISTED_SECONDS)
        return self._missed >= MISSED


@dataclass(frozen=True, slots=True, kw_only=True)
class Registering(Serving):
    """What all resources are registered with. `on_change`: a registration is another than before; called on the loop,
    it must not block. `prepare` is awaited before a resource is registered: it makes what must exist before an id is
    handed out. `keep` runs each in the background."""

    kubelet_socket: Path
    guard: Guard
    on_change: Callable[[], None]
    prepare: Callable[[], Awaitable[None]]
    keep: Keep
    deadlines: Deadlines = field(default_factory=Deadlines)


class ResourcePlugin:
    """Keeps one resource served and registered until `stop`. `shown` is its list, as `snapshot` makes it.

    `healthy`: whether it has a healthy id. `let_through`: it is prepared, and the guard allows the registration.
    `pre_start`: whether the kubelet is to call PreStartContainer; the registration tells it so.
    """

    def __init__(
        self, name: str, shown: bytes, registering: Registering, *, healthy: bool, pre_start: bool = False
    ) -> None:
        self.name = name
        self.let_through = False
        self.registration = Registration(resource=name, state=RegistrationState.PENDING)
        self.pre_start = pre_start
        self._shown = shown
        self._healthy = healthy
        self._registering = registering
        self._guard, self._observe = registering.guard, registering.observe
        self._kubelet_socket, self._deadlines = registering.kubelet_socket, registering.deadlines
        self._server: ResourceServer | None = None
        self._failures = 0  # refusals in a row
        self._short_streams = 0  # streams in a row that did not last
        self._task = asyncio.create_task(registering.keep("registration", self._run), name=f"register {name}")

    def show(self, shown: bytes, *, healthy: bool) -> None:
        """Send the kubelet this list, and make it the first one of later registrations."""
        self._shown, self._healthy = shown, healthy
        if self._server is not None:
            self._server.show(shown)

    def show_again(self) -> bool:
        """Send the kubelet the same list once more. False where we are not registered."""
        registered = self.registration.state is RegistrationState.REGISTERED
        return registered and self._server is not None and self._server.show_again()

    async def stop(self) -> None:
        """End the registration: the kubelet shows 0 allocatable at once and forgets the resource after 5 minutes."""
        self._task.cancel()
        await asyncio.wait([self._task])
        await self._stop_server()
        self._guard.ended(self.name)

    # --- the loop ---------------------------------------------------------------------------------------------------
    async def _run(self) -> None:
        while True:
            try:
                await self._round()
            except Exception as error:  # such as a missing folder or a full disk: report it, and try again
                if self._report(RegistrationState.PENDING, f"cannot serve {self.name}: {error}"):
                    log.exception("registration failed", resource=self.name)
                await self._stop_server()
                await self._back_off(sockets.identity(self._kubelet_socket))

    async def _round(self) -> None:
        """Make one registration, and return when it is lost or was not possible."""
        kubelet = sockets.identity(self._kubelet_socket)
        if kubelet is None:
            why = f"{self._kubelet_socket} does not exist: the kubelet is not running, or its folder is not mounted"
            self._report(RegistrationState.KUBELET_UNREACHABLE, why)
            await asyncio.sleep(CHECK_SECONDS)
            return
        if why := await self._prepared(kubelet):
            self.let_through = False
            self._report(RegistrationState.SERVED_BY_ANOTHER, why)
            await self._wait(RECHECK_SECONDS, kubelet)
            return
        self.let_through = True
        if not sockets.listening(self._kubelet_socket):
            self._observe(KubeletCall(Method.REGISTER, self.name, Result.FAILED, 0.0))
            await self._unreachable("Connection refused", kubelet)
            return
        if sockets.identity(self._kubelet_socket) != kubelet:
            return  # another kubelet has come meanwhile
        # Each round has a server of its own: one that no registration has used.
        server = self._server = ResourceServer(self.name, self._shown, self._registering, pre_start=self.pre_start)
        server.socket.start()
        request = api.RegisterRequest(
            version=rpc.VERSION,
            endpoint=server.socket.path.name,
            resource_name=self.name,
            options=options(pre_start=self.pre_start),
        )
        before = server.opened
        self._guard.registering(self.name, kubelet)
        began = perf_counter()
        try:
            await rpc.register(self._kubelet_socket, request, timeout_seconds=self._deadlines.register_seconds)
        except grpc.aio.AioRpcError as error:
            result = Result.FAILED if error.code() in NO_ANSWER else Result.REFUSED
            self._observe(KubeletCall(Method.REGISTER, self.name, result, perf_counter() - began))
            self._guard.not_registered(self.name)
            await self._not_registered(error, kubelet)
            return
        self._observe(KubeletCall(Method.REGISTER, self.name, Result.GRANTED, perf_counter() - began))
        self._guard.registered(self.name)
        self._failures = 0
        registered_at = monotonic()
        lost = await self._until_lost(server, stream=before + 1, kubelet=kubelet)
        why = lost.value.format(name=self.name, seconds=self._deadlines.stream_seconds)
        self._report(RegistrationState.PENDING, why)
        await self._stop_server()
        if lost is LossReason.ANOTHER:
            self._guard.ended(self.name)
        short = lost is LossReason.STREAM and monotonic() - registered_at < SHORT_STREAM_SECONDS
        self._short_streams = self._short_streams + 1 if short else 0
        if self._short_streams > QUICK_RETRIES:
            await self._wait(BACKOFF.after(self._short_streams - QUICK_RETRIES), sockets.identity(self._kubelet_socket))
        elif lost is LossReason.STREAM:
            await asyncio.sleep(STREAM_LOST_DELAY_SECONDS)

    async def _prepared(self, kubelet: sockets.FileIdentity) -> str:
        """Prepare the registration and return why it must not be made; empty: it may. Where preparing took long, ask
        the guard again: another plugin may have come meanwhile."""
        for again in (True, False):
            if why := await self._guard.why_not(self.name, kubelet):
                return why
            began = monotonic()
            await self._registering.prepare()
            if not again or monotonic() - began < RECHECK_SECONDS:
                break
        return ""

    async def _until_lost(self, server: ResourceServer, *, stream: int, kubelet: sockets.FileIdentity) -> LossReason:
        """Wait until the registration is lost. Its stream is the first one opened after Register was called."""
        deadline = monotonic() + self._deadlines.stream_seconds
        listed = ListedCheck(now=monotonic())
        while True:
            server.stream_change.clear()
            if server.opened >= stream:
                if stream not in server.open_streams:
                    return LossReason.STREAM
                self._report(RegistrationState.REGISTERED, "")
                if self._guard.newcomer():
                    listed.soon(now=monotonic())
                if listed.due(monotonic()):
                    if await self._guard.beside(self.name, kubelet):
                        return LossReason.ANOTHER
                    seen = await self._guard.lists(self.name)
                    if listed.observed(seen if self._healthy else None, now=monotonic()):
                        return LossReason.FORGOTTEN
            elif monotonic() > deadline:
                return LossReason.NEVER_CAME
            if not server.socket.is_there():
                return LossReason.SOCKET
            if sockets.identity(self._kubelet_socket) not in (kubelet, None):
                return LossReason.KUBELET
            await within(CHECK_SECONDS, server.stream_change.wait())

    async def _not_registered(self, error: grpc.aio.AioRpcError, kubelet: sockets.FileIdentity) -> None:
        code, details = error.code(), rpc.reason(error)
        if code is grpc.StatusCode.UNAVAILABLE:  # no process listens: a kubelet that ended, or is about to start
            await self._unreachable(details, kubelet)
            return
        state = RegistrationState.REJECTED
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            state = RegistrationState.KUBELET_UNREACHABLE
            details = f"the kubelet did not answer Register within {self._deadlines.register_seconds:g} s"
        self._report(state, details)
        await self._stop_server()  # a socket is offered once: a kubelet that is late may dial it during the next round
        await self._back_off(kubelet)

    async def _unreachable(self, details: str, kubelet: sockets.FileIdentity) -> None:
        self._report(RegistrationState.KUBELET_UNREACHABLE, f"no kubelet answers on {self._kubelet_socket}: {details}")
        await self._stop_server()
        await self._wait(CHECK_SECONDS * 2, kubelet)

    async def _back_off(self, kubelet: sockets.FileIdentity | None) -> None:
        self._failures += 1
        await self._wait(BACKOFF.after(self._failures), kubelet)

    async def _wait(self, seconds: float, kubelet: sockets.FileIdentity | None) -> None:
        """Sleep, but return at once when kubelet.sock is another one: a new kubelet must not wait."""
        end = monotonic() + seconds
        while (left := end - monotonic()) > 0:
            await asyncio.sleep(min(left, CHECK_SECONDS))
            if sockets.identity(self._kubelet_socket) != kubelet:
                self._failures = self._short_streams = 0
                return

    # --- the server -------------------------------------------------------------------------------------------------
    async def _stop_server(self) -> None:
        if self._server is not None:
            await self._server.stop()
            self._server = None

    def _report(self, state: RegistrationState, message: str) -> bool:
        """Log and announce a registration that differs from the last one; True when it did."""
        registration = Registration(resource=self.name, state=state, message=text(message, MAX_MESSAGE))
        if registration == self.registration:
            return False
        self.registration = registration
        level = log.info if state in (RegistrationState.REGISTERED, RegistrationState.PENDING) else log.warning
        level("registration", resource=registration.resource, state=state.value, why=registration.message)
        self._registering.on_change()
        return True
