"""Gives each unit its resource name: by the rules of `resources.devices`, else its usual name.

The first rule that matches decides; without one a unit has its vendor's usual name. A rule with a `profile` is
about partitions, one without is about whole devices, and about partitions only where they take the place of devices
(partitions.strategy single): a rule for a model never swallows slices.

A device that its maker does not know (vendors.registry; also a kind that every maker builds) gets a name only from an
explicit rule: one that gives its type or its id, or a vendor that is not registered. So a rule for all products of a
maker does not offer its NICs as GPUs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from nodedevices_api.matching import fits, matches, same
from nodedevices_api.sections import OfferMatch, Resources
from nodedevices_common.quantity import to_bytes
from nodedevices_probe.protocol import DeviceFact

from nodedevices_plugin.model import Unit, resource_names
from nodedevices_plugin.offering.nearness import Near
from nodedevices_plugin.vendors.registry import NOTHING_SAID, VENDORS, Vendors, VendorValues

NOTHING_NEAR: Near = {}


def by_name(
    units: Sequence[Unit],
    resources: Resources,
    strategy: str,
    prefix: str,
    *,
    values: VendorValues = NOTHING_SAID,
    near: Near = NOTHING_NEAR,
) -> Mapping[str, tuple[Unit, ...]]:
    """Return by resource name its units, in their order. `near`: which types are near to each device (nearness). Raises
    PlanError for a name that the kubelet would not accept."""
    for place, rule in enumerate(resources.devices):
        resource_names.check(f"resources.devices[{place}].name", rule.name)
    found: dict[str, list[Unit]] = defaultdict(list)
    single = strategy == "single"
    for unit in (unit for unit in units if not _withheld(unit, values)):
        named = (
            rule.name
            for rule in resources.devices
            if _matches(rule.match, unit, near, values.known, partitions_as_devices=single)
        )
        name = next(named, None) or _usual(unit, strategy, prefix, values)
        if name is not None:
            found[name].append(unit)
    return {name: tuple(some) for name, some in found.items()}


def _withheld(unit: Unit, values: VendorValues) -> bool:
    vendor = values.known.vendor_of(unit.device.fact) if values.withheld else None
    return vendor is not None and vendor.name in values.withheld


def units_matching(
    match: OfferMatch,
    units: Sequence[Unit],
    near: Near,
    *,
    partitions_as_devices: bool,
    any_case: bool = False,
    vendors: Vendors = VENDORS,
) -> list[Unit]:
    """Return the units that a rule is about. `near`: as in `by_name`. `partitions_as_devices`: partitions take the
    place of devices (partitions.strategy single). `any_case`: ignore upper and lower case, to find a near miss."""
    return [
        unit
        for unit in units
        if _matches(match, unit, near, vendors, partitions_as_devices=partitions_as_devices, any_case=any_case)
    ]


def _usual(unit: Unit, strategy: str, prefix: str, values: VendorValues) -> str | None:
    """Return the usual name; None, too, where no kubelet would accept it: one odd device must not cost the others their
    names."""
    vendor = values.known.vendor_of(unit.device.fact)
    if vendor is None:
        return None
    name = vendor.usual_name(unit, values.naming(vendor.name, strategy=strategy, prefix=prefix))
    return name if name is None or resource_names.is_one(name) else None


def _matches(
    match: OfferMatch, unit: Unit, near: Near, vendors: Vendors, *, partitions_as_devices: bool, any_case: bool = False
) -> bool:
    fact, part = unit.device.fact, unit.partition
    vendor = vendors.vendor_of(fact)
    if (vendor is None or vendor.every_maker) and not _is_explicit(match, fact, vendors):
        return False
    if match.profile is None and part is not None and not partitions_as_devices:
        return False
    return matches_unit(match, unit, near, any_case=any_case)


def matches_unit(match: OfferMatch, unit: Unit, near: Near, *, any_case: bool = False) -> bool:
    """True when the match selects a unit that has a name already; without a profile a partition counts as its
    device."""
    fact, part = unit.device.fact, unit.partition

    if match.profile is not None and (
        part is None
        or not any(
            fits(profile, match.profile, any_case=any_case)
            for profile in (part.profile, resource_names.plain_profile(part.profile))
        )
    ):
        return False
    if match.min_memory is not None and unit.memory_bytes < to_bytes(match.min_memory):
        return False
    around = near.get(fact.id, ())
    if match.near is not None and not any(same(type_, match.near, any_case=any_case) for type_ in around):
        return False
    return matches(
        match,
        vendor=fact.vendor,
        product_name=fact.product_name,
        type=fact.type,
        ids=(unit.id, fact.id),
        any_case=any_case,
    )


def _is_explicit(match: OfferMatch, fact: DeviceFact, vendors: Vendors) -> bool:
    """True when the rule is explicitly about devices like this one, which its maker does not know."""
    by_vendor = match.vendor is not None and not vendors.known(fact.vendor)
    return by_vendor or match.type is not None or match.ids is not None
