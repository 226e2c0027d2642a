"""`top` shows what agents measure, and a row with the reason for each that gives nothing."""

from __future__ import annotations

import json

import pytest
from nodedevices_kubectl.views.top import METRICS
from nodedevices_plugin.status.samples import TELEMETRY_ROWS
from support.command_line import CommandLine, JsonObject, gpu, node
from support.recorded_api import NODE_DEVICES, RecordedApi

PODS = "/api/v1/namespaces/nodedevices-system/pods"
LABELS = {"app.kubernetes.io/name": "nodedevices", "app.kubernetes.io/component": "agent"}


def agent(on: str) -> JsonObject:
    containers = [{"name": "probe"}, {"name": "agent", "ports": [{"name": "http", "containerPort": 9735}]}]
    return {"metadata": {"name": f"agent-{on}", "labels": LABELS}, "spec": {"nodeName": on, "containers": containers}}


def metrics(*devices: tuple[int, float]) -> str:
    """By index, how busy each is; and its power, of which one is not a number."""
    lines = ["# HELP nodedevices_device_power_watts Power drawn by the device.", "nodedevices_devices 2"]
    for index, busy in devices:
        labels = f'{{index="{index}",uuid="{gpu(index)["id"]}"}}'
        values = {"utilization_ratio": busy, "memory_used_bytes": 16 << 30, "memory_bytes": 80 << 30}
        lines += [f"nodedevices_device_{name}{labels} {value}" for name, value in values.items()]
        lines.append(f"nodedevices_device_power_watts{labels} {'NaN' if index else 350.5}")
    return "\n".join(lines) + "\n"


@pytest.fixture
def fleet(api: RecordedApi) -> RecordedApi:
    """n1 measures, n2 has an agent that does not, n3 one that does not answer, n4 none."""
    api.add(NODE_DEVICES, node("n1", gpu(0, "ml/train-0"), gpu(1, "ml/idle-0")), *(node(f"n{n}") for n in (2, 3, 4)))
    api.add(PODS, agent("n1"), agent("n2"), agent("n3"))
    api.texts[f"{PODS}/agent-n1:9735/proxy/metrics"] = metrics((0, 0.97), (1, 0.0))
    api.texts[f"{PODS}/agent-n2:9735/proxy/metrics"] = "nodedevices_devices 0\n"
    api.refusals[f"{PODS}/agent-n3:9735/proxy/metrics"] = [503]
    return api


SHOWN = """\
NODE   DEVICE   UTIL   MEMORY-USED   MEMORY   POWER    TEMP     HELD-BY      REASON
n1     gpu-0    97%    16.0Gi        80.0Gi   350W     <none>   ml/train-0   <none>
n1     gpu-1    0%     16.0Gi        80.0Gi   <none>   <none>   ml/idle-0    <none>
"""


def test_devices_are_shown_with_what_their_agent_measures(fleet: RecordedApi, kubectl: CommandLine) -> None:
    assert kubectl("top", "n1") == 0
    assert kubectl.out == SHOWN
    kubectl("top", "n1", "--idle", "-o", "name")
    assert kubectl.out == "n1/gpu-1\n"


def test_a_node_that_gives_no_readings_is_a_row_with_the_reason(fleet: RecordedApi, kubectl: CommandLine) -> None:
    assert kubectl("top", "-o", "json") == 1
    found = {each["node"]: each["problem"] for each in json.loads(kubectl.out)["items"]}
    assert found["n1"] == ""
    assert found["n2"] == "its agent runs without --telemetry"
    assert "is refused" in found["n3"]
    assert found["n4"] == "its agent has no pod in this namespace"
    assert "error: 3 of 4 nodes gave no readings: n2: its agent runs without --telemetry" in kubectl.err


def test_only_agents_of_the_wanted_nodes_are_asked(fleet: RecordedApi, kubectl: CommandLine) -> None:
    kubectl("top", "n1")
    assert [target for _, target in fleet.requests if "proxy" in target] == [f"{PODS}/agent-n1:9735/proxy/metrics"]


def test_who_may_not_list_the_agents_is_told_so(fleet: RecordedApi, kubectl: CommandLine) -> None:
    fleet.refusals[PODS] = [403]
    assert kubectl("top") == 1
    assert f"{PODS} is refused" in kubectl.err


def test_every_reading_is_a_metric_of_the_agents_telemetry() -> None:
    assert set(METRICS) <= {row.name.removeprefix("nodedevices_device_") for row in TELEMETRY_ROWS}
