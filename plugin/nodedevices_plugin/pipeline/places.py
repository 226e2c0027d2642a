"""A place has one device: what may be one thing by two ids goes to no new pod by the one while a pod has it by the
other.

A pod's container restarts with what it was given at first, and that may name a place and not a device: a device node,
or an index. The kubelet knows ids, and neither. So:

- What has come into the place of a device that left (a GPU replaced in its slot) goes to no new pod while one holds, or
  may hold, that device.
- Of two devices that two probes report at one place, the one has it that a pod holds, else the one that is on offer,
  else the first probe's; the other goes to no pod, nor does the first while a pod holds the other.

A place is a device node that one of them has alone (Vendors.own_nodes); between two probes also a PCI address, and
where ids may be indices (injection.deviceIDStrategy index) between what left and what came also an index. Only devices
count that are in a resource, or held. What a probe that was taken away has left is probe_set's matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field

from nodedevices_probe.protocol import MAX_MESSAGE, DeviceFact, Problem, text

from nodedevices_plugin.model import Inventory, InventoryDevice
from nodedevices_plugin.model.device_names import device_names
from nodedevices_plugin.vendors.registry import VENDORS, Vendors

CODE = "SamePlace"  # of a problem
MAX_PROBLEMS = 8
Place = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Claim:
    """A device at a place. `probe`: its number; `alone`: it is to have the place alone."""

    device: InventoryDevice
    probe: int
    alone: bool

    @property
    def id(self) -> str:
        return self.device.fact.id


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """`left`: what goes to no new pod -> what left its place and may be held. `twice`: -> what another probe reports
    there."""

    left: Mapping[str, str] = field(default_factory=dict)
    twice: Mapping[str, str] = field(default_factory=dict)

    @property
    def withheld(self) -> dict[str, str]:
        """The devices that go to no new pod, and why."""
        left = {new: f"it has the place of {old}, which a pod may hold" for new, old in self.left.items()}
        twice = {one: f"{other} is at the same place, by another probe" for one, other in self.twice.items()}
        return twice | left

    @property
    def wait_for_holders(self) -> bool:
        """True when held devices, or such that may be, keep one of them back: of two probes' devices only where both
        are held."""
        return bool(self.left) or any(self.twice.get(other) == one for one, other in self.twice.items())

    def problems(self, inventory: Inventory) -> tuple[Problem, ...]:
        """Return the problems for people, by device."""
        if not self.withheld:
            return ()
        names = device_names(inventory)
        said = [
            f"{names[new]} ({new}): not offered until no pod holds {old}, whose place it has"
            for new, old in sorted(self.left.items())
        ]
        said += [
            f"{names[one]} ({one}): not offered: {other} is at the same place, by another probe; keep one of the two, "
            "such as by resources.exclude"
            for one, other in sorted(self.twice.items())
            if one not in self.left
        ]
        more = [f"and {len(said) - MAX_PROBLEMS} devices more"] if len(said) > MAX_PROBLEMS else []
        return tuple(Problem(code=CODE, message=text(each, MAX_MESSAGE)) for each in (*said[:MAX_PROBLEMS], *more))


def taken(
    parts: Mapping[str, Inventory],
    *,
    held: Set[str] | None,
    offered: Set[str],
    used: Callable[[str], bool],
    indices: bool = False,
    vendors: Vendors = VENDORS,
) -> Places:
    """Return the places that are taken. `parts`: each probe's own devices, the first probe first. `held`: ids of
    devices that are held, or may be; None: not known. `offered`: ids of devices that new pods can get now. `used`:
    whether a device is in a resource. `indices`: whether ids may be indices."""
    claims: dict[Place, list[_Claim]] = {}
    for number, part in enumerate(parts.values()):
        for device in part.devices:
            for place, alone in _places(device, vendors, indices=indices):
                claims.setdefault(place, []).append(_Claim(device, number, alone))
    known = held or frozenset()
    order = {each.id: (each.id not in known, each.id not in offered) for some in claims.values() for each in some}
    left: dict[str, str] = {}
    twice: dict[str, str] = {}
    for place, every in claims.items():
        here = [each for each in every if each.device.present and (used(each.id) or each.id in (held or ()))]
        for new, old in _replaced(place, here, every):
            if held is None or old.id in held:
                left[new.id] = old.id
        for one, other in _pairs(place, here):
            first, second = sorted((one, other), key=lambda each: (*order[each.id], each.probe))
            twice[second.id] = first.id
            if second.id in known:
                twice[first.id] = second.id
    return Places(left=left, twice=twice)


def _places(device: InventoryDevice, vendors: Vendors, *, indices: bool) -> Iterator[tuple[Place, bool]]:
    """Return the places of a device, each with whether the device must be there alone."""
    fact: DeviceFact = device.fact
    own = vendors.own_nodes(fact)
    for node in dict.fromkeys(fact.device_nodes):
        yield ("node", node), node in own
    if fact.pci_bus_id and device.present:
        yield ("pci", fact.pci_bus_id), True
    if indices and vendors.index_ids(fact) is not None:
        yield ("index", fact.vendor, fact.type, str(fact.index)), True


def _replaced(place: Place, here: list[_Claim], every: list[_Claim]) -> Iterator[tuple[_Claim, _Claim]]:
    """Return each device that is here now with one that was there before it. A place where one probe has several
    devices counts for none."""
    if place[0] == "pci" or len({each.probe for each in here}) < len(here):
        return
    for old in every:
        for new in here if not old.device.present else ():
            if old.alone or new.alone:
                yield new, old


def _pairs(place: Place, here: list[_Claim]) -> Iterator[tuple[_Claim, _Claim]]:
    if place[0] == "index" or (place[0] == "node" and len({each.probe for each in here}) < len(here)):
        return
    for at, one in enumerate(here):
        for other in here[at + 1 :]:
            if one.probe != other.probe and (one.alone or other.alone):
                yield one, other
