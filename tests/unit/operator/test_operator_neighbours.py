"""What other monitors and the cloud say on a Node is read, bounded, shown, and followed by nothing.

Conditions, labels and taints are those of the other projects' own documents and sources; records/neighbours.py says
which.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Any

from hypothesis import given, strategies as st
from nodedevices_api.conditions import NODE_DEVICES_HEALTHY, NODE_READY, POD_DEVICE_HEALTHY, REASONS, XID_CRITICAL_ERROR
from nodedevices_common.confirming import CONFIRM
from nodedevices_common.times import rfc3339
from nodedevices_operator.desired.conditions import NAMED, maintenance_scheduled, next_change, problem_reported
from nodedevices_operator.manager import Manager
from nodedevices_operator.records import names
from nodedevices_operator.records.kinds import node_record
from nodedevices_operator.records.neighbours import SIGNS, Place, Says
from nodedevices_operator.records.objects import NodeRecord
from support.cases import cases
from support.clock import Clock
from support.fakekube import FakeKube, settle
from support.opfacts import GPU, SINCE, device, node_devices, raw_node
from support.there import there
from support.whole_operator import ITEM, NODE, arrive, condition, started, verdict, writes


def raw(
    *conditions: tuple[str, str, str], labels: dict[str, Any] | None = None, taints: dict[str, str] | None = None
) -> dict[str, Any]:
    listed = [{"key": key, "value": value, "effect": "NoSchedule"} for key, value in (taints or {}).items()]
    made = raw_node({GPU: 1}, labels=labels, spec={"taints": listed})
    made["status"]["conditions"] += [
        {"type": kind, "status": status, "reason": reason, "message": "M", "lastTransitionTime": SINCE}
        for kind, status, reason in conditions
    ]
    return made


def node(*conditions: tuple[str, str, str], **more: Any) -> NodeRecord:
    return node_record(raw(*conditions, **more))


def problem(*conditions: tuple[str, str, str], **more: Any) -> tuple[str, str, str] | None:
    return problem_reported(node(*conditions, **more).reports)


TIME = "cloud.google.com/scheduled-maintenance-time"
AT, LATER = 1796155200, "2026-12-01T20:00:00Z"
DAY = 24 * 3600


def maintenance(
    *conditions: tuple[str, str, str], now: str = "2026-11-21T12:00:00Z", **more: Any
) -> tuple[str, str, str] | None:
    return maintenance_scheduled(node(*conditions, **more).reports, now)


def after(seconds: int) -> str:
    """The time, so many seconds after AT."""
    return rfc3339(datetime.fromtimestamp(AT + seconds, UTC))


def test_monitors_report_by_a_condition_that_is_false_or_true_and_unknown_is_no_problem() -> None:
    """The reason as eks-node-monitoring-agent makes it: NvidiaXID[Code]Error."""
    assert problem(("AcceleratedHardwareReady", "False", "NvidiaXID79Error")) == (
        *("True", "EKSNodeMonitoringAgent"),
        "EKSNodeMonitoringAgent: AcceleratedHardwareReady=False (NvidiaXID79Error)",
    )
    assert problem(("AcceleratedHardwareReady", "True", "NvidiaAcceleratedHardwareIsReady")) is None
    # As AKS' own end-to-end test expects it: type and reason GPUMissing.
    found = problem(("GPUMissing", "True", "GPUMissing"), ("IBLinkFlapping", "False", "NoIBLinkFlapping"))
    assert found == ("True", "AKSNodeProblemDetector", "AKSNodeProblemDetector: GPUMissing=True (GPUMissing)")
    assert problem(("AcceleratedHardwareReady", "Unknown", "NodeStatusUnknown"), ("XIDErrors", "Unknown", "")) is None


def test_a_quarantine_is_a_label_and_of_the_whole_machine_only_what_bears_on_devices_counts() -> None:
    found = problem(("SysLogsXIDError", "True", "79"), labels={"dgxc.nvidia.com/nvsentinel-state": "draining"})
    text = "NVSentinel: label dgxc.nvidia.com/nvsentinel-state=draining, NVSentinel: SysLogsXIDError=True (79)"
    assert found == ("True", "NVSentinel", text)
    assert problem(("ReadonlyFilesystem", "True", "FilesystemIsReadOnly"), ("DiskPressure", "True", "")) is None
    assert problem(("KernelDeadlock", "True", "DockerHung")) is not None


def test_a_maintenance_has_its_time_or_none_and_a_label_that_says_none_is_none() -> None:
    found = maintenance(labels={TIME: str(AT)})
    assert found == ("True", "Scheduled", f"Google Cloud: label {TIME}={AT} ({LATER})")
    assert maintenance(labels={TIME: ""}) == ("True", "Scheduled", f"Google Cloud: label {TIME}")
    assert maintenance(labels={"cloud.google.com/active-node-maintenance": "PENDING"}) is None


@cases(
    ("seconds", "reason", "change"),
    (-90, "Scheduled", 90),
    (0, "Due", DAY),
    (DAY - 60, "Due", 60),
    (DAY, None, None),
    (DAY * 700, None, None),
)
def test_maintenance_is_due_for_a_day_after_its_time(seconds: int, reason: str | None, change: float | None) -> None:
    found = maintenance(labels={TIME: str(AT)}, now=after(seconds))
    assert (None if found is None else found[1]) == reason
    assert next_change(node(labels={TIME: str(AT)}).reports, after(seconds)) == change


def test_what_has_begun_and_what_has_no_time_stay_beside_a_time_that_is_forgotten() -> None:
    old = {TIME: "1733083200"}
    begun = maintenance(labels={**old, "cloud.google.com/active-node-maintenance": "ONGOING"})
    assert begun == ("True", "Ongoing", "Google Cloud: label cloud.google.com/active-node-maintenance=ONGOING")
    asked = maintenance(labels={**old, "cloud.google.com/perform-maintenance": "true"})
    assert asked == ("True", "Scheduled", "Google Cloud: label cloud.google.com/perform-maintenance=true")
    due = there(maintenance(labels={TIME: str(AT), "cloud.google.com/perform-maintenance": "true"}, now=after(5)))
    assert due[1] == "Due"


@cases("value", "soon", "-1", "1.7e9", "1796155200000", "2026-12-01", "0x6b0f", "\u0661")
def test_a_time_that_cannot_be_read_is_shown_as_it_is_written(value: str) -> None:
    assert maintenance(labels={TIME: value}) == ("True", "Scheduled", f"Google Cloud: label {TIME}={value}")
    assert next_change(node(labels={TIME: value}).reports, LATER) is None


@cases(
    "on",
    {"labels": {"cloud.google.com/active-node-maintenance": "ONGOING"}},
    {"taints": {"cloud.google.com/impending-node-termination": ""}},
    ids=["label", "taint"],
)
def test_maintenance_that_has_begun_is_told_from_one_to_come(on: dict[str, Any]) -> None:
    found = there(maintenance(("VMEventScheduled", "True", "VMEventScheduled"), **on))
    assert found[:2] == ("True", "Ongoing")


def test_azures_and_awss_announcements_are_read() -> None:
    assert maintenance(("VMEventScheduled", "True", "VMEventScheduled")) == (
        *("True", "Scheduled"),
        "Azure: VMEventScheduled=True (VMEventScheduled)",
    )
    assert maintenance(("VMEventScheduled", "False", "NoVMEventScheduled")) is None
    found = maintenance(taints={"aws-node-termination-handler/scheduled-maintenance": "event-1"})
    assert found == ("True", "Scheduled", "AWS: taint aws-node-termination-handler/scheduled-maintenance=event-1")


def test_every_monitor_is_a_reason_listed_once_and_no_name_of_ours_is_theirs() -> None:
    monitors = {each.by for each in SIGNS if each.says is Says.PROBLEM}
    assert monitors == set(REASONS["ProblemReported"]["True"])
    assert len({(each.place, each.key) for each in SIGNS}) == len(SIGNS)
    # XidCriticalError is Google's by intent: off unless a policy asks, and never taken over from another writer.
    conditions = {each.key for each in SIGNS if each.place is Place.CONDITION}
    assert not conditions & {NODE_READY, NODE_DEVICES_HEALTHY, POD_DEVICE_HEALTHY, XID_CRITICAL_ERROR}
    ours = {NODE_READY, NODE_DEVICES_HEALTHY, names.TAINT, CONFIRM}
    assert {each.partition("/")[0] for each in ours} == {"nodedevices.io"}
    assert not [each.key for each in SIGNS if each.key.partition("/")[0].endswith("nodedevices.io")]


@given(st.text(max_size=3000), st.text(max_size=3000))
def test_whatever_a_label_or_a_reason_holds_the_message_is_short_and_printable(value: str, reason: str) -> None:
    every = tuple((each.key, each.value, reason) for each in SIGNS if each.place is Place.CONDITION)
    labels = {each.key: each.value or value for each in SIGNS if each.place is Place.LABEL}
    taints = {each.key: value for each in SIGNS if each.place is Place.TAINT}
    for report in (problem(*every, labels=labels, taints=taints), maintenance(labels=labels, taints=taints)):
        assert report is not None
        assert report[2].isprintable()
        assert len(report[2]) <= NAMED * 256


@cases("value", None, 7, ["ONGOING"], {"a": "b"})
def test_an_odd_label_is_no_report(value: object) -> None:
    assert node(labels={each.key: value for each in SIGNS if each.place is Place.LABEL}).reports == ()


def test_a_node_of_which_nobody_says_anything_keeps_one_empty_tuple() -> None:
    well = node(("AcceleratedHardwareReady", "True", "X"), ("GPUMissing", "False", "NoGPUMissing"))
    assert sys.getsizeof(well.reports) == sys.getsizeof(())


# --- by the whole operator -------------------------------------------------------------------------------------------
def cluster(*conditions: tuple[str, str, str], **more: Any) -> FakeKube:
    kube = FakeKube()
    kube.put(NODE, raw(*conditions, **more))
    kube.put(ITEM, node_devices(device(0), conditions={"Ready": ("True", "AgentRunning")}))
    return kube


async def arrives(kube: FakeKube, manager: Manager, node: dict[str, Any]) -> None:
    arrive(manager, kube, NODE, node)
    await settle(manager)


def shown(kube: FakeKube, kind: str) -> dict[str, Any]:
    return condition(kube, ITEM, kind)


async def test_a_report_is_shown_while_it_is_there_and_only_then() -> None:
    kube = cluster(("GPUMissing", "True", "GPUMissing"))
    manager = await started(kube)
    assert verdict(kube, ITEM, "ProblemReported") == ("True", "AKSNodeProblemDetector")
    assert shown(kube, "MaintenanceScheduled") == {}
    well = kube.objects[NODE]
    well["status"]["conditions"] = [it for it in well["status"]["conditions"] if it["type"] != "GPUMissing"]
    await arrives(kube, manager, well)
    assert shown(kube, "ProblemReported") == {}


async def test_a_report_that_changes_but_for_its_message_and_heartbeat_costs_no_write() -> None:
    kube = cluster(("GPUMissing", "True", "GPUMissing"))
    manager = await started(kube)
    before = writes(manager, "status")
    for seconds in range(3):
        again = kube.objects[NODE]
        for each in again["status"]["conditions"]:
            if each["type"] == "GPUMissing":
                each |= {"message": f"checked {seconds}", "lastHeartbeatTime": f"2026-11-21T12:00:0{seconds}Z"}
        await arrives(kube, manager, again)
        await manager.reconcile_node("n1")
    assert writes(manager, "status") == before


async def test_the_time_of_maintenance_comes_and_goes_without_news_of_the_node() -> None:
    clock, begun = Clock(), int(datetime.now(UTC).timestamp())
    kube = cluster(labels={TIME: str(begun + 1000)})
    wall = [begun]
    manager = await started(kube, clock=clock, now=lambda: rfc3339(datetime.fromtimestamp(wall[0], UTC)))
    found = [shown(kube, "MaintenanceScheduled").get("reason")]
    for seconds in (1300, DAY + 300):
        clock.now += seconds
        wall[0] += seconds
        await settle(manager)
        found.append(shown(kube, "MaintenanceScheduled").get("reason"))
    assert found == ["Scheduled", "Due", None]


async def test_nothing_is_done_to_the_node_for_what_others_report() -> None:
    every = tuple((each.key, each.value, "R") for each in SIGNS if each.place is Place.CONDITION)
    quiet, loud = cluster(), cluster(*every, taints={"cloud.google.com/impending-node-termination": ""})
    spoken = await started(loud)
    silent = await started(quiet)
    for concern in ("node-condition", "capacity", "labels", "taint", "eviction", "pod-condition", "event"):
        assert writes(spoken, concern) == writes(silent, concern), concern
    assert [it["key"] for it in loud.objects[NODE]["spec"]["taints"]] == ["cloud.google.com/impending-node-termination"]


async def test_both_are_problems_of_the_node_in_the_metrics() -> None:
    kube = cluster(("XIDErrors", "True", "XIDErrors"), ("VMEventScheduled", "True", "VMEventScheduled"))
    manager = await started(kube)
    manager.gauge()
    problems = {
        (labels["condition"], labels["reason"])
        for family in manager.metrics.registry.collect()
        if family.name == "nodedevices_operator_node_problem"
        for labels in (sample.labels for sample in family.samples)
    }
    assert {("ProblemReported", "AKSNodeProblemDetector"), ("MaintenanceScheduled", "Scheduled")} <= problems
