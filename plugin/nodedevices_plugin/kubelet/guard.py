"""Decides whether a name may be registered: not where another device plugin serves it to this kubelet.

The kubelet accepts the plugin that registers last and notifies no other (pkg/kubelet/cm/devicemanager, 1.36.3): the
earlier plugin keeps its stream, may still change what is offered, and its end takes the newer registration down. Two
plugins for one name therefore flap at every restart of either of them or of the kubelet. So before a name's first
registration with a kubelet the guard checks which plugin serves it already. The answer comes from
GetAllocatableResources, which lists healthy ids only, and the kubelet makes all ids of a plugin unhealthy at once when
its stream ends: an id that is listed is served by a plugin.

Another plugin may also come later, with the same devices under another name: then neither plugin knows which devices
the other one allocates. So a name that is registered is checked too (`beside`): at each check of the kubelet's list,
and every second while a plugin's socket is new in the folder. Where another plugin has come, we stop serving the name,
as if we had come second.

Not checked, and registered at once: a name that this process has registered with this very kubelet (a stream that was
lost is ours to renew), and one that another agent of ours serves (a rolling update with overlap). A name that is to be
taken over on purpose (`allow_next`) is registered beside a plugin that serves the same devices under it, and beside no
other. That is checked at the registration: the plugin may have changed since the decision.

Where the kubelet does not answer, no plugin is assumed; but a plugin that was seen before is there until the kubelet
says that it is not. A kubelet that restarts knows no ids for a moment: then the plugin that we waited for may register
first, for a while.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Protocol

from msgspec import Struct

from nodedevices_plugin.kubelet import sockets

RECHECK_SECONDS = 1.0  # while another plugin serves; the kubelet answers 100 calls a second, to all callers together
NEWCOMER_SECONDS = 10.0  # from a plugin's socket to its devices in the kubelet's list, at most
ENDED_SECONDS = 2.0  # after which the kubelet no longer lists a healthy id of a name that we have stopped
GIVE_WAY_SECONDS = 30.0  # NVIDIA's plugin is back within seconds of a new kubelet.sock, and retries every 30 s

Own = Callable[[], Collection[str]]
"""Returns the names that are ours at one kubelet when it is called: while we wait for the kubelet's list, further ones
are registered and appear in it."""

Lists = Callable[[str], Awaitable[bool | None]]
"""Returns whether the kubelet lists a healthy id of this name; None: it does not answer."""


class Others(Protocol):
    """Returns which other plugin serves this name or its devices, as text; "" none, None: the kubelet does not answer.
    `taking_over`: only a plugin that serves them differently from us is one."""

    def __call__(self, name: str, own: Own, /, *, taking_over: bool = False) -> Awaitable[str | None]: ...


class Waiting(Struct, frozen=True, kw_only=True):
    """Another plugin serves the name. `who`: the plugin, as text. `until`: with a kubelet that has restarted since,
    until when (time.monotonic()) that plugin may register first; None while it serves."""

    kubelet: sockets.FileIdentity
    who: str
    until: float | None = None

    @property
    def why(self) -> str:
        turn = f"; the kubelet has restarted, and that plugin has {GIVE_WAY_SECONDS:.0f} s to register first"
        return self.who if self.until is None else self.who + turn


def judge(before: Waiting | None, kubelet: sockets.FileIdentity, seen: str | None, *, now: float) -> Waiting | None:
    """Return what to wait for; None: register. `seen`: what `Others` returned."""
    if seen:
        return Waiting(kubelet=kubelet, who=seen)
    if before is None:
        return None
    if before.kubelet != kubelet:
        before = Waiting(kubelet=kubelet, who=before.who, until=now + GIVE_WAY_SECONDS)
    if before.until is None:
        return before if seen is None else None
    return before if now < before.until else None


class Guard:
    """Used by every registration of one agent. `others` is queried before a registration and while it lasts."""

    def __init__(self, folder: Path, *, others: Others, lists: Lists) -> None:
        self.lists = lists
        self._folder = folder
        self._others = others
        self._ours: dict[str, sockets.FileIdentity] = {}  # name -> the kubelet; registered, or about to be
        self._allowed_next: set[str] = set()
        self._waiting: dict[str, Waiting] = {}
        self._ended: dict[str, float] = {}  # names that we have stopped, since when
        self._sockets: frozenset[tuple[str, int]] | None = None  # other plugins'
        self._newest = -NEWCOMER_SECONDS

    def allow_next(self, names: Iterable[str]) -> None:
        """Let the next registration of each of these take the name over from a plugin that serves the same devices."""
        self._allowed_next.update(names)

    async def why_not(self, name: str, kubelet: sockets.FileIdentity) -> str:
        """Return why the name must not be registered with this kubelet now; "" when it may. Takes as long as
        `others`."""
        waiting = None
        ours, taking_over = self._ours.get(name) == kubelet, name in self._allowed_next
        if not ours and not sockets.of_our_kind(self._folder, name):
            own = partial(self._own, kubelet, taken_over=not taking_over)
            seen = await self._others(name, own, taking_over=taking_over)
            waiting = judge(self._waiting.get(name), kubelet, seen, now=monotonic())
        if waiting is None:
            self._waiting.pop(name, None)
            return ""
        self._waiting[name] = waiting
        return waiting.why

    async def beside(self, name: str, kubelet: sockets.FileIdentity) -> str:
        """Return which other plugin serves the devices of this registered name; "" when none, or not known."""
        return await self._others(name, partial(self._own, kubelet)) or ""

    def newcomer(self) -> bool:
        """True for some seconds after another plugin's socket has come into the folder."""
        there = sockets.of_other_plugins(self._folder)
        if self._sockets is not None and there - self._sockets:
            self._newest = monotonic()
        self._sockets = there
        return monotonic() - self._newest < NEWCOMER_SECONDS

    def _own(self, kubelet: sockets.FileIdentity, *, taken_over: bool = True) -> frozenset[str]:
        """Return the names that are ours at this kubelet, with those that have just ended, which it may list still, and
        (`taken_over`) those that are to be taken over."""
        listed_until = monotonic() - ENDED_SECONDS
        ours = (name for name, registered_at in self._ours.items() if registered_at == kubelet)
        ended = (name for name, at in self._ended.items() if at > listed_until)
        return frozenset((*ours, *ended, *(self._allowed_next if taken_over else ())))

    def registering(self, name: str, kubelet: sockets.FileIdentity) -> None:
        """Count its ids as ours from now on: the kubelet may list them before it answers Register."""
        self._ours[name] = kubelet

    def registered(self, name: str) -> None:
        self._allowed_next.discard(name)

    def not_registered(self, name: str) -> None:
        self._ours.pop(name, None)

    def ended(self, name: str) -> None:
        """We no longer serve it: a plugin that serves it from now on is another one."""
        if self._ours.pop(name, None) is not None:
            self._ended[name] = monotonic()
