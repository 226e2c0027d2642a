"""Which ids are held, or may be, before this step's line: by the kubelet's List, by Allocates that no List has shown
yet, and by whom only the kubelet's checkpoint knows.

And which devices are in use: held, or in a resource that is offered, or that a configuration names. A condition of any
other device may be no fault of the node (vendors.faults.FaultCondition.unused). A requested configuration counts
beside the one in effect, so that a NIC without a link is not offered in the step that names it. One that is not
possible with these devices offers nothing, and does not count: a mistake in a policy is no fault of the devices.

And the shares of claims as the rest of the pipeline knows shares: by their ids. The kubelet lists of a claim the
devices, and no amounts; the records have these. With them a container that has shares by a claim is a holder as one of
the device plugin API is, so whatever waits for the holders of a resource (a change of its MPS daemon, a device that
takes only so many clients) waits for claims too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial

from msgspec import Struct
from msgspec.structs import replace
from nodedevices_common.grouping import grouped

from nodedevices_plugin.claims.records import DraFacts, Record
from nodedevices_plugin.model import DRA_DRIVER, Holder, Holdings, Inventory, Offer, Plan, RecentAllocate, held_key
from nodedevices_plugin.offering.occupancy import HeldId, not_listed
from nodedevices_plugin.offering.shape import fitting, named_units
from nodedevices_plugin.pipeline.configuration import plan_settings
from nodedevices_plugin.pipeline.foreign import held
from nodedevices_plugin.pipeline.world import Inputs, World
from nodedevices_plugin.settings.effective import Effective


class Holding(Struct, frozen=True, kw_only=True):
    """The held ids before this step's line. `held` None: not known before the first List; then every device and
    partition counts as held. `given`: the devices without those that are only in a slice: a claim may be allocated
    them, and nobody has them."""

    held: tuple[HeldId, ...] | None
    devices: frozenset[str]
    given: frozenset[str]
    parts: frozenset[str]  # partitions
    listed: frozenset[RecentAllocate]
    unconfirmed: tuple[RecentAllocate, ...]

    @property
    def known_devices(self) -> frozenset[str] | None:
        """Devices that are held; None: not known."""
        return None if self.held is None else self.devices


def holding_of(world: World, inputs: Inputs) -> Holding:
    """Return what is held, by the kubelet's List and the Allocates that it has not shown yet."""
    listed = _listed(world.known.listed, inputs)
    unconfirmed = not_listed(inputs.recent, listed, inputs.holdings)
    index = world.known.index.under(world.active.effective.index_prefix)
    # Not known before the first List. An Allocate that no List has shown yet counts.
    known = inputs.holdings.were_known
    held_now = held(inputs.holdings, unconfirmed, index, world.known.given, inputs.dra) if known else None
    if held_now is None:
        devices = given = frozenset(device.fact.id for device in world.known.inventory.devices)
        parts = frozenset(unit.id for unit in world.known.inventory.units if unit.partition is not None)
    else:
        devices = frozenset(held_id.device_id for held_id in held_now)
        given = frozenset(held_id.device_id for held_id in held_now if not held_id.announced)
        parts = frozenset(held_id.partition_id for held_id in held_now if held_id.partition_id is not None)
    return Holding(held=held_now, devices=devices, given=given, parts=parts, listed=listed, unconfirmed=unconfirmed)


def granted(world: World, inputs: Inputs) -> frozenset[str]:
    """Return the keys of ids that were granted since the last step."""
    new = (allocate for allocate in inputs.recent if allocate.monotonic > world.known.allocated)
    return frozenset(held_key(allocate.resource, id_) for allocate in new for id_ in allocate.ids)


def _listed(before: frozenset[RecentAllocate], inputs: Inputs) -> frozenset[RecentAllocate]:
    """Return the recent Allocates that PodResources has shown. When one was shown and is gone, its pod has ended.

    Only a List that was called afterwards shows it: an older one may show earlier holders of these ids.
    """
    held = {(holder.resource, id_) for holder in inputs.holdings.holders for id_ in holder.ids}
    return frozenset(
        allocate
        for allocate in inputs.recent
        if allocate in before
        or (inputs.holdings.taken > allocate.monotonic and {(allocate.resource, id_) for id_ in allocate.ids} <= held)
    )


def in_use(
    inventory: Inventory, plan: Plan | None, configurations: Iterable[Effective | None], holding: Holding
) -> Callable[[str], bool]:
    """Return a function that tells by a device's id whether it is held or in a resource. `plan`: the one in effect. A
    claim may hold what no resource has any more."""

    @cache
    def found() -> frozenset[str]:
        ids = {
            schedulable.device_id
            for resource in (plan.resources if plan is not None else ())
            for schedulable in (*resource.ids, *resource.retained)
        }
        if holding.held is not None:
            ids |= holding.given
        for effective in configurations:
            if effective is not None:
                named, misfit = fitting(inventory, partial(named_units, settings=plan_settings(effective)))
                if named is not None and misfit is None:
                    ids |= {unit.device.fact.id for some in named.values() for unit in some}
        return frozenset(ids)

    return lambda device_id: device_id in found()


# --- the shares of claims --------------------------------------------------------------------------------------------
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
    of_devices = grouped((entry.result.device, entry) for entry in record.prepared if entry.shares)
    shares: dict[str | None, list[str]] = {}
    for id_ in holder.ids:
        driver, _, rest = id_.partition("/")
        entries = of_devices.get(rest.rpartition("/")[2], ()) if driver == DRA_DRIVER else ()
        for entry in entries:
            shares.setdefault(entry.resource, []).extend(entry.ids)
        if not entries:
            shares.setdefault(None, []).append(id_)
    return [replace(holder, resource=resource, ids=tuple(sorted(ids))) for resource, ids in shares.items()]
