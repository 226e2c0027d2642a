"""Gives events that name a PCI address to the devices there, whichever probe lists them.

The probe of the kernel's log has no devices of its own. An NVSwitch is no device either: what it reports concerns each
device that has a link to a switch, since the line does not say which one is at the other end. An event without such a
device stays an event of the node: it is counted and logged.

An event waits while its device may be one of a probe that has not said yet what it has: NVML may take minutes for its
first line, and hangs where a GPU is bad, which is when such events come. The state file keeps what waits; after a
reboot it is dropped, since a reboot repairs what it would leave.

A device that is missing has an event of its address unless another one is there now.

A device that another probe's event reaches is judged as by an event of its own probe (health.machine), but for what
its driver says: it may not know of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from nodedevices_probe.protocol import (
    MAX_EVENTS,
    MAX_INTEGER,
    SWITCH,
    SWITCH_KINDS,
    DeviceFact,
    DriverState,
    ProbeEvent,
)

from nodedevices_plugin.model import Inventory
from nodedevices_plugin.settings.probes import lists_devices


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingEvent:
    """An event that no probe's devices could be compared with yet. `boot_id`: the boot in which it happened."""

    event: ProbeEvent
    boot_id: str


def of_this_boot(waiting: Iterable[WaitingEvent], parts: Mapping[str, Inventory]) -> tuple[WaitingEvent, ...]:
    """Return the waiting events without those from before a reboot, as far as a probe has said that there was one."""
    boots = {part.boot_id for part in parts.values() if part.line_monotonic is not None and part.boot_id}
    return tuple(kept for kept in waiting if not boots or not kept.boot_id or kept.boot_id in boots)


def folded(waiting: Iterable[WaitingEvent]) -> tuple[WaitingEvent, ...]:
    """Return what the state file keeps of these: equal events as one, with the first one's time and all counts."""
    found: dict[tuple[object, ...], WaitingEvent] = {}
    for later in waiting:
        event = later.event
        key = (event.kind, event.pci_bus_id, event.xid, later.boot_id)
        first = found.get(key)
        if first is None:
            found[key] = later
        else:
            count = min(first.event.count + event.count, MAX_INTEGER)
            found[key] = replace(first, event=replace(first.event, count=count))
    return tuple(found.values())[:MAX_EVENTS]


def routed(
    events: Sequence[ProbeEvent], source: str, parts: Mapping[str, Inventory]
) -> tuple[dict[str, tuple[ProbeEvent, ...]], tuple[ProbeEvent, ...]]:
    """Return the events by the probe whose device they concern, and those that wait. `source`: the probe that reported
    them; it keeps those that name no address, and those of which no device is known. `parts`: the devices of each
    probe."""
    found: dict[str, list[ProbeEvent]] = defaultdict(list)
    waiting: list[ProbeEvent] = []
    reported = {name: part for name, part in parts.items() if _has_reported(part)}
    complete = all(name in reported for name in parts if lists_devices(name))
    for event in events:
        if not event.pci_bus_id or event.device_id is not None:
            found[source].append(event)
            continue
        concerned = [(name, fact) for name, part in reported.items() for fact in _concerned(event, part)]
        for name, fact in concerned:
            found[name].append(replace(event, device_id=fact.id))
        if not concerned:
            (found[source] if complete else waiting).append(event)
    return {name: tuple(some) for name, some in found.items()}, tuple(waiting)


def _has_reported(part: Inventory) -> bool:
    """True when a probe has said what it has: a driver that cannot be asked yet may have devices."""
    answers = part.driver is not None and part.driver.state in {DriverState.LOADED, DriverState.NOT_LOADED}
    return part.line_monotonic is not None and (bool(part.devices) or answers)


def _concerned(event: ProbeEvent, part: Inventory) -> Iterator[DeviceFact]:
    if event.kind in SWITCH_KINDS:
        yield from (device.fact for device in part.devices if any(link.to == SWITCH for link in device.fact.links))
        return
    there = [device for device in part.devices if device.fact.pci_bus_id == event.pci_bus_id]
    present = [device for device in there if device.present]
    yield from (device.fact for device in present or there)
