"""Under which resource name each unit is offered: the rules of `resources.devices`, then the usual names.

The first rule that matches decides; what no rule matches keeps its usual name (NVIDIA's plugin appends its defaults to
the user's patterns alike). A rule with a `profile` is about MIG devices, one without is about whole GPUs, and about
MIG devices only where they stand in for GPUs (partitions.strategy single): a rule for `NVIDIA H100*` never swallows
slices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from nodedevices_api.matching import matches
from nodedevices_api.sections import DeviceMatch, Resources

from nodedevices_plugin.model import Unit
from nodedevices_plugin.resources import naming


def by_name(
    units: Sequence[Unit], resources: Resources, mig_strategy: str, prefix: str
) -> Mapping[str, tuple[Unit, ...]]:
    """Resource name -> its units, in their order. Raises PlanError for a name that the kubelet would not take."""
    for place, rule in enumerate(resources.devices):
        naming.check(f"resources.devices[{place}].name", rule.name)
    found: dict[str, list[Unit]] = defaultdict(list)
    for unit in units:
        single = mig_strategy == "single"
        named = (rule.name for rule in resources.devices if _matches(rule.match, unit, stands_in=single))
        name = next(named, None) or _usual(unit, stands_in=single, prefix=prefix)
        if name is not None:
            found[name].append(unit)
    return {name: tuple(some) for name, some in found.items()}


def fitting(match: DeviceMatch, units: Sequence[Unit], *, stands_in: bool, any_case: bool = False) -> list[Unit]:
    """The units that a rule is about. `stands_in`: MIG devices stand in for GPUs (partitions.strategy single).
    `any_case`: as if upper and lower case were the same, to tell a near miss."""
    return [unit for unit in units if _matches(match, unit, stands_in=stands_in, any_case=any_case)]


def _usual(unit: Unit, *, stands_in: bool, prefix: str) -> str | None:
    """None: a compute instance smaller than its GPU instance, for which NVIDIA has no resource name."""
    part = unit.partition
    if part is None or stands_in:
        return naming.gpu(prefix)
    return naming.mig(prefix, part.profile) if part.ci_slices == part.gi_slices else None


def _matches(match: DeviceMatch, unit: Unit, *, stands_in: bool, any_case: bool = False) -> bool:
    fact, part = unit.device.fact, unit.partition

    def fits(text: str, pattern: str) -> bool:
        return fnmatchcase(text.lower(), pattern.lower()) if any_case else fnmatchcase(text, pattern)

    if match.profile is None:
        if part is not None and not stands_in:
            return False
    elif part is None or not any(
        fits(profile, match.profile) for profile in (part.profile, naming.plain_profile(part.profile))
    ):
        return False
    return matches(
        match,
        vendor=fact.vendor,
        product_name=fact.product_name,
        type=fact.type,
        memory_bytes=unit.memory_bytes,
        ids=(unit.id, fact.id),
        any_case=any_case,
    )
