"""Serves the DRA driver to the kubelet, and registers it, for as long as claims may come.

The kubelet watches the folder `plugins_registry` of its root. A socket there answers GetInfo with the driver's name and
the path of its own socket, as the kubelet sees it; so the driver's socket listens before the one that registers it
exists. NotifyRegistrationStatus says how it went. Removing that socket takes the driver out. A kubelet that starts
finds the sockets as they are, and registers again by itself (pkg/kubelet/pluginmanager, 1.37.2). Until then the driver
counts as not registered: kubelet.sock, on which nobody listens or which is another one than when we were registered,
shows that the kubelet went. A kubelet that starts makes it anew before it looks for drivers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from time import perf_counter, time
from typing import Any, TypeVar

import grpc
import structlog
from nodedevices_common.errors import OperationError, RefusedError
from nodedevices_common.periodic import within

from nodedevices_plugin.claims.slices import DeviceHealth
from nodedevices_plugin.kubelet import sockets
from nodedevices_plugin.kubelet.api import (
    dra_health_v1_pb2 as health_api,
    dra_v1_pb2 as dra,
    pluginregistration_v1_pb2 as registration,
)
from nodedevices_plugin.kubelet.dra.prepare import Claims
from nodedevices_plugin.kubelet.rpc import Calls, Newest, handlers
from nodedevices_plugin.model import CallObserver, HealthState, KubeletCall, Method, Result
from nodedevices_plugin.runtime.threads import tell

PLUGIN_TYPE = "DRAPlugin"
HEALTH_SERVICES = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")  # by full name; the messages are the same
VERSIONS = ("v1.DRAPlugin", *HEALTH_SERVICES)  # every kubelet from 1.34 on takes the first
DRA_SERVICE = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
REGISTRATION_SERVICE = "pluginregistration.Registration"
CHECK_SECONDS = 1.0
MAX_NAME, MAX_UID = 256, 64  # of a claim, in a log line
MAX_CALLS = 512  # at once: the kubelet makes one for each pod, and those that wait keep out none that ends

HEALTH_TIMEOUT_SECONDS = 30
REPEAT_SECONDS = 10.0

_HEALTH = {
    HealthState.HEALTHY: health_api.HEALTHY,
    HealthState.DEGRADED: health_api.HEALTHY,  # it is offered; the message has the reason
    HealthState.UNHEALTHY: health_api.UNHEALTHY,
    HealthState.UNKNOWN: health_api.UNKNOWN,
}

A = TypeVar("A", dra.NodePrepareResourcesResponse, dra.NodeUnprepareResourcesResponse)
_VERBS = {Method.PREPARE: "prepare", Method.UNPREPARE: "unprepare"}

log = structlog.get_logger(__name__)


class DraDriver:
    """The driver of this node; `want` turns it on and off, `run` carries that out. `on_change` is called on the event
    loop when `registered` or `problem` is another. `observe` gets each call that has ended, in any thread."""

    def __init__(
        self,
        name: str,
        claims: Claims,
        *,
        kubelet_dir: Path,
        kubelet_socket: Path,
        pool: str,
        on_change: Callable[[], None],
        observe: CallObserver,
    ) -> None:
        self.name = name
        self.health = HealthStreams(pool)
        self.problem = ""  # why it does not
        self.refused = False  # by the kubelet
        self._claims = claims
        self._pool = pool
        self._socket = kubelet_dir / "plugins" / name / "dra.sock"
        self._registry = kubelet_dir / "plugins_registry" / f"{name}-reg.sock"
        self._kubelet_socket = kubelet_socket
        self._registered = False  # as the kubelet said last
        self._kubelet: sockets.FileIdentity | None = None  # which said so
        self._on_change = on_change
        self._observe = observe
        self._wanted = False
        self._wake = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._servers: list[sockets.UnixServer] = []

    @property
    def registered(self) -> bool:
        """True while the kubelet calls us."""
        return self._registered and sockets.identity(self._kubelet_socket) == self._kubelet

    def want(self, *, wanted: bool) -> None:
        """Serve while claims may come, or one is still prepared."""
        if wanted is not self._wanted:
            self._wanted = wanted
            self._wake.set()

    async def run(self) -> None:
        """Until cancelled: keep both sockets, while they are wanted."""
        self._loop = asyncio.get_running_loop()
        try:
            while True:
                await self._keep()
                self._wake.clear()
                await within(CHECK_SECONDS if self._wanted else None, self._wake.wait())
        finally:
            await self._stop()

    async def _keep(self) -> None:
        serving = bool(self._servers) and all(server.is_there() for server in self._servers)
        if self._registered and not (serving and self.registered and sockets.listening(self._kubelet_socket)):
            self._settle(registered=False, problem="")
        if serving is self._wanted:
            return
        await self._stop()
        if not self._wanted:
            self._settle(registered=False, problem="")
            return
        try:
            self._check()
            self.health.serve(serving=True)
            calls: Calls = {
                "NodePrepareResources": (self._prepare, dra.NodePrepareResourcesRequest),
                "NodeUnprepareResources": (self._unprepare, dra.NodeUnprepareResourcesRequest),
            }
            registers: Calls = {
                "GetInfo": (self._info, registration.InfoRequest),
                "NotifyRegistrationStatus": (self._notified, registration.RegistrationStatus),
            }
            for path, served in (
                (self._socket, (handlers(DRA_SERVICE, calls), *self.health.handlers())),
                (self._registry, (handlers(REGISTRATION_SERVICE, registers),)),
            ):
                server = sockets.UnixServer(self.name, path, served, max_calls=MAX_CALLS)
                server.start()
                self._servers.append(server)
        except OSError as error:
            await self._stop()
            self._settle(registered=False, problem=f"{error.strerror or error}: {error.filename or self._registry}")

    def _check(self) -> None:
        if not self._registry.parent.is_dir():
            raise FileNotFoundError(2, "no such folder; the component dra mounts it", str(self._registry.parent))
        if self._registry.is_socket() and sockets.listening(self._registry):
            raise FileExistsError(17, "another DRA driver of this name serves", str(self._registry))
        self._socket.parent.mkdir(parents=True, exist_ok=True)
        for path in (self._socket, self._registry):
            path.unlink(missing_ok=True)  # of an earlier run, which was killed

    async def _stop(self) -> None:
        """The registration first: the kubelet calls no socket that is about to go."""
        self.health.serve(serving=False)
        for server in reversed(self._servers):
            await server.stop()
        self._servers = []

    def _settle(self, *, registered: bool, problem: str, refused: bool = False) -> None:
        if (registered, problem) != (self._registered, self.problem):
            if problem:
                log.warning("DRA driver not registered", driver=self.name, error=problem)
            else:
                log.info("DRA driver registered" if registered else "DRA driver no longer registered", driver=self.name)
            self._registered, self.problem, self.refused = registered, problem, refused
            self._on_change()

    # --- answers, each in a thread ------------------------------------------------------------------------------------
    def _info(self, _request: registration.InfoRequest, _context: grpc.ServicerContext) -> registration.PluginInfo:
        return registration.PluginInfo(
            type=PLUGIN_TYPE, name=self.name, endpoint=str(self._socket), supported_versions=VERSIONS
        )

    def _notified(
        self, request: registration.RegistrationStatus, _context: grpc.ServicerContext
    ) -> registration.RegistrationStatusResponse:
        problem = "" if request.plugin_registered else f"the kubelet refused it: {request.error[:1024]}"
        kubelet = sockets.identity(self._kubelet_socket)

        def settle() -> None:
            self._kubelet = kubelet
            self._settle(registered=request.plugin_registered, problem=problem, refused=bool(problem))

        tell(self._loop, settle)
        return registration.RegistrationStatusResponse()

    def _prepare(
        self, request: dra.NodePrepareResourcesRequest, context: grpc.ServicerContext
    ) -> dra.NodePrepareResourcesResponse:
        until = self._claims.deadline()

        def prepare(claim: dra.Claim, answer: dra.NodePrepareResourceResponse) -> None:
            for entry, cdi_ids in self._claims.prepare(
                claim.namespace, claim.name, claim.uid, until=until, called=context.is_active
            ):
                device = answer.devices.add(
                    request_names=[entry.result.request],
                    pool_name=self._pool,
                    device_name=entry.result.device,
                    cdi_device_ids=cdi_ids,
                )
                if entry.result.share:
                    device.share_id = entry.result.share

        return self._each(Method.PREPARE, request.claims, dra.NodePrepareResourcesResponse(), prepare)

    def _unprepare(
        self, request: dra.NodeUnprepareResourcesRequest, _context: grpc.ServicerContext
    ) -> dra.NodeUnprepareResourcesResponse:
        def unprepare(claim: dra.Claim, _answer: dra.NodeUnprepareResourceResponse) -> None:
            self._claims.unprepare(claim.uid)

        return self._each(Method.UNPREPARE, request.claims, dra.NodeUnprepareResourcesResponse(), unprepare)

    def _each(
        self, method: Method, claims: Iterable[dra.Claim], answers: A, call: Callable[[dra.Claim, Any], None]
    ) -> A:
        """Each claim has its own answer: an error of one costs no other."""
        for claim in claims:
            began, result, answer = perf_counter(), Result.GRANTED, answers.claims[claim.uid]
            try:
                call(claim, answer)
            except Exception as error:
                answer.Clear()
                result, answer.error = _failure(error, _VERBS[method], claim)
            self._observe(KubeletCall(method, self.name, result, perf_counter() - began))
        return answers


def _failure(error: Exception, what: str, claim: dra.Claim) -> tuple[Result, str]:
    named, uid = f"{claim.namespace}/{claim.name}"[:MAX_NAME], claim.uid[:MAX_UID]
    if isinstance(error, RefusedError):
        log.warning(f"claim refused: {what}", claim=named, uid=uid, error=str(error))
        return Result.REFUSED, str(error)
    if isinstance(error, OperationError):
        log.warning(f"claim failed: {what}", claim=named, uid=uid, error=str(error))
        return Result.FAILED, f"NodeDevices failed to {what} the claim: {error}"
    log.error(f"claim failed: {what}", claim=named, uid=uid, exc_info=error)
    text = f"NodeDevices failed to {what} the claim ({type(error).__name__}); see the log of its agent"
    return Result.FAILED, text


# --- the health of devices ---------------------------------------------------------------------------------------
class HealthStreams:
    """Streams the health of the pool's devices to the kubelet, which shows it in the status of pods that have them.

    A report is merged into what the kubelet knows, and a device that is not reported again within its time-out reads
    Unknown. So all devices are sent at each change, and again within the time-out. The end of a stream makes all
    of them Unknown, and the kubelet opens another one after 5 seconds. Kubelets of 1.34 and 1.35 ask for none by
    default.

    `show` takes other ones; `serve` ends the streams, or lets them begin again. `pool`: of this node.
    """

    def __init__(self, pool: str, *, repeat_seconds: float = REPEAT_SECONDS) -> None:
        self._pool = pool
        self._repeat_seconds = repeat_seconds
        self._newest = Newest[tuple[DeviceHealth, ...]](())
        self.show, self.serve = self._newest.show, self._newest.serve

    def handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
        watch = grpc.unary_stream_rpc_method_handler(
            self._watch,
            health_api.NodeWatchResourcesRequest.FromString,
            health_api.NodeWatchResourcesResponse.SerializeToString,
        )
        return tuple(handlers(service, {}, NodeWatchResources=watch) for service in HEALTH_SERVICES)

    def _watch(
        self, _request: health_api.NodeWatchResourcesRequest, context: grpc.ServicerContext
    ) -> Iterator[health_api.NodeWatchResourcesResponse]:
        yield from map(self._report, self._newest.stream(context, repeat_seconds=self._repeat_seconds))

    def _report(self, devices: tuple[DeviceHealth, ...]) -> health_api.NodeWatchResourcesResponse:
        now = int(time())
        return health_api.NodeWatchResourcesResponse(
            devices=[
                health_api.DeviceHealth(
                    device=health_api.DeviceIdentifier(pool_name=self._pool, device_name=device.name),
                    health=_HEALTH[device.state],
                    last_updated_time=now,
                    health_check_timeout_seconds=HEALTH_TIMEOUT_SECONDS,
                    message=device.reason,
                )
                for device in devices
            ]
        )
