"""Events about a node's devices, on the objects where people look for them.

On the NodeDevices: a device that becomes Unhealthy, one that is Healthy again, one that people take out of service or
bring back, and one that the kubelet has given to two pods (AllocatedOnce). What happened long before the operator's
start was written then, and is not written again; the others have a name by which a second one is a 409
(desired/events.py). An object that was deleted comes back with its entries of `spec.unschedulable`: that is no news.
Who wrote an entry is what it says (`by`), else its field manager. An entry that names no device of the node takes
nothing out of service; the agent's ConfigApplied names it.

On the pods that held a device when a notice came (NodeDevices `devices[].notices`), which changed no state: a program's
own error, or one that was contained in it. The pod that failed with it wants to know whether it was its code or the
device.

On a pod that the node's kubelet rejected: why the node had no devices for it, as its NodeDevices shows it. Where the
kubelet finds no free id it never asks the agent, so the pod's status has the kubelet's words alone. What is said here
is made of the fields of NodeDevices, never of that message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from itertools import product

from msgspec import Struct
from nodedevices_api import RESTORED_BY, conditions as names
from nodedevices_common.text import clip, some
from nodedevices_common.times import seconds_between, zoned_time

from nodedevices_operator.desired.events import Event, ObjectRef
from nodedevices_operator.desired.pods import Holding, device_text, may_have_expired
from nodedevices_operator.records.names import is_pod
from nodedevices_operator.records.objects import (
    DeviceRecord,
    HolderRecord,
    NodeDevicesRecord,
    NoticeRecord,
    OutOfServiceRecord,
    RejectedPod,
    ResourceRecord,
    WithheldRecord,
)

OUT_OF_SERVICE = "OutOfService"  # in the Event's name


class Reported(Struct, frozen=True, kw_only=True):
    """What the Events of a NodeDevices have said so far."""

    faulty: Mapping[str, DeviceRecord]  # Unhealthy devices, by id
    out_of_service: Mapping[str, OutOfServiceRecord]  # by id
    doubled: tuple[str, str] | None  # message and time of AllocatedOnce, where it is False


def news(record: NodeDevicesRecord, reported: Reported | None, now: str) -> tuple[list[Event], Reported, float | None]:
    """Return the Events to write, what has been said with them, and the seconds until an entry of
    `spec.unschedulable` is over by itself; None: none is. `reported` None: the operator has just started, or the
    object is new."""
    about = ObjectRef.record(record)
    before = reported or Reported(faulty={}, out_of_service={}, doubled=None)
    states = {device.id: device.health.state for device in record.devices}
    faulty = {device.id: device for device in record.devices if device.health.state == "Unhealthy"}
    # Unknown and Degraded are neither the old fault nor well.
    open_faults = {id_: old for id_, old in before.faulty.items() if states.get(id_) in {"Unknown", "Degraded"}}
    out, wait = out_of_service(record, now)
    shown = record.condition(names.ALLOCATED_ONCE)
    doubled = (shown.message, shown.since) if shown is not None and shown.status == "False" else None
    found = [
        *_faults(record, about, faulty, before.faulty, now, started=reported is None),
        *(
            Event(
                names.EVENT_RECOVERED,
                about,
                f"{old.name} {id_} is healthy again; was {old.health.reason}",
                record.name,
                id_,
                old.health.reason,
                old.health.since,
            )
            for id_, old in before.faulty.items()
            if states.get(id_) == "Healthy"
        ),
        *_services(record, about, reported, out, now),
    ]
    if doubled is not None and doubled != before.doubled and (before.doubled or not may_have_expired(doubled[1], now)):
        kind = names.DOUBLE_ALLOCATION
        found.append(Event(kind, about, doubled[0], record.name, doubled[0], kind, doubled[1]))
    return found, Reported(faulty={**open_faults, **faulty}, out_of_service=out, doubled=doubled), wait


def _faults(
    record: NodeDevicesRecord,
    about: ObjectRef,
    faulty: Mapping[str, DeviceRecord],
    before: Mapping[str, DeviceRecord],
    now: str,
    *,
    started: bool,
) -> Iterator[Event]:
    for id_, device in faulty.items():
        health, old = device.health, before.get(id_)
        if old is not None and (old.health.reason, old.health.since) == (health.reason, health.since):
            continue
        if not (started and may_have_expired(health.since, now)):
            yield Event(names.EVENT_FAULT, about, device_text(device), record.name, id_, health.reason, health.since)


def out_of_service(record: NodeDevicesRecord, now: str) -> tuple[dict[str, OutOfServiceRecord], float | None]:
    """Return the entries of devices and partitions that hold now, by id, and the seconds until the next of them is
    over; None: none ends by itself."""
    listed = _names(record)
    left = {entry: seconds_between(now, entry.until) for entry in record.out_of_service if entry.id in listed}
    found = {entry.id: entry for entry, seconds in left.items() if seconds is None or seconds > 0}
    return found, min((seconds for seconds in left.values() if seconds is not None and seconds > 0), default=None)


def _services(
    record: NodeDevicesRecord,
    about: ObjectRef,
    reported: Reported | None,
    out: Mapping[str, OutOfServiceRecord],
    now: str,
) -> Iterator[Event]:
    before = {} if reported is None else reported.out_of_service
    listed = _names(record)  # one that is no longer listed has not come back
    for entry in out.values():
        old = before.get(entry.id)
        if old is not None and old.reason == entry.reason:
            continue
        if reported is None and (not entry.since or entry.manager == RESTORED_BY or may_have_expired(entry.since, now)):
            continue
        text = f"{listed[entry.id]}: out of service: {entry.reason}{_who(entry)}"
        yield Event(names.EVENT_OUT_OF_SERVICE, about, text, record.name, entry.id, OUT_OF_SERVICE, entry.since)
    for entry in before.values():
        if entry.id in listed and entry.id not in out:
            over = f", until {entry.until}" if entry.until else ""
            was = f"was out of service for {entry.reason}{_who(entry)}{over}"
            text = f"{listed[entry.id]}: in service again; {was}"
            yield Event(names.EVENT_IN_SERVICE, about, text, record.name, entry.id, OUT_OF_SERVICE, entry.since)


def _names(record: NodeDevicesRecord) -> dict[str, str]:
    """Return what each device or partition is called, by id: `gpu-3 GPU-8d0a...`."""
    return {part.id: f"{device.name} {part.id}".strip() for device in record.devices for part in device.parts}


def _who(entry: OutOfServiceRecord) -> str:
    if entry.by:
        return f", by {entry.by}"
    return f", written by {entry.manager}" if entry.manager not in {"", RESTORED_BY} else ""


CLOCKS = timedelta(seconds=1)  # a notice's time has whole seconds, a holder's has microseconds


class Noticed(Struct, frozen=True):
    """One notice, and one container that had the device then."""

    notice: NoticeRecord
    holding: Holding

    @property
    def key(self) -> tuple[HolderRecord, str, str, str]:
        """One Event for each: repeats of the notice give no other."""
        return (self.holding.holder, self.holding.device, self.notice.code, self.notice.since)

    @property
    def text(self) -> str:
        """`gpu-3 GPU-8d0a...: Xid31: GPU memory page fault (XID 31); restart the application. ...`, for people."""
        where = f"{self.holding.device_name} {self.holding.device}"
        times = "" if self.notice.count == 1 else f", {self.notice.count} times since {self.notice.since}"
        what = f"{where}: {self.notice.code}{times}: {self.notice.message.rstrip('.')}"
        return f"{what}. The device stays in service. This node's NodeDevices counts further occurrences."


def noticed(record: NodeDevicesRecord) -> Iterator[Noticed]:
    """Every notice with every container that had the device, a partition of it, or the partition that the notice is
    about, when it came last. An agent's claim: a name that no pod can have is ignored."""
    for device in record.devices:
        for about in device.parts:
            concerned = device.parts if about.id == device.id else (about,)
            for notice, part in product(about.notices, concerned):
                for holder in part.holders:
                    if is_pod(holder.namespace, holder.pod) and _before(holder.since, notice.time):
                        yield Noticed(notice, Holding.for_part(device, part, holder))


def _before(since: str, time: str) -> bool:
    ahead = seconds_between(time, since)
    return ahead is not None and ahead <= CLOCKS.total_seconds()


# --- rejected pods ---------------------------------------------------------------------------------------------------
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
