"""How much of each shared device is held, how much a new container can get, and how much is in no share. Pure.

A share is held where a container holds its id, and free where it is offered, healthy and not held. What is neither is
not offered: its device has failed, was taken out of service, or waits for holders of an earlier configuration. What is
in no share at all is known of memory alone: the reserve, and what whole units leave of a device.

How much memory somebody holds is in the ids that it holds, whatever the unit is today.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from nodedevices_api import nodedevices as api
from nodedevices_api.quantity import from_bytes

from nodedevices_plugin.model import OfferedResource, SchedulableId
from nodedevices_plugin.resources.ids import memory_held, share_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareCounts:
    """The shares that one resource has of one device or partition (`part`)."""

    resource: OfferedResource
    part: str
    device_id: str
    total: int
    held: int
    free: int

    @property
    def not_offered(self) -> int:
        return max(0, self.total - self.held - self.free)

    @property
    def memory_bytes(self) -> int | None:
        """Of the device; None: its memory is not what is shared."""
        memory = self.resource.memory
        return None if memory is None or self.part not in memory.devices else memory.devices[self.part][0]

    @property
    def unallocatable_bytes(self) -> int | None:
        memory, total = self.resource.memory, self.memory_bytes
        return None if memory is None or total is None else max(0, total - self.total * memory.unit_bytes)


def count(
    resources: Iterable[OfferedResource], held: Mapping[str, Collection[str]], *, not_free: Collection[str] = ()
) -> tuple[ShareCounts, ...]:
    """Of every device that is offered in shares. `held`: by resource, the ids that containers hold, as own_id makes
    them. `not_free`: resources of which nothing is free, such as those that another plugin serves."""
    found = []
    amounts = memory_held(id_ for ids in held.values() for id_ in ids)
    for resource in resources:
        parts: dict[str, list[SchedulableId]] = defaultdict(list)
        for each in resource.ids:
            if each.replica is not None and resource.per_device is None:
                parts[each.partition_id or each.device_id].append(each)
        taken = set(held.get(resource.name, ()))
        for part, ids in parts.items():
            own = {own_id(each): each.healthy for each in ids}
            in_plan = len(own.keys() & taken)
            free = sum(healthy and id_ not in taken for id_, healthy in own.items())
            found.append(
                ShareCounts(
                    resource=resource,
                    part=part,
                    device_id=ids[0].device_id,
                    total=len(ids),
                    held=_held(resource, in_plan, len(ids), amounts.get(part, 0)),
                    free=0 if resource.name in not_free else free,
                )
            )
    return tuple(found)


def _held(resource: OfferedResource, in_plan: int, total: int, amount: int) -> int:
    """In shares of today's unit, also where pods hold some of an earlier one, or under an earlier name."""
    if resource.memory is None:
        return in_plan
    return min(total, max(in_plan, -(-amount // resource.memory.unit_bytes)))


def own_id(schedulable: SchedulableId) -> str:
    """As holders have it: another plugin's id may be an index."""
    if not schedulable.device_id:
        return schedulable.id
    unit = schedulable.partition_id or schedulable.device_id
    if schedulable.replica is None:
        return unit
    own = schedulable.id.startswith(unit)  # there may be thousands
    return schedulable.id if own else share_of(unit, schedulable.id)


def memory_of(ids: Iterable[str]) -> str | None:
    """How much memory these shares are; None: they are not amounts of memory."""
    amounts = memory_held(ids)
    return from_bytes(sum(amounts.values())) if amounts else None


def of_parts(
    counts: Iterable[ShareCounts], *, holders_known: bool, cores: Mapping[str, int] | None = None
) -> dict[str, api.Shares]:
    """Device or partition -> what the report says of its shares. `cores`: the percentage of their computing power that
    is held, of those that share it. Where several resources have shares of one device, as
    RDMA pools have of a NIC, they are added up."""
    by_part: dict[str, list[ShareCounts]] = defaultdict(list)
    for each in counts:
        by_part[each.part].append(each)
    known = cores or {}
    return {part: _said(some, holders_known=holders_known, cores=known.get(part)) for part, some in by_part.items()}


def _said(counts: Sequence[ShareCounts], *, holders_known: bool, cores: int | None) -> api.Shares:
    only = counts[0] if len(counts) == 1 else None
    left = only.unallocatable_bytes if only is not None else None
    return api.Shares(
        resource=only.resource.name if only is not None else None,
        total=sum(each.total for each in counts),
        held=sum(each.held for each in counts),
        free=sum(each.free for each in counts) if holders_known else None,
        unit=only.resource.unit if only is not None else None,
        unallocatable=from_bytes(left) if left is not None else None,
        packing=packing(only.resource) if only is not None else None,
        cores_held=cores,
    )


def packing(resource: OfferedResource) -> str | None:
    if resource.memory is None:
        return None
    return "spread" if resource.memory.spread else "binpack"


def memory_totals(
    resource: OfferedResource, counts: Iterable[ShareCounts], *, missing: Collection[str], holders_known: bool
) -> api.ResourceMemory | None:
    """All devices of a resource together. `missing`: devices and partitions that are gone; they count with what pods
    still hold of them, so that what is held is never more than there is."""
    if resource.memory is None:
        return None
    unit = resource.memory.unit_bytes
    own = [each for each in counts if each.resource.name == resource.name]
    total = sum(memory for part, (memory, _) in resource.memory.devices.items() if part not in missing)
    total += unit * sum(each.held for each in own if each.part in missing)
    return api.ResourceMemory(
        total=from_bytes(total),
        held=from_bytes(unit * sum(each.held for each in own)),
        free=from_bytes(unit * sum(each.free for each in own)) if holders_known else None,
        unallocatable=from_bytes(
            max(0, total - unit * sum(each.held if each.part in missing else each.total for each in own))
        ),
    )
