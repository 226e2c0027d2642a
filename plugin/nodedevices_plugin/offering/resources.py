"""The node's resources: which units each has, and how many times each of them is offered.

A unit has its name by the rules of `resources.devices`, else its usual one.

The first rule that matches decides; without one a unit has its vendor's usual name. A rule with a `profile` is about
partitions, one without is about whole devices, and about partitions only where they take the place of devices
(partitions.strategy single): a rule for a model never swallows slices.

A device that its maker does not know (vendors.registry; also a kind that every maker builds) gets a name only from an
explicit rule: one that gives its type or its id, or a vendor that is not registered. So a rule for all products of a
maker does not offer its NICs as GPUs.

A rule may ask which devices are near to each other across probes: those on the same PCIe root (`attributes.pcieRoot`).
A probe knows the paths between its own devices; of another probe's it knows nothing. What both say is the root complex,
below which a GPU reads from a NIC without passing through a CPU. A device that is missing counts while it is listed, so
that a NIC which fails renames no GPU.

What is shared has its names and devices decided here, the same for all modes; the mode decides how many shares a
device has (package sharing).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial

from msgspec import Struct, field
from msgspec.structs import replace
from nodedevices_api.matching import fits, matches, same
from nodedevices_api.sections import (
    ALL_DEVICES,
    FIRST,
    OfferMatch,
    Partitions,
    Resources,
    Sections,
    Serving,
    SharedResource,
    Sharing,
)
from nodedevices_common.grouping import grouped
from nodedevices_common.quantity import to_bytes
from nodedevices_probe.protocol import DeviceFact, PciePath

from nodedevices_plugin.model import NOT_SHARED, Inventory, PlanError, SharingFacts, Unit, resource_names
from nodedevices_plugin.sharing.base import NO_SETTINGS, Settings, SplitRequest
from nodedevices_plugin.sharing.registry import MODES, ByNature, SharingModes
from nodedevices_plugin.vendors.base import Naming, Vendor
from nodedevices_plugin.vendors.registry import NOTHING_SAID, VENDORS, Vendors, VendorValues


class PlanSettings(Struct, frozen=True, kw_only=True):
    """The settings that decide the shape of the plan. `resource_prefix`: the domain of usual names, empty for each
    vendor's own; `modes`: the node's flags that sharing modes read; `vendors`: vendors' settings from flags and device
    files."""

    serving: Serving = field(default_factory=Serving)
    resources: Resources = field(default_factory=Resources)
    sharing: Sharing = field(default_factory=Sharing)
    partitions: Partitions = field(default_factory=Partitions)
    resource_prefix: str = ""
    modes: Settings = NO_SETTINGS
    vendors: VendorValues = NOTHING_SAID
    sharing_modes: SharingModes = MODES

    @classmethod
    def from_sections(
        cls,
        sections: Sections,
        *,
        resource_prefix: str = "",
        modes: Settings = NO_SETTINGS,
        vendors: VendorValues = NOTHING_SAID,
        sharing_modes: SharingModes = MODES,
    ) -> PlanSettings:
        """Return the settings of effective sections; an absent section has its default."""
        return cls(
            serving=sections.serving or Serving(),
            resources=sections.resources or Resources(),
            sharing=sections.sharing or Sharing(),
            partitions=sections.partitions or Partitions(),
            resource_prefix=resource_prefix,
            modes=modes,
            vendors=vendors,
            sharing_modes=sharing_modes,
        )

    def naming(self, vendor: Vendor) -> Naming:
        """Return the settings that decide the usual names of the vendor's units."""
        return Naming(
            strategy=self.partitions.strategy,
            prefix=self.resource_prefix,
            local=self.vendors.local.get(vendor.name),
            files=self.vendors.files,
        )


Near = Mapping[str, frozenset[str]]  # device id -> types of the other devices on its root

PAIRS = (("gpu", "nic"), ("nic", "gpu"))  # pairs that NodeDevices shows as nearest
_PATHS = list(PciePath)


def near(inventory: Inventory) -> Near:
    """A device without a root is near to nothing."""
    facts = [device.fact for device in inventory.devices]
    roots: dict[str, Counter[str]] = {}
    for fact in facts:
        if fact.pcie_root:
            roots.setdefault(fact.pcie_root, Counter())[fact.type] += 1
    return {
        fact.id: frozenset(
            other for other, count in roots.get(fact.pcie_root, Counter()).items() if count > (other == fact.type)
        )
        for fact in facts
    }


def nearest(inventory: Inventory) -> dict[str, tuple[str, ...]]:
    """Return for each GPU the NICs on its root, and for each NIC the GPUs, by id, the nearest one first. Missing
    devices and virtual functions are left out: a function is where its NIC is."""
    here = [device.fact for device in inventory.devices if device.present and device.fact.pcie_root]
    found: dict[str, list[DeviceFact]] = {}
    for own, other in PAIRS:
        by_root = grouped((fact.pcie_root, fact) for fact in here if fact.type == other)
        found |= {fact.id: by_root[fact.pcie_root] for fact in here if fact.type == own and fact.pcie_root in by_root}
    facts = {fact.id: fact for fact in here}
    known = {
        pair: neighbour.path
        for fact in here
        for neighbour in fact.pcie
        for pair in ((fact.id, neighbour.to), (neighbour.to, fact.id))
    }

    def distance(one: DeviceFact, other: DeviceFact) -> tuple[int, int, int, str]:
        """The path between them where one probe knows both, else how far apart their buses are numbered: those below
        one switch are numbered together."""
        path = _PATHS.index(known.get((one.id, other.id), PciePath.HOSTBRIDGE))
        return path, abs(_bus(one) - _bus(other)), other.index, other.id

    return {
        id_: tuple(other.id for other in sorted(others, key=partial(distance, facts[id_])))
        for id_, others in found.items()
    }


def _bus(fact: DeviceFact) -> int:
    """The number of its PCI bus; 0 where its address is none."""
    parts = fact.pci_bus_id.split(":")
    try:
        return int(parts[-2], 16)
    except (IndexError, ValueError):
        return 0


def by_name(units: Sequence[Unit], settings: PlanSettings, near: Near) -> Mapping[str, tuple[Unit, ...]]:
    """Return by resource name its units, in their order. `near`: which types are near to each device (nearness). Raises
    PlanError for a name that the kubelet would not accept."""
    rules = settings.resources.devices
    for place, rule in enumerate(rules):
        resource_names.check(f"resources.devices[{place}].name", rule.name)
    found: dict[str, list[Unit]] = defaultdict(list)
    for unit in units:
        vendor = settings.vendors.known.vendor_of(unit.device.fact)
        if vendor.name in settings.vendors.withheld:
            continue
        named = (rule.name for rule in rules if _matches(rule.match, unit, near, settings))
        name = next(named, None) or vendor.usual_name(unit, settings.naming(vendor))
        if name is not None and not resource_names.wrong(name):  # one odd device must not cost the others their names
            found[name].append(unit)
    return {name: tuple(some) for name, some in found.items()}


def units_matching(
    match: OfferMatch, units: Sequence[Unit], near: Near, settings: PlanSettings, *, any_case: bool = False
) -> list[Unit]:
    """Return the units that a rule is about. `near`: as in `by_name`. `any_case`: to find a near miss."""
    return [unit for unit in units if _matches(match, unit, near, settings, any_case=any_case)]


def _matches(match: OfferMatch, unit: Unit, near: Near, settings: PlanSettings, *, any_case: bool = False) -> bool:
    fact, part, vendors = unit.device.fact, unit.partition, settings.vendors.known
    if part is None:
        of_profile = match.profile is None
    elif match.profile is None:
        of_profile = settings.partitions.strategy == "single"
    else:
        profiles = (part.profile, resource_names.plain_profile(part.profile))
        of_profile = any(fits(profile, match.profile, any_case=any_case) for profile in profiles)
    return (
        of_profile
        and (not vendors.vendor_of(fact).every_maker or _is_explicit(match, fact, vendors))
        and (match.vendor is None or same(match.vendor, fact.vendor, any_case=any_case))
        and (match.min_memory is None or unit.memory_bytes >= to_bytes(match.min_memory))
        and (match.near is None or any(same(type_, match.near, any_case=any_case) for type_ in near.get(fact.id, ())))
        and matches(match, product_name=fact.product_name, type=fact.type, ids=(unit.id, fact.id), any_case=any_case)
    )


def _is_explicit(match: OfferMatch, fact: DeviceFact, vendors: Vendors) -> bool:
    """True when the rule is explicitly about devices like this one, which its maker does not know."""
    by_vendor = match.vendor is not None and not vendors.known(fact.vendor)
    return by_vendor or match.type is not None or match.ids is not None


# --- sharing ---------------------------------------------------------------------------------------------------------
class Share(Struct, frozen=True, kw_only=True):
    """One resource as it will be offered: plain units, and units that are offered several times."""

    name: str
    units: tuple[tuple[Unit, int | None], ...]  # unit, its number of shares (None: whole)
    place: str = ""  # the path of its rule
    sharing: SharingFacts = NOT_SHARED
    numa: bool = True
    fail_requests_greater_than_one: bool = False
    together: bool = False  # every share is of all units
    cores_of: tuple[str, ...] | None = None  # computing power of the units, and of these shared ones (core_ids)

    @property
    def devices(self) -> frozenset[str]:
        """Their ids."""
        return frozenset(unit.device.fact.id for unit, _ in self.units)


def share(named: Mapping[str, tuple[Unit, ...]], settings: PlanSettings) -> tuple[Share, ...]:
    """Every resource after sharing. Raises PlanError."""
    sharing = settings.sharing
    shared = settings.sharing_modes.by_strategy(sharing.strategy).name != NOT_SHARED.name
    rules = {rule.name: rule for rule in sharing.resources} if shared else {}
    by_nature = {name: _shared_by_nature(name, units, settings) for name, units in named.items()}
    offered: dict[str, Share] = {}
    for name, units in named.items():
        rule = rules.get(name)
        for part in _shared(rule, units, settings) if rule else (by_nature[name] or _whole(name, units),):
            if part.name in offered:
                fewest = min(part, offered[part.name], key=lambda shared: len(shared.units)).devices
                hint = "another resource of this node has that name; choose another"
                if part.cores_of is not None:
                    hint = f"it comes with {rule.rename if rule else ''}, and {hint}"
                raise PlanError(f"sharing.resources[{name}].rename", part.name, hint, devices=fewest)
            offered[part.name] = part
    return tuple(offered[name] for name in sorted(offered))


def _whole(name: str, units: Sequence[Unit]) -> Share:
    return Share(name=name, units=tuple((unit, None) for unit in units))


def _shared_by_nature(name: str, units: Sequence[Unit], settings: PlanSettings) -> Share | None:
    """A resource with units of several vendors is offered whole. Raises PlanError."""
    vendor, *others = {settings.vendors.known.vendor_of(unit.device.fact) for unit in units}
    shares = None if others else vendor.shares(name, units, settings.naming(vendor))
    if shares is None:
        return None
    counts = dict(zip((unit.id for unit in units), shares.counts, strict=True))
    alike = set(counts.values())
    return Share(
        name=name,
        units=tuple((unit, counts[unit.id]) for unit in units),
        sharing=SharingFacts(
            mode=ByNature(), replicas=alike.pop() if len(alike) == 1 and not shares.together else None
        ),
        together=shares.together,
    )


def _shared(rule: SharedResource, units: Sequence[Unit], settings: PlanSettings) -> tuple[Share, ...]:
    """A rule may concern some devices only (`chosen`); the others stay whole, under the plain name or that of their
    cores."""
    name, place, sharing = rule.name, f"sharing.resources[{rule.name}]", settings.sharing
    chosen = chosen_units(units, rule.devices, settings.vendors.known)
    mode = settings.sharing_modes.by_strategy(sharing.strategy_of(rule))
    new_name = rule.rename or (resource_names.shared(name) if sharing.rename_by_default else mode.shares_name or name)
    if chosen:
        resource_names.check(f"{place}.rename", new_name)
    rest = [unit for unit in units if unit not in chosen]
    split = mode.split(
        SplitRequest(place=place, rule=rule, units=chosen, rest=rest, renamed=new_name != name, name=new_name)
    )
    counts = dict(zip((unit.id for unit in chosen), split.counts, strict=True))
    whole: tuple[Share, ...] = (_whole(name, rest),) if rest else ()
    if rule.core_resource is not None:
        shared_units = tuple(id_ for id_, count in counts.items() if count > 0)
        whole = (replace(_whole(rule.core_resource, rest), cores_of=shared_units),)
    if not chosen:
        return whole
    in_order = units if new_name == name else chosen
    shared = Share(
        name=new_name,
        units=tuple((unit, counts.get(unit.id)) for unit in in_order),
        place=place,
        sharing=split.sharing,
        numa=split.numa,
        # With memory a container requests as many shares as it needs.
        fail_requests_greater_than_one=sharing.fail_requests_greater_than_one and split.sharing.memory is None,
    )
    return (shared,) if new_name == name else (*whole, shared)


def chosen_units(units: Sequence[Unit], devices: Sequence[str] | None, vendors: Vendors = VENDORS) -> list[Unit]:
    """Return the units that `devices` selects, in their order: ids, indices (`0`, `0:1`), globs over ids, `all`,
    `first:2`.

    None selects all. An entry that the node does not have is no error: one configuration serves many nodes.
    """
    if devices is None:
        return list(units)
    counts = (device.removeprefix(FIRST) for device in devices if device.startswith(FIRST))
    first = max((int(count) for count in counts if count.isascii() and count.isdecimal()), default=0)
    return [
        unit
        for place, unit in enumerate(units)
        if place < first or any(_names(pattern, unit, vendors) for pattern in devices)
    ]


def _names(pattern: str, unit: Unit, vendors: Vendors) -> bool:
    if pattern in {ALL_DEVICES, unit.index}:
        return True
    pattern = vendors.without_share(pattern)
    return any(
        pattern == name or fnmatchcase(name, pattern)
        for name in (unit.id, *vendors.vendor_of(unit.device.fact).other_names(unit))
    )
