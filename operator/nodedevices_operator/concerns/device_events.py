"""Events on the NodeDevices: a device that becomes Unhealthy, and one that is Healthy again.

A fault of long before the operator's start was written then, and is not written again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from nodedevices_operator.concerns.port import Info, Outcome, View
from nodedevices_operator.concerns.tools import Tools
from nodedevices_operator.desired import events
from nodedevices_operator.desired.pods import device_text, may_have_expired
from nodedevices_operator.records.objects import DeviceRecord, NodeDevicesRecord

FaultyDevices = Mapping[str, DeviceRecord]  # Unhealthy devices, by id


class DeviceEventStep(Struct, frozen=True):
    """An Event, if there is one to be written, and the device that is known as faulty afterwards; None: it is not."""

    identity: str
    event: Mapping[str, Any] | None
    known: DeviceRecord | None


class KnownFaults(Struct, frozen=True):
    faults: FaultyDevices | None  # those of which Events were written; None: we have just started


class DeviceEventsConcern:
    info = Info("device-events", section="faults", informs=True)

    def __init__(self, tools: Tools) -> None:
        self._events = tools.events
        self._known: dict[str, FaultyDevices] = {}  # by node

    def forget(self, node: str) -> None:
        self._known.pop(node, None)
        self._events.forget(node)

    async def observe(self, view: View) -> KnownFaults | Outcome:
        sections = view.sections
        if not view.reported or sections is None or not sections.faults.event:
            return Outcome()
        return KnownFaults(self._known.get(view.record.name))

    def desired(self, view: View, observed: KnownFaults) -> list[DeviceEventStep]:
        return _steps(view.record, observed.faults, view.now)

    async def apply(self, view: View, desired: list[DeviceEventStep]) -> Outcome:
        record = view.record
        known = dict(self._known.get(record.name) or {})
        for step in desired:
            if step.event is not None:
                self._events.write(record.name, step.event)
            if step.known is not None:
                known[step.identity] = step.known
            else:
                del known[step.identity]
        self._known[record.name] = known
        return Outcome(requeue_after=self._events.sum_up(record))


def _steps(record: NodeDevicesRecord, known: FaultyDevices | None, now: str) -> list[DeviceEventStep]:
    about = events.About("NodeDevices", record.name, record.uid)
    states = {device.id: device.health.state for device in record.devices}
    faulty = {device.id: device for device in record.devices if device.health.state == "Unhealthy"}
    steps = []
    for identity, device in faulty.items():
        health, old = device.health, (known or {}).get(identity)
        if old is not None and (old.health.reason, old.health.since) == (health.reason, health.since):
            continue
        event = None
        if known is not None or not may_have_expired(health.since, now):
            what = events.EventIdentity(record.name, identity, health.reason, health.since)
            event = events.fault(about, what, device_text(device), now)
        steps.append(DeviceEventStep(identity, event, device))
    for identity, old in (known or {}).items():
        if identity in faulty:
            continue
        state = states.get(identity)
        if state is None:
            steps.append(DeviceEventStep(identity, None, None))
        elif state == "Healthy":  # Unknown and Degraded are neither the old fault nor well
            what = events.EventIdentity(record.name, identity, old.health.reason, old.health.since)
            text = f"{old.name} {identity} is healthy again; was {old.health.reason}"
            steps.append(DeviceEventStep(identity, events.recovered(about, what, text, now), None))
    return steps
