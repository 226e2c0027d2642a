"""Devices that people took out of service or brought back, for Events.

Who it was is what the entry says (`by`), else the field manager that wrote it: kubectl-patch, a GitOps controller. An
entry that names no device of the node takes nothing out of service; the agent's ConfigApplied names it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct
from nodedevices_api import RESTORED_BY
from nodedevices_common.times import seconds_between

from nodedevices_operator.desired.events import EventIdentity
from nodedevices_operator.desired.pods import may_have_expired
from nodedevices_operator.records.objects import NodeDevicesRecord, OutOfServiceRecord

REASON = "OutOfService"  # in the Event's name


class ServiceChange(Struct, frozen=True):
    what: EventIdentity
    text: str  # for people
    back: bool  # in service again


def out_of_service(record: NodeDevicesRecord, now: str) -> tuple[Mapping[str, OutOfServiceRecord], float | None]:
    """The entries of devices and partitions that hold now, by id, and the seconds until the next of them is over; None:
    none ends by itself."""
    listed = _listed(record)
    found: dict[str, OutOfServiceRecord] = {}
    waits: list[float] = []
    for each in record.out_of_service:
        left = seconds_between(now, each.until)
        if each.id not in listed or (left is not None and left <= 0):
            continue
        found[each.id] = each
        waits += [] if left is None else [left]
    return found, min(waits, default=None)


def changes(
    record: NodeDevicesRecord,
    known: Mapping[str, OutOfServiceRecord] | None,
    now: Mapping[str, OutOfServiceRecord],
    time: str,
) -> Iterator[ServiceChange]:
    """Yield what is new. `known` None: the operator has just started, or the object is new."""
    for each in now.values():
        before = (known or {}).get(each.id)
        if before is not None and before.reason == each.reason:
            continue
        if known is None and (not each.since or each.manager == RESTORED_BY or may_have_expired(each.since, time)):
            continue
        what = EventIdentity(record.name, each.id, REASON, each.since)
        yield ServiceChange(what, f"{_name(record, each.id)}: out of service: {each.reason}{_who(each)}", back=False)
    listed = _listed(record)  # one that is no longer listed has not come back
    for each in (known or {}).values():
        if each.id in listed and each.id not in now:
            over = f", until {each.until}" if each.until else ""
            text = f"{_name(record, each.id)}: in service again; was out of service for {each.reason}{_who(each)}{over}"
            yield ServiceChange(EventIdentity(record.name, each.id, REASON, each.since), text, back=True)


def _listed(record: NodeDevicesRecord) -> frozenset[str]:
    return frozenset(part.id for device in record.devices for part in device.parts)


def _who(entry: OutOfServiceRecord) -> str:
    if entry.by:
        return f", by {entry.by}"
    return f", written by {entry.manager}" if entry.manager not in {"", RESTORED_BY} else ""


def _name(record: NodeDevicesRecord, identity: str) -> str:
    name = next((device.name for device in record.devices for part in device.parts if part.id == identity), "")
    return f"{name} {identity}" if name else identity
