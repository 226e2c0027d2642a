"""What the node's NodeDevices object says: the latest values of every stage -> `status`. Pure.

Only the agent's own fields are made here (SCHEMA: affectedPods and three conditions are the operator's), sorted and
bounded, and equal input gives an equal status, so that "nothing changed" is a comparison. `agent.heartbeatTime` is
the publisher's: it sets it at each write.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from nodedevices_api import conditions as names
from nodedevices_api import nodedevices as api
from nodedevices_api.conditions import Condition, Status, condition, find
from nodedevices_common import __version__
from nodedevices_probe.protocol import DeviceFact, DriverState, Partition

from nodedevices_plugin.health.actions import action_rank
from nodedevices_plugin.health.events import CORRELATING
from nodedevices_plugin.model import (
    CONFIRM,
    HealthState,
    HoldersState,
    Holdings,
    Inventory,
    InventoryDevice,
    Notice,
    OfferedResource,
    Plan,
    Registration,
    RegistrationState,
    Verdict,
    served_by_others,
)
from nodedevices_plugin.model.device_names import device_names
from nodedevices_plugin.model.listing import NAMED, listing
from nodedevices_plugin.pipeline.config_status import ConfigStatus
from nodedevices_plugin.resources.ids import physical_id, split
from nodedevices_plugin.resources.nearness import nearest
from nodedevices_plugin.resources.units import excluded_by
from nodedevices_plugin.sharing.base import HelperTexts
from nodedevices_plugin.sharing.clients import Client, client_verdict, lost_texts
from nodedevices_plugin.sharing.clients import key as key_of
from nodedevices_plugin.status.shares import (
    ShareCounts,
    count,
    memory_of,
    memory_totals,
    of_parts,
    own_id,
    packing,
)

MAX_LINKS = 16  # SCHEMA: status.devices[].links
PCIE = "PCIe"  # the kind of a link between devices on one PCIe root
MAX_RESOURCES = 32
MAX_RETIRED = 64
HOLDERS_NAMED = 3  # pods of one device, in the condition DevicesHealthy
MISSING = "Missing"
SILENT_MESSAGE = "the probe has not reported for 15 s or more"
STARTING_SECONDS = 15.0  # how long a first answer of the kubelet may take
_WORST_FIRST = {HealthState.UNHEALTHY: 0, HealthState.UNKNOWN: 1, HealthState.DEGRADED: 2, HealthState.HEALTHY: 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeFacts:
    """One probe, and how it does."""

    name: str  # as configured
    inventory: Inventory  # its own devices
    silent: bool = False  # no good line for 15 s, or none within 15 s of the start
    error: str | None = None  # why its last line or process was no good


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that a report is made of."""

    inventory: Inventory
    verdicts: Mapping[str, Verdict]
    plan: Plan | None  # None: nothing was planned yet
    observed: Plan | None = None  # what others offer (pipeline.foreign); None: this agent serves the kubelet itself
    holdings: Holdings  # by our own ids (foreign.named)
    registrations: tuple[Registration, ...] = ()
    config: ConfigStatus = field(default_factory=ConfigStatus)
    retired: Mapping[str, datetime] = field(default_factory=dict)
    notices: Mapping[str, tuple[Notice, ...]] = field(default_factory=dict)  # by device, the newest first
    mig_strategy: str = ""  # in effect
    exclude: tuple[str, ...] = ()  # resources.exclude in effect
    unschedulable: Mapping[str, str] = field(default_factory=dict)  # what people took out of service: id -> why
    clients: Mapping[str, Client] = field(default_factory=dict)  # of sharing modes' helpers, by sharing.clients.key
    started: datetime
    running_seconds: float = STARTING_SECONDS  # since then, by time.monotonic()
    probes: tuple[ProbeFacts, ...]
    state_problem: str | None = None  # why the state file cannot be used or written
    cdi_problem: str = ""  # why containers do not get devices by CDI as they should
    node_files_problem: str = ""  # why other programs do not find files about devices (vendors.node_files)
    confirm_problems: tuple[str, ...] = ()  # what of the annotation nodedevices.io/confirm was not understood
    previous: tuple[Condition, ...] = ()
    previous_probes: tuple[api.Probe, ...] = ()
    previous_departed: Mapping[str, datetime] = field(default_factory=dict)  # partition id -> since when it is gone
    stopping: bool = False  # the last report of this agent
    now: datetime


def report(facts: Facts) -> api.NodeDevicesStatus:
    """The agent's whole part of `status`."""
    held = _holders_by_part(facts)
    counts = share_counts(facts)
    shares = of_parts(counts, holders_known=_holders_were_known(facts))
    names, links = device_names(facts.inventory), _links(facts.inventory)
    devices = tuple(_device(each, facts, held, shares, names, links=links) for each in facts.inventory.devices)
    inventory = facts.inventory
    return api.NodeDevicesStatus(
        observed_generation=facts.config.generation,
        applied_config_hash=facts.config.applied_hash,
        summary=_summary(devices),
        drivers=drivers(facts),
        machine=_machine(facts),
        probes=tuple(_probe(each, facts) for each in facts.probes),
        agent=api.Agent(
            version=__version__,
            boot_id=inventory.boot_id,
            start_time=_second(facts.started),
            heartbeat_time=_second(facts.started),
        ),
        configuration=_configuration(facts.config),
        devices=devices,
        resources=_resources(facts, counts),
        retired_resources=tuple(
            api.RetiredResource(name=name, since=_second(since))
            for name, since in sorted(sorted(facts.retired.items(), key=lambda item: item[1])[-MAX_RETIRED:])
        ),
        conditions=(
            _ready(facts),
            _devices_healthy(facts, devices),
            _config_applied(facts),
            _holders_known(facts),
        ),
    )


# --- probes and drivers ----------------------------------------------------------------------------------------------
def drivers(facts: Facts) -> tuple[api.Driver, ...]:
    """Those that are loaded; of two probes that name the same one, the first one's value."""
    found: dict[str, api.Driver] = {}
    for each in facts.probes:
        driver = each.inventory.driver
        if driver is not None and driver.state is not DriverState.NOT_LOADED and driver.name:
            known = api.Driver(name=driver.name, version=driver.version, cuda_version=driver.cuda_version)
            found.setdefault(driver.name, known)
    return tuple(found.values())[: api.MAX_DRIVERS]


def _probe(probe: ProbeFacts, facts: Facts) -> api.Probe:
    state, message = _probe_state(probe)
    before = next((each for each in facts.previous_probes if each.name == probe.name), None)
    return api.Probe(
        name=probe.name,
        state=state,
        message=message,
        since=before.since if before is not None and before.state == state else _second(facts.now),
        devices=len(probe.inventory.devices),
    )


def _probe_state(probe: ProbeFacts) -> tuple[api.ProbeState, str]:
    inventory = probe.inventory
    if probe.silent:
        if inventory.line_time is None or probe.error:
            return "Failed", probe.error or "it has not reported since it was started"
        return "Silent", SILENT_MESSAGE
    if inventory.driver is None or inventory.line_time is None:
        return "Starting", probe.error or ""
    problems = "; ".join(f"{each.code}: {each.message}" for each in inventory.problems)
    if inventory.driver.state is DriverState.NOT_LOADED:
        return "NoDriver", problems or "the driver is not loaded"
    return "Ready", problems


def _named(facts: Facts, of: Mapping[str, str]) -> str:
    """What is the matter with some probes; whose it is where there are several."""
    return "; ".join(f"{name}: {why}" if len(facts.probes) > 1 else why for name, why in of.items())


def _no_driver(inventory: Inventory) -> str:
    shown = "; ".join(problem.message for problem in inventory.problems[:3])
    if inventory.accelerators_on_bus:
        shown = f"{inventory.accelerators_on_bus} accelerators on the PCI bus and no usable driver; {shown}".rstrip(
            "; "
        )
    return shown or "the driver is not loaded"


# --- devices ---------------------------------------------------------------------------------------------------------
def _device(
    device: InventoryDevice,
    facts: Facts,
    held: Mapping[str, list[api.Holder]],
    shares: Mapping[str, api.Shares],
    names: Mapping[str, str],
    *,
    links: Mapping[str, tuple[api.Link, ...]],
) -> api.Device:
    fact = device.fact
    dropped = sum(
        max(0, len(held.get(each, ())) - api.MAX_HOLDERS) for each in (fact.id, *(part.id for part in fact.partitions))
    )
    return api.Device(
        id=fact.id,
        name=names[fact.id],
        type=fact.type,
        index=fact.index,
        probe=device.probe or None,
        attributes=_attributes(fact),
        capacity=fact.capacity,
        links=links[fact.id],
        health=_health(facts.verdicts.get(fact.id), facts),
        notices=tuple(map(_notice, facts.notices.get(fact.id, ())[: api.MAX_NOTICES])),
        excluded=excluded_by(fact.id, facts.exclude),
        unschedulable=facts.unschedulable.get(fact.id),
        partitions=tuple(_partition(part, device, facts, held, shares, names=names) for part in fact.partitions),
        shares=shares.get(fact.id),
        holders=_shown(held.get(fact.id, ())),
        holders_truncated=dropped or None,
    )


def _links(inventory: Inventory) -> dict[str, tuple[api.Link, ...]]:
    """What the probes say of each device, and, as far as there is room, its nearest devices of other probes."""
    near = nearest(inventory)
    found = {}
    for fact in (device.fact for device in inventory.devices):
        own = [api.Link(kind=each.kind, to=each.to, count=each.count) for each in fact.links]
        own += [api.Link(kind=PCIE, to=each, count=1) for each in near.get(fact.id, ())]
        found[fact.id] = tuple(own[:MAX_LINKS])
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


def share_counts(facts: Facts) -> tuple[ShareCounts, ...]:
    """Of every device and partition that is offered in shares. While it was never known who holds what, nothing is
    free."""
    resources = offered(facts).resources[:MAX_RESOURCES]
    known = _holders_were_known(facts)
    not_free = served_by_others(facts.registrations) if known else {each.name for each in resources}
    return count(resources, _held_ids(facts), not_free=not_free)


def _holders_were_known(facts: Facts) -> bool:
    """Whether they were ever: before, everything would seem to be free."""
    return facts.holdings.state is HoldersState.SYNCED or facts.holdings.taken > 0.0


def _health(verdict: Verdict | None, facts: Facts) -> api.DeviceHealth:
    if verdict is None:
        return api.DeviceHealth(state="Unknown", reason="Starting", since=_second(facts.now))
    return api.DeviceHealth(
        state=verdict.state.value,
        reason=verdict.reason,
        message=verdict.message,
        since=_second(verdict.since),
        xid=verdict.xid,
        xids=tuple(sorted(_xids(verdict, facts.inventory.boot_id)))[: api.MAX_XIDS],
        recovery_action=verdict.recovery_action if verdict.state is not HealthState.HEALTHY else None,
        fault_domain=_domain(verdict.fault_domain),
    )


def _xids(verdict: Verdict, boot_id: str) -> set[int]:
    """Of faults that were decided, and began in this boot: those of the boot before are kept for their hold-down."""
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
        since=_second(notice.since),
        time=_second(notice.time),
        count=notice.count,
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
    facts: Facts,
    held: Mapping[str, list[api.Holder]],
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
            since=_second(facts.previous_departed.get(part.id, facts.now)),
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
        holders=_shown(held.get(part.id, ())),
    )


def _shown(holders: Iterable[api.Holder]) -> tuple[api.Holder, ...]:
    """Where there are too many the oldest ones, so that a pod that starts pushes out none that is marked."""
    oldest = sorted(holders, key=lambda each: (each.since, _holder_order(each)))
    return tuple(sorted(oldest[: api.MAX_HOLDERS], key=_holder_order))


def _holder_order(holder: api.Holder) -> tuple[str, str, str, str, str]:
    return (holder.namespace, holder.pod, holder.container, holder.resource or "", holder.claim or "")


def _holders_by_part(facts: Facts) -> dict[str, list[api.Holder]]:
    """Device or partition id -> its holders. The replicas that one container has of one device are one entry."""
    parts = {part.id for device in facts.inventory.devices for part in device.fact.partitions}
    parts |= {device.fact.id for device in facts.inventory.devices}
    found: dict[tuple[str, str, str, str, str | None, str | None], tuple[datetime, set[str]]] = {}
    lost: dict[tuple[str, str, str, str | None], Verdict] = {}
    without_share: set[tuple[str, str, str, str, str | None, str | None]] = set()
    for holder in facts.holdings.holders:
        verdict = client_verdict(facts.clients.get(key_of(holder)), holder.resource or "", facts.now)
        if verdict is not None:
            lost[holder.namespace, holder.pod, holder.container, holder.resource] = verdict
        for each in holder.ids:
            part = physical_id(each)
            if part not in parts:
                continue
            key = (part, holder.namespace, holder.pod, holder.container, holder.resource, holder.claim)
            since, ids = found.get(key, (holder.since, set()))
            ids = ids | {each} if "::" in each else ids
            found[key] = (max(since, holder.since), ids)
        for part in set(holder.also) & parts:  # with the ids that the kubelet shows of it, which are others' shares
            key = (part, holder.namespace, holder.pod, holder.container, holder.resource, holder.claim)
            found.setdefault(key, (holder.since, set(holder.ids)))
            without_share.add(key)
    result: dict[str, list[api.Holder]] = defaultdict(list)
    for key, (since, ids) in found.items():
        part, namespace, pod, container, resource, claim = key
        verdict = lost.get((namespace, pod, container, resource))
        result[part].append(
            api.Holder(
                namespace=namespace,
                pod=pod,
                container=container,
                resource=resource,
                claim=claim.rpartition("/")[2] if claim else None,  # a pod's claims are of its own namespace
                shares=None if key in without_share else len(ids) or None,
                memory=(memory := None if key in without_share else memory_of(ids)),
                ids=tuple(sorted(ids, key=_share_order)[: api.MAX_HOLDER_IDS if memory is None else 1]),
                since=since,
                health=_health(verdict, facts) if verdict is not None else None,
            )
        )
    return result


def _share_order(id_: str) -> tuple[str, int, str]:
    device, number = split(id_)
    return (device, number or 0, id_)


def _summary(devices: tuple[api.Device, ...]) -> api.Summary:
    states = [device.health.state for device in devices]
    models = sorted({device.attributes.product_name or "" for device in devices if device.attributes} - {""})
    worst = min(devices, key=_badness, default=None)
    sick = worst is not None and worst.health.state != "Healthy"
    return api.Summary(
        devices=len(devices),
        healthy=states.count("Healthy") + states.count("Degraded"),
        degraded=states.count("Degraded"),
        unhealthy=states.count("Unhealthy"),
        unknown=states.count("Unknown"),
        held=sum(1 for each in devices if each.holders or any(part.holders for part in each.partitions)),
        unschedulable=sum(1 for it in devices if it.unschedulable or any(part.unschedulable for part in it.partitions)),
        excluded=sum(1 for each in devices if each.excluded or any(part.excluded for part in each.partitions)),
        # No spaces, so that it is one column; the same form as the label nvidia.com/gpu.product.
        model="" if not models else "mixed" if len(models) > 1 else models[0].replace(" ", "-"),
        models=len(models),
        reason=worst.health.reason if worst is not None and sick else "",
        recovery_action=(worst.health.recovery_action or "None") if worst is not None and sick else "None",
    )


def _badness(device: api.Device) -> tuple[int, int, int]:
    health = device.health
    return (_WORST_FIRST[HealthState(health.state)], -action_rank(health.recovery_action or "None"), device.index)


def _machine(facts: Facts) -> api.Machine | None:
    machine = facts.inventory.machine
    vgpu = machine.vgpu_version or machine.vgpu_branch
    made = api.Machine(
        type=machine.type or None,
        mode=machine.mode or None,
        clique=machine.clique or None,
        mig_strategy=facts.mig_strategy or None,
        vgpu=api.Vgpu(version=machine.vgpu_version, branch=machine.vgpu_branch) if vgpu else None,
    )
    return made if made != api.Machine() else None


def offered(facts: Facts) -> Plan:
    """What the kubelet is sent, by this agent or by others."""
    return facts.observed or facts.plan or Plan()


def reported_healthy(facts: Facts, resource: OfferedResource) -> int:
    """How many ids of it are sent to the kubelet as Healthy."""
    mine = resource.name not in served_by_others(facts.registrations)
    return sum(each.healthy for each in resource.ids) if mine else 0


def _held_ids(facts: Facts) -> dict[str, set[str]]:
    """Resource -> the ids of it that containers hold."""
    held: dict[str, set[str]] = defaultdict(set)
    for holder in facts.holdings.holders:
        if holder.resource is not None:
            held[holder.resource].update(holder.ids)
    return held


def _resources(facts: Facts, counts: Sequence[ShareCounts]) -> tuple[api.Resource, ...]:
    held, known = _held_ids(facts), _holders_were_known(facts)
    return tuple(
        api.Resource(
            name=resource.name,
            capacity=len(resource.ids),
            healthy=reported_healthy(facts, resource),
            allocated=_allocated(resource, held.get(resource.name, set())),
            sharing=resource.sharing,
            replicas=resource.replicas,
            free=_free(facts, resource, held.get(resource.name, set())) if known else None,
            unit=resource.unit,
            packing=packing(resource),
            memory=memory_totals(resource, counts, holders_known=known),
            managed_by="plugin",
        )
        for resource in offered(facts).resources[:MAX_RESOURCES]
    )


def allocated(facts: Facts) -> dict[str, int]:
    """Resource -> how many ids of it containers hold."""
    held = _held_ids(facts)
    return {each.name: _allocated(each, held.get(each.name, set())) for each in offered(facts).resources}


def _allocated(resource: OfferedResource, held: set[str]) -> int:
    return len(held.intersection(map(own_id, (*resource.ids, *resource.retained))))


def _free(facts: Facts, resource: OfferedResource, held: set[str]) -> int:
    mine = resource.name not in served_by_others(facts.registrations)
    return sum(each.healthy and own_id(each) not in held for each in resource.ids) if mine else 0


# --- conditions ------------------------------------------------------------------------------------------------------
def _condition(facts: Facts, kind: str, status: Status, reason: str, message: str = "") -> Condition:
    return condition(kind, status, reason, message, previous=find(facts.previous, kind), now=_second(facts.now))


def _ready(facts: Facts) -> Condition:
    if facts.stopping:
        text = "the agent was stopped; what stands here is from then, and pods keep the devices that they hold"
        return _condition(facts, names.READY, "False", names.AGENT_STOPPED, text)
    silent = {each.name: each.error or SILENT_MESSAGE for each in facts.probes if each.silent}
    if silent:
        return _condition(facts, names.READY, "False", names.PROBE_UNAVAILABLE, _named(facts, silent))
    if facts.inventory.driver is None or facts.inventory.line_time is None:
        return _condition(facts, names.READY, "Unknown", names.STARTING, "the probe has not reported yet")
    unloaded = [
        each
        for each in facts.probes
        if each.inventory.driver is not None and each.inventory.driver.state is not DriverState.LOADED
    ]
    # A probe without its driver is no fault where nothing is there for it and another has devices.
    if len(unloaded) < len(facts.probes):
        unloaded = [each for each in unloaded if each.inventory.devices or each.inventory.accelerators_on_bus]
    if unloaded:
        why = _named(facts, {each.name: _no_driver(each.inventory) for each in unloaded})
        return _condition(facts, names.READY, "False", names.DRIVER_NOT_LOADED, why)
    if facts.plan is None and facts.config.reason == names.NO_CONFIG:
        return _condition(facts, names.READY, "Unknown", names.STARTING, facts.config.message)
    if facts.observed is not None:
        return _observing(facts, facts.observed)
    by_state: dict[RegistrationState, list[Registration]] = defaultdict(list)
    for each in facts.registrations:
        by_state[each.state].append(each)
    for state, reason in (
        (RegistrationState.REJECTED, names.REGISTRATION_REJECTED),
        (RegistrationState.SERVED_BY_ANOTHER, names.SERVED_BY_ANOTHER),
        (RegistrationState.KUBELET_UNREACHABLE, names.KUBELET_UNREACHABLE),
    ):
        if by_state[state]:
            said = "; ".join(f"{each.resource}: {each.message}" for each in by_state[state])
            return _condition(facts, names.READY, "False", reason, said)
    if by_state[RegistrationState.PENDING]:
        before = find(facts.previous, names.READY)
        if before is not None and before.reason not in {names.PROBE_UNAVAILABLE, names.AGENT_STOPPED}:
            return before  # registering again takes moments: not worth a change of the condition
        waiting = ", ".join(each.resource for each in by_state[RegistrationState.PENDING])
        return _condition(facts, names.READY, "Unknown", names.STARTING, f"registering {waiting}")
    return _condition(facts, names.READY, "True", names.AGENT_RUNNING, "; ".join(_problems(facts)))


def _problems(facts: Facts) -> list[str]:
    parts = [f"{each.code}: {each.message}" for each in facts.inventory.problems]
    parts += [f"state file: {facts.state_problem}"] if facts.state_problem is not None else []
    parts += [f"CDI: {facts.cdi_problem}"] if facts.cdi_problem else []
    parts += [f"files for CNI plugins: {facts.node_files_problem}"] if facts.node_files_problem else []
    parts += [
        f"{texts.restarted}: containers started before it lost their {texts.state}: {listing(pods)}"
        for texts, pods in _lost_clients(facts).items()
    ]
    return parts + [f"annotation {CONFIRM}: {each}" for each in facts.confirm_problems[:NAMED]]


def _lost_clients(facts: Facts) -> dict[HelperTexts, list[str]]:
    """Their pods, by what is said of them."""
    found: dict[HelperTexts, set[str]] = {}
    for each, client in facts.clients.items():
        if (texts := lost_texts(client)) is not None:
            found.setdefault(texts, set()).add("/".join(each.split("/")[:2]))
    return {texts: sorted(pods) for texts, pods in found.items()}


def _observing(facts: Facts, observed: Plan) -> Condition:
    """Nothing is registered here; PodResources is the only way to the kubelet."""
    holdings = facts.holdings
    if holdings.state is HoldersState.UNAVAILABLE:
        starting = holdings.taken == 0.0 and facts.running_seconds < STARTING_SECONDS
        status: Status = "Unknown" if starting else "False"
        reason = names.STARTING if starting else names.KUBELET_UNREACHABLE
        return _condition(facts, names.READY, status, reason, f"serving.mode Observe: {holdings.message}")
    live = [each for each in observed.resources if any(one.healthy for one in each.ids)]
    by = ", ".join(each.name for each in live) if live else "none of this node's devices"
    parts = [f"serving.mode Observe: other plugins offer {by} to the kubelet"]
    if holdings.offered is None:
        parts = [
            f"serving.mode Observe: it is not known what other plugins offer to the kubelet; {holdings.message}".rstrip(
                "; "
            )
        ]
    bad = {each for each, verdict in facts.verdicts.items() if not verdict.offered} | set(facts.unschedulable)
    still = {
        one.device_id for each in live for one in each.ids if one.healthy and {one.device_id, one.partition_id} & bad
    }
    if still:
        called = device_names(facts.inventory)
        listed = listing(called[each.fact.id] for each in facts.inventory.devices if each.fact.id in still)
        parts.append(f"still offered by them though not healthy: {listed}")
    return _condition(facts, names.READY, "True", names.AGENT_RUNNING, "; ".join([*parts, *_problems(facts)]))


def _devices_healthy(facts: Facts, devices: tuple[api.Device, ...]) -> Condition:
    kind = names.DEVICES_HEALTHY
    unhealthy = [each for each in devices if each.health.state == "Unhealthy"]
    unknown = [each for each in devices if each.health.state == "Unknown"]
    degraded = [each for each in devices if each.health.state == "Degraded"]
    known = facts.holdings.state is HoldersState.SYNCED
    if unhealthy:
        parts = _listed(sorted(unhealthy, key=_badness), devices, holders_known=known)
        also = f"; unknown: {_listed(unknown, devices)}" if unknown else ""
        also += f"; degraded: {_listed(degraded, devices, holders_known=known)}" if degraded else ""
        return _condition(facts, kind, "False", names.DEVICE_FAULT, parts + also)
    if unknown:
        parts = f"{_listed(unknown, devices)}: {unknown[0].health.message}".rstrip(": ")
        return _condition(facts, kind, "Unknown", names.PROBE_SILENT, parts)
    if facts.inventory.line_time is None:
        return _condition(facts, kind, "Unknown", names.PROBE_SILENT, "the probe has not reported yet")
    if degraded:
        parts = _listed(degraded, devices, holders_known=known)
        return _condition(facts, kind, "True", names.ALL_HEALTHY, f"degraded: {parts}")
    return _condition(facts, kind, "True", names.ALL_HEALTHY, "" if devices else "there are no devices")


def _listed(some: list[api.Device], devices: tuple[api.Device, ...], *, holders_known: bool = False) -> str:
    """`2 of 8: gpu-3 Xid79 (ResetBus; held by ml/train-0), gpu-5 EccUncorrectable (ResetDevice; not held)`"""
    listed = ", ".join(
        f"{each.name} {each.health.reason}{_consequences(each, holders_known=holders_known)}" for each in some[:NAMED]
    )
    more = f" and {len(some) - NAMED} more" if len(some) > NAMED else ""
    return f"{len(some)} of {len(devices)}: {listed}{more}"


def _consequences(device: api.Device, *, holders_known: bool) -> str:
    """What would help, and whom it hits; nothing of a device whose state is not known."""
    health = device.health
    if health.state == "Unknown":
        return ""
    parts = [health.recovery_action] if health.recovery_action not in {None, "", "None"} else []
    holders = (*device.holders, *(holder for part in device.partitions for holder in part.holders))
    pods = sorted({f"{each.namespace}/{each.pod}" for each in holders})
    if pods:
        more = f" and {len(pods) - HOLDERS_NAMED} more" if len(pods) > HOLDERS_NAMED else ""
        parts.append(f"held by {', '.join(pods[:HOLDERS_NAMED])}{more}")
    elif holders_known:
        parts.append("not held")
    return f" ({'; '.join(filter(None, parts))})" if parts else ""


def _config_applied(facts: Facts) -> Condition:
    config = facts.config
    status: Status = {names.APPLIED: "True", names.NO_CONFIG: "Unknown"}.get(config.reason, "False")  # type: ignore[assignment]  # the values are Statuses
    parts = [each for each in (config.message, config.cdi_problem, config.pods_problem) if each]
    parts += [each.text for each in config.unmatched[:NAMED]]
    more = len(config.unmatched) - NAMED
    parts += (
        [f"and {more} more entries match nothing on this node (status.configuration.unmatched)"] if more > 0 else []
    )
    return _condition(facts, names.CONFIG_APPLIED, status, config.reason, "; ".join(parts))


def _configuration(config: ConfigStatus) -> api.ConfigurationStatus | None:
    made = api.ConfigurationStatus(
        sources=config.sources,
        refused=api.Refusal(section=each.section, field=each.field, message=each.message)
        if (each := config.refused) is not None
        else None,
        unmatched=tuple(
            api.Unmatched(section=each.section, entry=each.entry, message=each.message)
            for each in config.unmatched[: api.MAX_UNMATCHED]
        ),
        waiting_for=tuple(
            api.WaitingFor(
                namespace=each.namespace, pod=each.pod, resource=each.resource, ids=each.ids[: api.MAX_WAITING_IDS]
            )
            for each in config.waiting_for[: api.MAX_WAITING_FOR]
        ),
        waiting_for_daemons=config.waiting_for_helpers or None,
    )
    return made if made != api.ConfigurationStatus() else None


def _holders_known(facts: Facts) -> Condition:
    state, message = facts.holdings.state, facts.holdings.message
    if state is HoldersState.SYNCED:
        return _condition(facts, names.HOLDERS_KNOWN, "True", names.SYNCED, message)
    return _condition(facts, names.HOLDERS_KNOWN, "Unknown", state.value, message)


def _second(when: datetime) -> datetime:
    """Models made by name skip no validation, but equal values must be equal before a round trip, too."""
    return when.replace(microsecond=0)
