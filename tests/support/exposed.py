"""What agent and operator show at /metrics, from literals: a node whose devices are in every state, and a fleet."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from nodedevices_operator.manager import Manager
from nodedevices_operator.metrics import OperatorMetrics
from nodedevices_operator.records.kinds import Kind, read
from nodedevices_plugin import model
from nodedevices_plugin.model.plan import ProbeCounters
from nodedevices_plugin.pipeline import inventory as stage
from nodedevices_plugin.sharing.memory import Memory
from nodedevices_plugin.status.facts import NodeFacts, ProbeFacts
from nodedevices_plugin.status.metrics import AgentMetrics
from nodedevices_probe.protocol import Snapshot
from prometheus_client.parser import text_string_to_metric_families
from support.facts import GIB, START, gpu, gpu_id, inventory_of, mig_id, partition, snapshot
from support.opfacts import device, node_devices, raw_policy
from support.plans import UNFIT
from support.reports import node_facts

GPU, MEMORY = "nvidia.com/gpu", "nodedevices.io/gpu-memory"
SINCE = START - timedelta(minutes=5)
LABELS = tuple[tuple[str, str], ...]

Samples = dict[str, dict[LABELS, float]]
"""Metric -> its series' labels, sorted -> value."""


def parsed(text: str) -> Samples:
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def verdict(
    state: model.HealthState, reason: str = "", action: str = "None", *, offered: bool | None = None
) -> model.Verdict:
    fit = state in {model.HealthState.HEALTHY, model.HealthState.DEGRADED} if offered is None else offered
    return model.Verdict(state=state, reason=reason, message="", since=SINCE, offered=fit, recovery_action=action)


def occurred(reason: str, count: int, *, fault: bool) -> model.Occurrences:
    """A reason that came so often, five minutes ago."""
    return model.Occurrences(
        reason=reason,
        periods=(model.Period(number=0, first=SINCE, count=count),),
        last=SINCE,
        shown=model.Shown(count=count, first=SINCE, last=SINCE, at=SINCE),
        is_fault=fault,
    )


def facts(**changes: Any) -> NodeFacts:
    """GPU 0 is held and healthy, 1 degraded, 2 held and unhealthy, 3 unknown, 4 missing; 5 is cut, and a part held."""
    devices = [gpu(number, pci_bus_id=f"0000:{number:02x}:00.0") for number in range(5)]
    devices.append(gpu(5, mig_enabled=True, partitions=(partition(5, 0), partition(5, 1))))
    before = inventory_of(*devices)
    here: Snapshot = snapshot(*devices[:4], devices[5], sequence=2)
    inventory = stage.update(before, here, now=START, monotonic=1.0)
    whole = [gpu_id(number) for number in range(5)]
    ids = tuple(
        model.SchedulableId(id=each, device_id=each, blocked=None if number < 2 else UNFIT)
        for number, each in enumerate(whole)
    )
    since = START
    known: dict[str, Any] = {
        "inventory": inventory,
        "verdicts": {
            gpu_id(0): verdict(model.HealthState.HEALTHY),
            gpu_id(1): verdict(model.HealthState.DEGRADED, "RowRemapPending", "ResetDevice"),
            gpu_id(2): verdict(model.HealthState.UNHEALTHY, "Xid79", "RebootNode"),
            gpu_id(3): verdict(model.HealthState.UNKNOWN, "ProbeSilent", offered=True),
            gpu_id(4): verdict(model.HealthState.UNHEALTHY, "Missing", "Inspect"),
            gpu_id(5): verdict(model.HealthState.HEALTHY),
        },
        "plan": model.Plan(resources=(model.OfferedResource(name=GPU, ids=ids),)),
        "holdings": model.Holdings(
            state=model.HoldersState.SYNCED,
            taken=1.0,
            holders=(
                model.Holder(
                    namespace="ml", pod="train-0", container="main", resource=GPU, ids=(gpu_id(0),), since=since
                ),
                model.Holder(
                    namespace="ml", pod="train-1", container="main", resource=GPU, ids=(gpu_id(2),), since=since
                ),
                model.Holder(
                    namespace="ml", pod="infer", container="main", claim="c", ids=(mig_id(5, 1),), since=since
                ),
            ),
        ),
        "registrations": (model.Registration(resource=GPU, state=model.RegistrationState.REGISTERED),),
        "uses": model.Uses(
            devices={gpu_id(0): model.DeviceUse(word="Idle", since=SINCE, began=0.0)},
            namespaces={"ml": model.HeldSeconds(held=7200.0, unused=300.0)},
            at=0.0,
        ),
        "history": {gpu_id(2): (occurred("Xid79", 3, fault=True), occurred("Xid31", 40, fault=False))},
        "probes": (ProbeFacts(name="nvml", inventory=inventory),),
        "started": START,
        "now": START,
    }
    return node_facts(**(known | changes))


def by_memory() -> NodeFacts:
    """Two GPUs of 10 GiB, in units of 3 GiB; two shares of the first with a pod, and the second out of service."""
    devices = [gpu(number, memory_bytes=10 * GIB) for number in range(2)]
    ids = tuple(
        model.SchedulableId(
            id=f"{each.id}::3Gi.{number}", device_id=each.id, replica=number, blocked=None if each.index == 0 else UNFIT
        )
        for each in devices
        for number in range(3)
    )
    memory = model.MemoryShares(unit="3Gi", unit_bytes=3 * GIB, devices={each.id: 10 * GIB for each in devices})
    pod = model.Holder(
        namespace="ml", pod="small", container="main", resource=MEMORY, ids=(ids[0].id, ids[1].id), since=START
    )
    return facts(
        inventory=inventory_of(*devices),
        verdicts={each.id: verdict(model.HealthState.HEALTHY) for each in devices},
        plan=model.Plan(
            resources=(
                model.OfferedResource(name=MEMORY, ids=ids, sharing=model.SharingFacts(mode=Memory(), memory=memory)),
            )
        ),
        holdings=model.Holdings(state=model.HoldersState.SYNCED, taken=1.0, holders=(pod,)),
        registrations=(model.Registration(resource=MEMORY, state=model.RegistrationState.REGISTERED),),
    )


def agent(shown: NodeFacts | None = None) -> Samples:
    return parsed(agent_text(shown))


def agent_text(shown: NodeFacts | None = None) -> str:
    latest = shown or facts()
    return (
        AgentMetrics(facts=lambda: latest, probes=lambda: {"nvml": ProbeCounters()}, telemetry=True).render().decode()
    )


def operator(conditions: Mapping[str, tuple[str, str]] | None = None, **actions: str) -> Samples:
    return parsed(operator_text(conditions, **actions))


def operator_text(conditions: Mapping[str, tuple[str, str]] | None = None, **actions: str) -> str:
    """A fleet of one node with these conditions, and actions with these reasons, else one whose agent is lost and whose
    capacity is not in sync."""
    bad = {"Stale": ("True", "AgentLost"), "ActionsSynced": ("False", "CapacityConflict")}
    done = actions if conditions is not None else {"capacity": "Conflict"}
    held = {"namespace": "ml", "pod": "train-0", "container": "main", "resource": GPU, "ids": ["GPU-0"], "since": "x"}
    only = device(0, "Unhealthy", "Xid79", holders=[held]) if conditions is None else device(0)
    listed = [{"name": name, "reason": reason, "message": ""} for name, reason in done.items()]
    shown = node_devices(only, conditions=bad if conditions is None else conditions, actions=listed)
    manager = Manager(None, OperatorMetrics())  # type: ignore[arg-type]  # nothing is written
    manager.arrived(Kind.NODE_DEVICES, False, read(Kind.NODE_DEVICES, shown))
    manager.arrived(Kind.POLICY, False, read(Kind.POLICY, raw_policy("share")))
    manager.gauge()
    if conditions is None:
        manager.metrics.refused.labels("taint", "500").inc()
    return manager.metrics.render().decode()
