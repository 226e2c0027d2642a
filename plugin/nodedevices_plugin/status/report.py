"""Makes the status of the node's NodeDevices object from the latest values of every stage.

Only the agent's own fields are made here (affectedPods, actions and some conditions are the operator's). They are
sorted and bounded, and equal input gives an equal status, so that a comparison shows whether anything changed.
`agent.heartbeatTime` is set by the publisher at each write.

Values from drivers, kubelets and other programs may be odd in unforeseen ways. A part that the contract's types refuse
is left out and named in `Ready`'s message; a device keeps its health. The rest of the report is always made: a fault
that the kubelet knows must be in the status, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from msgspec.structs import replace
from nodedevices_api import nodedevices as api
from nodedevices_api.base import Model, to_dict
from nodedevices_api.withheld import EXCLUDED, MEANINGS
from nodedevices_common import __version__
from nodedevices_common.grouping import grouped
from nodedevices_common.observing import OBSERVE
from nodedevices_common.times import rfc3339

from nodedevices_plugin.model import (
    Api,
    Cordon,
    RegistrationState,
    SchedulableId,
)
from nodedevices_plugin.status.conditions import (
    SILENT_MESSAGE,
    badness,
    conditions,
    lacking_devices,
    node_reason,
    numbers,
)
from nodedevices_plugin.status.devices import DeviceReports, LeftOut, bounded, physical
from nodedevices_plugin.status.facts import (
    MAX_RESOURCES,
    NO_DRIVER,
    NodeFacts,
    ProbeFacts,
    ResourceCounts,
    Withheld,
    loaded_drivers,
    resource_counts,
    whole_second,
)

MAX_RETIRED = 64
M = TypeVar("M", bound=Model)


def report(facts: NodeFacts) -> api.NodeDevicesStatus:
    """Return the agent's whole part of `status`."""
    left_out = LeftOut()
    reports = DeviceReports(facts, left_out)
    devices = reports.devices()
    whole, listed = physical(devices), bounded(devices)
    configuration, resources = _configuration(facts, left_out), _resources(facts, reports.names, left_out)
    state = facts.world.state
    retired = sorted(sorted(state.retired.items(), key=lambda item: item[1])[-MAX_RETIRED:])
    return api.NodeDevicesStatus(
        observed_generation=facts.config.generation,
        applied_config_hash=facts.config.applied_hash,
        summary=left_out.made("summary", _summary, devices, whole, resources, facts),
        drivers=left_out.all("driver", _same(api.Driver), ((driver.name, driver) for driver in loaded_drivers(facts)))[
            : api.MAX_DRIVERS
        ],
        machine=left_out.made("machine", _machine, facts),
        probes=left_out.all("probe", partial(_probe, facts), ((probe.name, probe) for probe in facts.probes)),
        agent=api.Agent(
            version=__version__,
            boot_id=facts.inventory.boot_id,
            start_time=whole_second(facts.started),
            heartbeat_time=whole_second(facts.started),
        ),
        configuration=configuration,
        devices=listed,
        partitions_truncated=len(devices) - len(listed) or None,
        resources=resources,
        retired_resources=left_out.all("retired resource", _retired, ((entry[0], entry) for entry in retired)),
        most_seen=left_out.all(
            "most seen", _same(api.MostSeen), ((entry.product_name, entry) for entry in state.most_seen or ())
        ),
        conditions=conditions(replace(facts, left_out=tuple(dict.fromkeys(left_out.said))), devices),
    )


def _same(model: type[M]) -> Callable[[object], M]:
    """Make the contract's record from one of ours, whose fields have the same names."""
    return partial(model.model_validate, from_attributes=True)


def _retired(entry: tuple[str, datetime]) -> api.RetiredResource:
    return api.RetiredResource(name=entry[0], since=whole_second(entry[1]))


def _probe(facts: NodeFacts, probe: ProbeFacts) -> api.Probe:
    state, message = _probe_state(probe)
    before = next((previous for previous in facts.previous_probes if previous.name == probe.name), None)
    return api.Probe(
        name=probe.name,
        state=state,
        message=message,
        since=before.since if before is not None and before.state == state else whole_second(facts.now),
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
    problems = "; ".join(f"{problem.code}: {problem.message}" for problem in inventory.problems)
    if inventory.driver.state in NO_DRIVER:
        return "NoDriver", problems or "the driver is not loaded"
    return "Ready", problems


def offered_devices(facts: NodeFacts) -> int | None:
    """Count the devices with a healthy id that is offered to the kubelet, by this agent or another plugin."""
    known = facts.world.plan is not None if facts.world.observed is None else facts.world.holdings.offered is not None
    if not known:
        return None
    refused = {
        registration.resource
        for registration in facts.registrations
        if registration.state is RegistrationState.REJECTED
    }
    plan = facts.offered
    found = {
        schedulable.device_id
        for it in plan.resources
        if it.name not in refused
        for schedulable in it.ids
        if schedulable.healthy
    }
    return len(found & {device.fact.id for device in facts.inventory.devices})


def _summary(
    devices: tuple[api.Device, ...],
    whole: tuple[api.Device, ...],
    resources: tuple[api.Resource, ...],
    facts: NodeFacts,
) -> api.Summary:
    """`whole`: the physical ones; what is true of a partition counts for its device."""
    states = [device.health.state for device in whole]
    models = sorted({device.attributes.product_name or "" for device in whole if device.attributes} - {""})
    worst = min(whole, key=badness, default=None)
    sick = worst is not None and worst.health.state != "Healthy"
    excluded = len({device.parent or device.name for device in devices if device.excluded})
    return api.Summary(
        devices=len(whole),
        healthy=states.count("Healthy") + states.count("Degraded"),
        degraded=states.count("Degraded"),
        unhealthy=states.count("Unhealthy"),
        unknown=states.count("Unknown"),
        held=len({device.parent or device.name for device in devices if device.holders}),
        unschedulable=len({device.parent or device.name for device in devices if device.unschedulable}),
        offered=offered_devices(facts),
        excluded=excluded,
        # No spaces, so that it is one column; the same form as the label nvidia.com/gpu.product.
        model="" if not models else "mixed" if len(models) > 1 else models[0].replace(" ", "-"),
        models=len(models),
        withheld=_withheld_in_short(resources, excluded),
        message=_in_words(whole, resources, worst if sick else None, numbers(lacking_devices(facts))),
        reason=node_reason(facts, worst.health.reason if worst is not None and sick else ""),
        recovery_action=(worst.health.recovery_action or "None") if worst is not None and sick else "None",
        idle=None if facts.world.uses is None else sum(use.unused for use in facts.world.uses.devices.values()),
    )


# --- resources -------------------------------------------------------------------------------------------------------
def _resources(facts: NodeFacts, names: Mapping[str, str], left_out: LeftOut) -> tuple[api.Resource, ...]:
    def made(counts: ResourceCounts) -> api.Resource:
        resource, sharing = counts.resource, counts.resource.sharing
        return api.Resource(
            name=resource.name,
            capacity=counts.capacity,
            healthy=counts.healthy,
            allocated=counts.allocated,
            sharing=sharing.name,
            replicas=sharing.replicas,
            free=counts.free if facts.world.holdings.were_known else None,
            unit=sharing.memory.unit if sharing.memory is not None else None,
            packing=sharing.packing,
            enforcement=sharing.enforced_by.name if sharing.enforced_by is not None else None,
            managed_by="dra" if resource.api is Api.DRA else "plugin",
            withheld=left_out.all(
                f"resource {resource.name}: withheld",
                partial(_withheld, names=names),
                ((group.reason, group) for group in counts.withheld[: api.MAX_WITHHELD]),
            ),
        )

    every = islice(resource_counts(facts), MAX_RESOURCES)
    return left_out.all("resource", made, ((counts.resource.name, counts) for counts in every))


def _withheld(found: Withheld, names: Mapping[str, str]) -> api.Withheld:
    """Return the entry of status.resources[].withheld. `names`: device names by id."""
    pods = dict.fromkeys(pod for _, blocked in found.ids for pod in blocked.waits_for)
    parts = _parts_of([schedulable for schedulable, _ in found.ids], names)
    return api.Withheld(
        reason=found.reason,
        count=len(found.ids),
        devices=tuple(parts[: api.MAX_WITHHELD_DEVICES]),
        message=_why_withheld(found, names),
        waits_for=tuple(list(pods)[: api.MAX_WITHHELD_PODS]),
    )


def _why_withheld(found: Withheld, names: Mapping[str, str]) -> str:
    """Return the message that all ids have; else each message with the devices that have it."""
    by_message = grouped((blocked.message, schedulable) for schedulable, blocked in found.ids)
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
        health = worst.health
        said.append(f"{worst.name}: {health.reason} since {rfc3339(health.since)}: {health.message}.")
    return " ".join(said) or f"{len(devices)} device{'' if len(devices) == 1 else 's'}, all fit for use."


def _ids_withheld(group: api.Withheld) -> str:
    more = f" and {group.count - len(group.devices)} more" if group.count > len(group.devices) else ""
    return f"{group.count} {group.reason}" if not group.devices else f"{', '.join(group.devices)}{more} {group.reason}"


# --- machine and configuration ---------------------------------------------------------------------------------------
def _machine(facts: NodeFacts) -> api.Machine | None:
    machine = facts.inventory.machine
    made = api.Machine(
        type=machine.type or None,
        mode=machine.mode or None,
        clique=machine.clique or None,
        mig_strategy=facts.world.active.effective.sections.partitions.strategy,
        vgpu_version=machine.vgpu_version,
        vgpu_branch=machine.vgpu_branch,
    )
    return made if made != api.Machine() else None


def _configuration(facts: NodeFacts, left_out: LeftOut) -> api.ConfigurationStatus | None:
    config = facts.config
    refused = dict.fromkeys((*((config.refused,) if config.refused is not None else ()), *config.others))
    refusals = left_out.all(
        "refusal of", _same(api.Refusal), ((entry.field, entry) for entry in tuple(refused)[: api.MAX_REFUSALS])
    )
    entries = config.unmatched[: api.MAX_UNMATCHED]
    made = left_out.made(
        "configuration",
        api.ConfigurationStatus,
        sources=config.sources,
        files_alone=config.refused is None and bool(config.others),
        waiting_for_pods=config.waiting_for[: api.MAX_WAITING_FOR],
        serving=None if facts.world.observed is None else OBSERVE,
        refusals=refusals,
        unmatched=left_out.all("unmatched", _same(api.Unmatched), ((entry.entry, entry) for entry in entries)),
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
