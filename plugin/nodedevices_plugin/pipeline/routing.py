"""Gives events that name a PCI address to the devices there, whichever probe lists them.

The probe of the kernel's log has no devices of its own. An NVSwitch is no device either: what it reports concerns each
device that has a link to a switch, since the line does not say which one is at the other end. An event without such a
device stays an event of the node: it is counted and logged.

Addresses are compared as the kernel writes them: NVML has eight digits of the domain, and large letters. A device that
is missing has an event of its address unless another one is there now.

A device that another probe's event reaches is judged as by an event of its own probe (health.machine), but for what
its driver says: it may not know of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from nodedevices_probe.node.sysfs import normal_bus_id
from nodedevices_probe.protocol import SWITCH, SWITCH_KINDS, DeviceFact, ProbeEvent

from nodedevices_plugin.model import Inventory


def routed(
    events: Sequence[ProbeEvent], source: str, parts: Mapping[str, Inventory]
) -> dict[str, tuple[ProbeEvent, ...]]:
    """Return the events by the probe whose device they concern. `source`: the probe that reported them; it keeps those
    that name no address, and those of which no device is known. `parts`: the devices of each probe."""
    found: dict[str, list[ProbeEvent]] = defaultdict(list)
    for event in events:
        if not event.pci_bus_id or event.device_id is not None:
            found[source].append(event)
            continue
        concerned = [(name, fact) for name, part in parts.items() for fact in _concerned(event, part)]
        for name, fact in concerned:
            found[name].append(replace(event, device_id=fact.id))
        if not concerned:
            found[source].append(event)
    return {name: tuple(some) for name, some in found.items()}


def _concerned(event: ProbeEvent, part: Inventory) -> Iterator[DeviceFact]:
    if event.kind in SWITCH_KINDS:
        yield from (each.fact for each in part.devices if any(link.to == SWITCH for link in each.fact.links))
        return
    address = normal_bus_id(event.pci_bus_id) or event.pci_bus_id
    there = [each for each in part.devices if (normal_bus_id(each.fact.pci_bus_id) or each.fact.pci_bus_id) == address]
    present = [each for each in there if each.present]
    yield from (each.fact for each in present or there)
