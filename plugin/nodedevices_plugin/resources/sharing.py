"""Sharing: which units of a resource are offered how many times, and under which name.

Time-slicing multiplies ids (`uuid::N`) and nothing else: there is no isolation of memory or faults between shares.
MPS multiplies them too, and one control daemon per resource runs the clients of its GPUs (mps.py has its limits).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from nodedevices_api.sections import SharedResource, Sharing

from nodedevices_plugin.model import PlanError, Unit
from nodedevices_plugin.resources import mps, naming

ALL_DEVICES = "all"  # NVIDIA's configuration file
FIRST = "first:"  # `first:2`: the first two devices by index; NVIDIA's file says it as `devices: 2`


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One resource as it will be offered: plain units, and units that are offered several times."""

    name: str
    units: tuple[tuple[Unit, int | None], ...]  # unit, replicas (None: whole)
    strategy: str = "none"
    replicas: int | None = None
    fail_requests_greater_than_one: bool = False


def share(units: Mapping[str, tuple[Unit, ...]], sharing: Sharing) -> tuple[Share, ...]:
    """Every resource after sharing. Raises PlanError."""
    if sharing.strategy not in {"none", "timeSlicing", "mps"}:
        raise PlanError("sharing.strategy", sharing.strategy, "this agent knows none, timeSlicing and mps")
    rules = {rule.name: rule for rule in sharing.resources} if sharing.strategy != "none" else {}
    offered: dict[str, Share] = {}
    for name, all_units in units.items():
        rule = rules.get(name)
        parts = _shared(name, all_units, rule, sharing) if rule else (_whole(name, all_units),)
        for part in parts:
            if part.name in offered:
                field = f"sharing.resources[{name}].rename"
                raise PlanError(field, part.name, "another resource of this node has that name; choose another")
            offered[part.name] = part
    return tuple(offered[name] for name in sorted(offered))


def _whole(name: str, units: Sequence[Unit]) -> Share:
    return Share(name=name, units=tuple((unit, None) for unit in units))


def _shared(name: str, units: Sequence[Unit], rule: SharedResource, sharing: Sharing) -> tuple[Share, ...]:
    """A rule may concern some devices only; the others stay whole, under the plain name."""
    place = f"sharing.resources[{name}]"
    replicas = rule.replicas
    if replicas is None:
        raise PlanError(f"{place}.replicas", "absent", f"{sharing.strategy} needs replicas, 2 to 16384")
    chosen = chosen_units(units, rule.devices)
    if not chosen:
        return (_whole(name, units),)
    new_name = rule.rename or (naming.shared(name) if sharing.rename_by_default else name)
    if new_name != name:
        naming.check(f"{place}.rename", new_name)
    rest = [unit for unit in units if unit not in chosen]
    if sharing.strategy == "mps":
        mps.check(place, chosen, replicas)
        if rest and new_name == name:
            hint = "clients of MPS and whole devices need names of their own; give rename, or renameByDefault"
            raise PlanError(f"{place}.devices", ", ".join(rule.devices or ())[:128], hint)
    in_order = units if new_name == name else chosen
    shared = Share(
        name=new_name,
        units=tuple((unit, replicas if unit in chosen else None) for unit in in_order),
        strategy=sharing.strategy,
        replicas=replicas,
        fail_requests_greater_than_one=sharing.fail_requests_greater_than_one,
    )
    return (shared,) if new_name == name or not rest else (_whole(name, rest), shared)


def chosen_units(units: Sequence[Unit], devices: Sequence[str] | None) -> list[Unit]:
    """The units that `devices` means, in their order: ids, indices (`0`, `0:1`), globs over ids, `all`, `first:2`.

    None means all. What the node has not is no error: one configuration serves many nodes.
    """
    if devices is None:
        return list(units)
    counts = (each.removeprefix(FIRST) for each in devices if each.startswith(FIRST))
    first = max((int(each) for each in counts if each.isascii() and each.isdecimal()), default=0)
    return [
        unit for place, unit in enumerate(units) if place < first or any(_names(pattern, unit) for pattern in devices)
    ]


def _names(pattern: str, unit: Unit) -> bool:
    names = [unit.id]
    if unit.partition is not None:  # how drivers before R470 named MIG devices
        names.append(f"MIG-{unit.device.fact.id}/{unit.partition.gi}/{unit.partition.ci}")
    return pattern in {ALL_DEVICES, unit.index} or any(pattern == name or fnmatchcase(name, pattern) for name in names)
