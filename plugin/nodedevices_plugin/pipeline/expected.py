"""Compares the devices that a node has with those that its policies expect (section `expect`).

It only reports: a wrong entry withdraws no device and evicts no pod. A device counts while its probe lists it and it
has not left the bus; one that is out of service by hand, or has another fault, is there and counts. A silent probe's
devices count as it listed them last. Those of a probe that is no longer configured do not count.

Nothing is judged until every probe has written its first line since the agent's start, or was waited for
(GRACE_SECONDS): a probe that never answers does not hide for ever that nothing is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from nodedevices_api.matching import described
from nodedevices_api.sections import ExpectedDevices
from nodedevices_probe.protocol import DeviceFact

from nodedevices_plugin.model import Inventory
from nodedevices_plugin.model.inventory import selects
from nodedevices_plugin.pipeline.probe_set import SILENCE_SECONDS
from nodedevices_plugin.settings.probes import lists_devices

GRACE_SECONDS = 2 * SILENCE_SECONDS  # for a probe's first line; what is missing is said within 60 s


class Count(Struct, frozen=True, kw_only=True):
    """One entry of `expect`, and how many such devices are here. `what`: its match, for people. `remembered`: no policy
    says so, the node has had so many (pipeline.most_seen). `lost`: those that are known and gone, for people."""

    what: str
    expected: int
    found: int
    remembered: bool = False
    lost: tuple[str, ...] = ()

    @property
    def lacking(self) -> int:
        return max(0, self.expected - self.found)


def count(entries: Sequence[ExpectedDevices], parts: Mapping[str, Inventory]) -> tuple[Count, ...]:
    """Return what is expected and what is here. `parts`: the devices of each probe that runs."""
    known = [device for part in parts.values() for device in part.devices]
    here = [device.fact for device in known if device.present and not device.fact.readings.lost]
    lost = [device.fact for device in known if not device.present or device.fact.readings.lost]
    return tuple(
        Count(
            what=described(entry.match),
            expected=entry.count,
            found=sum(selects(entry.match, fact) for fact in here),
            lost=tuple(place(fact) for fact in lost if selects(entry.match, fact)),
        )
        for entry in entries
    )


def judged_from(parts: Mapping[str, Inventory], since: Mapping[str, float]) -> float:
    """Return the time from which counts are told; time.monotonic(). `since`: when each probe was started."""
    return max(
        (
            since[name] + GRACE_SECONDS
            for name, part in parts.items()
            if part.line_monotonic is None and lists_devices(name)
        ),
        default=0.0,
    )


def place(fact: DeviceFact) -> str:
    """Return how people find a device that is not there."""
    return f"{fact.type} at {fact.pci_bus_id}" if fact.pci_bus_id else fact.id
