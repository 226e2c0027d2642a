"""Sharing: decides how many times each unit of a resource is offered, and under which name.

Names and devices are decided here, the same for all modes; the mode decides how many shares a device has (package
sharing).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from msgspec import Struct
from msgspec.structs import replace
from nodedevices_api.sections import ALL_DEVICES, FIRST, SharedResource

from nodedevices_plugin.model import NOT_SHARED, PlanError, SharingFacts, Unit, resource_names
from nodedevices_plugin.offering.naming import PlanSettings
from nodedevices_plugin.sharing.base import SplitRequest
from nodedevices_plugin.sharing.registry import ByNature
from nodedevices_plugin.vendors.registry import VENDORS, Vendors


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
    own_name = resource_names.shared(name) if sharing.rename_by_default else mode.shares_name or name
    new_name = rule.rename or own_name
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
