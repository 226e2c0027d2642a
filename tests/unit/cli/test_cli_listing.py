"""What `kubectl nodedevices` lists, as it is printed: golden output of recorded objects."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from nodedevices_api import conditions as names
from nodedevices_kubectl.views import policies
from support.command_line import CommandLine, action, condition, failed, gpu, node
from support.recorded_api import EVENTS, NODE_DEVICES, RecordedApi

ESCAPE = "\033"
NODES_TABLE = """\
NAME   STATUS     MODEL                   DEVICES   HEALTHY   HELD     REASON                 AGE
n1     Ready      NVIDIA-H100-80GB-HBM3   4         3         3        Xid79                  5d3h
n2     NotReady   NVIDIA-H100-80GB-HBM3   1         1         1        DriverNotLoaded        5d3h
n3     Stale      NVIDIA-H100-80GB-HBM3   2         2         0        AgentLost              5d3h
n4     Unknown    <none>                  <none>    <none>    <none>   <none>                 5d3h
n10    Ready      NVIDIA-H100-80GB-HBM3   1         1         0        TemperatureCelsius     5d3h
"""
NODES_WIDE = """\
NAME   ACTION     CONFIG          WITHHELD      FREE                      MEM-FREE   DRIVER       AGENT
n1     ResetBus   ConfigInvalid   Unhealthy=1   nvidia.com/gpu=0          <none>     570.148.08   0.1.0
n2     <none>     Applied         <none>        nvidia.com/gpu=31         31Gi       570.148.08   0.1.0
"""
DEVICES_TABLE = """\
NODE   DEVICE             MODEL                   HEALTH                 REASON   SINCE   ACTION     HELD-BY
n1     gpu-0              NVIDIA H100 80GB HBM3   Healthy                <none>   5d3h    <none>     ml/train-0
n1     gpu-1              NVIDIA H100 80GB HBM3   Healthy                <none>   5d3h    <none>     ml/train-0
n1     gpu-2              NVIDIA H100 80GB HBM3   Unhealthy              Xid79    4m30s   ResetBus   <none>
n1     gpu-3              NVIDIA H100 80GB HBM3   Healthy,OutOfService   <none>   5d3h    <none>     <none>
n1     gpu-3-mig-1g10gb   NVIDIA H100 80GB HBM3   Healthy,OutOfService   <none>   5d3h    <none>     a/p0,a/p1,a/p2,+2
"""
PODS_TABLE = """\
NAMESPACE   POD       NODE   DEVICES                       HEALTH      REASON   ACTION     HELD-FOR
ml          train-0   n1     gpu-0,gpu-1,gpu-2,gpu-3,+1    Unhealthy   Xid79    ResetBus   3h
ml          train-1   n2     gpu-0                         Healthy     <none>   <none>     3h
"""


def squeezed(table: str) -> list[list[str]]:
    """The words of each line: how wide columns are has a test of its own."""
    return [line.split() for line in table.splitlines()]


@pytest.fixture
def fleet(api: RecordedApi) -> RecordedApi:
    whole = gpu(3, unschedulable="RMA 4711")
    partition = gpu(0, *(f"a/p{number}" for number in range(5)), parent=whole["name"], profile="1g.10gb")
    partition |= {"id": "MIG-1", "name": "gpu-3-mig-1g10gb"}
    by_memory = node("n2", gpu(0, "ml/train-1"), conditions=[condition("Ready", "False", "DriverNotLoaded")])
    by_memory["status"]["resources"][0] |= {"unit": "1Gi", "free": 31}
    bare = {"metadata": {"name": "n4", "creationTimestamp": "2026-11-18T09:00:00Z"}}
    api.add(
        NODE_DEVICES,
        node(
            "n1",
            gpu(0, "ml/train-0"),
            gpu(1, "ml/train-0"),
            gpu(2, **failed()),
            whole,
            partition,
            conditions=[condition("ConfigApplied", "False", "ConfigInvalid")],
        ),
        by_memory,
        node("n3", gpu(0), gpu(1), conditions=[condition("Stale", "True", "AgentLost")]),
        bare,
        node("n10", gpu(0, **failed("TemperatureCelsius", "Degraded", "None"))),
    )
    return api


def test_nodes_are_listed_as_kubectl_makes_tables_and_wide_adds_columns(
    fleet: RecordedApi, kubectl: CommandLine
) -> None:
    assert kubectl("--sort-by", "name") == 0
    assert squeezed(kubectl.out) == squeezed(NODES_TABLE)
    assert kubectl.err == ""
    # Columns begin below their headers, three spaces after the widest cell; no line ends in spaces.
    kubectl("devices", "n1")
    assert kubectl.out == DEVICES_TABLE
    assert all(line == line.rstrip() for line in kubectl.out.splitlines())
    kubectl("nodes", "n1", "n2", "-o", "wide")
    header, *rows = squeezed(kubectl.out)
    at = [header.index(name) for name in squeezed(NODES_WIDE)[0]]
    assert [[row[each] for each in at] for row in (header, *rows)] == squeezed(NODES_WIDE)


def test_pods_are_those_of_the_contexts_namespace(api: RecordedApi, kubectl: CommandLine) -> None:
    devices = [gpu(index, "ml/train-0") for index in range(4)]
    other = gpu(5, "web/serve-0")
    api.add(
        NODE_DEVICES, node("n1", *devices, gpu(4, "ml/train-0", **failed()), other), node("n2", gpu(0, "ml/train-1"))
    )
    kubectl("pods")
    assert squeezed(kubectl.out) == squeezed(PODS_TABLE)
    kubectl("pods", "-A", "-o", "name")
    assert kubectl.out.split() == ["pod/train-0", "pod/serve-0", "pod/train-1"]
    kubectl("pods", "-n", "web", "--no-headers")
    assert squeezed(kubectl.out) == [["web", "serve-0", "n1", "gpu-5", "Healthy", "<none>", "<none>", "3h"]]
    kubectl("pods", "train-1", "-o", "name")
    assert kubectl.out == "pod/train-1\n"


def test_devices_can_be_asked_for_by_health_model_and_namespace(fleet: RecordedApi, kubectl: CommandLine) -> None:
    kubectl("devices", "--unhealthy", "-o", "name")
    assert kubectl.out.split() == ["n1/gpu-2", "n10/gpu-0"]
    kubectl("devices", "-n", "a", "-o", "name")
    assert kubectl.out.split() == ["n1/gpu-3-mig-1g10gb"]
    kubectl("devices", "--model", "h100", "-o", "name")
    assert len(kubectl.out.split()) == 9
    assert kubectl("devices", "--model", "L4") == 0
    assert (kubectl.out, kubectl.err) == ("", "No devices found that are of a model with 'L4' in its name.\n")


def test_nothing_to_list_is_said_and_is_no_error(api: RecordedApi, kubectl: CommandLine) -> None:
    assert kubectl("nodes") == 0
    assert kubectl.out == ""
    assert "Is the agent running?" in kubectl.err
    kubectl("pods", "train-9")
    assert kubectl.err == "Pod train-9 holds no devices in ml namespace.\n"
    kubectl("nodes", "-o", "json")
    assert json.loads(kubectl.out)["items"] == []
    assert kubectl.err == ""


def test_json_and_yaml_say_the_same_with_a_version(fleet: RecordedApi, kubectl: CommandLine) -> None:
    kubectl("devices", "n1", "--unhealthy", "-o", "json")
    found: dict[str, Any] = json.loads(kubectl.out)
    assert found == {
        "apiVersion": "kubectl.nodedevices.io/v1alpha1",
        "kind": "Devices",
        "items": [
            {
                "node": "n1",
                "device": "gpu-2",
                "id": "GPU-00000002-0000-4000-8000-000000000000",
                "partitionOf": "",
                "type": "gpu",
                "index": 2,
                "vendor": "nvidia",
                "model": "NVIDIA H100 80GB HBM3",
                "profile": "",
                "memory": "80Gi",
                "pciBusID": "0000:12:00.0",
                "numaNode": 0,
                "health": "Unhealthy",
                "state": "Unhealthy",
                "reason": "Xid79",
                "message": "GPU has fallen off the bus (XID 79); reset its bus",
                "since": "2026-11-23T11:55:30Z",
                "recoveryAction": "ResetBus",
                "outOfService": "",
                "drainedSince": "",
                "heldBy": [],
            }
        ],
    }
    kubectl("devices", "n1", "--unhealthy", "-o", "yaml")
    assert yaml.safe_load(kubectl.out) == found


def test_rows_are_sorted_by_any_column_as_people_count(fleet: RecordedApi, kubectl: CommandLine) -> None:
    kubectl("nodes", "--sort-by", "devices", "-o", "name")
    assert kubectl.out.split() == ["n2", "n10", "n3", "n1", "n4"]  # n4 says nothing, and comes last
    kubectl("nodes", "--sort-by=.name", "-o", "name")
    assert kubectl.out.split()[-1] == "n10"


def test_a_selector_goes_to_the_api_server(api: RecordedApi, kubectl: CommandLine) -> None:
    chosen = node("n2")
    chosen["metadata"]["labels"] = {"pool": "x"}
    api.add(NODE_DEVICES, node("n1"), chosen)
    kubectl("nodes", "-l", "pool=x", "-o", "name")
    assert kubectl.out == "n2\n"
    assert "labelSelector=pool%3Dx" in api.requests[-1][1]


def test_colour_is_for_terminals_and_the_word_stays(fleet: RecordedApi, kubectl: CommandLine) -> None:
    kubectl("devices", "n1")
    assert ESCAPE not in kubectl.out
    kubectl.terminal = True
    kubectl("devices", "n1")
    assert "\033[31mUnhealthy\033[0m" in kubectl.out
    kubectl.more = {"NO_COLOR": "1"}
    kubectl("devices", "n1")
    assert ESCAPE not in kubectl.out
    kubectl("devices", "n1", "--color=always")
    assert ESCAPE in kubectl.out
    kubectl("devices", "n1", "--color=never")
    assert kubectl.out == DEVICES_TABLE


def test_no_text_of_an_object_steers_the_terminal(api: RecordedApi, kubectl: CommandLine) -> None:
    """A holder's name, a message, a model: whoever may write a status must not write to an administrator's screen."""
    evil = f"{ESCAPE}]0;owned\a{ESCAPE}[2J\u202e\n"
    device = gpu(0, f"{evil}/{evil}", **failed(evil))
    device["attributes"]["productName"] = evil
    device["health"]["message"] = evil
    api.add(NODE_DEVICES, node("n1", device, conditions=[condition("Ready", "False", evil, evil)]))
    for command in (("nodes",), ("devices",), ("pods", "-A"), ("describe", "n1"), ("describe", "n1/gpu-0")):
        for output in (("-o", "wide"), ("-o", "json"), ("-o", "yaml")) if command[0] != "describe" else ((),):
            assert kubectl(*command, *output) == 0
            plain = kubectl.out.replace("\n", "")
            assert plain.isprintable(), command
            assert kubectl.err == ""


def test_what_has_another_shape_than_expected_is_shown_as_absent(api: RecordedApi, kubectl: CommandLine) -> None:
    odd = {
        "metadata": {"name": "n1"},
        "status": {"summary": 3, "devices": [1, {"health": []}, {"holders": {}}], "x": 1},
    }
    api.add(NODE_DEVICES, odd)
    for command in ("nodes", "devices", "pods"):
        assert kubectl(command) == 0
    assert kubectl("describe", "n1") == 0


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("nodes", "--sort-by", "modle"), "no such column; did you mean model?"),
        (("nodes", "-o", "jsn"), "'jsn' is not one of 'table', 'wide', 'json', 'yaml', 'name'"),
        (("node",), "node: no such command; did you mean nodes?"),
        (("resume", "share"), "resume: no such command; give `confirm actions resumed`, or `confirm policy/NAME"),
        (("devices", "--unhealty"), "--unhealthy"),
        (("devices", "-n", "ml", "-A"), "give -n or -A, not both"),
        (("nodes", "n1", "-l", "a=b"), "give names, or a selector (-l), not both"),
        (("describe",), "NODE[/DEVICE]"),
    ],
)
def test_a_wrong_use_is_refused_with_what_would_be_right(
    api: RecordedApi, kubectl: CommandLine, command: tuple[str, ...], said: str
) -> None:
    assert kubectl(*command) == 2
    assert said in kubectl.err
    assert kubectl.out == ""
    assert not api.requests


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("nodes", "n11"), "node n11: there is no NodeDevices with this name; did you mean n1?"),
        (("describe", "zz"), "node zz: there is no NodeDevices with this name; known: n1, n10, n2, n3, n4"),
        (("describe", "n1/gpu-9"), "n1/gpu-9: node n1 has no such device; it has gpu-0 to gpu-3"),
        (("describe", "n1/gup-0"), "n1/gup-0: node n1 has no such device; did you mean gpu-0?"),
        (("describe", "n1/GPU-00000"), "n1/GPU-00000: this matches 4 devices: gpu-0 (GPU-00000000-0000-4000"),
        (("describe", "n4/gpu-0"), "n4/gpu-0: node n4 has no devices"),
    ],
)
def test_what_is_not_there_is_an_error_that_says_what_is(
    fleet: RecordedApi, kubectl: CommandLine, command: tuple[str, ...], said: str
) -> None:
    assert kubectl(*command) == 1
    assert said in kubectl.err
    assert kubectl.out == ""


@pytest.mark.parametrize("device", ["gpu-2", "2", "GPU-00000002-0000-4000-8000-000000000000", "GPU-00000002"])
def test_a_device_is_known_by_name_index_or_id(fleet: RecordedApi, kubectl: CommandLine, device: str) -> None:
    assert kubectl("describe", f"n1/{device}") == 0
    assert "Device:           gpu-2" in kubectl.out


NODE_DESCRIBED = """\
Name:     n1
Status:   Ready
Model:    NVIDIA-H100-80GB-HBM3
Devices:  2: 1 healthy, 1 unhealthy, 1 held
Drivers:  nvidia 570.148.08
Agent:    0.1.0, last heartbeat 3m ago
Summary:  <none>
Conditions:
  TYPE             STATUS   REASON               SINCE   MESSAGE
  Ready            True     AgentRunning         3d      <none>
  DevicesHealthy   False    DeviceFault          3d      <none>
  ConfigApplied    True     Applied              3d      <none>
  HoldersKnown     True     Synced               3d      <none>
  AllocatedOnce    True     NoDoubleAllocation   3d      <none>
  Stale            False    Fresh                3d      <none>
Probes:
  NAME   STATE   DEVICES   SINCE   MESSAGE
  nvml   Ready   2         5d3h    <none>
Devices:
  DEVICE   HEALTH      REASON   SINCE   ACTION     HELD-BY      ID
  gpu-0    Healthy     <none>   5d3h    <none>     ml/train-0   GPU-00000000-0000-4000-8000-000000000000
  gpu-1    Unhealthy   Xid79    4m30s   ResetBus   <none>       GPU-00000001-0000-4000-8000-000000000000
Resources:
  NAME             SHARING   IDS   HEALTHY   HELD   FREE   WITHHELD
  nvidia.com/gpu   none      2     1         1      0      <none>
Policies: <none>
Events: <none>
"""
DEVICE_DESCRIBED = """\
Node:             n1
Device:           gpu-1
ID:               GPU-00000001-0000-4000-8000-000000000000
Type:             gpu
Model:            NVIDIA H100 80GB HBM3
Index:            1
Memory:           80Gi
PCI address:      0000:11:00.0
NUMA node:        0
Health:           Unhealthy for 4m30s
Reason:           Xid79
Message:          GPU has fallen off the bus (XID 79); reset its bus
What helps:       ResetBus
XIDs since boot:  79
Holders: <none>
"""


def test_a_node_and_a_device_are_described_on_one_screen(api: RecordedApi, kubectl: CommandLine) -> None:
    api.add(NODE_DEVICES, node("n1", gpu(0, "ml/train-0"), gpu(1, **failed())))
    kubectl("describe", "n1")
    assert kubectl.out == NODE_DESCRIBED
    kubectl("describe", "n1/gpu-1")
    assert kubectl.out == DEVICE_DESCRIBED


def test_a_description_shows_what_the_operator_does_there(api: RecordedApi, kubectl: CommandLine) -> None:
    actions = [action("evictions", "InSync", "no pod needs to be evicted"), action("taint", "Refused", "used up")]
    api.add(NODE_DEVICES, node("n1", gpu(0), actions=actions))
    kubectl("describe", "n1")
    lines = squeezed(kubectl.out)
    at = lines.index(["Actions:"])
    assert lines[at + 1 : at + 4] == [
        ["NAME", "REASON", "MESSAGE"],
        ["evictions", "InSync", "no", "pod", "needs", "to", "be", "evicted"],
        ["taint", "Refused", "used", "up"],
    ]


def test_a_description_ends_with_the_events(api: RecordedApi, kubectl: CommandLine) -> None:
    api.add(NODE_DEVICES, node("n1", gpu(0)))
    late = {"type": "Warning", "reason": "DeviceFault", "lastTimestamp": "2026-11-23T11:59:00Z", "message": "gpu-0"}
    early = {"type": "Normal", "reason": "DeviceRecovered", "eventTime": "2026-11-23T11:00:00.000000Z"}
    api.add(EVENTS, *({"metadata": {"name": each["reason"]}, **each} for each in (late, early)))
    kubectl("describe", "n1")
    assert squeezed(kubectl.out)[-3:] == [
        ["TYPE", "REASON", "LAST", "MESSAGE"],
        ["Normal", "DeviceRecovered", "60m", "<none>"],
        ["Warning", "DeviceFault", "60s", "gpu-0"],
    ]
    assert "fieldSelector=involvedObject.kind%3DNodeDevices%2CinvolvedObject.name%3Dn1" in api.requests[-1][1]
    api.refusals[EVENTS] = [403]
    assert kubectl("describe", "n1") == 0
    assert "Events" not in kubectl.out


def test_what_the_operator_does_by_itself_is_called_as_the_contract_calls_it() -> None:
    assert {action for actions in policies._OPERATOR.values() for action in actions} == set(names.ACTIONS)
