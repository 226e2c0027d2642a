"""Changes that another section `resources`, `sharing` or `partitions` would make to a node's names and ids, for people.

Which ids there are is the agent's to say. Counted is only where the status and the sections leave no doubt: where the
same reckoning, with the sections in effect, gives what the node shows now. Elsewhere the names that may change are
said, without a number. Whether the agent would refuse the change is not foreseen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from nodedevices_api import conditions as names
from nodedevices_api.defaults import Resolved
from nodedevices_api.sections import Resources, SharedResource, Sharing
from nodedevices_common.observing import would_observe
from nodedevices_common.text import some

from nodedevices_operator.desired.selection import Near, near_devices, selects
from nodedevices_operator.desired.stored import understood
from nodedevices_operator.records.names import is_pod
from nodedevices_operator.records.objects import DeviceRecord, NodeDevicesRecord, ResourceRecord

SECTIONS = ("resources", "sharing", "partitions")
MAX_NAMES = 5  # of resources, said
MAX_PODS = 5  # named
SHARES_OF_MEMORY = "nodedevices.io/gpu-memory"  # of sharing by memory, without rename
WHOLE = "none"  # ResourceRecord.sharing

BaseCounts = dict[str, int]  # devices or partitions, by the name that they have before sharing
NOT_KNOWN: tuple[None, frozenset[str]] = (None, frozenset())


@dataclass(frozen=True, slots=True)
class IdChanges:
    """Changes of one node's ids. `counted`: a line each; `uncounted`: names that may change in a way that is not known
    here."""

    counted: tuple[str, ...] = ()
    uncounted: tuple[str, ...] = ()
    pods: tuple[str, ...] = ()  # namespace/name of those that hold what would change
    pods_known: bool = True  # whether these are all

    def text(self) -> str:
        """Return the changes as a text for people; empty: there are none."""
        parts = list(self.counted[:MAX_NAMES])
        if (more := len(self.counted) - MAX_NAMES) > 0:
            parts.append(f"and {more} more name{'s' if more > 1 else ''}")
        if self.uncounted:
            parts.append(f"ids that may change, how many is not known before: {some(self.uncounted, MAX_NAMES)}")
        if self.pods:
            others = "" if self.pods_known else " and perhaps others"
            parts.append(f"held by {some(self.pods, MAX_PODS)}{others}: these keep what they hold until they end")
        elif parts and not self.pods_known:
            parts.append("which pods hold them is not known")
        return "; ".join(parts)


def id_changes(record: NodeDevicesRecord, now: Mapping[str, Any], then: Mapping[str, Any]) -> IdChanges:
    """`now` and `then` are the node's whole configuration without and with the change, in wire form."""
    changed = {name for name in SECTIONS if now.get(name) != then.get(name)}
    present = {it.name: it for it in record.resources if it.managed_by == "plugin"}
    read = understood(then)
    if not changed or not present or read.misfit or would_observe(now, then, observing=record.observes):
        return IdChanges()
    before = understood(now)
    shown = _in_effect(record, now) and not (before.partly or before.misfit or read.partly)
    if not shown or "partitions" in changed:
        return _uncounted(record, present, read.sections, changed)
    return _reckoned(record, present, before.sections, read.sections, changed, own="resources" not in now)


def _in_effect(record: NodeDevicesRecord, now: Mapping[str, Any]) -> bool:
    """True when the status shows what these sections lead to: not before the agent has applied them, all of them."""
    applied = record.condition(names.CONFIG_APPLIED)
    config = record.config or {}
    return (
        bool(record.config_hash)
        and record.applied_hash == record.config_hash
        and (applied is None or applied.status == "True")
        and all(config.get(name) == now.get(name) for name in SECTIONS)
    )


def _uncounted(
    record: NodeDevicesRecord, present: Mapping[str, ResourceRecord], then: Resolved, changed: set[str]
) -> IdChanges:
    """Every name that is there, and every one that the changed sections have."""
    named = set(present)
    if "resources" in changed:
        named |= {rule.name for rule in then.resources.devices}
    if "sharing" in changed:
        named |= {name for rule in then.sharing.resources for name in _names(then.sharing, rule)}
    return _with_pods(record, [], sorted(named), {(device.id, name) for device in record.devices for name in present})


def _reckoned(
    record: NodeDevicesRecord,
    present: Mapping[str, ResourceRecord],
    before: Resolved,
    after: Resolved,
    changed: set[str],
    *,
    own: bool,
) -> IdChanges:
    counts = _base_counts(present, before.sharing)
    moved: frozenset[str] = frozenset()  # devices
    then = counts
    if counts is not None and "resources" in changed:
        then, moved = _regrouped(record, before.resources, after.resources, counts, own=own)
    if counts is None or then is None:
        return _uncounted(record, present, after, changed)
    sharing = after.sharing if "sharing" in changed else before.sharing
    counted: dict[str, tuple[int, str]] = {}
    for base, number in then.items():
        rule = _rule(sharing, base)
        name, offered = base, (number, "")
        if rule is not None:
            if (each := _each(rule)) is None:
                return _uncounted(record, present, after, changed)
            name, offered = _names(sharing, rule)[-1], (number * each, f"{sharing.strategy_of(rule)}, {each} each")
        if name in counted:
            return _uncounted(record, present, after, changed)
        counted[name] = offered
    shown = {name: (it.capacity, _shares(it)) for name, it in present.items()}
    nothing = (0, "")
    lines = []
    for name in sorted(shown.keys() | counted.keys()):
        (was, shares_now), (will, shares) = shown.get(name, nothing), counted.get(name, nothing)
        if (was, shares_now) != (will, shares):
            lines.append(f"{name}: {was} -> {will} ids" + (f" ({shares})" if shares else ""))
    if moved and not lines:
        lines.append("as many ids as now, of other devices")
    again = {
        name for base in counts for name in [_offered(before.sharing, base)] if _differs(before.sharing, sharing, base)
    }
    held = {(device.id, name) for device in record.devices for name in present if device.id in moved or name in again}
    return _with_pods(record, lines, (), held)


def _with_pods(
    record: NodeDevicesRecord, lines: Sequence[str], uncounted: Sequence[str], held: set[tuple[str, str]]
) -> IdChanges:
    """`held`: each a device, and a resource of which the ids that it has would change."""
    found = {
        f"{holder.namespace}/{holder.pod}"
        for device in record.devices
        for part in device.parts
        for holder in part.holders
        if (device.id, holder.resource) in held and is_pod(holder.namespace, holder.pod)
    }
    known = record.condition(names.HOLDERS_KNOWN)
    complete = known is not None and known.status == "True" and not any(device.unlisted for device in record.devices)
    return IdChanges(tuple(lines), tuple(uncounted), tuple(sorted(found)), complete)


# --- sharing ---------------------------------------------------------------------------------------------------------
def _rule(sharing: Sharing, name: str) -> SharedResource | None:
    if sharing.strategy == WHOLE:
        return None
    return next((rule for rule in sharing.resources if rule.name == name), None)


def _offered(sharing: Sharing, name: str) -> str:
    """The name under which all its devices are offered, shared or not."""
    rule = _rule(sharing, name)
    return name if rule is None else _names(sharing, rule)[-1]


def _differs(one: Sharing, other: Sharing, name: str) -> bool:
    """True when the ids of a resource are others."""

    def meaning(sharing: Sharing) -> object:
        rule = _rule(sharing, name)
        return None if rule is None else (rule.replicas, sharing.strategy_of(rule), _offered(sharing, name))

    return meaning(one) != meaning(other)


def _names(sharing: Sharing, rule: SharedResource) -> tuple[str, ...]:
    """Every name under which a rule has something offered besides its own; that of the shares last."""
    by_memory = sharing.strategy_of(rule) == "memory"
    usual = f"{rule.name}.shared" if sharing.rename_by_default else SHARES_OF_MEMORY if by_memory else rule.name
    return (*(() if rule.core_resource is None else (rule.core_resource,)), rule.rename or usual)


def _each(rule: SharedResource) -> int | None:
    """Into how many it shares each device; None: not every device, or not each into as many."""
    return rule.replicas if rule.match is None and rule.devices is None else None


def _shares(resource: ResourceRecord) -> str:
    if resource.sharing == WHOLE:
        return ""
    return f"{resource.sharing}, {resource.replicas} each" if resource.replicas else resource.sharing


def _base_counts(present: Mapping[str, ResourceRecord], sharing: Sharing) -> BaseCounts | None:
    """Return how many devices or partitions each name has before sharing, by what is offered now. None: not known."""
    bases: dict[str, SharedResource] = {}
    for rule in () if sharing.strategy == WHOLE else sharing.resources:
        if not present.keys().isdisjoint(_names(sharing, rule)):
            bases[_offered(sharing, rule.name)] = rule
    found: BaseCounts = {}
    for name, it in present.items():
        applied = bases.get(name)
        if applied is None:
            base, number, exact = name, it.capacity, it.sharing == WHOLE
        elif (each := _each(applied)) is not None:
            base, number = applied.name, it.capacity // each
            exact = number * each == it.capacity and _shares(it) == f"{sharing.strategy_of(applied)}, {each} each"
        else:
            return None
        if not exact or base in found:
            return None
        found[base] = number
    return found


# --- names -----------------------------------------------------------------------------------------------------------
def _regrouped(
    record: NodeDevicesRecord, before: Resources, after: Resources, counts: BaseCounts, *, own: bool
) -> tuple[BaseCounts | None, frozenset[str]]:
    """Return how many devices each name would have, and which devices would have another or none. None: not known,
    since partitions have names by rules of their own, and so have devices of other types. `own`: no policy sets
    `resources` now, so the node's own settings may."""
    vendors = {device.model.vendor for device in record.devices}
    if len(vendors) != 1 or any(device.type != "gpu" or len(device.parts) > 1 for device in record.devices):
        return NOT_KNOWN
    near = near_devices(record.devices)
    was = {it.id: "" if it.excluded else _named(it, before, near) for it in record.devices}
    will = {
        it.id: "" if any(fnmatchcase(it.id, each) for each in after.exclude) else _named(it, after, near)
        for it in record.devices
    }
    if None in was.values():
        usual = counts.keys() - set(was.values())
        name = usual.pop() if len(usual) == 1 else ""
        if not name or (own and name != f"{vendors.pop()}.com/gpu"):
            return NOT_KNOWN  # the node's own settings may have named them
        was = {device: name if it is None else it for device, it in was.items()}
        will = {device: name if it is None else it for device, it in will.items()}
    if None in will.values() or dict(Counter(name for name in was.values() if name)) != counts:
        return NOT_KNOWN
    then: BaseCounts = dict(Counter(name for name in will.values() if name))
    return then, frozenset(device for device in was if was[device] != will[device])


def _named(device: DeviceRecord, resources: Resources, near: Near) -> str | None:
    """The name that a rule gives it; None: it keeps its vendor's."""
    for rule in resources.devices:
        if rule.match.profile is None and selects(rule.match, device, near):
            return rule.name
    return None
