"""Extended resources that the operator owns on a Node: how many, and which it must not touch.

A resource name has one owner. A name that a NodeDevices lists as `managedBy: plugin`, or that the Node showed above 0
without us, is refused and shown. No value is written that is lower than what pods on the node request already: a
kubelet that restarts with less than its running pods request kills them (`OutOf<name>`). That holds also where the Node
shows no value: its policy may have been deleted and created again. Taking a key away altogether is safe.
An Unknown device that the agent still offers counts as healthy, as in `resources[].healthy`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from nodedevices_api import conditions as names
from nodedevices_api.sections import CapacityEntry, DeviceMatch
from nodedevices_common.raw import mapping

from nodedevices_operator.desired.conditions import ConditionVerdict
from nodedevices_operator.records.kinds import pod_requests
from nodedevices_operator.records.objects import DeviceRecord, NodeDevicesRecord, NodeRecord, ResourceRecord

EVERY_GPU = DeviceMatch(type="gpu")
FINISHED = frozenset({"Succeeded", "Failed"})
_WITHDRAWN = frozenset({names.DRIVER_NOT_LOADED, names.MISSING})


class CapacityPlan(Struct, frozen=True):
    """`values` are what the Node shall show from us: exactly these keys, no others of ours."""

    values: Mapping[str, int]
    verdict: ConditionVerdict | None  # None: no policy gives the node a capacity
    needs_requests: bool  # a value would be written: call again with what the node's pods request
    held_back: Mapping[str, int]  # name -> the lower value that pods forbid


def plan_capacity(
    entries: Sequence[CapacityEntry],
    record: NodeDevicesRecord,
    node: NodeRecord,
    *,
    ours: frozenset[str],
    requested: Mapping[str, int] | None = None,
) -> CapacityPlan:
    """The desired capacity. `ours` are names that we are known to have set; `requested` is None until it is needed."""
    served = {resource.name: resource for resource in record.resources if resource.served}
    values: dict[str, int] = {}
    refused: list[str] = []
    held_back: dict[str, int] = {}
    needs_requests = False
    for entry in entries:
        shown = node.capacity.get(entry.name)
        if entry.name in served:
            by = "DRA" if served[entry.name].managed_by == "dra" else "the device plugin"
            refused.append(f"{entry.name} is served by {by} on this node")
            continue
        if shown and entry.name not in ours:
            refused.append(f"{entry.name} is already {shown} on the Node, set by another writer")
            continue
        wanted = amount(entry, record.devices, record.resources)
        floor = (requested or {}).get(entry.name, 0)
        if shown != wanted and requested is None:
            needs_requests = True
        if floor > wanted:
            held_back[entry.name] = wanted
        values[entry.name] = max(wanted, floor)
    verdict: ConditionVerdict | None = None
    if refused:
        advice = "a resource has one owner: choose another name in the policy's capacity"
        verdict = "False", names.CONFLICT, "; ".join([*refused, advice])
    elif held_back:
        kept = (
            f"{name}: {lower} desired, {values[name]} kept because pods on the node request that many"
            for name, lower in sorted(held_back.items())
        )
        verdict = "False", names.PENDING, "; ".join(kept)
    elif entries:
        verdict = "True", names.IN_SYNC, ", ".join(sorted(values))
    return CapacityPlan(values, verdict, needs_requests, held_back)


def amount(entry: CapacityEntry, devices: Sequence[DeviceRecord], resources: Sequence[ResourceRecord]) -> int:
    """Return how many of it the node has, whatever its pods request."""
    if entry.per_node is not None:
        return entry.per_node
    match = entry.match or EVERY_GPU
    counted = [device for device in offered(devices, resources) if device.selected_by(match)]
    if entry.per_device is not None:
        return entry.per_device * len(counted)
    return sum(device.model.memory_mib for device in counted)


def offered(devices: Sequence[DeviceRecord], resources: Sequence[ResourceRecord]) -> list[DeviceRecord]:
    """The devices that are reported Healthy to the kubelet.

    None that was taken out of service by hand, or that resources.exclude names. Healthy and Degraded ones are. Unknown
    ones are until the agent withdraws them, which shows in `healthy`: the plugin's resources then count no more ids
    than the well devices have. Where no plugin of ours serves, silence of the probe is not yet a withdrawal, an
    unloaded driver or a probe that lists nothing is.
    """
    in_service = [device for device in devices if not (device.unschedulable or device.excluded)]
    well = [device for device in in_service if device.health.state in {"Healthy", "Degraded"}]
    unknown = [device for device in in_service if device.health.state == "Unknown"]
    if not unknown:
        return well
    served = {resource.name: resource for resource in resources if resource.served}
    listed = [device for device in devices if not device.excluded]
    kept = [
        device
        for device in unknown
        if (_still_offered(device, listed, well, served) if served else device.health.reason not in _WITHDRAWN)
    ]
    return [device for device in devices if device in well or device in kept]


def _still_offered(
    device: DeviceRecord,
    devices: Sequence[DeviceRecord],
    well: Sequence[DeviceRecord],
    served: Mapping[str, ResourceRecord],
) -> bool:
    """True when the resource of an Unknown device has more healthy ids than the well devices account for. Devices that
    say which resource their shares are of are counted by shares, the others together: one may have fifty shares and
    another none."""
    if device.shares_of in served:
        own = sum(it.shares for it in well if it.shares_of == device.shares_of)
        return served[device.shares_of].healthy > own
    shared = {it.shares_of for it in devices} & served.keys()
    rest = [resource for name, resource in served.items() if name not in shared]
    healthy, total = sum(it.healthy for it in rest), sum(it.capacity for it in rest)
    others = [it for it in devices if it.shares_of not in shared]
    return healthy * len(others) > total * sum(it.shares_of not in shared for it in well)


def requests(pods: Iterable[Mapping[str, Any]], resource_names: Iterable[str]) -> dict[str, int]:
    """Return what the pods of one node request of each resource: for a pod, the most that it needs at any one time."""
    sums = dict.fromkeys(resource_names, 0)
    for pod in pods:
        if mapping(pod.get("status")).get("phase") in FINISHED:
            continue
        for name, count in pod_requests(mapping(pod.get("spec"))).items():
            if name in sums:
                sums[name] += count
    return sums
