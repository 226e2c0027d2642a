"""Notes on entries of a configuration that match nothing on this node: a name that is not offered, a pattern that no
device has.

It is no fault, since one configuration serves many nodes, and what is in effect is not changed by it; but a name with a
typo shares nothing, and its author must see it, with the existing names and the nearest one. Every note has the section
and the path of the entry (by the configuration file's keys where the section is the file's): from these the operator
knows which policy a note is about.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from fnmatch import fnmatchcase
from functools import partial

from nodedevices_api.base import to_dict
from nodedevices_api.defaults import Resolved
from nodedevices_api.sections import CapacityEntry, DeviceMatch, OfferMatch, Resources, Sharing
from nodedevices_common.quantity import MEBIBYTE
from nodedevices_common.text import clip, listing
from nodedevices_probe.protocol import DeviceFact

from nodedevices_plugin.model import Inventory, Unit, Unmatched, device_names, devices_by_id
from nodedevices_plugin.model.inventory import selects
from nodedevices_plugin.offering.resources import Near, by_name, chosen_units, near, units_matching
from nodedevices_plugin.offering.shape import PlanSettings, fitting, units
from nodedevices_plugin.sharing.memory import NAME as BY_MEMORY
from nodedevices_plugin.vendors.registry import VENDORS, Vendors

VALUE_LIMIT = 96


def unmatched(inventory: Inventory, settings: PlanSettings, from_file: Set[str] = frozenset()) -> tuple[Unmatched, ...]:
    """A note for each entry of `resources` and `sharing.resources` that is about nothing here.

    from_file: sections that the configuration file gives. A node without devices has none. Devices that the plan leaves
    out are left out here (offering.shape.fitting).
    """
    rules, shares = settings.resources.devices, settings.sharing.resources
    exclude = settings.resources.exclude
    if (
        settings.serving.mode == "Observe"
        or not inventory.devices
        or not (rules or shares or exclude or settings.vendors.files)
    ):
        return ()
    around, known = near(inventory), settings.vendors.known
    found, _ = fitting(inventory, partial(units, settings=settings))
    if found is None:
        return ()
    named = by_name(found, settings, around)
    places = _file_places(settings.resources) if "resources" in from_file else None
    notes = _rules(found, settings, places, around) + _excludes(inventory, exclude, known)
    if settings.sharing.strategy != "none":
        kind = f"{settings.sharing.strategy}." if "sharing" in from_file else ""
        notes += _shares(named, settings.sharing, f"{kind}resources", known)
    return (*notes, *_files(inventory, named, settings))


def _files(inventory: Inventory, named: Mapping[str, Sequence[Unit]], settings: PlanSettings) -> list[Unmatched]:
    """Entries of device files that no device has, where the node has devices of such a kind."""
    notes = []
    for vendor in settings.vendors.known.every:
        names = vendor.file_names(settings.naming(vendor))
        if not names or vendor.name in settings.vendors.withheld:
            continue
        own = [
            device.fact.id for device in inventory.devices if settings.vendors.known.vendor_of(device.fact) is vendor
        ]
        if own:
            message = f"no such device on this node, or an earlier entry has it; there are: {listing(sorted(own))}"
            notes += [
                Unmatched(section=file, entry=f"{place} {_cut(name)}", message=message)
                for name, (file, place) in names.items()
                if name not in named
            ]
    return notes


def _shares(named: Mapping[str, Sequence[Unit]], sharing: Sharing, place: str, vendors: Vendors) -> list[Unmatched]:
    """Notes on resources that are not here, on devices of a list that this node lacks (where it has others, another
    node may have these: the operator, which sums the notes up, reads those of all nodes), and on devices that are to be
    shared by memory and have none of their own, as a GB10, which uses the machine's: they have no shares."""
    notes = []
    for number, rule in enumerate(sharing.resources):
        entry, units = f"{place}[{number}]", named.get(rule.name, ())
        chosen, listed = chosen_units(units, rule.devices, vendors), rule.devices or ()
        here = listing(f"{unit.index} ({unit.id})" for unit in units)
        there_are = f"{rule.name} has no such device on this node; there are: {here}"
        found: dict[str, str] = {}
        if rule.name not in named:
            near = _near(name for name in named if name.lower() == rule.name.lower())
            offered = listing(sorted(named)) or "nothing"
            found[f"{entry}.name {rule.name}"] = f"no such resource on this node; offered: {offered}{near}"
        elif not chosen:
            lower = [device.lower() for device in listed]
            near = _near(unit.id for unit in units if any(fnmatchcase(unit.id.lower(), pattern) for pattern in lower))
            found[f"{entry}.devices {_cut(', '.join(listed))}"] = there_are + near
        else:
            lacking = [at for at, device in enumerate(listed) if not chosen_units(units, [device], vendors)]
            found |= {f"{entry}.devices[{at}] {_cut(listed[at])}": there_are for at in lacking}
        without = listing(f"{unit.index} ({unit.id})" for unit in chosen if not unit.memory_bytes)
        if without and sharing.strategy_of(rule) == BY_MEMORY:
            found[f"{entry}.name {rule.name}"] = (
                f"the driver reports no memory for {without}, so no shares of it are offered; use timeSlicing for it"
            )
        notes += [Unmatched(section="sharing", entry=name, message=message) for name, message in found.items()]
    return notes


def _rules(
    found: Sequence[Unit], settings: PlanSettings, places: Sequence[str] | None, around: Near
) -> list[Unmatched]:
    left, notes = list(found), []
    for number, rule in enumerate(settings.resources.devices):
        mine = units_matching(rule.match, left, around, settings)
        if not mine:
            place = places[number] if places is not None else f"devices[{number}].match"
            pattern = rule.match.profile or rule.match.product_name or ""
            entry = f"{place} {_cut(_shown(rule.match) if places is None else pattern)}".rstrip()
            if units_matching(rule.match, found, around, settings):
                others = f"; of the others {_existing(left, rule.match, around)}" if left else ""
                message = f"an earlier entry already matches all of its devices{others}"
            else:
                nearly = units_matching(rule.match, found, around, settings, any_case=True)
                alike = _near(_kind(unit, rule.match, around) for unit in nearly)
                message = f"no such device on this node; {_existing(found, rule.match, around)}{alike}"
            notes.append(Unmatched(section="resources", entry=entry, message=message))
        left = [unit for unit in left if unit not in mine]
    return notes


def _file_places(resources: Resources) -> list[str]:
    """Return the path of each rule in the configuration file, which has a list for GPUs and one for MIG profiles."""
    kinds = ["gpus" if rule.match.profile is None else "mig" for rule in resources.devices]
    return [f"{kind}[{kinds[:at].count(kind)}].pattern" for at, kind in enumerate(kinds)]


def _excludes(inventory: Inventory, exclude: Sequence[str], vendors: Vendors) -> list[Unmatched]:
    """Return notes on entries without a device. An id that another node has is rightly in a policy for both nodes: the
    operator, which sums these notes up, reads those of all nodes."""
    known = {str(device.fact.index): device.fact.id for device in reversed(inventory.devices)}
    ids = devices_by_id(inventory)
    lacking = [
        (f"exclude[{number}] {_cut(pattern)}", pattern)
        for number, pattern in enumerate(exclude)
        if not any(fnmatchcase(id_, pattern) for id_ in ids)
    ]
    return _no_such_id("resources", lacking, inventory, known | _ids_by_name(inventory, vendors), vendors)


def unmatched_capacity(inventory: Inventory, capacity: Sequence[CapacityEntry]) -> tuple[Unmatched, ...]:
    """A note for each entry of `capacity` that no device of this node matches: the operator counts none for it. A
    node without devices has none."""
    entries = [
        ("capacity", f"[{number}]", resource.match, f"{resource.name} counts")
        for number, resource in enumerate(capacity)
    ]
    return _unmatched_devices(inventory, entries)


def unmatched_rules(inventory: Inventory, sections: Resolved) -> tuple[Unmatched, ...]:
    """A note for each rule of `health` and of `faults` whose match no device of this node has. A node without devices
    has none."""
    entries = [
        (section, f"rules[{number}].match", match, "the rule applies to")
        for section, rules in (("health", sections.health.rules), ("faults", sections.faults.rules))
        for number, match in enumerate(rule.match for rule in rules)
    ]
    return _unmatched_devices(inventory, entries)


def _unmatched_devices(
    inventory: Inventory, entries: Iterable[tuple[str, str, DeviceMatch | None, str]]
) -> tuple[Unmatched, ...]:
    """`entries`: section, path, match, and what the entry does to the devices that it matches."""
    facts = [device.fact for device in inventory.devices]
    notes = []
    for section, path, match, does in entries if facts else ():
        if match is None or any(selects(match, fact) for fact in facts):
            continue
        alike = _near(_what(fact, match) for fact in facts if selects(match, fact, any_case=True))
        there_are = listing(sorted({_what(fact, match) for fact in facts}))
        message = f"{does} no device on this node; there are: {there_are}{alike}"
        shown = _cut(_shown(match))
        notes.append(Unmatched(section=section, entry=f"{path} {shown}".rstrip(), message=message))
    return tuple(notes)


def unmatched_cordons(
    inventory: Inventory, unschedulable: Iterable[str], vendors: Vendors = VENDORS
) -> tuple[Unmatched, ...]:
    """A note for each entry of the node's own `spec.unschedulable` whose id no device or partition has."""
    lacking = [(f"[{_cut(id_)}]", id_) for id_ in sorted(set(unschedulable) - devices_by_id(inventory).keys())]
    return tuple(_no_such_id("unschedulable", lacking, inventory, _ids_by_name(inventory, vendors), vendors))


def _no_such_id(
    section: str,
    lacking: Iterable[tuple[str, str]],
    inventory: Inventory,
    known: Mapping[str, str],
    vendors: Vendors,
) -> list[Unmatched]:
    """`lacking`: entries, with the name that stands in each; `known`: ids by other names."""
    there_are = f"there are: {listing(sorted(device.fact.id for device in inventory.devices)) or 'none'}"
    notes = []
    for entry, name in lacking:
        meant = known.get(name) or known.get(vendors.without_share(name))
        hint = f"did you mean {meant}?" if meant is not None else there_are
        notes.append(Unmatched(section=section, entry=entry, message=f"no device on this node has such an id; {hint}"))
    return notes


def _ids_by_name(inventory: Inventory, vendors: Vendors) -> dict[str, str]:
    """Return the names of devices and partitions, in NodeDevices or by their vendor, beside their ids."""
    known = {
        name: unit.id for unit in inventory.units for name in vendors.vendor_of(unit.device.fact).other_names(unit)
    }
    return known | {name: id_ for id_, name in device_names(inventory).items()}


def _what(fact: DeviceFact, match: DeviceMatch) -> str:
    """Return what a person compares with the match."""
    parts = [fact.product_name or fact.id]
    parts += [fact.id] if match.ids is not None and fact.product_name else []
    parts += [f"of type {fact.type}"] if match.type is not None else []
    return " ".join(parts)


def _existing(found: Sequence[Unit], match: OfferMatch, around: Near) -> str:
    parts = [unit for unit in found if unit.partition is not None]
    if match.profile is not None and not parts:
        return "no partition is offered under a name of its own (see partitions.strategy)"
    kinds = {_kind(unit, match, around) for unit in (found if match.profile is None else parts)}
    return f"there are: {listing(sorted(kinds)) or 'none'}"


def _kind(unit: Unit, match: OfferMatch, around: Near) -> str:
    """Return what a person compares with the match: the model or the profile, and the other properties that the match
    requires."""
    profile = unit.partition.profile if unit.partition is not None else ""
    shown = profile if match.profile is not None else unit.device.fact.product_name
    if match.ids is not None:
        shown = f"{shown} {unit.id}"
    if match.near is not None:
        shown = f"{shown} near {', '.join(sorted(around.get(unit.device.fact.id, ()))) or 'nothing'}"
    return shown if match.min_memory is None else f"{shown} with {unit.memory_bytes // MEBIBYTE}Mi"


def _near(names: Iterable[str]) -> str:
    listed = listing(sorted(set(names)))
    return f"; case matters: {listed} differs only in case" if listed else ""


def _shown(match: DeviceMatch) -> str:
    return ", ".join(
        f"{key} {' '.join(map(str, value)) if isinstance(value, list) else value}"
        for key, value in to_dict(match).items()
    )


def _cut(text: str) -> str:
    return clip(text, VALUE_LIMIT)
