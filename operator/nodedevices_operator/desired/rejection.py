"""Why a node had no devices for a pod that its kubelet rejected, as its NodeDevices shows it. Pure.

Where the kubelet finds no free id it never asks the agent, so the pod's status has the kubelet's words alone. What is
said here is made of the fields of NodeDevices, never of that message. The status does not say yet which resource a
device would be offered under, so the devices that are not offered are the node's, whatever they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from nodedevices_api import conditions as names
from nodedevices_common.text import clip

from nodedevices_operator.records.objects import DeviceRecord, NodeDevicesRecord, ResourceRecord
from nodedevices_operator.records.rejected import RejectedPod

SETTLE_SECONDS = 5.0  # the agent's report of who holds what comes within these
NEWS_SECONDS = 600.0  # after which the status says nothing about that moment; an Event lives longer than this
MAX_RESOURCES = 4  # of one pod that are told
MAX_DEVICES = 8  # that are named
MAX_REASON = 100  # characters of a device's or a condition's own words


def age(pod: RejectedPod, now: float) -> float | None:
    """Seconds since the kubelet took the pod up; `now` is Unix time. None: the pod does not say."""
    try:
        since = datetime.fromisoformat(pod.since)
    except ValueError:
        return None
    return now - since.timestamp() if since.tzinfo is not None else None


def rejection_text(pod: RejectedPod, record: NodeDevicesRecord) -> str | None:
    """One sentence for people. None: the pod requests nothing that this NodeDevices lists."""
    listed = {resource.name: resource for resource in record.resources}
    asked = [(count, listed[name]) for name, count in pod.requests if name in listed]
    if not asked:
        return None
    counts = " and ".join(_counts(count, resource) for count, resource in asked[:MAX_RESOURCES])
    why = "; ".join(_why(record, [resource for _, resource in asked]))
    if not why and all(it.free is not None and it.free >= count for count, it in asked):
        why = "that would suffice now, so what was in the way is over, or is in the message of the pod's status"
    return f"node {record.name} rejected this pod, which requests {counts}{'; ' if why else ''}{why}."


def _counts(count: int, resource: ResourceRecord) -> str:
    free = "" if resource.free is None else f", {resource.free} free"
    return (
        f"{count} {resource.name} (the node has {resource.capacity}: {resource.healthy} offered, "
        f"{resource.allocated} held{free})"
    )


def _why(record: NodeDevicesRecord, resources: list[ResourceRecord]) -> Iterator[str]:
    """Why some are not offered."""
    ready, applied = record.condition(names.READY), record.condition(names.CONFIG_APPLIED)
    stale = record.condition(names.STALE)
    for condition, bad in ((stale, "True"), (ready, "False")):
        if condition is not None and condition.status == bad:
            yield f"{condition.type} is {bad} ({_because(condition.reason, condition.message)})"
    if applied is not None and applied.status == "False" and applied.reason == names.WAITING_FOR_HOLDERS:
        yield f"some wait for pods that hold them in another shape ({_because(applied.reason, applied.message)})"
    kept = list(_kept_back(record)) if any(it.healthy < it.capacity or not it.capacity for it in resources) else []
    if kept:
        more = f" and {len(kept) - MAX_DEVICES} more" if len(kept) > MAX_DEVICES else ""
        yield f"not offered of this node's devices: {', '.join(kept[:MAX_DEVICES])}{more}"


def _kept_back(record: NodeDevicesRecord) -> Iterator[str]:
    """The devices, each with why."""
    out = {each.id: each for each in record.out_of_service}
    for device in record.devices:
        entry = next((out[part.id] for part in device.parts if part.id in out), None)
        if device.unschedulable or (entry is not None and entry.id != device.id):
            name = device.name if entry is None or entry.id == device.id else f"{entry.id} of {device.name}"
            yield f"{name} ({_because('out of service', '' if entry is None else entry.reason)})"
        elif device.health.state in {"Unhealthy", "Unknown"}:
            yield f"{device.name} ({_because(device.health.state, device.health.reason)})"
        elif (part := _unwell(device)) is not None:
            yield part
        elif device.excluded:
            yield f"{device.name} (excluded by resources.exclude)"


def _unwell(device: DeviceRecord) -> str | None:
    """The first partition of it that is not well, while the device is."""
    for part in device.parts[1:]:
        if part.health.state in {"Unhealthy", "Unknown"}:
            return f"{part.id} of {device.name} ({_because(part.health.state, part.health.reason)})"
    return None


def _because(what: str, words: str) -> str:
    return f"{what}: {clip(words, MAX_REASON)}" if words else what
