"""The report's devices and partitions: each with its attributes, its health, its holders and its shares (counts)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Set
from functools import partial
from typing import Any, ParamSpec, TypeVar, get_args

from nodedevices_api import nodedevices as api
from nodedevices_api.base import wire_name
from nodedevices_api.conditions import MISSING
from nodedevices_common.grouping import grouped
from nodedevices_common.quantity import from_bytes
from nodedevices_probe.protocol import DeviceFact, Partition
from pydantic import ValidationError

from nodedevices_plugin.health.events import CORRELATING
from nodedevices_plugin.model import (
    HealthState,
    Holder,
    Notice,
    Occurrences,
    Unit,
    Verdict,
    device_names,
    is_core,
    memory_held,
    physical_id,
)
from nodedevices_plugin.offering.resources import nearest
from nodedevices_plugin.offering.shape import excluded_by
from nodedevices_plugin.pipeline.lost import key as lost_key
from nodedevices_plugin.sharing.daemons import client_key, client_verdict
from nodedevices_plugin.status.facts import (
    NodeFacts,
    ShareCounts,
    share_counts,
    whole_second,
)

MAX_LINKS = 16  # maxItems of status.devices[].links
PCIE = "PCIe"  # the kind of a link between devices on one PCIe root
MAX_SAID = 160  # characters about one part that is left out
P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


class LeftOut:
    """Makes parts of a report; `said` has the parts that the contract's types refuse, and why."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def made(self, what: str, make: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return make(*args, **kwargs)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(wire_name(part) if isinstance(part, str) else str(part) for part in first["loc"])
            self.said.append(f"{what}: {where}: {first['msg']}"[:MAX_SAID])
            return None

    def all(self, what: str, make: Callable[[S], T], named: Iterable[tuple[str, S]]) -> tuple[T, ...]:
        """Make one of each that can be made. `named`: each with its name, for people."""
        every = (self.made(f"{what} {name}", make, part) for name, part in named)
        return tuple(made for made in every if made is not None)


def physical(devices: Iterable[api.Device]) -> tuple[api.Device, ...]:
    """Return the physical devices, which counts of devices are about."""
    return tuple(device for device in devices if device.parent is None)


def bounded(devices: tuple[api.Device, ...], most: int = api.MAX_LISTED) -> tuple[api.Device, ...]:
    """Return at most so many, in their order: all physical devices, then partitions at fault, then the others."""
    if len(devices) <= most:
        return devices
    ranked = sorted(devices, key=lambda device: (device.parent is not None, device.health.state == "Healthy"))
    kept = {device.id for device in ranked[:most]}
    return tuple(device for device in devices if device.id in kept)


class DeviceReports:
    """The devices of one report, and the names of devices and partitions, by id."""

    def __init__(self, facts: NodeFacts, left_out: LeftOut) -> None:
        self.names = device_names(facts.inventory)
        self._facts = facts
        self._left_out = left_out
        self._near = nearest(facts.inventory)
        known, cores = facts.world.holdings.were_known, facts.cores.devices
        made = left_out.made("shares", of_parts, share_counts(facts), holders_known=known, cores=cores)
        self._shares = made or {}
        uses = {} if facts.world.uses is None else facts.world.uses.devices
        self._uses = {id_: uses.get(device.fact.id) for device in facts.inventory.devices for id_ in device.ids}
        self._holders = self._holders_by_part()

    def devices(self) -> tuple[api.Device, ...]:
        """Return the devices, each followed by its partitions. One that cannot be made keeps its health and its
        holders."""
        units = (
            unit
            for device in self._facts.inventory.devices
            for unit in (Unit(device), *(Unit(device, part) for part in device.fact.partitions))
        )
        return self._left_out.all("device", self._device, ((unit.id, unit) for unit in units))

    def _device(self, unit: Unit) -> api.Device:
        return self._left_out.made(f"device {unit.id}", self._whole, unit) or self._alone(unit)

    def _whole(self, unit: Unit) -> api.Device:
        facts, fact, part, state = self._facts, unit.device.fact, unit.partition, self._facts.world.state
        notices = (it for it in state.notices.get(fact.id, ()) if it.partition == (part.id if part is not None else ""))
        return api.Device(
            **self._essentials(unit),
            profile=part.profile if part is not None else None,
            attributes=_attributes(fact) if part is None else _attributes_of(part),
            capacity=(part or fact).capacity,
            links=self._links(fact) if part is None else (),
            health=self._health(unit),
            notices=tuple(map(_notice, notices))[: api.MAX_NOTICES],
            history=tuple(map(_occurred, state.history.get(unit.id, ())[: api.MAX_HISTORY])),
            excluded=self._excluded(fact.id) or self._excluded(unit.id),
            unschedulable=facts.unschedulable.get(unit.id),
            drained_since=whole_second(drained) if (drained := state.drained.get(unit.id)) is not None else None,
            shares=self._shares.get(unit.id),
        )

    def _alone(self, unit: Unit) -> api.Device:
        """Return a device with its health and its holders alone, where the rest could not be made."""
        health = self._left_out.made(f"health of {unit.id}", self._health, unit)
        if health is None:
            verdict = self._verdict(unit)
            state = verdict.state.value if verdict is not None else "Unknown"
            health = api.DeviceHealth(state=state, since=whole_second(self._facts.now))
        return api.Device(**self._essentials(unit), health=health)

    def _essentials(self, unit: Unit) -> dict[str, Any]:
        fact, holders = unit.device.fact, self._holders[unit.id]
        return {
            "id": unit.id,
            "name": self.names[unit.id],
            "type": fact.type,
            "index": unit.partition.index if unit.partition is not None else fact.index,
            "parent": self.names[fact.id] if unit.partition is not None else None,
            "holders": _shown(holders),
            "holders_truncated": max(0, len(holders) - api.MAX_HOLDERS) or None,
        }

    def _links(self, fact: DeviceFact) -> tuple[api.Link, ...]:
        """Return them as the probe reports them, then, as far as there is room, its nearest devices of other probes."""
        links = [(link.kind, link.to, link.count) for link in fact.links]
        links += [(PCIE, other, 1) for other in self._near.get(fact.id, ())]
        return tuple(api.Link(kind=kind, to=to, count=count) for kind, to, count in links[:MAX_LINKS])

    def _health(self, unit: Unit) -> api.DeviceHealth:
        if unit.id in unit.device.departed_partitions:
            return api.DeviceHealth(
                state="Unhealthy",
                reason=MISSING,
                message="the driver no longer lists it; it stays listed while a pod holds it",
                since=whole_second(self._facts.world.departed.get(unit.id, self._facts.now)),
            )
        return _health(self._verdict(unit), self._facts)

    def _verdict(self, unit: Unit) -> Verdict | None:
        """Return the verdict on it; a partition without faults of its own has its device's."""
        verdicts = self._facts.verdicts
        return verdicts.get(unit.id) or verdicts.get(unit.device.fact.id)

    def _excluded(self, id_: str) -> str | None:
        return excluded_by(id_, self._facts.world.active.excluded)

    def _holders_by_part(self) -> Mapping[str, list[api.Holder]]:
        """Return the holders by id of device or partition. The replicas that a container has of one are one entry."""
        facts = self._facts
        device_of = {id_: device.fact.id for device in facts.inventory.devices for id_ in device.ids}
        found: dict[str, list[api.Holder]] = defaultdict(list)
        for holder in facts.world.holdings.holders:
            by_part: dict[str, set[str]] = {}  # the ids of shares
            for id_ in holder.ids:
                if (part := physical_id(id_)) in device_of:
                    shares = by_part.setdefault(part, set())
                    if id_ != part and not is_core(id_):
                        shares.add(id_)
            # The ids that the kubelet shows for these are shares of other devices.
            without_share = device_of.keys() & set(holder.also)
            by_part |= {part: set(holder.ids) for part in without_share - by_part.keys()}
            make = partial(self._holder, holder)
            for part, ids in by_part.items():
                what = f"holder {holder.namespace}/{holder.pod} of {part}"
                device, shared = device_of[part], part not in without_share
                if (made := self._left_out.made(what, make, part, device, ids, shared=shared)) is not None:
                    found[part].append(made)
        return found

    def _holder(self, holder: Holder, part: str, device: str, ids: Set[str], *, shared: bool) -> api.Holder:
        facts, resource = self._facts, holder.resource or ""
        who = (holder.namespace, holder.pod, holder.container)
        judged = facts.verdicts.get(device)
        verdict = client_verdict(facts.world.state.clients.clients.get(client_key(holder)), resource, facts.now)
        if verdict is None and (judged is None or judged.state is not HealthState.UNHEALTHY):
            verdict = facts.world.state.lost_contexts.get(lost_key(*who, holder.resource or holder.claim, device))
        if verdict is None and judged is not None and judged.state is HealthState.HEALTHY:
            verdict = facts.world.conflicts.get((*who, resource))
        amounts = memory_held(ids) if shared else {}
        memory = from_bytes(sum(amounts.values())) if amounts else None
        use = self._uses.get(part)
        return api.Holder(
            namespace=holder.namespace,
            pod=holder.pod,
            container=holder.container,
            resource=holder.resource,
            claim=holder.claim.rpartition("/")[2] if holder.claim else None,  # a pod's claims are of its own namespace
            shares=len(ids) or None if shared else None,
            memory=memory,
            cores=facts.cores.holders.get((*who, resource)),
            # In the order of their numbers, which are at the end.
            ids=tuple(sorted(ids, key=lambda id_: (len(id_), id_))[: api.MAX_HOLDER_IDS if memory is None else 1]),
            since=holder.since,
            idle=None if use is None else use.word or None,
            idle_since=None if use is None or use.since is None else whole_second(use.since),
            health=api.HolderHealth(**_state(verdict)) if verdict is not None else None,
        )


def _attributes(fact: DeviceFact) -> api.DeviceAttributes:
    return api.DeviceAttributes(
        uuid=fact.uuid or None,
        vendor=fact.vendor,
        product_name=fact.product_name or None,
        brand=fact.brand or None,
        architecture=fact.architecture or None,
        pci_bus_id=fact.pci_bus_id or None,
        pcie_root=fact.pcie_root or None,
        numa_node=fact.numa_node,
        minor=fact.minor,
        firmware=fact.firmware or None,
        extra={
            name: api.Attribute(
                string=value.string, integer=value.integer, boolean=value.boolean, version=value.version
            )
            for name, value in fact.extra.items()
        },
    )


def _attributes_of(part: Partition) -> api.DeviceAttributes | None:
    """Return what a partition has beside its device's: NVIDIA's GPU instance and compute instance."""
    extra = {"gi": part.gi, "ci": part.ci}
    own = {name: api.Attribute(integer=number) for name, number in extra.items() if number is not None}
    return api.DeviceAttributes(extra=own) if own else None


def _health(verdict: Verdict | None, facts: NodeFacts) -> api.DeviceHealth:
    if verdict is None:
        return api.DeviceHealth(state="Unknown", reason="Starting", since=whole_second(facts.now))
    return api.DeviceHealth(
        **_state(verdict),
        reasons=_reasons(verdict),
        xids=tuple(sorted(_xids(verdict, facts.inventory.boot_id)))[: api.MAX_XIDS],
    )


def _state(verdict: Verdict) -> dict[str, Any]:
    """Return what is said of a device and of its holder alike."""
    return {
        "state": verdict.state.value,
        "reason": verdict.reason,
        "message": verdict.message,
        "since": whole_second(verdict.since),
        "recovery_action": verdict.recovery_action if verdict.state is not HealthState.HEALTHY else None,
        "fault_domain": verdict.fault_domain if verdict.fault_domain in get_args(api.FaultDomain) else None,
    }


def _reasons(verdict: Verdict) -> tuple[str, ...]:
    """Return all reasons of the state, where it has several. A state that is not known is none of the faults'."""
    found = tuple(fault.reason for fault in verdict.faults if fault.state is verdict.state)[: api.MAX_REASONS]
    return found if len(found) > 1 and verdict.state is not HealthState.UNKNOWN else ()


def _xids(verdict: Verdict, boot_id: str) -> set[int]:
    """Return the XIDs of faults that were decided and began in this boot; those of the boot before are kept for their
    hold-down alone."""
    return {
        fault.xid
        for fault in verdict.faults
        if fault.xid is not None and fault.boot_id == boot_id and fault.reason != CORRELATING
    }


def _notice(notice: Notice) -> api.Notice:
    return api.Notice(
        code=notice.code,
        message=notice.message,
        since=whole_second(notice.since),
        time=whole_second(notice.time),
        count=notice.count,
    )


def _occurred(occurrences: Occurrences) -> api.Occurred:
    return api.Occurred(
        reason=occurrences.reason,
        count=occurrences.shown.count,
        first=whole_second(occurrences.shown.first),
        last=whole_second(occurrences.shown.last),
        fault=occurrences.is_fault,
    )


def _shown(holders: Iterable[api.Holder]) -> tuple[api.Holder, ...]:
    """Return at most MAX_HOLDERS, the oldest: a pod that starts must not push out one that is marked."""
    oldest = sorted(holders, key=lambda holder: (holder.since, _holder_order(holder)))
    return tuple(sorted(oldest[: api.MAX_HOLDERS], key=_holder_order))


def _holder_order(holder: api.Holder) -> tuple[str, ...]:
    return (holder.namespace, holder.pod, holder.container, holder.resource or "", holder.claim or "")


# --- shares ----------------------------------------------------------------------------------------------------------
def of_parts(
    counts: Iterable[ShareCounts], *, holders_known: bool, cores: Mapping[str, int] | None = None
) -> dict[str, api.Shares]:
    """Return the report's shares by device or partition. `cores`: by device that shares its computing power, the
    percentage that is held. Shares of one device in several resources, as RDMA pools have of a NIC, are added up."""
    by_part = grouped((count.part, count) for count in counts)
    return {
        part: api.Shares(
            resource=found[0].resource.name if len(found) == 1 else None,
            total=sum(count.total for count in found),
            held=sum(count.held for count in found),
            free=sum(count.free for count in found) if holders_known else None,
            cores_held=(cores or {}).get(part),
        )
        for part, found in by_part.items()
    }
