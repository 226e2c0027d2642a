"""The offers and allocations of other programs on this node: another device plugin, a DRA driver.

With `serving.mode: Observe` a vendor's plugin serves the kubelet and this agent registers nothing. Of that plugin only
the lists of PodResources can be seen: which ids it calls healthy (GetAllocatableResources leaves others out), and
which ids pods hold. This module maps such ids to the node's devices: `GPU-...` and `MIG-...`, shares of them
(`GPU-...::3`), a vendor's indices (`3`, `0:1`) where deviceIDStrategy index is configured, and the names that its DRA
driver uses (`gpu-3`; Vendor.claim_name). Ids that name none of these are ignored.

Ids that were seen once are remembered (state file): an id that its plugin calls unhealthy, and every id while that
plugin is down, cannot be seen, but is still capacity and still under that plugin's name.

DeviceIndex has a node's devices by every name that others give them: ids, a vendor's indices, the names of its DRA
driver. It is made once a step from the inventory. Some names mean a device only for ids of a certain resource.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from typing import Self

from msgspec.structs import replace
from nodedevices_api.withheld import SERVED_BY_ANOTHER
from nodedevices_common.grouping import grouped
from nodedevices_common.text import some

from nodedevices_plugin.claims.records import DraFacts
from nodedevices_plugin.model import (
    DRA_DRIVER,
    NOT_SHARED,
    Api,
    Blocked,
    Given,
    Holder,
    HoldersState,
    Holdings,
    Inventory,
    Offer,
    OfferedResource,
    Part,
    Plan,
    RecentAllocate,
    SchedulableId,
    SharingFacts,
    Unit,
    device_names,
    held_key,
    is_core,
    share_of,
    split,
)
from nodedevices_plugin.offering.occupancy import ChangeDecision, HeldId, pods_named, wait, when_free
from nodedevices_plugin.sharing.base import SharingMode
from nodedevices_plugin.sharing.daemons import has_daemon
from nodedevices_plugin.sharing.registry import TimeSlicing
from nodedevices_plugin.vendors.base import Naming
from nodedevices_plugin.vendors.registry import VENDORS, Vendors

MAX_RESOURCES = 32  # maxItems of status.resources
HEX_NUMBER = re.compile(r"[0-9a-fA-F]+")
NAMED = 4  # of another plugin's resources, in one message
Known = Mapping[str, tuple[str, ...]]  # resource -> ids seen of it
NOTHING_GIVEN: Mapping[str, Given] = {}
NO_DRA = DraFacts()
_NOT_OFFERED = Blocked(reason=SERVED_BY_ANOTHER, message="the plugin that serves it does not offer it now")


def named(holdings: Holdings, index: DeviceIndex, given: Mapping[str, Given] = NOTHING_GIVEN) -> Holdings:
    """The same holders with our own ids in place of the names that others use; unknown ones are left as they are."""

    def own(resource: str | None, id_: str) -> str:
        parts = _parts(resource, id_, index, given)
        return _own_id(resource, id_, parts[0]) if parts else id_

    holders = (
        replace(holder, ids=tuple(own(holder.resource, id_) for id_ in holder.ids)) for holder in holdings.holders
    )
    return replace(holdings, holders=tuple(holders))


def held(
    holdings: Holdings,
    unconfirmed: Sequence[RecentAllocate],
    index: DeviceIndex,
    given: Mapping[str, Given] = NOTHING_GIVEN,
    dra: DraFacts = NO_DRA,
) -> tuple[HeldId, ...]:
    """Every id of this node's devices that is held, or may be: by listed pods, by Allocates that no List has shown yet
    (`unconfirmed`), by whom the kubelet's checkpoint alone knows, and by claims. `given`: which devices held ids named
    when they were granted (pipeline.places): a name may be another device's by now, and then both are held. `dra`:
    claims that were prepared, init containers' too, and devices that a claim may be allocated now."""
    found: dict[tuple[str | None, str, str, str], HeldId] = {}
    taken: set[tuple[str | None, str]] = set()
    administered = {pair for record in dra.records.values() for pair in record.administered}

    def add(resource: str | None, id_: str, holder: str, claim: str = "") -> None:
        for part in _parts(resource, id_, index, given):
            own = _own_id(resource, id_, part)
            if not holder and (resource, own) in taken:
                continue
            taken.add((resource, own))
            found[resource, own, holder, claim] = HeldId(
                resource=resource,
                driver=(DRA_DRIVER if claim else "") if resource is not None else id_.partition("/")[0],
                id=own,
                device_id=part.device_id,
                partition_id=part.partition_id,
                replica=None if resource is None else split(id_)[1],
                holder=holder,
                claim=claim,
                key=held_key(resource, id_),
                any_shape=(claim, part.part_id) in administered,
            )

    for holder in holdings.holders:
        for id_ in holder.ids:
            add(holder.resource, id_, f"{holder.namespace}/{holder.pod}", holder.claim or "")
    unnamed: list[RecentAllocate | Offer] = [*unconfirmed]
    unnamed += (offer for offer in holdings.possible or () if not offer.claim)  # a claim's record has them
    for entry in unnamed:
        for id_ in entry.ids:
            add(entry.resource, id_, "")
    by_claims = [
        HeldId(
            resource=entry.resource if entry.shares else None,
            driver=DRA_DRIVER,
            id=id_,
            device_id=part.device_id,
            partition_id=part.partition_id,
            replica=split(id_)[1],
            claim=record.claim,
            key=held_key(entry.resource if entry.shares else None, id_),
        )
        for record in dra.records.values()
        for entry in record.own
        if (part := index.part(entry.part_id)) is not None
        for id_ in entry.ids
    ]
    announced = [
        HeldId(
            resource=None,
            driver=DRA_DRIVER,
            id=part.part_id,
            device_id=part.device_id,
            partition_id=part.partition_id,
            any_shape=True,
        )
        for part in map(index.in_slices, sorted(dra.in_slices))
        if part is not None
    ]
    unlisted = (held_id for held_id in by_claims if (held_id.resource, held_id.id) not in taken)
    return (*found.values(), *unlisted, *announced)


def _parts(resource: str | None, id_: str, index: DeviceIndex, given: Mapping[str, Given]) -> tuple[Part, ...]:
    """Return the parts that a held id names: the one that was given with it first, then the one of that name now."""
    known = given.get(held_key(resource, id_))
    before = index.part(known.part_id) if known is not None else None
    return tuple(dict.fromkeys(part for part in (before, index.named(resource, id_)) if part is not None))


def _own_id(resource: str | None, id_: str, part: Part) -> str:
    return part.part_id if resource is None else share_of(part.part_id, id_)


def observe(known: Known, holdings: Holdings, index: DeviceIndex, *, mode: SharingMode | None = None) -> Plan:
    """Return what others offer to the kubelet, as far as it can be seen or was seen before; `healthy`: seen now.

    A device with an id that is offered now has exactly the ids that are offered or held now; any other device keeps its
    known ids. While the kubelet does not answer no id counts as healthy. `mode`: how devices are shared, as configured
    here; it cannot be seen.
    """
    live = set(_offered(holdings)) if holdings.state is not HoldersState.UNAVAILABLE else set()
    shown = {_device(index, *pair) for pair in live} - {None}
    remembered = {(resource, id_) for resource, ids in known.items() for id_ in ids}
    ids = live | {(holder.resource, id_) for holder in holdings.holders if holder.resource for id_ in holder.ids}
    ids |= {pair for pair in remembered if _device(index, *pair) not in shown}
    resources = grouped(
        (
            resource,
            SchedulableId(
                id=id_,
                device_id=part.device_id,
                partition_id=part.partition_id,
                replica=split(id_)[1],
                blocked=None if (resource, id_) in live else _NOT_OFFERED,
            ),
        )
        for resource, id_ in sorted(ids, key=lambda pair: (pair[0], _order(pair[1])))
        if (part := index.named(resource, id_)) is not None
    )
    return Plan(resources=tuple(_resource(name, ids, mode) for name, ids in list(resources.items())[:MAX_RESOURCES]))


def remembered(observed: Plan) -> dict[str, tuple[str, ...]]:
    """Return the plan as the state file has it."""
    return {resource.name: tuple(schedulable.id for schedulable in resource.ids) for resource in observed.resources}


def take_over(wanted: Plan, holdings: Holdings, index: DeviceIndex) -> ChangeDecision:
    """Decide whether this agent may serve `wanted` where it only observed: not while others hold or offer our devices
    differently.

    The same id under the same name is the same thing to the kubelet, by any plugin: pods that hold it keep it, and the
    other plugin may still be there. Any other id of our devices would vanish under its pod, or be handed out twice. So
    would any other id under a name of ours, also one whose device is not known: its device is one that the name is to
    offer.

    How others share cannot be seen, so no pod may hold a resource that is to have an MPS daemon
    (offering.occupancy has why).
    """
    what = ", ".join(resource.name for resource in wanted.resources) or "nothing"
    if not holdings.known or holdings.offered is None:
        why = holdings.message or "the kubelet has not been queried yet"
        return wait(f"serving {what} waits: it is not known what pods hold and other plugins offer ({why})")
    ours = {(resource.name, schedulable.id) for resource in wanted.resources for schedulable in resource.ids}
    with_daemon = {resource.name for resource in wanted.resources if has_daemon(resource)}
    wanted_names = {resource.name for resource in wanted.resources if resource.ids}
    devices = {schedulable.device_id for resource in wanted.resources for schedulable in resource.ids}

    def differs(resource: str, id_: str) -> bool:
        by_name = resource in wanted_names or index.named(resource, id_) is not None
        return (resource, id_) not in ours and by_name

    def concerns(held: Holder | Offer) -> bool:
        if held.resource is None:
            return any(_device(index, None, id_) in devices for id_ in held.ids)
        if held.resource in with_daemon:
            return True
        if isinstance(held, Offer):  # of a device of ours that is withheld it is enough
            return held.resource in wanted_names and any(index.named(held.resource, id_) is None for id_ in held.ids)
        return any(differs(held.resource, id_) for id_ in held.ids)

    decision = when_free(f"serving {what}", holdings, concerns)
    offers = sorted({resource for resource, id_ in _offered(holdings) if differs(resource, id_)})
    if not decision.apply or not offers:
        return decision
    return wait(f"serving {what} waits until another plugin no longer offers these devices as {', '.join(offers)}")


def other_plugins(
    resource: str,
    plan: Plan,
    offered: Sequence[Offer],
    index: DeviceIndex,
    *,
    own: Collection[str],
    taking_over: bool = False,
    api: Api = Api.DEVICE_PLUGIN,
) -> tuple[Offer, ...]:
    """Return the offers of other plugins because of which `resource` of our plan must not be registered, or published
    where `api` is DRA.

    These are all offers under a name of the plan, and offers of the plan's devices under another name of the same
    domain, which is one vendor's. `own`: names that we have registered. `taking_over`: the same id under the same name
    is not in the way (take_over).
    """
    planned = [ours for ours in plan.by(api).resources if _domain(ours.name) == _domain(resource)]
    planned_names = {ours.name for ours in planned}
    devices = {schedulable.device_id for ours in planned for schedulable in ours.ids}
    alike = {(ours.name, schedulable.id) for ours in planned for schedulable in ours.ids} if taking_over else set()
    found = []
    for offer in offered:
        if _domain(offer.resource) != _domain(resource) or offer.resource in own:
            continue
        same = offer.resource in planned_names
        ids = tuple(
            id_
            for id_ in offer.ids
            if (same or _device(index, offer.resource, id_) in devices) and (offer.resource, id_) not in alike
        )
        if ids:
            found.append(replace(offer, ids=ids))
    return tuple(found)


def unread_holders(resource: str, plan: Plan, holdings: Holdings, index: DeviceIndex) -> str:
    """Return as text which pods hold ids under a name of our plan that no plugin of ours has given; empty: none. These
    are ids of an earlier plugin, and their devices are not known. An id in the form of the plan's does not count: its
    device has left."""
    shapes = {_shape(schedulable.id) for ours in plan.resources if ours.name == resource for schedulable in ours.ids}
    ids = {
        id_: holder
        for holder in holdings.holders
        for id_ in (holder.ids if holder.resource == resource else ())
        if index.named(resource, id_) is None and not is_core(id_) and not shapes & {_shape(id_), _shape(split(id_)[0])}
    }
    if not ids:
        return ""
    such = f"such as {next(iter(ids))}; waits for {pods_named(ids.values())}"
    return f"pods hold {len(ids)} ids of {resource} that another device plugin gave, {such}"


def _shape(id_: str) -> str:
    return HEX_NUMBER.sub("0", id_)


def offered_text(found: Sequence[Offer]) -> str:
    """Return as text which plugin is in the way, and what to do; empty: none."""
    if not found:
        return ""
    what = some((offer.resource for offer in found), NAMED)
    count = sum(len(offer.ids) for offer in found)
    ids = f"{count} healthy ids, such as {found[0].ids[0]}" if count > 1 else f"the healthy id {found[0].ids[0]}"
    remedy = "remove it from this node, or set serving.mode: Observe"
    return f"another device plugin serves {what} to this kubelet: {ids}; {remedy}"


def _domain(resource: str) -> str:
    return resource.partition("/")[0]


def _offered(holdings: Holdings) -> Iterable[tuple[str, str]]:
    return ((offer.resource, id_) for offer in holdings.offered or () for id_ in offer.ids)


def _device(index: DeviceIndex, resource: str | None, id_: str) -> str | None:
    part = index.named(resource, id_)
    return None if part is None else part.device_id


def _order(id_: str) -> tuple[str, int]:
    base, replica = split(id_)
    return (base, -1 if replica is None else replica)


def _resource(name: str, ids: list[SchedulableId], mode: SharingMode | None) -> OfferedResource:
    """Its shares: as many as the most shared device has."""
    shared = [schedulable.part_id for schedulable in ids if schedulable.replica is not None]
    most = max((shared.count(part) for part in set(shared)), default=None)
    sharing = SharingFacts(mode=mode or TimeSlicing(), replicas=most) if shared else NOT_SHARED
    return OfferedResource(name=name, ids=tuple(ids), sharing=sharing)


# --- the devices by every name that others give them: ids, indices, names of a DRA driver ----------------------------
class DeviceIndex:
    """The devices of one inventory. `index_prefix`: the domain of resources whose ids may be indices, empty for each
    vendor's own, None for none; a bare number under any other name is none of our devices."""

    __slots__ = ("_by_claim", "_by_id", "_by_index", "_drivers", "_inventory", "_prefix", "_vendors")

    def __init__(
        self,
        inventory: Inventory,
        *,
        index_prefix: str | None = None,
        vendors: Vendors = VENDORS,
    ) -> None:
        self._inventory = inventory
        self._vendors = vendors
        self._prefix = index_prefix
        self._by_id: dict[str, Part] = {}
        self._by_index: dict[str | None, dict[tuple[str, str], Part]] = {None: {}}  # by prefix; domain and index
        self._by_claim: dict[tuple[str, str], Part] = {}  # by DRA driver and name
        self._drivers = {vendor.dra_driver: vendor for vendor in vendors.every if vendor.dra_driver}
        published = device_names(inventory)
        called = device_names(replace(inventory, pinned={})) if inventory.pinned else published  # by other drivers
        for unit in inventory.units:
            fact = unit.device.fact
            part = Part(fact.id, unit.partition.id if unit.partition else None)
            self._by_id[unit.id] = self._by_claim[DRA_DRIVER, published[unit.id]] = part
            if (vendor := vendors.vendor_of(fact)).dra_driver:
                self._by_claim[vendor.dra_driver, vendor.claim_name(unit, called[fact.id])] = part

    def under(self, index_prefix: str | None) -> Self:
        """The same devices, where resources of this domain may have indices as ids."""
        other = copy(self)
        other._prefix = index_prefix
        return other

    def part(self, id_: str) -> Part | None:
        """Return the device or partition with this id; None: this node has none."""
        return self._by_id.get(id_)

    def named(self, resource: str | None, id_: str) -> Part | None:
        """Return the part that an id of a resource names, or, with None, a claim's `<driver>/<pool>/<device>`; None:
        not one of our devices."""
        if resource is not None:
            base, _ = split(id_)
            return self._by_id.get(base) or self._indices().get((_domain(resource), base))
        driver, _, rest = id_.partition("/")
        device, vendor = rest.rpartition("/")[2], self._drivers.get(driver)
        names = (device,) if driver == DRA_DRIVER else vendor.claimed(device) if vendor is not None else ()
        return next((self._by_claim[driver, name] for name in names if (driver, name) in self._by_claim), None)

    def in_slices(self, name: str) -> Part | None:
        """Return the part that our own ResourceSlices call so; None: this node has none."""
        return self._by_claim.get((DRA_DRIVER, name))

    def _indices(self) -> dict[tuple[str, str], Part]:
        """Return the parts by domain and index: only these domains have ids that are indices."""
        if self._prefix not in self._by_index:
            found: dict[tuple[str, str], Part] = {}
            for unit in self._inventory.units:
                vendor = self._vendors.vendor_of(unit.device.fact)
                if (index := vendor.index_id(unit)) is not None:
                    usual = vendor.usual_name(Unit(unit.device), Naming(prefix=self._prefix or "")) or ""
                    found[_domain(usual), index] = self._by_id[unit.id]
            self._by_index[self._prefix] = found
        return self._by_index[self._prefix]
