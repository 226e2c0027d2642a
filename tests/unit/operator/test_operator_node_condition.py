"""nodedevices.io/Ready and nodedevices.io/DevicesHealthy on the Node: whether its devices are known, and whether they
are well."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from nodedevices_common.conditions import ConditionRecord
from nodedevices_operator.cleanup import clean_up
from nodedevices_operator.desired.conditions import Staleness, node_conditions
from nodedevices_operator.records.names import NODE_DEVICES, NODES
from nodedevices_operator.records.objects import NodeDevicesRecord
from support.cases import cases
from support.fakekube import FakeKube
from support.opfacts import NOW, SINCE, device, node, node_devices, raw_node, record
from support.whole_operator import started

FRESH = Staleness("False", "Fresh", "", 0.0)
LOST = Staleness("True", "AgentLost", "the agent is gone", 0.0)
WELL, FAULT, SILENT = ("True", "AllHealthy"), ("False", "DeviceFault"), ("Unknown", "ProbeSilent")
ALL, FEW, STARTING = ("True", "AllFound"), ("False", "Expected8Found7"), ("Unknown", "Starting")
RUNNING, STOPPED = ("True", "AgentRunning"), ("False", "AgentStopped")
READY, HEALTHY = "nodedevices.io/Ready", "nodedevices.io/DevicesHealthy"


def built(
    said: NodeDevicesRecord, stale: Staleness = FRESH, shown: tuple[str, str] | None = None
) -> dict[str, dict[str, Any]]:
    """The conditions by type. `shown`: what the Node has as Ready."""
    before = node()
    if shown is not None:
        before = replace(before, ready_condition=ConditionRecord(READY, *shown, since=SINCE))
    return {each["type"]: each for each in node_conditions(said, stale, before, now=NOW)}


def healthy(devices: tuple[str, str], expected: tuple[str, str] | None, stale: Staleness = FRESH) -> tuple[str, str]:
    conditions = {"DevicesHealthy": devices} | ({} if expected is None else {"ExpectedDevices": expected})
    made = built(record(device(0), conditions=conditions), stale)[HEALTHY]
    return made["status"], made["reason"]


def ready(said: tuple[str, str], stale: Staleness = FRESH, shown: tuple[str, str] | None = None) -> tuple[str, str]:
    made = built(record(device(0), conditions={"Ready": said}), stale, shown)[READY]
    return made["status"], made["reason"]


@cases(
    ("devices", "expected", "shown"),
    pytest.param(WELL, None, WELL, id="nothing is expected"),
    pytest.param(WELL, ALL, WELL, id="all are there"),
    pytest.param(WELL, STARTING, WELL, id="not counted yet"),
    pytest.param(WELL, FEW, WELL, id="one is missing"),
    pytest.param(FAULT, FEW, FAULT, id="one of those that are there has a fault"),
    pytest.param(SILENT, FEW, SILENT, id="nothing is known of those that are there"),
)
def test_devices_that_are_expected_and_missing_are_no_fault_of_the_node(
    devices: tuple[str, str], expected: tuple[str, str] | None, shown: tuple[str, str]
) -> None:
    assert healthy(devices, expected) == shown


def test_on_a_stale_node_what_is_wrong_stays_shown_and_well_is_not_known_any_more() -> None:
    assert healthy(FAULT, ALL, LOST) == FAULT
    assert healthy(WELL, ALL, LOST) == ("Unknown", "AgentLost")
    assert ready(RUNNING, LOST) == ("Unknown", "AgentLost")
    assert ready(("False", "DriverNotLoaded"), LOST) == ("False", "DriverNotLoaded")


def test_no_condition_of_what_the_agent_does_not_say_and_a_node_with_a_failed_gpu_is_ready_and_not_healthy() -> None:
    told = record(device(0), conditions={"Ready": RUNNING, "DevicesHealthy": WELL, "ExpectedDevices": FEW})
    untold = replace(told, conditions=tuple(each for each in told.conditions if each.type == "ExpectedDevices"))
    assert built(untold) == {}
    lost = device(0, "Unhealthy", "Xid79")
    made = built(record(lost, device(1), conditions={"Ready": RUNNING, "DevicesHealthy": FAULT}))
    assert {kind: (it["status"], it["reason"]) for kind, it in made.items()} == {READY: RUNNING, HEALTHY: FAULT}


@cases("said", STARTING, ("False", "ProbeUnavailable"), ("False", "KubeletUnreachable"), STOPPED)
def test_a_node_whose_devices_are_not_known_yet_is_not_ready(said: tuple[str, str]) -> None:
    assert ready(said) == said


@cases("said", STOPPED, STARTING)
def test_an_agent_that_restarts_changes_nothing_on_the_node(said: tuple[str, str]) -> None:
    made = built(record(device(0), conditions={"Ready": said}), shown=RUNNING)[READY]
    assert (made["status"], made["reason"], made["lastTransitionTime"]) == (*RUNNING, SINCE)


def test_an_agent_that_does_not_come_back_is_said_and_earlier_trouble_in_its_words() -> None:
    assert ready(STOPPED, LOST, RUNNING) == STOPPED
    assert ready(STARTING, shown=("False", "DriverNotLoaded")) == STARTING


async def test_cleanup_takes_both_back_though_another_client_wrote_them_last() -> None:
    kube, path = FakeKube(), f"{NODES}/n1"
    written = raw_node()
    for kind in (READY, "KernelDeadlock", HEALTHY):
        written["status"]["conditions"].append({"type": kind, "status": "True", "lastTransitionTime": SINCE})
    kube.put(path, written)
    assert await clean_up(kube, dry_run=False) == 0
    assert [each["type"] for each in kube.objects[path]["status"]["conditions"]] == ["Ready", "KernelDeadlock"]


async def test_a_condition_of_another_of_which_the_agent_says_nothing_costs_no_write() -> None:
    kube, path = FakeKube(), f"{NODES}/n1"
    written = raw_node()
    written["status"]["conditions"].append({"type": READY, "status": "True", "lastTransitionTime": SINCE})
    kube.put(path, written)
    kube.put(f"{NODE_DEVICES}/n1", node_devices(device(0)))  # DevicesHealthy alone
    manager = await started(kube)
    shown = {each["type"] for each in kube.objects[path]["status"]["conditions"]}
    assert shown == {"Ready", READY, HEALTHY}
    writes = len(kube.writes)
    await manager.reconcile_node("n1")
    assert len(kube.writes) == writes
