"""The agent's own conditions of the NodeDevices object: Ready, DevicesHealthy, ConfigApplied, HoldersKnown,
AllocatedOnce, and where devices are expected ExpectedDevices.

Each message says, for people, why, which pods are affected, and what would help. A condition's time is when its status
changed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from types import MappingProxyType

from nodedevices_api import conditions as names, nodedevices as api
from nodedevices_api.meta import Condition, condition, find
from nodedevices_common.confirming import CONFIRM
from nodedevices_common.text import NAMED, listing, some
from nodedevices_probe.protocol import DriverState

from nodedevices_plugin.cores.ids import COUNTED
from nodedevices_plugin.health import machine
from nodedevices_plugin.health.rules import action_rank
from nodedevices_plugin.model import (
    Api,
    HealthState,
    HoldersState,
    Inventory,
    Plan,
    RegistrationState,
    device_names,
    devices_by_id,
    physical_id,
)
from nodedevices_plugin.pipeline import probe_set
from nodedevices_plugin.pipeline.expected import Count
from nodedevices_plugin.sharing.mps import RESTARTED
from nodedevices_plugin.status.devices import physical
from nodedevices_plugin.status.facts import STARTING_SECONDS, NodeFacts, ProbeFacts, whole_second

HOLDERS_NAMED = 3  # pods of one device, in the condition DevicesHealthy
SILENT_MESSAGE = "the probe has not reported for 15 s or more"
_UNKNOWN_FOR = {  # a device's reason -> that of DevicesHealthy
    machine.DRIVER_NOT_LOADED: names.DRIVER_NOT_LOADED,
    machine.VERSION_MISMATCH: names.DRIVER_NOT_LOADED,
    machine.STARTING: names.STARTING,
    names.MISSING: names.DEVICES_LOST,
}
_NOT_REGISTERED = {  # the state of a registration, the worst first -> the reason of Ready
    RegistrationState.REJECTED: names.REGISTRATION_REJECTED,
    RegistrationState.SERVED_BY_ANOTHER: names.SERVED_BY_ANOTHER,
    RegistrationState.KUBELET_UNREACHABLE: names.KUBELET_UNREACHABLE,
}
_WORST_FIRST = {HealthState.UNHEALTHY: 0, HealthState.UNKNOWN: 1, HealthState.DEGRADED: 2, HealthState.HEALTHY: 3}


def conditions(facts: NodeFacts, devices: tuple[api.Device, ...]) -> tuple[Condition, ...]:
    """`devices`: as the same report shows them, with their partitions."""
    return (
        _ready(facts),
        _devices_healthy(facts, devices),
        _config_applied(facts),
        _holders_known(facts),
        _allocated_once(facts),
        *_expected_devices(facts),
        *_slices_published(facts),
    )


def _named(facts: NodeFacts, texts: Mapping[str, str]) -> str:
    """Join what is wrong with some probes, each with its name where the node has several."""
    return "; ".join(f"{name}: {why}" if len(facts.probes) > 1 else why for name, why in texts.items())


def no_driver(inventory: Inventory) -> str:
    """Return for people why no device of a probe can be used."""
    parts = [problem.message for problem in inventory.problems[:3]]
    if inventory.accelerators_on_bus:
        parts.insert(0, f"{inventory.accelerators_on_bus} accelerators on the PCI bus and no usable driver")
    return "; ".join(parts) or "the driver is not loaded"


def badness(device: api.Device) -> tuple[int, int, int]:
    """Sort key, the worst first: by state, by what its recovery takes, by index."""
    health = device.health
    return (_WORST_FIRST[HealthState(health.state)], -action_rank(health.recovery_action or "None"), device.index)


def _condition(facts: NodeFacts, kind: str, status: names.Status, reason: str, message: str = "") -> Condition:
    return condition(kind, status, reason, message, previous=find(facts.previous, kind), now=whole_second(facts.now))


def _ready(facts: NodeFacts) -> Condition:
    if facts.stopping:
        text = "the agent was stopped; this status is from that time, and pods keep the devices that they hold"
        return _condition(facts, names.READY, "False", names.AGENT_STOPPED, text)
    needed = _needed(facts)
    silent = {probe.name: probe.error or SILENT_MESSAGE for probe in needed if probe.silent}
    if silent:
        return _condition(facts, names.READY, "False", names.PROBE_UNAVAILABLE, _named(facts, silent))
    if facts.inventory.driver is None or facts.inventory.line_time is None:
        return _condition(facts, names.READY, "Unknown", names.STARTING, "the probe has not reported yet")
    unloaded = [
        probe
        for probe in needed
        if probe.inventory.driver is not None and probe.inventory.driver.state is not DriverState.LOADED
    ]
    # A probe without its driver is no fault where nothing is there for it and another has devices.
    if len(unloaded) < len(needed):
        unloaded = [probe for probe in unloaded if probe.inventory.devices or probe.inventory.accelerators_on_bus]
    if unloaded:
        why = _named(facts, {probe.name: no_driver(probe.inventory) for probe in unloaded})
        return _condition(facts, names.READY, "False", names.DRIVER_NOT_LOADED, why)
    if facts.world.lost:
        why = "; ".join(f"{name}: {text}" for name, text in facts.world.lost.items())
        return _condition(facts, names.READY, "False", names.DEVICES_LOST, why)
    if facts.world.plan is None and facts.config.reason == names.NO_CONFIG:
        return _condition(facts, names.READY, "Unknown", names.STARTING, facts.config.message)
    if facts.world.observed is not None:
        return _observing(facts, facts.world.observed)
    for state, reason in _NOT_REGISTERED.items():
        found = [registration for registration in facts.registrations if registration.state is state]
        if found:
            said = "; ".join(f"{registration.resource}: {registration.message}" for registration in found)
            return _condition(facts, names.READY, "False", reason, said)
    if waiting := [
        registration.resource for registration in facts.registrations if registration.state is RegistrationState.PENDING
    ]:
        before = find(facts.previous, names.READY)
        if before is not None and before.reason not in {names.PROBE_UNAVAILABLE, names.AGENT_STOPPED}:
            return before  # registering again takes moments: not worth a change of the condition
        return _condition(facts, names.READY, "Unknown", names.STARTING, f"registering {', '.join(waiting)}")
    return _condition(facts, names.READY, "True", names.AGENT_RUNNING, "; ".join(_problems(facts)))


def node_reason(facts: NodeFacts, worst: str) -> str:
    """Return the node's one reason, for tables. `worst`: that of its worst device."""
    ready = _ready(facts)
    few = (condition.reason for condition in _expected_devices(facts) if condition.status == "False")
    return ready.reason if ready.status == "False" else worst or next(few, "")


def _needed(facts: NodeFacts) -> tuple[ProbeFacts, ...]:
    """Return the probes without which the node is not ready; what another one alone would say keeps no pod away
    (`_problems` has it)."""
    by_name = {probe.name: probe for probe in facts.probes}
    return tuple(by_name[name] for name in probe_set.needed({probe.name: probe.inventory for probe in facts.probes}))


def _expected_devices(facts: NodeFacts) -> tuple[Condition, ...]:
    """None where no device is expected, and where nothing lacks of what the node has had."""
    kind = names.EXPECTED_DEVICES
    if facts.world.expected is None:
        return (_condition(facts, kind, "Unknown", names.STARTING, "not every probe has reported yet"),)
    if not facts.world.expected:
        return ()
    lacking = lacking_devices(facts)
    if not lacking:
        return (_condition(facts, kind, "True", names.ALL_FOUND),)
    worst = max(lacking, key=lambda count: count.lacking)
    reason = names.TOO_FEW.format(expected=worst.expected, found=worst.found)
    return (_condition(facts, kind, "False", reason, _too_few(lacking)),)


def _slices_published(facts: NodeFacts) -> tuple[Condition, ...]:
    """None where DRA serves nothing."""
    by_dra = {resource.name for resource in facts.offered.by(Api.DRA).resources}
    if not by_dra:
        return ()
    missing = {
        registration.message
        for registration in facts.registrations
        if registration.resource in by_dra and registration.state is not RegistrationState.REGISTERED
    }
    if not missing:
        return (_condition(facts, names.SLICES_PUBLISHED, "True", names.PUBLISHED),)
    return (_condition(facts, names.SLICES_PUBLISHED, "False", names.NOT_PUBLISHED, "; ".join(sorted(missing))),)


def lacking_devices(facts: NodeFacts) -> list[Count]:
    return [count for count in facts.world.expected or () if count.lacking]


def numbers(lacking: Sequence[Count]) -> str:
    """`type gpu: 7 of 8 expected: gpu at 0000:b3:00.0 is missing`"""

    def said(count: Count) -> str:
        missing = f": {some(count.lost, NAMED)} {'is' if len(count.lost) == 1 else 'are'} missing" if count.lost else ""
        return (
            f"{count.what}: {count.found} of {count.expected} {'earlier' if count.remembered else 'expected'}{missing}"
        )

    return listing(map(said, lacking))


def _too_few(lacking: Sequence[Count]) -> str:
    otherwise = (
        "where they were removed on purpose, confirm it: kubectl nodedevices confirm 'NODE/*' removed"
        if lacking[0].remembered
        else "correct the section expect of the policy"
    )
    return f"{numbers(lacking)}; check the hardware and its driver, or {otherwise}"


def _problems(facts: NodeFacts) -> list[str]:
    needed, world = _needed(facts), facts.world
    clients, confirming = world.state.clients.clients, (*world.confirm_problems, *world.confirm_waits)
    parts = [
        f"{names.PROBE_UNAVAILABLE}: {probe.name}: {probe.error or SILENT_MESSAGE}; what only this probe reports of "
        "devices is missed, and they are served as before"
        for probe in facts.probes
        if probe.silent and probe not in needed
    ]
    parts += [f"{problem.code}: {problem.message}" for problem in facts.inventory.problems]
    parts += [f"left out of this object: {listing(facts.left_out)}"] if facts.left_out else []
    parts += [": ".join(filter(None, (what, why))) for what, why in facts.problems.items() if why]
    if lost := {"/".join(key.split("/")[:2]) for key, client in clients.items() if client.reason == RESTARTED}:
        parts.append(f"{RESTARTED}: containers started before it lost their CUDA contexts: {listing(sorted(lost))}")
    return parts + [f"annotation {CONFIRM}: {problem}" for problem in confirming[:NAMED]]


def _observing(facts: NodeFacts, observed: Plan) -> Condition:
    """Nothing is registered here; PodResources is the only way to the kubelet."""
    holdings = facts.world.holdings
    if holdings.state is HoldersState.UNAVAILABLE:
        starting = holdings.taken == 0.0 and facts.running_seconds < STARTING_SECONDS
        status: names.Status = "Unknown" if starting else "False"
        reason = names.STARTING if starting else names.KUBELET_UNREACHABLE
        return _condition(facts, names.READY, status, reason, f"serving.mode Observe: {holdings.message}")
    live = [resource for resource in observed.resources if any(schedulable.healthy for schedulable in resource.ids)]
    by = ", ".join(resource.name for resource in live) if live else "none of this node's devices"
    parts = [f"serving.mode Observe: other plugins offer {by} to the kubelet"]
    known = {resource.name for resource in observed.resources}
    unread = [offer for offer in holdings.offered or () if offer.resource not in known]
    if unread:
        what = listing(f"{len(offer.ids)} of {offer.resource}" for offer in unread)
        parts.append(f"and ids that this agent cannot relate to a device: {what}")
    if holdings.offered is None:
        parts = [
            f"serving.mode Observe: it is not known what other plugins offer to the kubelet; {holdings.message}".rstrip(
                "; "
            )
        ]
    bad = {id_ for id_, verdict in facts.verdicts.items() if not verdict.offered} | set(facts.unschedulable)
    still = {
        schedulable.device_id
        for resource in live
        for schedulable in resource.ids
        if schedulable.healthy and {schedulable.device_id, schedulable.partition_id} & bad
    }
    if still:
        called = device_names(facts.inventory)
        listed = listing(called[device.fact.id] for device in facts.inventory.devices if device.fact.id in still)
        parts.append(f"still offered by them, although not healthy: {listed}")
    return _condition(facts, names.READY, "True", names.AGENT_RUNNING, "; ".join([*parts, *_problems(facts)]))


def _devices_healthy(facts: NodeFacts, listed: tuple[api.Device, ...]) -> Condition:
    kind = names.DEVICES_HEALTHY
    devices = physical(listed)
    unhealthy, unknown, degraded = (
        [device for device in devices if device.health.state == state] for state in ("Unhealthy", "Unknown", "Degraded")
    )
    pods = _pods(facts, listed) if unhealthy or degraded else {}
    if unhealthy:
        parts = _listed(sorted(unhealthy, key=badness), len(devices), pods)
        also = f"; unknown: {_listed(unknown, len(devices))}" if unknown else ""
        also += f"; degraded: {_listed(degraded, len(devices), pods)}" if degraded else ""
        return _condition(facts, kind, "False", names.DEVICE_FAULT, parts + also)
    if unknown:
        parts = f"{_listed(unknown, len(devices))}: {unknown[0].health.message}".rstrip(": ")
        return _condition(facts, kind, "Unknown", _UNKNOWN_FOR.get(unknown[0].health.reason, names.PROBE_SILENT), parts)
    if facts.inventory.line_time is None:
        return _condition(facts, kind, "Unknown", names.STARTING, "the probe has not reported yet")
    if degraded:
        parts = _listed(degraded, len(devices), pods)
        return _condition(facts, kind, "True", names.ALL_HEALTHY, f"degraded: {parts}")
    return _condition(facts, kind, "True", names.ALL_HEALTHY, "" if devices else "there are no devices")


def _pods(facts: NodeFacts, listed: tuple[api.Device, ...]) -> dict[str, set[str]]:
    """Return the pods that hold each device or a partition of it, by the device's name; where it is not known whether
    a pod holds it, it is not there."""
    pods: dict[str, set[str]] = defaultdict(set)
    for entry in listed:  # a partition's device may be left out of them
        pods[entry.parent or entry.name] |= {f"{holder.namespace}/{holder.pod}" for holder in entry.holders}
    if facts.world.holdings.state is HoldersState.SYNCED:
        return pods
    return {name: holding for name, holding in pods.items() if holding}


def _listed(at_fault: list[api.Device], count: int, pods: Mapping[str, Set[str]] = MappingProxyType({})) -> str:
    """`2 of 8: gpu-3 Xid79 (ResetBus; held by ml/train-0), gpu-5 EccUncorrectable (ResetDevice; not held)`"""
    listed = listing(f"{device.name} {device.health.reason}{_consequences(device, pods)}" for device in at_fault)
    return f"{len(at_fault)} of {count}: {listed}"


def _consequences(device: api.Device, pods: Mapping[str, Set[str]]) -> str:
    """Return what would help, and which pods it affects (`pods` by device, where that is known); nothing for a device
    whose state is not known."""
    health = device.health
    if health.state == "Unknown":
        return ""
    parts = [health.recovery_action] if health.recovery_action not in {None, "", "None"} else []
    if device.name in pods:
        holding = sorted(pods[device.name])
        parts.append(f"held by {some(holding, HOLDERS_NAMED)}" if holding else "not held")
    return f" ({'; '.join(filter(None, parts))})" if parts else ""


def _config_applied(facts: NodeFacts) -> Condition:
    config = facts.config
    status: names.Status = {names.APPLIED: "True", names.NO_CONFIG: "Unknown"}.get(config.reason, "False")  # type: ignore[assignment]  # the values are Statuses
    parts = [message for message in (config.message, config.cdi_problem, config.pods_problem) if message]
    parts += [unmatched.text for unmatched in config.unmatched[:NAMED]]
    more = len(config.unmatched) - NAMED
    parts += (
        [f"and {more} more entries have no effect on this node (status.configuration.unmatched)"] if more > 0 else []
    )
    return _condition(facts, names.CONFIG_APPLIED, status, config.reason, "; ".join(parts))


def _holders_known(facts: NodeFacts) -> Condition:
    state = facts.world.holdings.state
    message = "; ".join(filter(None, (facts.world.holdings.message, _unlisted(facts))))
    if state is HoldersState.SYNCED:
        return _condition(facts, names.HOLDERS_KNOWN, "True", names.SYNCED, message)
    return _condition(facts, names.HOLDERS_KNOWN, "Unknown", state.value, message)


def _unlisted(facts: NodeFacts) -> str:
    """Say which devices of our resources pods hold that this object has no entry for: no probe lists them, and what was
    known of them went with the state file. Empty: none."""
    if facts.inventory.line_time is None:
        return ""
    known = {COUNTED, *devices_by_id(facts.inventory)}
    unknown = [
        (holder, id_) for holder in facts.world.holdings.holders for id_ in holder.ids if physical_id(id_) not in known
    ]
    if not unknown:
        return ""
    ours = {resource.name: {schedulable.id for schedulable in resource.ids} for resource in facts.offered.resources}
    pods: dict[str, dict[str, None]] = {}
    for holder, id_ in unknown:
        if holder.resource in ours and id_ not in ours[holder.resource]:
            pods.setdefault(physical_id(id_), {})[f"{holder.namespace}/{holder.pod}"] = None
    if not pods:
        return ""
    named = listing(f"{id_} (by {listing(by)})" for id_, by in pods.items())
    return f"held, but listed by no probe: {named}; devices that were removed, or another plugin's"


def _allocated_once(facts: NodeFacts) -> Condition:
    """What the last complete Lists have shown stays until another one shows that it is over."""
    kind = names.ALLOCATED_ONCE
    if facts.world.allocations.found is None:
        text = "the kubelet has not listed its pods' devices yet"
        return find(facts.previous, kind) or _condition(facts, kind, "Unknown", names.STARTING, text)
    if not facts.world.allocations.found:
        return _condition(facts, kind, "True", names.NO_DOUBLE_ALLOCATION)
    called = device_names(facts.inventory)
    parts = listing(
        f"{called.get(double.device_id, double.device_id)} {double.id}: {' and '.join(double.pods[:HOLDERS_NAMED])}"
        + (f" and {len(double.pods) - HOLDERS_NAMED} more" if len(double.pods) > HOLDERS_NAMED else "")
        for double in facts.world.allocations.found
    )
    text = f"the kubelet has given a device to more than one pod: {parts}; delete all of these pods except one"
    return _condition(facts, kind, "False", names.DOUBLE_ALLOCATION, text)
