"""The rule of docs/neighbours.md on the real API server, and the condition that it waits for, by the real
operator. The controller itself is not here: `satisfied` compares as its evaluation does (internal/controller of
node-readiness-controller e5ff8d1: a condition that is not there is Unknown)."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml
from support import fleet
from support.fleet import FleetNode
from support.kubectl import Kubectl, condition, wait_until
from support.operatorprocess import OperatorProcess
from support.pagesteps import objects

pytestmark = pytest.mark.usefixtures("kinds_of_others")


def rule() -> dict[str, Any]:
    [found] = objects("neighbours.md", "NodeReadinessRule")
    return found


def satisfied(node: FleetNode) -> bool:
    shown = node.node
    return all(
        condition(shown, each["type"]).get("status", "Unknown") == each["requiredStatus"]
        for each in rule()["spec"]["conditions"]
    )


@pytest.fixture(autouse=True)
def _no_rule_is_left(kubectl: Kubectl) -> Any:
    yield
    kubectl.run("delete", "nodereadinessrules.readiness.node.x-k8s.io", "--all")


def strict(kubectl: Kubectl, changed: dict[str, Any]) -> str:
    return kubectl.run("apply", "--validate=strict", "-f", "-", stdin=yaml.safe_dump(changed))


def test_the_rule_is_taken_without_an_unknown_field_and_again_without_a_change(kubectl: Kubectl) -> None:
    assert strict(kubectl, rule()).endswith("created\n")
    assert strict(kubectl, rule()).endswith("unchanged\n")


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("nodeSelector", {"matchLabels": {"pool": "gpu"}}, "nodeSelector is immutable"),
        ("taint", {"key": "nodedevices.io/not-ready", "effect": "NoSchedule"}, "must start with 'readiness.k8s.io/'"),
    ],
)
def test_what_the_api_server_refuses_of_an_edited_rule_it_says(
    kubectl: Kubectl, field: str, value: Any, said: str
) -> None:
    strict(kubectl, rule())
    edited = copy.deepcopy(rule())
    edited["spec"][field] = value
    with pytest.raises(Exception, match=said):
        strict(kubectl, edited)


def test_a_node_that_joins_with_a_failed_gpu_satisfies_the_rule_once_its_devices_have_been_read(
    operator: OperatorProcess, kubectl: Kubectl
) -> None:
    fleet.namespace(kubectl)
    node = FleetNode(kubectl, "n1", conditions={"Ready": ("Unknown", "Starting")})
    node.create(labels={"nvidia.com/gpu.present": "true"})
    wait_until("seen", lambda: condition(node.node, "nodedevices.io/Ready"))
    assert not satisfied(node), "no probe has reported"
    node.conditions.clear()
    node.fail(0)
    wait_until("satisfied", lambda: satisfied(node))
    assert condition(node.node, "nodedevices.io/DevicesHealthy")["status"] == "False"
    node.conditions |= {"Ready": ("False", "AgentStopped"), "DevicesHealthy": ("Unknown", "Starting")}
    node.report()
    wait_until("seen", lambda: condition(node.node, "nodedevices.io/DevicesHealthy").get("reason") == "Starting")
    assert satisfied(node), "the agent restarts"
