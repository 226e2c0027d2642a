"""The report's parts about shares: those of a device, and those of a resource's memory (counts)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from nodedevices_api import nodedevices as api
from nodedevices_common.quantity import from_bytes

from nodedevices_plugin.model import OfferedResource
from nodedevices_plugin.model.ids import memory_held
from nodedevices_plugin.status.counts import ShareCounts


def memory_of(ids: Iterable[str]) -> str | None:
    """Return the memory of these shares; None: they are not amounts of memory."""
    amounts = memory_held(ids)
    return from_bytes(sum(amounts.values())) if amounts else None


def of_parts(
    counts: Iterable[ShareCounts], *, holders_known: bool, cores: Mapping[str, int] | None = None
) -> dict[str, api.Shares]:
    """Return the report's shares by device or partition. `cores`: by device that shares its computing power, the
    percentage that is held. Shares of one device in several resources, as RDMA pools have of a NIC, are added up."""
    by_part: dict[str, list[ShareCounts]] = defaultdict(list)
    for count in counts:
        by_part[count.part].append(count)
    known = cores or {}
    return {part: _said(some, holders_known=holders_known, cores=known.get(part)) for part, some in by_part.items()}


def _said(counts: Sequence[ShareCounts], *, holders_known: bool, cores: int | None) -> api.Shares:
    only = counts[0] if len(counts) == 1 else None
    left = only.unallocatable_bytes if only is not None else None
    return api.Shares(
        resource=only.resource.name if only is not None else None,
        total=sum(count.total for count in counts),
        held=sum(count.held for count in counts),
        free=sum(count.free for count in counts) if holders_known else None,
        unit=unit(only.resource) if only is not None else None,
        unallocatable=from_bytes(left) if left is not None else None,
        packing=only.resource.sharing.packing if only is not None else None,
        cores_held=cores,
    )


def enforcement(resource: OfferedResource) -> str | None:
    """Return what keeps containers to their shares, where the sharing mode itself does not."""
    by = resource.sharing.enforced_by
    return by.name if by is not None else None


def unit(resource: OfferedResource) -> str | None:
    """Return the memory that one share is."""
    memory = resource.sharing.memory
    return memory.unit if memory is not None else None


def memory_totals(
    resource: OfferedResource, counts: Iterable[ShareCounts], *, missing: Collection[str], holders_known: bool
) -> api.ResourceMemory | None:
    """All devices of a resource together. `missing`: devices and partitions that are gone; they count with what pods
    still hold of them, so that what is held is never more than there is."""
    memory = resource.sharing.memory
    if memory is None:
        return None
    size = memory.unit_bytes
    own = [count for count in counts if count.resource.name == resource.name]
    total = sum(whole for part, whole in memory.devices.items() if part not in missing)
    total += size * sum(count.held for count in own if count.part in missing)
    return api.ResourceMemory(
        total=from_bytes(total),
        held=from_bytes(size * sum(count.held for count in own)),
        free=from_bytes(size * sum(count.free for count in own)) if holders_known else None,
        unallocatable=from_bytes(
            max(0, total - size * sum(count.held if count.part in missing else count.total for count in own))
        ),
    )
