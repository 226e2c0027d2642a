"""Makes the status of the node's NodeDevices object from the latest values of every stage.

Only the agent's own fields are made here (affectedPods, actions and some conditions are the operator's). They are
sorted and bounded, and equal input gives an equal status, so that a comparison shows whether anything changed.
`agent.heartbeatTime` is set by the publisher at each write.

Values from drivers, kubelets and other programs may be odd in unforeseen ways. A part that the contract's types refuse
is left out and named in `Ready`'s message; a device keeps its health. The rest of the report is always made: a fault
that the kubelet knows must be in the status, too.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace
from nodedevices_api import nodedevices as api
from nodedevices_api.base import to_dict, wire_name
from nodedevices_api.withheld import EXCLUDED, MEANINGS
from nodedevices_common import __version__
from nodedevices_common.observing import OBSERVE
from nodedevices_common.times import rfc3339
from nodedevices_probe.protocol import DeviceFact, Partition
from pydantic import ValidationError

from nodedevices_plugin.health.events import CORRELATING
from nodedevices_plugin.model import (
    Cordon,
    HealthState,
    Inventory,
    InventoryDevice,
    Notice,
    Occurrences,
    OfferedResource,
    Refused,
    RegistrationState,
    SchedulableId,
    Verdict,
    served_by_others,
)
from nodedevices_plugin.model.ids import is_core, physical_id
from nodedevices_plugin.model.resource_names import device_names
from nodedevices_plugin.offering.nearness import nearest
from nodedevices_plugin.offering.shape import excluded_by
from nodedevices_plugin.pipeline.lost import key as lost_key
from nodedevices_plugin.sharing.clients import client_verdict
from nodedevices_plugin.sharing.clients import key as key_of
from nodedevices_plugin.status.conditions import (
    SILENT_MESSAGE,
    badness,
    conditions,
    lacking_devices,
    node_reason,
    numbers,
)
from nodedevices_plugin.status.counts import (
    MAX_RESOURCES,
    NO_DRIVER,
    Withheld,
    allocated_of,
    capacity,
    free_of,
    held_ids,
    holders_were_known,
    loaded_drivers,
    reported_healthy,
    share_counts,
    uses_by_part,
    withheld,
)
from nodedevices_plugin.status.facts import NodeFacts, ProbeFacts, offered, whole_second
from nodedevices_plugin.status.shares import enforcement, memory_of, of_parts, unit

MAX_LINKS = 16  # maxItems of status.devices[].links
PCIE = "PCIe"  # the kind of a link between devices on one PCIe root
MAX_RETIRED = 64
MISSING = "Missing"
MAX_SAID = 160  # characters about one part that is left out
T = TypeVar("T")
S = TypeVar("S")


class _Odd:
    """Makes parts of the report; `said` has the parts that could not be made, and why."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def made(self, what: str, make: Callable[[], T]) -> T | None:
        try:
            return make()
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(wire_name(part) if isinstance(part, str) else str(part) for part in first["loc"])
            self.said.append(f"{what}: {where}: {first['msg']}"[:MAX_SAID])
            return None

    def all(self, parts: Iterable[S], what: Callable[[S], str], make: Callable[[S], T]) -> tuple[T, ...]:
        found = (self.made(what(part), partial(make, part)) for part in parts)
        return tuple(made for made in found if made is not None)


def report(facts: NodeFacts) -> api.NodeDevicesStatus:
    """Return the agent's whole part of `status`."""
    odd = _Odd()
    held = _holders_by_device(facts, odd)
    counts = odd.made("shares", lambda: share_counts(facts)) or ()
    known = holders_were_known(facts)
    shares = odd.made("shares", lambda: of_parts(counts, holders_known=known, cores=facts.cores.devices)) or {}
    names, links = device_names(facts.inventory), _links(facts.inventory, odd)

    def device(found: InventoryDevice) -> api.Device:
        def whole() -> api.Device:
            return _device(found, facts, held, shares, names, links=links, odd=odd)

        return odd.made(f"device {found.fact.id}", whole) or _health_alone(found, facts, names, odd)

    devices = odd.all(facts.inventory.devices, lambda found: f"device {found.fact.id}", device)
    inventory = facts.inventory
    configuration, resources = _configuration(facts, odd), _resources(facts, names, odd)
    probes = odd.all(facts.probes, lambda probe: f"probe {probe.name}", _probe)
    known_drivers, machine = _drivers(facts, odd), odd.made("machine", lambda: _machine(facts))
    return api.NodeDevicesStatus(
        observed_generation=facts.config.generation,
        applied_config_hash=facts.config.applied_hash,
        summary=odd.made("summary", lambda: _summary(devices, resources, facts)),
        drivers=known_drivers,
        machine=machine,
        probes=probes,
        agent=api.Agent(
            version=__version__,
            boot_id=inventory.boot_id,
            start_time=whole_second(facts.started),
            heartbeat_time=whole_second(facts.started),
        ),
        configuration=configuration,
        devices=devices,
        resources=resources,
        retired_resources=odd.all(
            sorted(sorted(facts.retired.items(), key=lambda item: item[1])[-MAX_RETIRED:]),
            lambda retired: f"retired resource {retired[0]}",
            lambda retired: api.RetiredResource(name=retired[0], since=whole_second(retired[1])),
        ),
        most_seen=odd.all(
            facts.most_seen,
            lambda product: f"most seen {product.product_name}",
            lambda product: api.MostSeen(
                probe=product.probe, vendor=product.vendor, product_name=product.product_name, count=product.count
            ),
        ),
        conditions=conditions(replace(facts, left_out=tuple(dict.fromkeys(odd.said))), devices),
    )


# --- probes and drivers ----------------------------------------------------------------------------------------------
def _drivers(facts: NodeFacts, odd: _Odd) -> tuple[api.Driver, ...]:
    return odd.all(
        loaded_drivers(facts),
        lambda driver: f"driver {driver.name}",
        lambda driver: api.Driver(name=driver.name, version=driver.version, cuda_version=driver.cuda_version),
    )[: api.MAX_DRIVERS]


def _probe(probe: ProbeFacts) -> api.Probe:
    state, message = _probe_state(probe)
    return api.Probe(name=probe.name, state=state, message=message, devices=len(probe.inventory.devices))


def _probe_state(probe: ProbeFacts) -> tuple[api.ProbeState, str]:
    inventory = probe.inventory
    if probe.silent:
        if inventory.line_time is None or probe.error:
            return "Failed", probe.error or "it has not reported since it was started"
        return "Silent", SILENT_MESSAGE
    if inventory.driver is None or inventory.line_time is None:
        return "Starting", probe.error or ""
    problems = "; ".join(f"{problem.code}: {problem.message}" for problem in inventory.problems)
    if inventory.driver.state in NO_DRIVER:
        return "NoDriver", problems or "the driver is not loaded"
    return "Ready", problems


# --- devices ---------------------------------------------------------------------------------------------------------
def _device(
    device: InventoryDevice,
    facts: NodeFacts,
    held: Mapping[str, list[api.Holder]],
    shares: Mapping[str, api.Shares],
    names: Mapping[str, str],
    *,
    links: Mapping[str, tuple[api.Link, ...]],
    odd: _Odd,
) -> api.Device:
    fact = device.fact
    holders = held.get(fact.id, ())
    return api.Device(
        id=fact.id,
        name=names[fact.id],
        type=fact.type,
        index=fact.index,
        attributes=_attributes(fact),
        capacity=fact.capacity,
        links=links[fact.id],
        health=_health(facts.verdicts.get(fact.id), facts),
        notices=odd.all(
            facts.notices.get(fact.id, ())[: api.MAX_NOTICES],
            lambda notice: f"notice {notice.code} of {fact.id}",
            _notice,
        ),
        history=odd.all(
            facts.history.get(fact.id, ())[: api.MAX_HISTORY],
            lambda occurrences: f"history {occurrences.reason} of {fact.id}",
            _occurred,
        ),
        excluded=excluded_by(fact.id, facts.exclude),
        unschedulable=facts.unschedulable.get(fact.id),
        drained_since=whole_second(drained) if (drained := facts.drained.get(fact.id)) is not None else None,
        partitions=odd.all(
            fact.partitions,
            lambda part: f"partition {part.id}",
            lambda part: _partition(part, device, facts, shares, names=names),
        ),
        shares=shares.get(fact.id),
        holders=_shown(holders),
        holders_truncated=max(0, len(holders) - api.MAX_HOLDERS) or None,
    )


def _health_alone(device: InventoryDevice, facts: NodeFacts, names: Mapping[str, str], odd: _Odd) -> api.Device:
    """Return a device with its health alone, where the rest could not be made."""
    fact = device.fact
    verdict = facts.verdicts.get(fact.id)
    health = odd.made(f"health of {fact.id}", lambda: _health(verdict, facts))
    if health is None:
        state = verdict.state.value if verdict is not None else "Unknown"
        health = api.DeviceHealth(state=state, since=whole_second(facts.now))
    return api.Device(id=fact.id, name=names[fact.id], type=fact.type, index=fact.index, health=health)


def _links(inventory: Inventory, odd: _Odd) -> dict[str, tuple[api.Link, ...]]:
    """Return each device's links as its probe reports them, then, as far as there is room, its nearest devices of other
    probes."""
    near = nearest(inventory)
    found = {}
    for fact in (device.fact for device in inventory.devices):
        own = [(link.kind, link.to, link.count) for link in fact.links]
        own += [(PCIE, other, 1) for other in near.get(fact.id, ())]
        found[fact.id] = odd.all(
            own[:MAX_LINKS],
            lambda link: f"link to {link[1]}",
            lambda link: api.Link(kind=link[0], to=link[1], count=link[2]),
        )
    return found


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


def _health(verdict: Verdict | None, facts: NodeFacts) -> api.DeviceHealth:
    if verdict is None:
        return api.DeviceHealth(state="Unknown", reason="Starting", since=whole_second(facts.now))
    return api.DeviceHealth(
        state=verdict.state.value,
        reason=verdict.reason,
        reasons=_reasons(verdict),
        message=verdict.message,
        since=whole_second(verdict.since),
        xids=tuple(sorted(_xids(verdict, facts.inventory.boot_id)))[: api.MAX_XIDS],
        recovery_action=verdict.recovery_action if verdict.state is not HealthState.HEALTHY else None,
        fault_domain=_domain(verdict.fault_domain),
    )


def _own_health(verdict: Verdict) -> api.HolderHealth:
    return api.HolderHealth(
        state=verdict.state.value,
        reason=verdict.reason,
        message=verdict.message,
        since=whole_second(verdict.since),
        recovery_action=verdict.recovery_action if verdict.state is not HealthState.HEALTHY else None,
        fault_domain=_domain(verdict.fault_domain),
    )


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
        partition=notice.partition or None,
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


def _domain(text: str | None) -> api.FaultDomain | None:
    match text:
        case "Application" | "Device" | "Node":
            return text
        case _:
            return None


def _partition(
    part: Partition,
    device: InventoryDevice,
    facts: NodeFacts,
    shares: Mapping[str, api.Shares],
    *,
    names: Mapping[str, str],
) -> api.Partition:
    verdict = facts.verdicts.get(part.id)
    health = None if verdict is None else _health(verdict, facts)
    if part.id in device.departed_partitions:
        health = api.DeviceHealth(
            state="Unhealthy",
            reason=MISSING,
            message="the driver no longer lists it; it stays listed while a pod holds it",
            since=whole_second(facts.previous_departed.get(part.id, facts.now)),
        )
    return api.Partition(
        id=part.id,
        name=names[part.id],
        profile=part.profile,
        gi=part.gi,
        ci=part.ci,
        start=part.start,
        size=part.size,
        capacity=part.capacity,
        health=health,
        excluded=excluded_by(device.fact.id, facts.exclude) or excluded_by(part.id, facts.exclude),
        unschedulable=facts.unschedulable.get(part.id),
        shares=shares.get(part.id),
    )


def _shown(holders: Iterable[api.Holder]) -> tuple[api.Holder, ...]:
    """Return at most MAX_HOLDERS, the oldest: a pod that starts must not push out one that is marked."""
    oldest = sorted(holders, key=lambda holder: (holder.since, _holder_order(holder)))
    return tuple(sorted(oldest[: api.MAX_HOLDERS], key=_holder_order))


def _holder_order(holder: api.Holder) -> tuple[str, ...]:
    where = (holder.partition or "", holder.namespace, holder.pod, holder.container)
    return (*where, holder.resource or "", holder.claim or "")


def _holders_by_device(facts: NodeFacts, odd: _Odd) -> dict[str, list[api.Holder]]:
    """Return the holders by device id. The replicas that a container has of one device or partition are one entry."""
    device_of = {part.id: device.fact.id for device in facts.inventory.devices for part in device.fact.partitions}
    device_of |= {device.fact.id: device.fact.id for device in facts.inventory.devices}
    found: dict[tuple[str, str, str, str, str | None, str | None], tuple[datetime, set[str]]] = {}
    lost: dict[tuple[str, str, str, str | None], Verdict] = {}
    without_share: set[tuple[str, str, str, str, str | None, str | None]] = set()
    for holder in facts.holdings.holders:
        verdict = client_verdict(facts.clients.get(key_of(holder)), holder.resource or "", facts.now)
        if verdict is not None:
            lost[holder.namespace, holder.pod, holder.container, holder.resource] = verdict
        own: dict[str, set[str]] = {}
        for id_ in holder.ids:
            if (part := physical_id(id_)) in device_of:
                shares = own.setdefault(part, set())
                if id_ != part and not is_core(id_):
                    shares.add(id_)
        for part, ids in own.items():
            key = (part, holder.namespace, holder.pod, holder.container, holder.resource, holder.claim)
            since, before = found.get(key, (holder.since, set()))
            found[key] = (max(since, holder.since), before | ids)
        for part in device_of.keys() & holder.also:  # the ids that the kubelet shows for it are shares of other devices
            key = (part, holder.namespace, holder.pod, holder.container, holder.resource, holder.claim)
            found.setdefault(key, (holder.since, set(holder.ids)))
            without_share.add(key)
    result: dict[str, list[api.Holder]] = defaultdict(list)
    uses = uses_by_part(facts)
    for key, (since, ids) in found.items():
        part, namespace, pod, container, resource, claim = key
        device = device_of[part]
        verdict = lost.get((namespace, pod, container, resource))
        judged = facts.verdicts.get(device)
        if verdict is None and (judged is None or judged.state is not HealthState.UNHEALTHY):
            verdict = facts.lost_contexts.get(lost_key(namespace, pod, container, resource or claim, device))
        if verdict is None and judged is not None and judged.state is HealthState.HEALTHY:
            verdict = facts.conflicts.get((namespace, pod, container, resource or ""))
        memory = None if key in without_share else memory_of(ids)
        make = partial(
            api.Holder,
            partition=part if part != device else None,
            namespace=namespace,
            pod=pod,
            container=container,
            resource=resource,
            claim=claim.rpartition("/")[2] if claim else None,  # a pod's claims are of its own namespace
            shares=None if key in without_share else len(ids) or None,
            memory=memory,
            cores=facts.cores.holders.get((namespace, pod, container, resource or "")),
            ids=tuple(sorted(ids, key=_share_order)[: api.MAX_HOLDER_IDS if memory is None else 1]),
            since=since,
            idle=None if (use := uses.get(part)) is None else use.word or None,
            idle_since=None if use is None or use.since is None else whole_second(use.since),
            health=_own_health(verdict) if verdict is not None else None,
        )
        if (made := odd.made(f"holder {namespace}/{pod} of {part}", make)) is not None:
            result[device].append(made)
    return result


def _share_order(id_: str) -> tuple[int, str]:
    """Sort key of one device's shares: their numbers, which are at the end."""
    return (len(id_), id_)


def offered_devices(facts: NodeFacts) -> int | None:
    """Count the devices with a healthy id that is offered to the kubelet, by this agent or another plugin."""
    known = facts.plan is not None if facts.observed is None else facts.holdings.offered is not None
    if not known:
        return None
    refused = {
        registration.resource
        for registration in facts.registrations
        if registration.state is RegistrationState.REJECTED
    }
    plan = offered(facts)
    found = {
        schedulable.device_id
        for it in plan.resources
        if it.name not in refused
        for schedulable in it.ids
        if schedulable.healthy
    }
    return len(found & {device.fact.id for device in facts.inventory.devices})


def _summary(devices: tuple[api.Device, ...], resources: tuple[api.Resource, ...], facts: NodeFacts) -> api.Summary:
    states = [device.health.state for device in devices]
    models = sorted({device.attributes.product_name or "" for device in devices if device.attributes} - {""})
    worst = min(devices, key=badness, default=None)
    sick = worst is not None and worst.health.state != "Healthy"
    excluded = sum(1 for device in devices if device.excluded or any(part.excluded for part in device.partitions))
    return api.Summary(
        devices=len(devices),
        healthy=states.count("Healthy") + states.count("Degraded"),
        degraded=states.count("Degraded"),
        unhealthy=states.count("Unhealthy"),
        unknown=states.count("Unknown"),
        held=sum(bool(device.holders) for device in devices),
        unschedulable=sum(1 for it in devices if it.unschedulable or any(part.unschedulable for part in it.partitions)),
        offered=offered_devices(facts),
        excluded=excluded,
        # No spaces, so that it is one column; the same form as the label nvidia.com/gpu.product.
        model="" if not models else "mixed" if len(models) > 1 else models[0].replace(" ", "-"),
        withheld=_withheld_in_short(resources, excluded),
        message=_in_words(devices, resources, worst if sick else None, numbers(lacking_devices(facts))),
        reason=node_reason(facts, worst.health.reason if worst is not None and sick else ""),
        recovery_action=(worst.health.recovery_action or "None") if worst is not None and sick else "None",
        idle=None if facts.uses is None else sum(use.unused for use in facts.uses.devices.values()),
    )


def _withheld(found: Withheld, names: Mapping[str, str]) -> api.Withheld:
    """Return the entry of status.resources[].withheld. `names`: device names by id."""
    pods = dict.fromkeys(pod for _, blocked in found.ids for pod in blocked.waits_for)
    parts = _parts_of([schedulable for schedulable, _ in found.ids], names)
    return api.Withheld(
        reason=found.reason,
        count=found.count,
        devices=tuple(parts[: api.MAX_WITHHELD_DEVICES]),
        message=_why_withheld(found, names),
        waits_for=tuple(list(pods)[: api.MAX_WITHHELD_PODS]),
    )


def _why_withheld(found: Withheld, names: Mapping[str, str]) -> str:
    """Return the message that all ids have; else each message with the devices that have it."""
    by_message: dict[str, list[SchedulableId]] = {}
    for schedulable, blocked in found.ids:
        by_message.setdefault(blocked.message, []).append(schedulable)
    if len(by_message) == 1:
        return next(iter(by_message))
    return "; ".join(f"{', '.join(_parts_of(some, names)[:4])}: {message}" for message, some in by_message.items())


def _parts_of(ids: Sequence[SchedulableId], names: Mapping[str, str]) -> list[str]:
    """Return the names of devices and the ids of partitions, each once; an id that counts no device has none."""
    parts = (schedulable.partition_id or names.get(schedulable.device_id, schedulable.device_id) for schedulable in ids)
    return list(dict.fromkeys(part for part in parts if part))


def _withheld_in_short(resources: tuple[api.Resource, ...], excluded: int) -> str:
    """Count by reason over all resources; no spaces, so that it is one column. `excluded`: devices without ids."""
    counts: Counter[str] = Counter()
    for resource in resources:
        counts.update({group.reason: group.count for group in resource.withheld})
    counts[EXCLUDED] = excluded
    order = (*MEANINGS, *sorted(counts.keys() - MEANINGS - {EXCLUDED}), EXCLUDED)
    return ",".join(f"{reason}={counts[reason]}" for reason in order if counts[reason])


def _in_words(
    devices: tuple[api.Device, ...], resources: tuple[api.Resource, ...], worst: api.Device | None, too_few: str
) -> str:
    """Sum the node up in a sentence or two: which expected devices are not there; which ids new containers cannot get
    and why, and which are free and the scheduler does not see; what is wrong with the worst device, since when, and
    what helps."""
    said = [f"{too_few}."] if too_few else []
    for resource in resources:
        if resource.withheld:
            why = "; ".join(f"{_ids_withheld(group)}: {group.message}" for group in resource.withheld)
            said.append(f"{resource.name}: {resource.healthy} of {resource.capacity} can be allocated ({why}).")
        seen = max(0, resource.healthy - resource.allocated)  # Kubernetes: allocatable less requests
        if resource.free is not None and resource.free > seen:
            said.append(
                f"{resource.name}: {resource.free} free, of which the scheduler sees {seen}: it subtracts all that "
                "pods hold, also what is withheld, until these pods end."
            )
    if worst is not None:
        since = rfc3339(worst.health.since)
        said.append(f"{worst.name}: {worst.health.reason} since {since}: {worst.health.message}.")
    return " ".join(said) or f"{len(devices)} device{'' if len(devices) == 1 else 's'}, all fit for use."


def _ids_withheld(group: api.Withheld) -> str:
    more = f" and {group.count - len(group.devices)} more" if group.count > len(group.devices) else ""
    return f"{group.count} {group.reason}" if not group.devices else f"{', '.join(group.devices)}{more} {group.reason}"


def _machine(facts: NodeFacts) -> api.Machine | None:
    machine = facts.inventory.machine
    made = api.Machine(
        type=machine.type or None,
        mode=machine.mode or None,
        clique=machine.clique or None,
        mig_strategy=facts.mig_strategy or None,
        vgpu_version=machine.vgpu_version,
        vgpu_branch=machine.vgpu_branch,
    )
    return made if made != api.Machine() else None


def _resources(facts: NodeFacts, names: Mapping[str, str], odd: _Odd) -> tuple[api.Resource, ...]:
    held, known = held_ids(facts), holders_were_known(facts)
    others = served_by_others(facts.registrations)

    def made(resource: OfferedResource) -> api.Resource:
        return api.Resource(
            name=resource.name,
            capacity=capacity(resource),
            healthy=reported_healthy(facts, resource),
            allocated=allocated_of(resource, held.get(resource.name, set())),
            sharing=resource.sharing.name,
            replicas=resource.sharing.replicas,
            free=free_of(facts, resource, held.get(resource.name, set())) if known else None,
            unit=unit(resource),
            packing=resource.sharing.packing,
            enforcement=enforcement(resource),
            managed_by="plugin",
            withheld=odd.all(
                withheld(resource, mine=resource.name not in others)[: api.MAX_WITHHELD],
                lambda group: f"resource {resource.name}: withheld {group.reason}",
                lambda group: _withheld(group, names),
            ),
        )

    return odd.all(offered(facts).resources[:MAX_RESOURCES], lambda resource: f"resource {resource.name}", made)


# --- configuration ---------------------------------------------------------------------------------------------------
def _configuration(facts: NodeFacts, odd: _Odd) -> api.ConfigurationStatus | None:
    config = facts.config

    def refusal(refused: Refused) -> api.Refusal:
        return api.Refusal(section=refused.section, field=refused.field, message=refused.message)

    every = dict.fromkeys((*((config.refused,) if config.refused is not None else ()), *config.others))
    parts = {
        "refusals": odd.all(tuple(every)[: api.MAX_REFUSALS], lambda refused: f"refusal of {refused.field}", refusal),
        "unmatched": odd.all(
            config.unmatched[: api.MAX_UNMATCHED],
            lambda unmatched: f"unmatched {unmatched.entry}",
            lambda unmatched: api.Unmatched(
                section=unmatched.section, entry=unmatched.entry, message=unmatched.message
            ),
        ),
    }
    made = odd.made(
        "configuration",
        lambda: api.ConfigurationStatus(
            sources=config.sources,
            files_alone=config.refused is None and bool(config.others),
            waiting_for_pods=config.waiting_for[: api.MAX_WAITING_FOR],
            serving=None if facts.observed is None else OBSERVE,
            **parts,
        ),
    )
    return made if made != api.ConfigurationStatus() else None


# --- spec ------------------------------------------------------------------------------------------------------------
def out_of_service(cordons: Iterable[Cordon], now: datetime) -> tuple[dict[str, Any], ...]:
    """Return `spec.unschedulable` as people wrote it, without entries that are over or that this CRD would refuse."""
    found = []
    for cordon in cordons:
        with suppress(ValueError):
            entry = api.Unschedulable(
                id=cordon.id, reason=cordon.reason, by=cordon.by or None, since=cordon.since, until=cordon.until
            )
            if cordon.holds(now):
                found.append(to_dict(entry))
    return tuple(found)
