"""The sharing modes that this agent knows, one line each."""

from __future__ import annotations

from collections.abc import Callable

from nodedevices_api.sections import STRATEGIES, known_strategies

from nodedevices_plugin.model import OfferedResource, PlanError
from nodedevices_plugin.sharing import by_nature, none
from nodedevices_plugin.sharing.base import AsksNode, HelperKind, Settings, SharingMode
from nodedevices_plugin.sharing.memory.mode import Memory
from nodedevices_plugin.sharing.mps import Mps
from nodedevices_plugin.sharing.none import NoSharing
from nodedevices_plugin.sharing.time_slicing import TimeSlicing

_MODES: dict[str, SharingMode] = {}
_BY_NATURE = by_nature.ByNature()  # no value of sharing.strategy


def add(mode: SharingMode) -> Callable[[], None]:
    """From now on this agent knows the mode. Returns what takes it back."""
    _MODES[mode.name] = mode
    known_strategies.add(mode.name)

    def forget() -> None:
        del _MODES[mode.name]
        if mode.name not in STRATEGIES:
            known_strategies.discard(mode.name)

    return forget


add(NoSharing())
add(TimeSlicing())
add(Mps())
add(Memory())


def by_strategy(strategy: str) -> SharingMode:
    """The mode that `sharing.strategy` names. Raises PlanError for one that this agent does not know."""
    mode = _MODES.get(strategy)
    if mode is None:
        *others, last = _MODES
        raise PlanError("sharing.strategy", strategy, f"this agent knows {', '.join(others)} and {last}")
    return mode


def of(resource: OfferedResource) -> SharingMode:
    """The mode by which a resource of our plan is shared."""
    mode = resource.sharing.mode
    return _BY_NATURE if mode == by_nature.NAME else by_strategy(mode)


def refusal(resource: OfferedResource, settings: Settings) -> PlanError | None:
    """Why this node does not give containers what they are to get for shares of the resource."""
    mode = of(resource)
    return mode.refusal(resource, settings) if isinstance(mode, AsksNode) else None


def helper_kind(resource: OfferedResource) -> HelperKind | None:
    """What the shares of this resource need beside the kubelet; None: nothing, or nothing that we know of."""
    mode = _MODES.get(runs(resource))
    return mode.helper if mode is not None else None


def runs(resource: OfferedResource) -> str:
    """The name of the mode whose helper, where it has one, runs the processes that use this resource: what enforces
    its limits, or else the mode by which it is shared."""
    sharing = resource.sharing
    return sharing.mode if sharing.enforcement == none.NAME else sharing.enforcement


def helper_kinds() -> tuple[HelperKind, ...]:
    return tuple(mode.helper for mode in _MODES.values() if mode.helper is not None)
