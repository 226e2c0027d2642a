"""May a changed configuration take effect now? Only when nobody holds what it changes.

The kubelet keeps an allocation by resource name and id; taking either away under a running pod makes it show wrong
health, and a kubelet restart would reject the pod. So a change of a resource's ids or name by configuration waits as a
whole. So does one to or from MPS, where ids may stay: a GPU in exclusive mode takes no process of a pod that knows no
daemon, and a daemon's end is its clients' end. Its limits follow from the number of shares, and so from the ids.
Devices that come and go by themselves never wait: compare two plans of the same inventory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nodedevices_plugin.model import Holder, HoldersState, Holdings, OfferedResource, Plan, RecentAllocate

RECENT_SECONDS = 120.0  # an Allocate not older than this may not be in PodResources yet
_SHOWN = 5
_MESSAGE_LIMIT = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeDecision:
    """Whether the wanted plan may replace the current one; if not, whom it waits for, in words for ConfigApplied."""

    apply: bool
    waiting_for: tuple[Holder, ...] = ()
    message: str = ""


def decide_change(
    current: Plan, wanted: Plan, holdings: Holdings, recent: Sequence[RecentAllocate], *, monotonic: float
) -> ChangeDecision:
    """`current` and `wanted` are the plans of the old and the new configuration for the same inventory and verdicts;
    `monotonic`: now, in seconds of time.monotonic()."""
    changed = changed_ids(current, wanted)
    if not changed:
        return ChangeDecision(apply=True)
    names = ", ".join(_named(name, current, wanted) for name in sorted(changed))
    if holdings.state is not HoldersState.SYNCED:
        why = f"{holdings.state.value}: {holdings.message}" if holdings.message else holdings.state.value
        return wait((), f"the change of {names} waits: which pods hold devices is not known ({why})")
    holders = tuple(each for each in holdings.holders if _holds(each.resource, each.ids, changed))
    if holders:
        return wait(holders, f"the change of {names} waits until these pods have ended: {waiting_for(holders)}")
    listed = {(each.resource, one) for each in holdings.holders for one in each.ids}
    for each in recent:
        young = monotonic - each.monotonic < RECENT_SECONDS
        if (
            young
            and _holds(each.resource, each.ids, changed)
            and not {(each.resource, one) for one in each.ids} <= listed
        ):
            text = f"{each.resource} was allocated less than {RECENT_SECONDS:.0f} s ago, and its pod is not listed yet"
            return wait((), f"the change of {names} waits: {text}")
    return ChangeDecision(apply=True)


def nobody_holds(holdings: Holdings, recent: Sequence[RecentAllocate], *, monotonic: float) -> bool:
    """Whether it is known that no pod of this node has a device."""
    young = any(monotonic - each.monotonic < RECENT_SECONDS for each in recent)
    return holdings.state is HoldersState.SYNCED and not holdings.holders and not young


def changed_ids(current: Plan, wanted: Plan) -> dict[str, frozenset[str]]:
    """Names of the current resources that would go, have other ids, or come to MPS or leave it -> the ids that they
    have now."""
    new = {resource.name: _held_as(resource) for resource in wanted.resources}
    old = {resource.name: _held_as(resource) for resource in current.resources}
    return {name: held[0] for name, held in old.items() if new.get(name) != held}


def _held_as(resource: OfferedResource) -> tuple[frozenset[str], bool]:
    """What a pod that holds it depends on: the ids, and whether an MPS daemon runs its processes."""
    return frozenset(each.id for each in resource.ids), resource.sharing == "mps"


def _named(name: str, current: Plan, wanted: Plan) -> str:
    """With what would be another way to share, where the ids do not tell."""
    [before] = (each for each in current.resources if each.name == name)
    after = next((each for each in wanted.resources if each.name == name), None)
    if after is None or _held_as(after)[0] != _held_as(before)[0]:
        return name
    return f"{name} from {before.sharing} to {after.sharing}"


def _holds(resource: str | None, ids: Sequence[str], changed: Mapping[str, frozenset[str]]) -> bool:
    return resource is not None and resource in changed and bool(ids)


def waiting_for(holders: Sequence[Holder]) -> str:
    """Their pods, the first few by name."""
    pods = list(dict.fromkeys(f"{each.namespace}/{each.pod}" for each in holders))
    return ", ".join(pods[:_SHOWN]) + (f" and {len(pods) - _SHOWN} more" if len(pods) > _SHOWN else "")


def wait(holders: tuple[Holder, ...], message: str) -> ChangeDecision:
    """Not now; the message is cut to what a condition carries."""
    text = message if len(message) <= _MESSAGE_LIMIT else message[: _MESSAGE_LIMIT - 1] + "…"
    return ChangeDecision(apply=False, waiting_for=holders, message=text)
