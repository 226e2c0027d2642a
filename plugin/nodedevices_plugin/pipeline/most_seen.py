"""Remembers the most devices of each product that the node has had, for nodes whose policies do not say what they
should have (`expect`).

The devices themselves are remembered by id, and one that is no longer listed is `Missing`: a fault of its own. This
memory is for what that does not cover: devices that a policy had forgotten (`health.forgetMissingSeconds`), and a node
whose disk was made anew, so that its state file is gone and the object alone (`status.mostSeen`) says what it had. A
missing device that is still listed is therefore not counted as lacking here as well.

Accelerators count, known by their PCI addresses. NICs do not: which of them are listed depends on settings, drivers and
pods' networks; nor do virtual functions, and devices that a file describes.

The number of a product grows by itself, and falls by a person's word alone (nodedevices.io/confirm): a device that is
confirmed as removed, or `*=removed` for all that is not here. A device that shows another product name than before (a
new driver's spelling, a flashed card) takes its old product's number with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set

from nodedevices_plugin.model import Inventory, InventoryDevice, MostSeen
from nodedevices_plugin.pipeline.expected import Count, place

MAX_KEPT = 16  # products of one node
_NOT_COUNTED = frozenset({"nic", "vf", "generic"})

_Key = tuple[str, str, str]  # probe, vendor, product


def follow(
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
        is_renamed = current.get(id_) not in {None, key} and device.fact.vendor == _vendor(current[id_])
        if key is not None and (is_removed or is_renamed):
            found.add(key)
    return found


def _vendor(key: _Key | None) -> str:
    return "" if key is None else key[1]


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
