"""nodedevices.io/DevicesHealthy on the Node: faults first, then devices that a policy expects and misses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from nodedevices_operator.desired.node import node_condition
from nodedevices_operator.desired.stale import Staleness
from support.opfacts import SINCE, device, record

FRESH = Staleness("False", "Fresh", "", 0.0)
LOST = Staleness("True", "AgentLost", "the agent is gone", 0.0)
WELL, FAULT, SILENT = ("True", "AllHealthy"), ("False", "DeviceFault"), ("Unknown", "ProbeSilent")
ALL, FEW, STARTING = ("True", "AllFound"), ("False", "Expected8Found7"), ("Unknown", "Starting")


def said(healthy: tuple[str, str], expected: tuple[str, str] | None, stale: Staleness = FRESH) -> tuple[str, str]:
    conditions = {"DevicesHealthy": healthy} | ({} if expected is None else {"ExpectedDevices": expected})
    made = node_condition(record(device(0), conditions=conditions), stale, wanted=True, previous=None, now=SINCE)
    assert made is not None
    assert made["type"] == "nodedevices.io/DevicesHealthy"
    return made["status"], made["reason"]


@pytest.mark.parametrize(
    ("healthy", "expected", "shown"),
    [
        pytest.param(WELL, None, WELL, id="nothing is expected"),
        pytest.param(WELL, ALL, WELL, id="all are there"),
        pytest.param(WELL, STARTING, WELL, id="not counted yet"),
        pytest.param(WELL, FEW, FEW, id="one is missing"),
        pytest.param(FAULT, FEW, FAULT, id="a fault of one that is there comes first"),
        pytest.param(SILENT, FEW, SILENT, id="nothing is known of those that are there"),
    ],
)
def test_devices_that_are_expected_and_missing_are_a_fault_of_the_node(
    healthy: tuple[str, str], expected: tuple[str, str] | None, shown: tuple[str, str]
) -> None:
    assert said(healthy, expected) == shown


def test_on_a_stale_node_what_is_wrong_stays_shown_and_well_is_not_known_any_more() -> None:
    assert said(WELL, FEW, LOST) == FEW
    assert said(FAULT, ALL, LOST) == FAULT
    assert said(WELL, ALL, LOST) == ("Unknown", "AgentLost")


def test_no_condition_where_the_policy_wants_none_or_the_agent_has_said_nothing() -> None:
    told = record(device(0), conditions={"DevicesHealthy": WELL, "ExpectedDevices": FEW})
    untold = replace(told, conditions=tuple(each for each in told.conditions if each.type != "DevicesHealthy"))
    assert node_condition(told, FRESH, wanted=False, previous=None, now=SINCE) is None
    assert node_condition(untold, FRESH, wanted=True, previous=None, now=SINCE) is None
