"""What the status says, from literals of every stage."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import replace
from nodedevices_api.base import to_dict
from nodedevices_api.meta import Condition, find
from nodedevices_api.nodedevices import MAX_HOLDERS
from nodedevices_plugin.granting.conflicts import DoubleAllocation
from nodedevices_plugin.model import (
    Blocked,
    Fault,
    HealthState,
    Holder,
    HoldersState,
    Holdings,
    Inventory,
    Notice,
    OfferedResource,
    Plan,
    Refused,
    Registration,
    RegistrationState,
    SchedulableId,
    Unmatched,
    Usual,
    Verdict,
)
from nodedevices_plugin.pipeline.configuration import ConfigStatus
from nodedevices_plugin.pipeline.expected import Count
from nodedevices_plugin.pipeline.inventory import owned
from nodedevices_plugin.sharing.daemons import Client
from nodedevices_plugin.status.devices import bounded
from nodedevices_plugin.status.facts import NodeFacts, ProbeFacts
from nodedevices_plugin.status.report import report
from nodedevices_probe.protocol import DeviceFact, Driver, DriverState, Link, Machine, Problem
from support.cases import cases
from support.facts import START, gpu, gpu_id, healthy, inventory_of, mig_id, partition
from support.reports import node_facts
from support.there import there

GPU = "nvidia.com/gpu"


def bad(reason: str = "Xid79", state: HealthState = HealthState.UNHEALTHY, **more: Any) -> Verdict:
    known: dict[str, Any] = {
        "state": state,
        "reason": reason,
        "message": f"{reason} happened",
        "since": START,
        "offered": state is not HealthState.UNHEALTHY,
        "recovery_action": "RebootNode",
        "fault_domain": "Device",
    }
    return Verdict(**{**known, **more})


def holder(*ids: str, pod: str = "train-0", claim: str | None = None, since: datetime = START) -> Holder:
    return Holder(
        namespace="ml", pod=pod, container="main", resource=None if claim else GPU, claim=claim, ids=ids, since=since
    )


def holding(*holders: Holder, state: HoldersState = HoldersState.SYNCED, message: str = "") -> Holdings:
    return Holdings(state=state, message=message, holders=holders, taken=1.0)


def entry(name: str) -> Unmatched:
    return Unmatched(section="a", entry=name, message="no")


def facts(count: int = 2, **changes: Any) -> NodeFacts:
    """A node with so many H100s, all well, nobody holding them; registered."""
    devices = [gpu(number) for number in range(count)]
    ids = tuple(SchedulableId(id=each.id, device_id=each.id) for each in devices)
    known: dict[str, Any] = {
        "inventory": inventory_of(*devices),
        "verdicts": healthy(*devices),
        "plan": Plan(resources=(OfferedResource(name=GPU, ids=ids),)),
        "holdings": holding(),
        "held_twice": (),
        "registrations": (Registration(resource=GPU, state=RegistrationState.REGISTERED),),
        "started": START,
        "now": START + timedelta(seconds=30),
    }
    made = {**known, **changes}
    one = {"name": "simulated", "silent": made.pop("probe_silent", False), "error": made.pop("probe_error", None)}
    inventory = owned({"simulated": made["inventory"]})["simulated"]
    return node_facts(**{"probes": (ProbeFacts(**one, inventory=inventory),), **made, "inventory": inventory})


def condition(made: NodeFacts, kind: str) -> tuple[str, str, str]:
    found = there(find(report(made).conditions, kind))
    return found.status, found.reason, found.message


def test_a_healthy_node_in_full() -> None:
    links = (Link(kind="NVLink", to="switch", count=18),)
    device = gpu(0, links=links, pci_bus_id="0000:1b:00.0", architecture="Hopper")
    one = facts(1, inventory=inventory_of(device), verdicts=healthy(device))
    assert to_dict(report(one)) == {
        "summary": {
            "devices": 1,
            "healthy": 1,
            "degraded": 0,
            "unhealthy": 0,
            "unknown": 0,
            "offered": 1,
            "held": 0,
            "unschedulable": 0,
            "message": "1 device, all fit for use.",
            "model": "NVIDIA-H100-80GB-HBM3",
            "models": 1,
            "reason": "",
            "recoveryAction": "None",
        },
        "drivers": [{"name": "nvidia", "version": "570.148.08"}],
        "probes": [{"name": "simulated", "state": "Ready", "since": "2026-11-21T10:00:30Z", "devices": 1}],
        "agent": {
            "version": "0.1.0",
            "bootID": "boot-1",
            "startTime": "2026-11-21T10:00:00Z",
            "heartbeatTime": "2026-11-21T10:00:00Z",
        },
        "devices": [
            {
                "id": gpu_id(0),
                "name": "gpu-0",
                "type": "gpu",
                "index": 0,
                "attributes": {
                    "vendor": "nvidia",
                    "productName": "NVIDIA H100 80GB HBM3",
                    "architecture": "Hopper",
                    "pciBusID": "0000:1b:00.0",
                    "numaNode": 0,
                    "minor": 0,
                    "extra": {"migEnabled": {"bool": False}},
                },
                "capacity": {"memory": "80Gi"},
                "links": [{"kind": "NVLink", "to": "switch", "count": 18}],
                "health": {"state": "Healthy", "since": "2026-11-21T10:00:00Z"},
            }
        ],
        "resources": [
            {
                "name": GPU,
                "capacity": 1,
                "healthy": 1,
                "allocated": 0,
                "sharing": "none",
                "free": 1,
                "managedBy": "plugin",
            }
        ],
        "conditions": [
            {
                "type": kind,
                "status": "True",
                "reason": reason,
                "message": "",
                "lastTransitionTime": "2026-11-21T10:00:30Z",
            }
            for kind, reason in (
                ("Ready", "AgentRunning"),
                ("DevicesHealthy", "AllHealthy"),
                ("ConfigApplied", "Applied"),
                ("HoldersKnown", "Synced"),
                ("AllocatedOnce", "NoDoubleAllocation"),
            )
        ],
    }


@cases(("others", "shown"), (0, 16), (7, 9), (15, 1), (20, 0))
def test_the_nearest_devices_of_other_probes_are_links_where_the_probes_own_leave_room(others: int, shown: int) -> None:
    links = tuple(Link(kind="XGMI", to=f"GPU-{number}", count=1) for number in range(others))
    nics = [
        DeviceFact(id=f"NIC-{each:02d}", index=each, type="nic", vendor="mellanox", pcie_root="pci0000:16")
        for each in range(20)
    ]
    devices = (gpu(0, links=links, pcie_root="pci0000:16"), *nics)
    status = report(facts(len(devices), inventory=inventory_of(*devices), verdicts=healthy(*devices)))
    found = {each.id: [(link.kind, link.to, link.count) for link in each.links] for each in status.devices}
    assert [kind for kind, *_ in found[gpu_id(0)]] == ["XGMI"] * min(others, 16) + ["PCIe"] * shown
    assert found["NIC-07"] == [("PCIe", gpu_id(0), 1)]


def test_equal_facts_give_equal_reports_and_a_conditions_time_is_when_its_status_changed() -> None:
    first = report(facts())
    later = report(facts(now=START + timedelta(seconds=90), previous=first.conditions, previous_probes=first.probes))
    assert later == first
    days_ago = START - timedelta(days=3)
    before = (Condition(type="Ready", status="True", reason="AgentRunning", message="", last_transition_time=days_ago),)
    same = find(report(facts(previous=before)).conditions, "Ready")
    other = find(report(facts(previous=before, probe_silent=True)).conditions, "Ready")
    assert same is not None
    assert other is not None
    assert (same.last_transition_time, other.last_transition_time) == (days_ago, START + timedelta(seconds=30))


def test_the_summary_shows_the_worst_device() -> None:
    made = facts(
        5,
        verdicts=healthy(gpu(0))
        | {
            gpu_id(1): bad("Xid63", HealthState.DEGRADED, recovery_action="ResetDevice"),
            gpu_id(2): bad("ProbeSilent", HealthState.UNKNOWN, recovery_action="None"),
            gpu_id(3): bad("EccUncorrectable", recovery_action="ResetDevice"),
            gpu_id(4): bad("Xid79"),
        },
    )
    summary = there(report(made).summary)
    assert (summary.healthy, summary.degraded, summary.unhealthy, summary.unknown) == (2, 1, 2, 1)
    assert (summary.reason, summary.recovery_action) == ("Xid79", "RebootNode")
    assert condition(made, "DevicesHealthy") == (
        "False",
        "DeviceFault",
        (
            "2 of 5: gpu-4 Xid79 (RebootNode; not held), gpu-3 EccUncorrectable (ResetDevice; not held); "
            "unknown: 1 of 5: gpu-2 ProbeSilent; degraded: 1 of 5: gpu-1 Xid63 (ResetDevice; not held)"
        ),
    )


def test_a_device_shows_all_reasons_of_its_state_where_it_has_several() -> None:
    def fault(reason: str, state: HealthState = HealthState.UNHEALTHY) -> Fault:
        return Fault(
            reason=reason,
            state=state,
            message="",
            action="None",
            fault_domain="Device",
            since=START,
            boot_id="boot-1",
            usual=Usual(state=state, action="None", domain="Device"),
        )

    two = fault("RecoveryAction"), fault("EccUncorrectable"), fault("RowRemapPending", HealthState.DEGRADED)
    gone = fault("Missing", HealthState.UNKNOWN), fault("ProbeError", HealthState.UNKNOWN)
    made = facts(
        3,
        verdicts={
            gpu_id(0): bad("RecoveryAction", faults=two),
            gpu_id(1): bad("EccUncorrectable", faults=two[1:]),
            gpu_id(2): bad("ProbeSilent", HealthState.UNKNOWN, faults=gone),
        },
    )
    assert [each.health.reasons for each in report(made).devices] == [("RecoveryAction", "EccUncorrectable"), (), ()]


@cases(
    ("holdings", "expected"),
    (holding(holder(gpu_id(0))), "1 of 2: gpu-0 Xid79 (RebootNode; held by ml/train-0)"),
    (
        holding(*(holder(f"{gpu_id(0)}::{n}", pod=f"train-{n}") for n in range(5))),
        "1 of 2: gpu-0 Xid79 (RebootNode; held by ml/train-0, ml/train-1, ml/train-2 and 2 more)",
    ),
    (holding(holder(gpu_id(1))), "1 of 2: gpu-0 Xid79 (RebootNode; not held)"),
    (holding(state=HoldersState.UNAVAILABLE), "1 of 2: gpu-0 Xid79 (RebootNode)"),
    ids=["held", "by many", "another is", "nobody knows"],
)
def test_devices_healthy_says_what_is_wrong_what_would_help_and_whom_it_hits(holdings: Holdings, expected: str) -> None:
    made = facts(2, verdicts=healthy(gpu(1)) | {gpu_id(0): bad()}, holdings=holdings)
    assert condition(made, "DevicesHealthy") == ("False", "DeviceFault", expected)


def test_whom_a_fault_of_a_cut_gpu_hits_are_the_holders_of_its_partitions() -> None:
    cut = gpu(0, partitions=(partition(0, 0), partition(0, 1)), mig_enabled=True)
    parts = holding(holder(mig_id(0, 0)), holder(mig_id(0, 1), pod="train-1"))
    made = facts(inventory=inventory_of(cut, gpu(1)), verdicts=healthy(gpu(1)) | {gpu_id(0): bad()}, holdings=parts)
    expected = "1 of 2: gpu-0 Xid79 (RebootNode; held by ml/train-0, ml/train-1)"
    assert condition(made, "DevicesHealthy") == ("False", "DeviceFault", expected)


def test_an_undecided_gpu_counts_as_degraded_and_several_models_are_mixed() -> None:
    undecided = dataclasses.replace(bad("Correlating", HealthState.DEGRADED, recovery_action="None"), offered=False)
    made = facts(2, verdicts=healthy(gpu(1)) | {gpu_id(0): undecided})
    summary = there(report(made).summary)
    assert (summary.healthy, summary.degraded, summary.reason) == (2, 1, "Correlating")
    assert condition(made, "DevicesHealthy") == ("True", "AllHealthy", "degraded: 1 of 2: gpu-0 Correlating (not held)")
    mixed = inventory_of(gpu(0), gpu(1, product_name="NVIDIA L4"))
    summary = there(report(facts(2, inventory=mixed)).summary)
    assert (summary.model, summary.models) == ("mixed", 2)


@cases(
    ("verdict", "expected"),
    (
        bad("Xid63", HealthState.DEGRADED),
        ("True", "AllHealthy", "degraded: 1 of 2: gpu-0 Xid63 (RebootNode; not held)"),
    ),
    (
        bad("ProbeSilent", HealthState.UNKNOWN),
        ("Unknown", "ProbeSilent", "1 of 2: gpu-0 ProbeSilent: ProbeSilent happened"),
    ),
    (
        bad("DriverNotLoaded", HealthState.UNKNOWN),
        ("Unknown", "DriverNotLoaded", "1 of 2: gpu-0 DriverNotLoaded: DriverNotLoaded happened"),
    ),
    (bad("Missing", HealthState.UNKNOWN), ("Unknown", "DevicesLost", "1 of 2: gpu-0 Missing: Missing happened")),
)
def test_devices_healthy_gives_the_reason_of_the_devices(verdict: Verdict, expected: tuple[str, str, str]) -> None:
    made = facts(2, verdicts=healthy(gpu(1)) | {gpu_id(0): verdict})
    assert condition(made, "DevicesHealthy") == expected


def test_all_xids_of_this_boot_are_listed_and_none_of_the_boot_before_or_that_is_undecided() -> None:
    def fault(reason: str, xid: int | None, boot: str = "boot-1") -> Fault:
        return Fault(
            reason=reason,
            state=HealthState.UNHEALTHY,
            message="",
            action="RebootNode",
            fault_domain="Device",
            since=START,
            boot_id=boot,
            xid=xid,
            usual=Usual(state=HealthState.UNHEALTHY, action="RebootNode", domain="Device"),
        )

    faults = (
        fault("Xid79", 79),
        fault("Xid48", 48),
        fault("Xid119", 119, "boot-0"),
        fault("Correlating", 74),
        fault("Missing", None),
    )
    inventory = replace(inventory_of(gpu(0)), boot_id="boot-1")
    made = report(facts(inventory=inventory, verdicts={gpu_id(0): bad(xid=79, faults=faults)}))
    assert made.devices[0].health.xids == (48, 79)


# --- holders ----------------------------------------------------------------------------------------------------------
def test_a_pods_replicas_are_one_entry_with_a_few_ids_and_their_number() -> None:
    ids = (f"{gpu_id(0)}::3", f"{gpu_id(0)}::1", f"{gpu_id(1)}::0")
    [first, second] = report(facts(holdings=holding(holder(*ids)))).devices
    assert [each.ids for each in first.holders] == [(f"{gpu_id(0)}::1", f"{gpu_id(0)}::3")]
    assert [each.ids for each in second.holders] == [(f"{gpu_id(1)}::0",)]
    many = tuple(f"{gpu_id(0)}::{number}" for number in range(20))
    [first, _] = report(facts(holdings=holding(holder(*many)))).devices
    assert [(each.shares, len(each.ids)) for each in first.holders] == [(20, 8)]


def test_a_whole_device_needs_no_ids_and_since_has_microseconds() -> None:
    since = START + timedelta(microseconds=123)
    device = to_dict(report(facts(holdings=holding(holder(gpu_id(0), since=since)))))["devices"][0]
    assert device["holders"] == [
        {
            "namespace": "ml",
            "pod": "train-0",
            "container": "main",
            "resource": GPU,
            "since": "2026-11-21T10:00:00.000123Z",
        }
    ]


def test_allocated_counts_ids_and_held_counts_devices() -> None:
    made = report(facts(3, holdings=holding(holder(gpu_id(0), gpu_id(1)), holder(gpu_id(1), pod="other"))))
    assert made.summary is not None
    assert (made.resources[0].allocated, made.summary.held) == (2, 2)


@cases(
    ("holdings", "free", "sees"),
    (holding(holder(gpu_id(0))), 1, "1 free, of which the scheduler sees 0: "),
    (holding(holder(gpu_id(0)), holder(gpu_id(1), pod="other")), 0, ""),
    (holding(holder(gpu_id(1))), 0, ""),
    (holding(), 1, ""),
)
def test_a_free_gpu_that_the_scheduler_does_not_see_is_said(holdings: Holdings, free: int, sees: str) -> None:
    """kubernetes/kubernetes#92592: a pod holds a GPU that failed, and another is Pending beside a healthy free GPU."""
    lost = SchedulableId(id=gpu_id(0), device_id=gpu_id(0), blocked=Blocked(reason="Unhealthy", message="Xid79"))
    ids = (lost, SchedulableId(id=gpu_id(1), device_id=gpu_id(1)))
    plan = Plan(resources=(OfferedResource(name=GPU, ids=ids),))
    made = report(facts(plan=plan, verdicts=healthy(gpu(1)) | {gpu_id(0): bad()}, holdings=holdings))
    assert made.summary is not None
    assert (made.resources[0].healthy, made.resources[0].free) == (1, free)
    assert ("the scheduler" in made.summary.message) is bool(sees)
    assert sees in made.summary.message


def test_of_too_many_holders_the_oldest_are_listed_and_the_rest_counted() -> None:
    many = [holder(f"{gpu_id(0)}::{number}", pod=f"pod-{number:03d}") for number in range(MAX_HOLDERS + 6)]
    device = report(facts(holdings=holding(*many))).devices[0]
    assert (len(device.holders), device.holders_truncated) == (MAX_HOLDERS, 6)
    assert [each.pod for each in device.holders] == sorted(each.pod for each in device.holders)
    many = [holder(f"{gpu_id(0)}::{number}", pod=f"pod-{number:03d}") for number in range(MAX_HOLDERS)]
    newcomer = replace(holder(f"{gpu_id(0)}::{MAX_HOLDERS}", pod="aaa"), since=many[0].since + timedelta(seconds=1))
    before = report(facts(holdings=holding(*many))).devices[0]
    after = report(facts(holdings=holding(newcomer, *many))).devices[0]
    assert [each.pod for each in after.holders] == [each.pod for each in before.holders]
    assert after.holders_truncated == 1


def test_a_partition_is_an_entry_with_its_parents_health_or_its_own_and_its_holders_stand_there() -> None:
    device = gpu(0, partitions=(partition(0, 0), partition(0, 1)), mig_enabled=True)
    made = facts(
        1,
        inventory=inventory_of(device),
        verdicts=healthy(device) | {mig_id(0, 1): bad("Xid94")},
        holdings=holding(holder(mig_id(0, 0))),
    )
    whole, one, other = report(made).devices
    assert [each.parent for each in (whole, one, other)] == [None, "gpu-0", "gpu-0"]
    assert [len(each.holders) for each in (whole, one, other)] == [0, 1, 0]
    assert (one.health, other.health.reason) == (whole.health, "Xid94")
    assert to_dict(one)["attributes"] == {"extra": {"gi": {"int": 7}, "ci": {"int": 0}}}
    summary = there(report(made).summary)
    assert (summary.devices, summary.healthy, summary.held) == (1, 1, 1), "they count with their device"


def test_where_a_report_may_not_list_all_it_lists_every_device_and_partitions_at_fault_before_others() -> None:
    cut = tuple(gpu(number, partitions=(partition(number, 0), partition(number, 1))) for number in (0, 1))
    ill = {mig_id(1, 1): bad("Xid94")}
    devices = report(facts(inventory=inventory_of(*cut), verdicts=healthy(*cut) | ill)).devices
    assert bounded(devices, 6) == devices
    assert [each.id for each in bounded(devices, 4)] == [gpu_id(0), mig_id(0, 0), gpu_id(1), mig_id(1, 1)]
    assert [each.id for each in bounded(devices, 2)] == [gpu_id(0), gpu_id(1)]


def test_a_partition_that_is_gone_but_held_is_missing_since_it_left() -> None:
    inventory = inventory_of(gpu(0, partitions=(partition(0, 0),)))
    [device] = inventory.devices
    gone = replace(inventory, devices=(dataclasses.replace(device, departed_partitions=frozenset({mig_id(0, 0)})),))
    made = facts(1, inventory=gone, departed={mig_id(0, 0): START - timedelta(hours=1)})
    health = there(report(made).devices[1].health)
    assert (health.state, health.reason, health.since) == ("Unhealthy", "Missing", START - timedelta(hours=1))


# --- probes -----------------------------------------------------------------------------------------------------------
@cases(
    ("changes", "expected"),
    ({}, ("Ready", "")),
    ({"inventory": Inventory()}, ("Starting", "")),
    ({"inventory": Inventory(), "probe_silent": True, "probe_error": "no such file"}, ("Failed", "no such file")),
    ({"probe_silent": True}, ("Silent", "the probe has not reported for 15 s or more")),
    ({"probe_silent": True, "probe_error": "exited with 2"}, ("Failed", "exited with 2")),
)
def test_how_a_probe_does(changes: dict[str, Any], expected: tuple[str, str]) -> None:
    [probe] = report(facts(**changes)).probes
    assert (probe.state, probe.message) == expected


def test_a_probe_without_its_driver_says_its_problems_and_one_without_devices_hides_none() -> None:
    [probe] = report(facts(inventory=unloaded(Problem(code="DriverNotLoaded", message="no library")))).probes
    assert (probe.state, probe.message) == ("NoDriver", "DriverNotLoaded: no library")
    log = ProbeFacts(name="kmsg", inventory=inventory_of())
    gpus = ProbeFacts(name="nvml", inventory=unloaded())
    assert condition(facts(probes=(gpus, log)), "Ready")[:2] == ("False", "DriverNotLoaded")


def test_a_probes_state_is_since_it_changed() -> None:
    before = report(facts()).probes
    later: dict[str, Any] = {"now": START + timedelta(hours=1), "previous_probes": before}
    assert [each.since for each in report(facts(**later)).probes] == [each.since for each in before]
    assert [each.since for each in report(facts(**later, probe_silent=True)).probes] == [START + timedelta(hours=1)]


# --- conditions -------------------------------------------------------------------------------------------------------
def unloaded(*problems: Problem, on_bus: int = 0) -> Inventory:
    driver = Driver(state=DriverState.NOT_LOADED)
    return replace(inventory_of(), driver=driver, accelerators_on_bus=on_bus, problems=problems)


def registered(state: RegistrationState, message: str = "") -> dict[str, Any]:
    return {"registrations": (Registration(resource=GPU, state=state, message=message),)}


@cases(
    ("changes", "expected"),
    ({}, ("True", "AgentRunning", "")),
    ({"inventory": Inventory()}, ("Unknown", "Starting", "the probe has not reported yet")),
    ({"probe_silent": True, "probe_error": "exited with 2"}, ("False", "ProbeUnavailable", "exited with 2")),
    ({"inventory": unloaded()}, ("False", "DriverNotLoaded", "the driver is not loaded")),
    (
        {"inventory": unloaded(Problem(code="DriverNotLoaded", message="no libnvidia-ml.so.1"), on_bus=2)},
        ("False", "DriverNotLoaded", "2 accelerators on the PCI bus and no usable driver; no libnvidia-ml.so.1"),
    ),
    (registered(RegistrationState.KUBELET_UNREACHABLE, "no"), ("False", "KubeletUnreachable", f"{GPU}: no")),
    (registered(RegistrationState.REJECTED, "bad"), ("False", "RegistrationRejected", f"{GPU}: bad")),
    (registered(RegistrationState.PENDING), ("Unknown", "Starting", f"registering {GPU}")),
    ({"problems": {"state file": "disk full"}}, ("True", "AgentRunning", "state file: disk full")),
    (
        {"confirm_problems": ("gpu-1: give its id, GPU-1",)},
        ("True", "AgentRunning", "annotation nodedevices.io/confirm: gpu-1: give its id, GPU-1"),
    ),
)
def test_ready_says_what_stands_in_the_way(changes: dict[str, Any], expected: tuple[str, str, str]) -> None:
    assert condition(facts(**changes), "Ready") == expected


def test_a_silent_probe_without_devices_is_said_and_keeps_the_node_ready() -> None:
    log = ProbeFacts(name="kmsg", inventory=Inventory(), silent=True, error="cannot connect")
    gpus = ProbeFacts(name="nvml", inventory=inventory_of(gpu(0)))
    said = "what only this probe reports of devices is missed, and they are served as before"
    made = facts(probes=(gpus, log))
    assert condition(made, "Ready") == ("True", "AgentRunning", f"ProbeUnavailable: kmsg: cannot connect; {said}")
    assert [(each.name, each.state) for each in report(made).probes] == [("nvml", "Ready"), ("kmsg", "Failed")]
    both = facts(probes=(replace(gpus, silent=True), log))
    assert condition(both, "Ready")[:2] == ("False", "ProbeUnavailable")
    assert condition(facts(probes=(log,)), "Ready")[:2] == ("False", "ProbeUnavailable"), "there is no other"
    another = replace(log, inventory=inventory_of(gpu(1)))
    assert condition(facts(probes=(gpus, another)), "Ready")[:2] == ("False", "ProbeUnavailable"), "it has devices"


def test_registering_again_does_not_change_what_ready_said_unless_the_agent_was_stopped() -> None:
    before = report(facts()).conditions
    assert condition(facts(previous=before, **registered(RegistrationState.PENDING)), "Ready")[0] == "True"
    before = report(facts(stopping=True)).conditions
    registering = facts(previous=before, **registered(RegistrationState.PENDING))
    assert condition(registering, "Ready")[:2] == ("Unknown", "Starting")
    assert condition(facts(previous=before), "Ready")[:2] == ("True", "AgentRunning")


def test_what_a_program_did_stands_at_its_device_and_the_device_stays_well() -> None:
    def noticed(code: str, **more: Any) -> Notice:
        known: dict[str, Any] = {"message": "m", "since": START, "time": START, "counted": START, "newest": START}
        return Notice(code=code, count=2, **{**known, **more})

    cut = gpu(1, partitions=(partition(1, 0), partition(1, 1)), mig_enabled=True)
    many = [noticed("Xid31", partition=mig_id(1, 0)), *(noticed(f"Xid{number}") for number in range(8, 14))]
    gone = noticed("Xid13", partition="MIG-that-is-no-longer-there")
    notices = {gpu_id(1): (*many, gone)}
    status = report(facts(inventory=inventory_of(gpu(0), cut), verdicts=healthy(gpu(0), cut), notices=notices))
    one, other, part, beside = status.devices
    assert (one.notices, beside.notices, other.health.state) == ((), (), "Healthy")
    assert [each.code for each in other.notices] == ["Xid8", "Xid9", "Xid10", "Xid11"]
    [notice] = part.notices
    assert to_dict(notice) == {
        "code": "Xid31",
        "message": "m",
        "since": "2026-11-21T10:00:00Z",
        "time": "2026-11-21T10:00:00Z",
        "count": 2,
    }


def test_an_agent_that_ends_says_so_and_leaves_all_else_as_it_was() -> None:
    made = facts(verdicts={gpu_id(0): bad()} | healthy(gpu(1)))
    last = report(replace(made, stopping=True))
    assert condition(replace(made, stopping=True), "Ready")[:2] == ("False", "AgentStopped")
    others = [each for each in report(made).conditions if each.type != "Ready"]
    assert [each for each in last.conditions if each.type != "Ready"] == others
    assert (last.devices, last.resources, last.summary) == (report(made).devices, report(made).resources, last.summary)


def test_what_is_wrong_with_the_configuration_is_a_field_each_and_the_message_names_a_few() -> None:
    config = ConfigStatus(
        sources=("policy", "file"),
        refused=Refused(field="sharing.resources[0].replicas", message="1: give 2 or more"),
        unmatched=tuple(entry(f"e{number}") for number in range(20)),
        waiting_for=tuple(f"ml/p{number}" for number in range(40)),
    )
    status = to_dict(report(facts(config=config)))
    shown = status["configuration"]
    assert shown["sources"] == ["policy", "file"]
    assert shown["refusals"] == [
        {"section": "sharing", "field": "sharing.resources[0].replicas", "message": "1: give 2 or more"}
    ]
    assert "filesAlone" not in shown
    assert [each["entry"] for each in shown["unmatched"]] == [f"e{number}" for number in range(20)]
    assert shown["waitingForPods"] == [f"ml/p{number}" for number in range(32)]
    message = condition(facts(config=config), "ConfigApplied")[2]
    more = "and 12 more entries have no effect on this node (status.configuration.unmatched)"
    assert message.endswith(f"a.e7: no; {more}")


@cases(
    ("config", "expected"),
    (ConfigStatus(), ("True", "Applied", "")),
    (ConfigStatus(reason="NoConfig", message="m"), ("Unknown", "NoConfig", "m")),
    (ConfigStatus(message="m", unmatched=(entry("b"), entry("d"))), ("True", "Applied", "m; a.b: no; a.d: no")),
    (ConfigStatus(reason="ConfigInvalid", message="m"), ("False", "ConfigInvalid", "m")),
    (ConfigStatus(reason="WaitingForHolders", message="m"), ("False", "WaitingForHolders", "m")),
)
def test_config_applied_says_what_is_in_effect(config: ConfigStatus, expected: tuple[str, str, str]) -> None:
    assert condition(facts(config=config), "ConfigApplied") == expected


@cases("state", HoldersState.UNAVAILABLE, HoldersState.RATE_LIMITED)
def test_holders_that_may_be_old_are_kept_and_said_to_be_unknown(state: HoldersState) -> None:
    made = facts(holdings=holding(holder(gpu_id(0)), state=state, message="why"))
    assert condition(made, "HoldersKnown") == ("Unknown", state.value, "why")
    assert len(report(made).devices[0].holders) == 1


def test_a_held_device_that_no_probe_lists_and_nothing_remembers_is_named_with_its_pod() -> None:
    """Its entry went with the state file, and the kubelet alone knows of it."""
    away = holder(gpu_id(0), f"{gpu_id(7)}::2", f"{gpu_id(7)}::3", "shared::core.4")
    others = replace(holder("NIC-1", pod="net-0"), resource="other.example/nic")
    text = f"held, but listed by no probe: {gpu_id(7)} (by ml/train-0); devices that were removed, or another plugin's"
    assert condition(facts(holdings=holding(away, others)), "HoldersKnown") == ("True", "Synced", text)
    old_list = holding(away, state=HoldersState.UNAVAILABLE, message="why")
    assert condition(facts(holdings=old_list), "HoldersKnown")[2] == f"why; {text}"
    assert condition(facts(9, holdings=holding(away, others)), "HoldersKnown") == ("True", "Synced", "")
    starting = replace(facts(holdings=holding(away)).inventory, line_time=None)
    assert condition(facts(inventory=starting, holdings=holding(away)), "HoldersKnown") == ("True", "Synced", "")


def test_a_device_of_two_pods_is_named_with_them_and_stays_so_until_a_list_says_otherwise() -> None:
    twice = DoubleAllocation(device_id=gpu_id(0), id=f"{gpu_id(0)}::3", pods=("ml/a", "ml/b"))
    many = replace(twice, id=gpu_id(1), device_id=gpu_id(1), pods=("ml/a", "ml/b", "ml/c", "ml/d", "ml/e"))
    text = (
        f"the kubelet has given a device to more than one pod: gpu-0 {gpu_id(0)}::3: ml/a and ml/b, "
        f"gpu-1 {gpu_id(1)}: ml/a and ml/b and ml/c and 2 more; delete all of these pods except one"
    )
    assert condition(facts(held_twice=(twice, many)), "AllocatedOnce") == ("False", "DoubleAllocation", text)
    assert condition(facts(), "AllocatedOnce") == ("True", "NoDoubleAllocation", "")
    assert condition(facts(held_twice=None), "AllocatedOnce")[:2] == ("Unknown", "Starting")
    before = report(facts(held_twice=(twice,))).conditions
    restarted = facts(held_twice=None, previous=before)
    assert condition(restarted, "AllocatedOnce")[:2] == ("False", "DoubleAllocation")


def test_names_no_longer_offered_have_their_time_and_a_machine_that_says_nothing_is_left_out() -> None:
    made = report(facts(retired={"b/gpu": START, "a/gpu": START + timedelta(seconds=1)}))
    assert [(each.name, each.since) for each in made.retired_resources] == [
        ("a/gpu", START + timedelta(seconds=1)),
        ("b/gpu", START),
    ]
    inventory = replace(inventory_of(gpu(0)), machine=Machine(type="DGX H100", vgpu_version="535.1"))
    machine = there(report(facts(1, inventory=inventory)).machine)
    assert (machine.type, machine.mode, machine.vgpu_version) == ("DGX H100", None, "535.1")
    assert report(facts()).machine is None


def test_a_name_that_another_plugin_serves_is_the_reason_in_ready_and_in_tables() -> None:
    why = f"another device plugin serves {GPU} to this kubelet"
    theirs = Registration(resource=GPU, state=RegistrationState.SERVED_BY_ANOTHER, message=why)
    made = facts(registrations=(theirs,))
    assert condition(made, "Ready") == ("False", "ServedByAnother", f"{GPU}: {why}")
    [resource] = report(made).resources
    assert (resource.capacity, resource.healthy) == (2, 0)
    other = Registration(resource=GPU, state=RegistrationState.SERVED_BY_ANOTHER)
    for made in (facts(1, registrations=(other,)), facts(1, expected=None, registrations=(other,))):
        shown = there(report(made).summary)
        assert shown.reason == "ServedByAnother"


def test_a_device_out_of_service_says_why_and_is_as_well_as_it_is() -> None:
    cut = gpu(1, partitions=(partition(1, 0), partition(1, 1)), mig_enabled=True)
    made = facts(
        inventory=inventory_of(gpu(0), cut, gpu(2)),
        verdicts=healthy(gpu(0), cut, gpu(2)),
        unschedulable={gpu_id(0): "RMA 4711", mig_id(1, 1): "burn-in"},
    )
    said = report(made)
    assert [each.unschedulable for each in said.devices] == ["RMA 4711", None, None, "burn-in", None]
    assert said.summary is not None
    assert (said.summary.unschedulable, said.summary.healthy) == (2, 3)


def test_an_excluded_device_says_so_and_by_which_entry() -> None:
    cut = gpu(1, mig_enabled=True, partitions=(partition(1, 0), partition(1, 1)))
    devices = (gpu(0), cut, gpu(2))
    said = report(
        facts(
            inventory=inventory_of(*devices),
            verdicts=healthy(*devices),
            exclude=("GPU-of-another-node", "GPU-*-000000000000", mig_id(1, 0)),
        )
    )
    assert [each.excluded for each in said.devices] == ["GPU-*-000000000000", None, mig_id(1, 0), None, None]
    assert said.summary is not None
    assert said.summary.excluded == 2
    assert "excluded" not in to_dict(said.devices[-1])


def test_a_client_whose_daemon_was_restarted_is_marked_on_its_entry_and_in_ready_and_the_device_is_well() -> None:
    lost = Client(instance="one", reason="MpsDaemonRestarted", since=START)
    two = holding(holder(f"{gpu_id(0)}::0", pod="old"), holder(f"{gpu_id(0)}::1", pod="new"))
    said = report(made := facts(1, holdings=two, clients={f"ml/old/main/{GPU}": lost, f"ml/new/main/{GPU}": Client()}))
    healths = {each.pod: each.health for each in said.devices[0].holders}
    assert healths["new"] is None
    assert healths["old"] is not None
    assert (healths["old"].state, healths["old"].reason) == ("Unhealthy", "MpsDaemonRestarted")
    assert (healths["old"].recovery_action, healths["old"].since) == ("RestartApp", START)
    assert said.devices[0].health.state == "Healthy"
    status, reason, message = condition(made, "Ready")
    assert (status, reason) == ("True", "AgentRunning")
    assert message == "MpsDaemonRestarted: containers started before it lost their CUDA contexts: ml/old"


# --- expected devices -------------------------------------------------------------------------------------------------
def test_fewer_devices_than_expected_are_a_condition_that_says_what_to_do() -> None:
    few = (Count(what="type gpu", expected=8, found=7), Count(what="type nic", expected=2, found=2))
    text = "type gpu: 7 of 8 expected; check the hardware and its driver, or correct the section expect of the policy"
    assert condition(facts(expected=few), "ExpectedDevices") == ("False", "Expected8Found7", text)
    assert condition(facts(expected=few), "Ready")[:2] == ("True", "AgentRunning")
    assert condition(facts(expected=few[1:]), "ExpectedDevices") == ("True", "AllFound", "")
    assert condition(facts(expected=None), "ExpectedDevices")[:2] == ("Unknown", "Starting")
    assert find(report(facts(expected=())).conditions, "ExpectedDevices") is None
    shown = there(report(facts(1, expected=few)).summary)
    assert (shown.reason, shown.message) == ("Expected8Found7", "type gpu: 7 of 8 expected.")
