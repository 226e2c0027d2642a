"""The shares of claims as the rest of the pipeline knows shares: by their ids.

The kubelet lists of a claim the devices, and no amounts; the records have these. With them a container that has shares
by a claim is a holder as one of the device plugin API is, so whatever waits for the holders of a resource (a change of
its MPS daemon, a device that takes only so many clients) waits for claims too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from nodedevices_plugin.claims.records import DraFacts, Prepared, Record
from nodedevices_plugin.model import DRA_DRIVER, Holder, Holdings, Offer


def with_shares(holdings: Holdings, dra: DraFacts) -> Holdings:
    """Return the holders with the shares that claims have by their ids, as containers of the device plugin API have
    theirs; what claims have and no List shows is `possible`. A claim without a record keeps its devices whole."""
    records = {record.claim: record for record in (*dra.released, *dra.records.values())}
    if not records:
        return holdings
    shown = tuple(part for holder in holdings.holders for part in _split(holder, records))
    listed = {(holder.claim, holder.resource) for holder in shown}
    unlisted = [
        Offer(resource=entry.resource, ids=entry.ids, claim=record.claim)
        for record in dra.records.values()
        for entry in record.own
        if (record.claim, entry.resource if entry.shares else None) not in listed
    ]
    possible = holdings.possible
    if possible is not None or holdings.were_known:  # else nothing is known, and that is what counts
        possible = (*(possible or ()), *unlisted)
    forgotten = tuple(part for holder in holdings.forgotten for part in _split(holder, records))
    return replace(holdings, holders=shown, possible=possible, forgotten=forgotten)


def _split(holder: Holder, records: Mapping[str, Record]) -> Iterable[Holder]:
    """Yield the holder by the resources of its claim's shares, and with what is none."""
    record = records.get(holder.claim or "")
    if record is None:
        return (holder,)
    of_devices: dict[str, list[Prepared]] = {}
    for entry in record.prepared:
        if entry.shares:
            of_devices.setdefault(entry.result.device, []).append(entry)
    shares: dict[str | None, list[str]] = {}
    for id_ in holder.ids:
        driver, _, rest = id_.partition("/")
        entries = of_devices.get(rest.rpartition("/")[2], ()) if driver == DRA_DRIVER else ()
        for entry in entries:
            shares.setdefault(entry.resource, []).extend(entry.ids)
        if not entries:
            shares.setdefault(None, []).append(id_)
    return [replace(holder, resource=resource, ids=tuple(sorted(ids))) for resource, ids in shares.items()]
