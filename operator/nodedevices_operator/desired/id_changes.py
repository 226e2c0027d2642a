"""Names whose ids another `resources`, `sharing` or `partitions` may change on a node, and the pods that hold them.

Which ids there are is the agent's to say: `kubectl nodedevices policy dry-run` counts them by the agent's own code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from nodedevices_api import conditions
from nodedevices_api.defaults import Resolved
from nodedevices_api.sections import SharedResource, Sharing
from nodedevices_common.observing import would_observe
from nodedevices_common.text import some

from nodedevices_operator.desired.stored import understood
from nodedevices_operator.records.names import is_pod
from nodedevices_operator.records.objects import NodeDevicesRecord

SECTIONS = ("resources", "sharing", "partitions")  # that decide names and ids
MAX_NAMES = 5  # of resources, said
MAX_PODS = 5  # named
SHARES_OF_MEMORY = "nodedevices.io/gpu-memory"  # of sharing by memory, without rename
WHOLE = "none"  # Sharing.strategy


class IdChanges(Struct, frozen=True):
    """What may change on one node."""

    names: tuple[str, ...] = ()  # of resources
    pods: tuple[str, ...] = ()  # namespace/name of those that hold devices by these names
    pods_known: bool = True  # whether these are all

    def text(self) -> str:
        """Return the changes as a text for people; empty: there are none."""
        if not self.names:
            return ""
        ids = f"ids of {some(self.names, MAX_NAMES)}"
        if self.pods:
            others = "" if self.pods_known else " and perhaps others"
            return f"{ids}; held by {some(self.pods, MAX_PODS)}{others}: these keep what they hold until they end"
        return ids if self.pods_known else f"{ids}; which pods hold them is not known"


def id_changes(record: NodeDevicesRecord, now: Mapping[str, Any], then: Mapping[str, Any]) -> IdChanges:
    """`now` and `then` are the node's whole configuration without and with the change, in wire form."""
    present = {resource.name for resource in record.resources if resource.managed_by == "plugin"}
    after = understood(then)
    if not present or after.misfit or would_observe(now, then, observing=record.observes):
        return IdChanges()
    names = _names(understood(now).sections, after.sections, present)
    pods = {
        f"{holder.namespace}/{holder.pod}"
        for device in record.devices
        for part in device.parts
        for holder in part.holders
        if holder.resource in names & present and is_pod(holder.namespace, holder.pod)
    }
    known = record.condition(conditions.HOLDERS_KNOWN)
    complete = known is not None and known.status == "True" and not any(device.unlisted for device in record.devices)
    return IdChanges(tuple(sorted(names)), tuple(sorted(pods)), complete)


def _names(before: Resolved, after: Resolved, present: set[str]) -> set[str]:
    """Return the names of the rules of `sharing` that differ; where another section does, every one that is there."""
    renamed = before.resources != after.resources
    old, new = _shared(before.sharing), _shared(after.sharing)
    rules = [rule for rule in old if rule not in new] + [rule for rule in new if rule not in old]
    names = {name for *_, offered in rules if renamed or not present.isdisjoint(offered) for name in offered}
    if renamed or before.partitions != after.partitions:
        names |= present
    return names | ({rule.name for rule in after.resources.devices} if renamed else set())


def _shared(sharing: Sharing) -> list[tuple[SharedResource, str, tuple[str, ...]]]:
    """Return each rule with its strategy, and every name under which it has something offered."""
    if sharing.strategy == WHOLE:
        return []
    found = []
    for rule in sharing.resources:
        strategy = sharing.strategy_of(rule)
        usual = f"{rule.name}.shared" if sharing.rename_by_default else rule.name
        usual = SHARES_OF_MEMORY if strategy == "memory" and not sharing.rename_by_default else usual
        cores = () if rule.core_resource is None else (rule.core_resource,)
        found.append((rule, strategy, (rule.name, *cores, rule.rename or usual)))
    return found
