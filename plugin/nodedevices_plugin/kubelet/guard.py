"""Whether a name may be registered: not where another device plugin serves it to this kubelet.

The kubelet takes whoever registers last and notifies nobody (pkg/kubelet/cm/devicemanager, 1.36.3): the one before
keeps its stream, may still change what is offered, and its end takes the newer registration down. Two plugins for one
name therefore flap at every restart of either of them or of the kubelet. So before a name's first registration with a
kubelet the guard checks who serves it already. The answer comes from GetAllocatableResources, which lists healthy ids
only, and the kubelet makes all ids of a plugin unhealthy at once when its stream ends: what is listed, somebody serves.

Another plugin may also come later, under another name with the same devices: what one of us gives the other does not
know of. So a name that is registered is checked too (`beside`), with each look at what the kubelet lists, and every
second while a plugin's socket is new in the folder; where somebody has come, it is given up as if it came second.

Not checked, and registered at once: a name that this process has registered with this very kubelet (a stream that was
lost is ours to renew), and one that another agent of ours serves (a rolling update with overlap). One that is to be
taken over on purpose (`allow_next`) is registered beside who serves the same under it, and nobody else: this is checked
as it is registered (`unlike`), since whoever was there when it was decided may have changed or been replaced.

Where the kubelet does not say, nobody is in the way; but one that was seen before is there until the kubelet says that
it is not. A kubelet that restarts knows no ids for a moment: the one that we waited for then has the first turn, for a
while.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from nodedevices_plugin.kubelet import sockets

RECHECK_SECONDS = 1.0  # while another one serves; the kubelet answers 100 calls a second, to all callers together
NEWCOMER_SECONDS = 10.0  # from a plugin's socket to its devices in the kubelet's list, at most
ENDED_SECONDS = 2.0  # after which the kubelet no longer lists a healthy id of a name that we have stopped
GIVE_WAY_SECONDS = 30.0  # NVIDIA's plugin is back within seconds of a new kubelet.sock, and retries every 30 s

Others = Callable[[str, Collection[str]], Awaitable[str | None]]
"""Who else serves this name or its devices, as text; "" nobody, None: the kubelet does not say. The second argument:
names that are ours with this kubelet."""


Lists = Callable[[str], Awaitable[bool | None]]
"""Whether the kubelet lists a healthy id of this name; None: it does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Another plugin has the name. `who`: as text; `until`: how long it has the first turn with a kubelet that came
    since (time.monotonic()), None while it serves."""

    kubelet: sockets.Identity
    who: str
    until: float | None = None

    @property
    def why(self) -> str:
        turn = f"; the kubelet has restarted, and that plugin has {GIVE_WAY_SECONDS:.0f} s to register first"
        return self.who if self.until is None else self.who + turn


def judge(before: Waiting | None, kubelet: sockets.Identity, seen: str | None, *, now: float) -> Waiting | None:
    """Whether to wait; None: register. `seen`: as `Others` says."""
    if seen:
        return Waiting(kubelet=kubelet, who=seen)
    if before is None:
        return None
    if before.kubelet != kubelet:
        before = Waiting(kubelet=kubelet, who=before.who, until=now + GIVE_WAY_SECONDS)
    if before.until is None:
        return before if seen is None else None
    return before if now < before.until else None


class _OursAt(Collection[str]):
    """The names that are ours at one kubelet, at the moment of reading: others of ours are registered while the list of
    what is served is waited for, and it shows them already; one that has just ended it may still show. `allowed`: those
    that are to be taken over."""

    def __init__(
        self,
        kubelet: sockets.Identity,
        ours: Mapping[str, sockets.Identity],
        ended: Mapping[str, float],
        allowed: Collection[str],
    ) -> None:
        self._kubelet = kubelet
        self._ours = ours
        self._ended = ended
        self._allowed = allowed

    def __contains__(self, name: object) -> bool:
        return name in set(self)

    def __iter__(self) -> Iterator[str]:
        listed_until = monotonic() - ENDED_SECONDS
        ended = (each for each, at in self._ended.items() if at > listed_until)
        return iter({*(each for each, of in self._ours.items() if of == self._kubelet), *ended, *self._allowed})

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Guard:
    """Used by every registration of one agent. `others` is queried before one, `unlike` before one that takes a name
    over, `beside` while it holds. Without them nothing is ever in the way."""

    def __init__(
        self,
        folder: Path,
        others: Others | None,
        lists: Lists | None = None,
        *,
        beside: Others | None = None,
        unlike: Others | None = None,
    ) -> None:
        self._folder = folder
        self._others = others
        self._lists = lists
        self._beside = beside
        self._unlike = unlike
        self._ours: dict[str, sockets.Identity] = {}  # names that are registered, or being so, with which kubelet
        self._allowed_next: set[str] = set()
        self._waiting: dict[str, Waiting] = {}
        self._ended: dict[str, float] = {}  # names that we have stopped, since when
        self._sockets: frozenset[tuple[str, int]] | None = None  # other plugins'
        self._newest = -NEWCOMER_SECONDS

    def allow_next(self, names: Iterable[str]) -> None:
        """The next registration of each of these is to take the name over from who serves the same."""
        self._allowed_next.update(names)

    async def why_not(self, name: str, kubelet: sockets.Identity, *, own_socket: str = "") -> str:
        """Why it must not be registered with this kubelet now; "" when it may. Takes as long as `others` does."""
        waiting = None
        ours, taking_over = self._ours.get(name) == kubelet, name in self._allowed_next
        ask = self._unlike if taking_over else self._others
        if ask is not None and not ours and not sockets.of_our_kind(self._folder, name, other_than=own_socket):
            seen = await ask(name, self._own(kubelet, taken_over=not taking_over))
            waiting = judge(self._waiting.get(name), kubelet, seen, now=monotonic())
        if waiting is None:
            self._waiting.pop(name, None)
            return ""
        self._waiting[name] = waiting
        return waiting.why

    async def beside(self, name: str, kubelet: sockets.Identity) -> str:
        """Who else serves the devices of this name, which is registered with this kubelet; "" nobody, or not known."""
        return "" if self._beside is None else await self._beside(name, self._own(kubelet)) or ""

    def newcomer(self) -> bool:
        """Whether another plugin's socket has come into the folder just now."""
        there = sockets.of_other_plugins(self._folder)
        if self._sockets is not None and there - self._sockets:
            self._newest = monotonic()
        self._sockets = there
        return monotonic() - self._newest < NEWCOMER_SECONDS

    def _own(self, kubelet: sockets.Identity, *, taken_over: bool = True) -> Collection[str]:
        """`taken_over`: with those that are to be taken over."""
        return _OursAt(kubelet, self._ours, self._ended, self._allowed_next if taken_over else ())

    async def lists(self, name: str) -> bool | None:
        """Whether the kubelet lists a healthy id of it; None: it does not say."""
        return None if self._lists is None else await self._lists(name)

    def registering(self, name: str, kubelet: sockets.Identity) -> None:
        """From now on its ids may be listed, and they are ours: the kubelet may list them before Register answers."""
        self._ours[name] = kubelet

    def registered(self, name: str) -> None:
        self._allowed_next.discard(name)

    def not_registered(self, name: str) -> None:
        self._ours.pop(name, None)

    def ended(self, name: str) -> None:
        """We no longer serve it: whoever has it from now on is another one."""
        if self._ours.pop(name, None) is not None:
            self._ended[name] = monotonic()
