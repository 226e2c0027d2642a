"""A place has one device: what may be one thing by two ids goes to no new pod by the one while a pod has it by the
other.

A pod's container restarts with what it was given at first, and that may name a place and not a device: a device node,
or an index. The kubelet knows ids, and neither. Places go from device to device: a GPU is replaced in its slot, a
driver that was loaded again numbers the devices that it finds. So:

- What was given with each held id is remembered (`remembered`), as the device had it when the id was granted. What has
  one of these places now goes to no new pod while that id is held. While it is not known what is held, every id is.
- Of two devices that two probes report at one place, the one has it that a pod holds, else the one that is on offer,
  else the first probe's; the other goes to no pod, nor does the first while a pod holds the other.

A place is a device node that one of them has alone (Vendors.own_nodes), of a device or of a partition; where containers
are given indices (injection.deviceIDStrategy index) also an index; between two probes also a PCI address. Only devices
count that are in a resource, or held. What a probe that was taken away has left is probe_set's matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import combinations

from msgspec import Struct, field
from nodedevices_common.grouping import grouped
from nodedevices_common.text import some
from nodedevices_probe.protocol import MAX_MESSAGE, Problem, text

from nodedevices_plugin.model import Given, Inventory, InventoryDevice, Unit, device_names
from nodedevices_plugin.offering.occupancy import HeldId
from nodedevices_plugin.vendors.base import SHARED_NODES
from nodedevices_plugin.vendors.registry import VENDORS, Vendors

CODE = "SamePlace"  # of a problem
MAX_PROBLEMS = 8
NAMED = 2  # partitions of one device, in one problem
NODE, INDEX, PCI = "node ", "index ", "pci "  # how a place begins
Pair = tuple[str, str]  # a device, and the one that has or had its place


class _Claim(Struct, frozen=True):
    """A unit at a place. `probe`: its number; `alone`: it is to have the place alone; `common`: the whole device and
    all of its partitions have it."""

    unit: Unit
    probe: int
    alone: bool
    common: bool

    @property
    def device(self) -> str:
        return self.unit.device.fact.id


class Places(Struct, frozen=True, kw_only=True):
    """What goes to no new pod, by id of the device or partition. `left`: its device, and the held one that had its
    place; `twice`: its device, and the one that another probe reports there."""

    left: Mapping[str, Pair] = field(default_factory=dict)
    twice: Mapping[str, Pair] = field(default_factory=dict)

    @property
    def withheld(self) -> dict[str, str]:
        """The devices and partitions that go to no new pod, and why."""
        left = {new: f"it is at the place of {old}, which a pod may hold" for new, (_, old) in self.left.items()}
        twice = {one: f"{other} is at the same place, by another probe" for one, (_, other) in self.twice.items()}
        return twice | left

    @property
    def wait_for_holders(self) -> bool:
        """True when held devices, or such that may be, keep one of them back: of two probes' devices only where both
        are held."""
        pairs = set(self.twice.values())
        return bool(self.left) or any((other, one) in pairs for one, other in pairs)

    def problems(self, inventory: Inventory) -> tuple[Problem, ...]:
        """Return the problems for people, by device."""
        if not self.left and not self.twice:
            return ()
        names = device_names(inventory)
        said = [
            f"{names[new]} ({ids}): not offered until no pod holds {old}, which was at the same place"
            for new, old, ids in _by_device(self.left)
        ]
        said += [
            f"{names[one]} ({ids}): not offered: {other} is at the same place, by another probe; keep one of the two, "
            "such as by resources.exclude"
            for one, other, ids in _by_device({id_: pair for id_, pair in self.twice.items() if id_ not in self.left})
        ]
        more = [f"and {len(said) - MAX_PROBLEMS} more devices"] if len(said) > MAX_PROBLEMS else []
        return tuple(
            Problem(code=CODE, message=text(message, MAX_MESSAGE)) for message in (*said[:MAX_PROBLEMS], *more)
        )


def remembered(
    before: Mapping[str, Given],
    held: Sequence[HeldId] | None,
    granted: Set[str],
    *,
    was: Mapping[str, Given],
    now: Mapping[str, Given],
) -> dict[str, Given]:
    """Return what was given with each held id. `held` None: not known; then every device and partition counts as held,
    by its own id. `granted`: the keys of ids that were granted since the last step. `was`, `now`: what each device and
    partition had at the last step, from which was granted, and has at this one (`given_now`)."""
    if held is None:
        every = {id_: _joined(before.get(id_), was.get(id_), now.get(id_)) for id_ in (*was, *now)}
        return {**before, **{id_: given for id_, given in every.items() if given is not None}}
    found = {}
    for held_id in held:
        known = None if held_id.key in granted else before.get(held_id.key) or before.get(held_id.part_id)
        if known is None or held_id.key not in before:
            known = _joined(known, was.get(held_id.part_id), now.get(held_id.part_id))
        if known is not None:
            found[held_id.key] = known
    return found


def given_now(inventory: Inventory, vendors: Vendors = VENDORS, *, indices: bool = False) -> dict[str, Given]:
    """Return by device and partition what a container that is granted it would be given. `indices`: containers are
    given indices."""
    found = {}
    for unit in inventory.units:
        places = _nodes(unit, vendors)
        if indices and vendors.vendor_of(unit.device.fact).index_id(unit) is not None:
            places[_index(unit)] = True
        partition = unit.partition.id if unit.partition is not None else None
        found[unit.id] = Given(device=unit.device.fact.id, partition=partition, places=places)
    return found


def taken(
    parts: Mapping[str, Inventory],
    given: Iterable[Given],
    *,
    held: Set[str],
    offered: Set[str],
    used: Callable[[str], bool],
    vendors: Vendors = VENDORS,
) -> Places:
    """Return the places that are taken. `parts`: each probe's own devices, the first probe first. `given`: what was
    given with held ids (`remembered`). `held`: ids of devices that are held. `offered`: ids of devices that new pods
    can get now. `used`: whether a device is in a resource."""
    claims = grouped(
        claim
        for number, part in enumerate(parts.values())
        for device in part.devices
        if device.present
        for claim in _claims(device, number, vendors)
    )

    def here(place: str) -> list[_Claim]:  # asked where two may be at one place: most places are one's for good
        return [claim for claim in claims.get(place, ()) if claim.device in held or used(claim.device)]

    left: dict[str, Pair] = {}
    for old, place, alone in ((known, *place) for known in given for place in known.places.items()):
        if any(claim.unit.id == old.part_id for claim in claims.get(place, ())) or _is_common(here(place)):
            continue
        for new in here(place):
            if (alone or new.alone) and not (new.device == old.device and new.common):
                left[new.unit.id] = (new.device, old.device)
    twice: dict[str, Pair] = {}
    for place in (place for place, every in claims.items() if len({claim.probe for claim in every}) > 1):
        for one, other in _pairs(place, here(place)):
            first, second = sorted(
                (one, other), key=lambda claim: (claim.device not in held, claim.device not in offered, claim.probe)
            )
            twice[second.unit.id] = (second.device, first.device)
            if second.device in held:
                twice[first.unit.id] = (first.device, second.device)
    return Places(left=left, twice=twice)


def _claims(device: InventoryDevice, probe: int, vendors: Vendors) -> Iterator[tuple[str, _Claim]]:
    """Yield the places of a device that is here and of its partitions. The whole device is at those of its partitions,
    too."""
    fact = device.fact
    live = [part for part in device.partitions if part.id not in device.departed_partitions]
    of_parts = {f"{NODE}{path}" for unit in live if unit.partition is not None for path in unit.partition.device_nodes}
    nodes_of_parts = [(unit, _nodes(unit, vendors)) for unit in live]
    nodes_of_all = _nodes(Unit(device), vendors)
    for _, nodes in nodes_of_parts:
        nodes_of_all |= nodes
    for unit, nodes in ((Unit(device), nodes_of_all), *nodes_of_parts):
        for place, alone in nodes.items():
            yield place, _Claim(unit, probe, alone=alone, common=place not in of_parts)
        if fact.pci_bus_id:
            yield f"{PCI}{fact.pci_bus_id}", _Claim(unit, probe, alone=True, common=True)
        if vendors.vendor_of(unit.device.fact).index_id(unit) is not None:
            yield _index(unit), _Claim(unit, probe, alone=True, common=False)


def _nodes(unit: Unit, vendors: Vendors) -> dict[str, bool]:
    """Return the device nodes that a container with this unit is given, each with whether it has it alone: those of the
    device; of a partition its own, and those of its device that no other partition has."""
    fact, part = unit.device.fact, unit.partition
    own = vendors.vendor_of(fact).own_nodes(fact)
    found = {path: path in own for path in fact.device_nodes}
    if part is not None:
        others = {path for other in fact.partitions if other.id != part.id for path in other.device_nodes}
        found = {path: alone for path, alone in found.items() if path not in others}
        found |= dict.fromkeys(part.device_nodes, True)
    return {f"{NODE}{path}": alone for path, alone in found.items() if path not in SHARED_NODES}


def _index(unit: Unit) -> str:
    return f"{INDEX}{unit.device.fact.vendor}/{unit.device.fact.type}/{unit.index}"


def _is_common(here: Sequence[_Claim]) -> bool:
    """True for a place where one probe has several devices."""
    devices = {(claim.probe, claim.device) for claim in here}
    return len({probe for probe, _ in devices}) < len(devices)


def _pairs(place: str, here: Sequence[_Claim]) -> Iterator[tuple[_Claim, _Claim]]:
    if place.startswith(INDEX) or (place.startswith(NODE) and _is_common(here)):
        return
    for one, other in combinations(here, 2):
        if one.probe != other.probe and (one.alone or other.alone):
            yield one, other


def _joined(*every: Given | None) -> Given | None:
    """Return the first of them, with the places of all."""
    known = [some for some in every if some is not None]
    return (
        replace(known[0], places={place: alone for given in known for place, alone in given.places.items()})
        if known
        else None
    )


def _by_device(found: Mapping[str, Pair]) -> list[tuple[str, str, str]]:
    """Return for people by device: the device, the other one, and the ids that are not offered."""
    ids = grouped((pair, id_) for id_, pair in found.items())
    return [
        (one, other, one if one in parts else some(sorted(parts), NAMED)) for (one, other), parts in sorted(ids.items())
    ]
