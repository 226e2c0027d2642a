"""Ids that name no device (cores.ids): as many are given to new containers as go with devices that these can get.

They pass no gate, since a gate asks for a device. So this comes after all gates: for each of the devices that a
resource counts of which no id is free of a reason, it blocks as many ids for that reason. Ids that nobody holds come
first: those of a pod say nothing about its device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from msgspec.structs import replace
from nodedevices_api.withheld import UNHEALTHY

from nodedevices_plugin.gates.base import GateFacts
from nodedevices_plugin.model import Blocked, ListedAs, OfferedResource, SchedulableId

GONE = Blocked(reason=UNHEALTHY, message="a device that it counts is not offered")


def counted(resources: Sequence[OfferedResource], facts: GateFacts) -> list[OfferedResource]:
    """Return the resources, with the ids blocked that go with devices which no container can get."""
    if not any(resource.counts for resource in resources):
        return list(resources)
    why = _why_not(resources)
    held = {(name, id_) for name, ids in facts.holdings.held for id_ in ids}
    held |= {(allocate.resource, id_) for allocate in facts.unconfirmed for id_ in allocate.ids}
    return [
        _with_blocked(resource, why, {id_ for name, id_ in held if name == resource.name})
        if resource.counts
        else resource
        for resource in resources
    ]


def _why_not(resources: Sequence[OfferedResource]) -> dict[str, Blocked | None]:
    """Return by device or partition why no container can get it; None: one can."""
    found: dict[str, Blocked | None] = {}
    for resource in resources:
        for entry in (*resource.ids, *resource.unlisted):
            found[entry.part_id] = found.get(entry.part_id, entry.blocked) and entry.blocked
    return found


def _with_blocked(resource: OfferedResource, why: Mapping[str, Blocked | None], held: Set[str]) -> OfferedResource:
    whole = {entry.part_id for entry in resource.retained}  # a pod that has it under this name is subtracted anyway
    parts = [part for part in resource.counts if part not in whole]
    reasons = [blocked for part in parts if (blocked := why.get(part, GONE)) is not None]
    free_first = sorted((entry.id for entry in reversed(resource.ids) if not entry.device_id), key=held.__contains__)
    by_id = dict(zip(free_first, (reason for reason in reasons for _ in range(resource.per_device or 0)), strict=False))
    ids: list[SchedulableId] = []
    unlisted: list[SchedulableId] = []
    for entry in resource.ids:
        because = by_id.get(entry.id)
        some = unlisted if because is not None and because.listed_as is ListedAs.NOT_LISTED else ids
        some.append(replace(entry, blocked=because) if because is not None else entry)
    return replace(resource, ids=tuple(ids), unlisted=(*resource.unlisted, *unlisted))
