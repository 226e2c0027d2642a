"""Compares the devices that a node has with those that its policies expect (section `expect`), or, where they do not
say, with the most devices of each product that it has had.

It only reports: a wrong entry withdraws no device and evicts no pod. A device counts while its probe lists it and it
has not left the bus; one that is out of service by hand, or has another fault, is there and counts. A silent probe's
devices count as it listed them last. Those of a probe that is no longer configured do not count.

Nothing is judged until every probe has written its first line since the agent's start, or was waited for
(GRACE_SECONDS): a probe that never answers does not hide for ever that nothing is there.

The most that a node has had: the devices themselves are remembered by id, and one that is no longer listed is
`Missing`: a fault of its own. This memory is for what that does not cover: devices that a policy had forgotten
(`health.forgetMissingSeconds`), and a node whose disk was made anew, so that its state file is gone and the object
alone (`status.mostSeen`) says what it had. A missing device that is still listed is therefore not counted as lacking
here as well. Accelerators count, known by their PCI addresses. NICs do not: which of them are listed depends on
settings, drivers and pods' networks; nor do virtual functions, and devices that a file describes. The number of a
product grows by itself, and falls by a person's word alone (nodedevices.io/confirm): a device that is confirmed as
removed, or `*=removed` for all that is not here. A device that shows another product name than before (a new driver's
spelling, a flashed card) takes its old product's number with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set

from msgspec import Struct
from nodedevices_api.matching import described
from nodedevices_api.sections import ExpectedDevices
from nodedevices_probe.protocol import DeviceFact

from nodedevices_plugin.health.rules import SILENCE_SECONDS
from nodedevices_plugin.model import Inventory, InventoryDevice, MostSeen
from nodedevices_plugin.model.inventory import selects
from nodedevices_plugin.settings.probes import lists_devices

GRACE_SECONDS = 2 * SILENCE_SECONDS  # for a probe's first line; what is missing is said within 60 s


class Count(Struct, frozen=True, kw_only=True):
    """One entry of `expect`, and how many such devices are here. `what`: its match, for people. `remembered`: no policy
    says so, the node has had so many (follow_most_seen). `lost`: those that are known and gone, for people."""

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
            what=described(match),
            expected=expected,
            found=sum(selects(match, fact) for fact in here),
            lost=tuple(place(fact) for fact in lost if selects(match, fact)),
        )
        for match, expected in ((entry.match, entry.count) for entry in entries)
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


# --- the most devices of each product that the node has had ----------------------------------------------------------
MAX_KEPT = 16  # products of one node
_NOT_COUNTED = frozenset({"nic", "vf", "generic"})

_Key = tuple[str, str, str]  # probe, vendor, product


def follow_most_seen(
    before: Sequence[MostSeen],
    earlier: Inventory,
    now: Inventory,
    *,
    removed: Set[str] = frozenset(),
    all_removed: bool = False,
) -> tuple[MostSeen, ...]:
    """Return what is remembered after a step. `earlier`, `now`: all devices, before it and after. `removed`: ids of
    devices that a person confirmed as removed. `all_removed`: a person said so of everything that is not here."""
    here = _counted(device for device in now.devices if _is_here(device))
    if all_removed:
        return _kept(here)
    listed = _counted(now.devices)
    known = {_product(product): product.count for product in before}
    for key in _changed(earlier, now, removed) & known.keys():
        known[key] = listed[key]
    return _kept({key: max(known.get(key, 0), here[key]) for key in (*known, *here)})


def lacking(most_seen: Sequence[MostSeen], now: Inventory, probes: Set[str]) -> tuple[Count, ...]:
    """Return the products of which the node has had more than are listed. `probes`: those that run: what one that was
    taken away had is not judged."""
    listed, here = _counted(now.devices), _counted(device for device in now.devices if _is_here(device))
    lost = [device for device in now.devices if not _is_here(device)]
    return tuple(
        Count(
            what=f"{product.vendor} {product.product_name}",
            expected=product.count,
            found=here[_product(product)],
            remembered=True,
            lost=tuple(place(device.fact) for device in lost if _key(device) == _product(product)),
        )
        for product in most_seen
        if product.probe in probes and listed[_product(product)] < product.count
    )


def _counted(devices: Iterable[InventoryDevice]) -> Counter[_Key]:
    return Counter(key for device in devices if (key := _key(device)))


def _product(product: MostSeen) -> _Key:
    return product.probe, product.vendor, product.product_name


def _changed(earlier: Inventory, now: Inventory, removed: Set[str]) -> set[_Key]:
    """Return the products of devices that are gone by a person's word, or that are another product now."""
    current = {device.fact.id: _key(device) for device in now.devices}
    found = set()
    for device in earlier.devices:
        id_, key = device.fact.id, _key(device)
        is_removed = id_ in removed and id_ not in current
        other = current.get(id_)
        is_renamed = other is not None and other != key and device.fact.vendor == other[1]
        if key is not None and (is_removed or is_renamed):
            found.add(key)
    return found


def _key(device: InventoryDevice) -> _Key | None:
    fact = device.fact
    counted = bool(fact.pci_bus_id and fact.product_name) and fact.type not in _NOT_COUNTED
    return (device.probe, fact.vendor, fact.product_name) if counted else None


def _is_here(device: InventoryDevice) -> bool:
    return device.present and not device.fact.readings.lost


def _kept(counts: Mapping[_Key, int]) -> tuple[MostSeen, ...]:
    every: Iterable[MostSeen] = (
        MostSeen(probe=probe, vendor=vendor, product_name=product, count=count)
        for (probe, vendor, product), count in counts.items()
        if count
    )
    return tuple(sorted(sorted(every, key=lambda product: -product.count)[:MAX_KEPT]))
