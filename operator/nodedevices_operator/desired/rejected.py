"""Pods that the node's kubelet rejected: why the node had no devices for one, as its NodeDevices shows it.

Where the kubelet finds no free id it never asks the agent, so the pod's status has the kubelet's words alone. What is
said here is made of the fields of NodeDevices, never of that message.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodedevices_api import conditions as names
from nodedevices_common.text import clip, some
from nodedevices_common.times import zoned_time

from nodedevices_operator.records.objects import NodeDevicesRecord, ResourceRecord, WithheldRecord
from nodedevices_operator.records.pods import RejectedPod

SETTLE_SECONDS = 5.0  # the agent's report of who holds what comes within these
NEWS_SECONDS = 600.0  # after which the status says nothing about that moment; an Event lives longer than this
MAX_RESOURCES = 4  # of one pod that are named
MAX_DEVICES = 8  # that are named
MAX_PODS = 4  # that are waited for
MAX_REASON = 100  # characters of a device's or a condition's own words


def age(pod: RejectedPod, now: float) -> float | None:
    """Seconds since the kubelet took the pod up; `now` is Unix time. None: the pod does not say."""
    since = zoned_time(pod.since)
    return None if since is None else now - since.timestamp()


def rejection_text(pod: RejectedPod, record: NodeDevicesRecord) -> str | None:
    """One sentence for people. None: the pod requests nothing that this NodeDevices lists."""
    listed = {resource.name: resource for resource in record.resources}
    asked = [(count, listed[name]) for name, count in pod.requests if name in listed]
    if not asked:
        return None
    counts = " and ".join(_counts(count, resource) for count, resource in asked[:MAX_RESOURCES])
    why = "; ".join(_why(record, [resource for _, resource in asked]))
    if not why and all(it.free is not None and it.free >= count for count, it in asked):
        why = "the node has enough now: the cause is over, or the message of the pod's status names it"
    return f"node {record.name} rejected this pod, which requests {counts}{'; ' if why else ''}{why}."


def _counts(count: int, resource: ResourceRecord) -> str:
    free = "" if resource.free is None else f", {resource.free} free"
    return (
        f"{count} {resource.name} (the node has {resource.capacity}: {resource.healthy} offered, "
        f"{resource.allocated} held{free})"
    )


def _why(record: NodeDevicesRecord, resources: list[ResourceRecord]) -> Iterator[str]:
    """Yield why some are not offered."""
    for condition, bad in ((record.condition(names.STALE), "True"), (record.condition(names.READY), "False")):
        if condition is not None and condition.status == bad:
            yield f"{condition.type} is {bad} ({_because(condition.reason, condition.message)})"
    for resource in resources:
        if resource.withheld:
            yield f"devices of {resource.name} that are not offered: {', '.join(map(_withheld, resource.withheld))}"
    if excluded := [device.name for device in record.devices if device.excluded]:
        yield f"excluded by resources.exclude: {some(excluded, MAX_DEVICES)}"


def _withheld(withheld: WithheldRecord) -> str:
    """Return which ids of one reason are withheld, and why."""
    more = withheld.count - len(withheld.devices)
    which = " ".join(withheld.devices[:MAX_DEVICES]) + (f" and {more} more ids" if more > 0 else "")
    pods = f"; waits for {', '.join(withheld.waits_for[:MAX_PODS])}" if withheld.waits_for else ""
    return f"{which if withheld.devices else withheld.count} ({_because(withheld.reason, withheld.message)}{pods})"


def _because(what: str, words: str) -> str:
    return f"{what}: {clip(words, MAX_REASON)}" if words else what
