"""The report's parts about shares (counts)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

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
    return api.Shares(
        resource=counts[0].resource.name if len(counts) == 1 else None,
        total=sum(count.total for count in counts),
        held=sum(count.held for count in counts),
        free=sum(count.free for count in counts) if holders_known else None,
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
