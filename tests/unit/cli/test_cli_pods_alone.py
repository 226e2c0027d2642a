"""`pods` for who may read a namespace, and no NodeDevices: what the pods' own status says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from nodedevices_api.conditions import POD_DEVICE_HEALTHY
from support.command_line import CommandLine, JsonObject
from support.recorded_api import NODE_DEVICES, RecordedApi

PODS = "/api/v1/namespaces/ml/pods"
TABLE = """\
NAMESPACE POD     NODE DEVICES     HEALTH    REASON ACTION HELD-FOR
ml        marked  n1   GPU-0,GPU-1 Unhealthy Xid79  <none> 3h
ml        kubelet n1   GPU-2       Unhealthy <none> <none> 3h
ml        well    n2   <none>      Healthy   <none> <none> 3h
ml        unknown n2   <none>      Unknown   <none> <none> 3h
"""


def pod(name: str, node: str, *, limits: JsonObject | None = None, **status: Any) -> JsonObject:
    asked = {"nvidia.com/gpu": "1", "cpu": "1", "hugepages-2Mi": "2Mi"} if limits is None else limits
    return {
        "metadata": {"namespace": "ml", "name": name},
        "spec": {"nodeName": node, "containers": [{"name": "main", "resources": {"limits": asked}}]},
        "status": {"phase": "Running", "startTime": "2026-11-23T09:00:00Z", **status},
    }


def mark(status: str, reason: str) -> JsonObject:
    return {"type": POD_DEVICE_HEALTHY, "status": status, "reason": reason, "message": "GPU 0 of n1 fell off the bus"}


def allocated(*devices: tuple[str, str]) -> list[JsonObject]:
    resources = [{"resourceID": id_, "health": health} for id_, health in devices]
    return [{"name": "main", "allocatedResourcesStatus": [{"name": "nvidia.com/gpu", "resources": resources}]}]


@pytest.fixture
def tenant(api: RecordedApi) -> RecordedApi:
    both = allocated(("GPU-0", "Healthy"), ("GPU-1", "Unhealthy"))
    api.add(
        PODS,
        pod("marked", "n1", conditions=[mark("False", "Xid79")], containerStatuses=both),
        pod("kubelet", "n1", containerStatuses=allocated(("GPU-2", "Unhealthy"))),
        pod("well", "n2", conditions=[mark("True", "Healthy")]),
        pod("unknown", "n2"),
        pod("without", "n2", limits={"cpu": "1"}),
        pod("ended", "n2", phase="Succeeded"),
        pod("waits", "", phase="Pending"),
        {"metadata": {}, "spec": [], "status": 3},
    )
    api.refusals[NODE_DEVICES] = [403] * 9
    return api


def test_the_rows_are_those_of_the_pods(tenant: RecordedApi, kubectl: CommandLine) -> None:
    assert kubectl("pods", "-n", "ml") == 0
    assert [line.split() for line in kubectl.out.splitlines()] == [line.split() for line in TABLE.splitlines()]
    assert "You may not list NodeDevices" in kubectl.err
    assert kubectl("pods", "-n", "ml", "marked", "-o", "json") == 0
    [row] = json.loads(kubectl.out)["items"]
    assert (row["message"], row["resources"], row["containers"]) == (
        "GPU 0 of n1 fell off the bus",
        ["nvidia.com/gpu"],
        ["main"],
    )
    assert kubectl("pods", "-n", "ml", "nobody") == 0
    assert "Pod nobody holds no devices in ml namespace." in kubectl.err


@pytest.mark.parametrize("arguments", [("-A",), ("-n", "ml", "-l", "a=b"), ("-n", "ml", "-w")])
def test_beyond_a_namespace_it_takes_the_role(
    tenant: RecordedApi, kubectl: CommandLine, arguments: tuple[str, ...]
) -> None:
    assert kubectl("pods", *arguments) == 1
    assert "nodedevices-view" in kubectl.err
    assert kubectl.out == ""


def test_who_may_not_even_read_pods_is_told_so(tenant: RecordedApi, kubectl: CommandLine) -> None:
    tenant.refusals[PODS] = [403]
    assert kubectl("pods", "-n", "ml") == 1
    assert f"{PODS} is refused" in kubectl.err
