"""The real agent and the real kube-apiserver: its one object, who owns what in it, and what happens when it is away."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import previous
from support.agentprocess import NODE, AgentProcess
from support.apiserver import ApiServer
from support.fleet import stamp
from support.kubectl import Kubectl, condition, wait_until
from support.kubelet import ThreadedKubelet
from support.simulated import h100s, strike

CRDS = Path(__file__).parents[2] / "crds"
TOO_MANY = {"strategy": "timeSlicing", "resources": [{"name": "nvidia.com/gpu", "replicas": 16384}]}
SIXTEEN = {
    "sharing": {"strategy": "timeSlicing", "resources": [{"name": "nvidia.com/gpu", "replicas": 2}]},
    "health": {"holdDownSeconds": 1},
}


@pytest.fixture
def agent(apiserver: ApiServer, kubectl: Kubectl, tmp_path: Path) -> Iterator[AgentProcess]:
    """On its own object; without a kubelet."""
    with AgentProcess(tmp_path, arguments=(f"--kubeconfig={apiserver.kubeconfig}",)) as running:
        wait_until("a report", lambda: status(kubectl))
        yield running


@pytest.fixture
def served(apiserver: ApiServer, kubectl: Kubectl, tmp_path: Path) -> Iterator[AgentProcess]:
    """On its own object; with a stand-in kubelet that takes registrations, in a thread of its own."""
    arguments = (f"--kubeconfig={apiserver.kubeconfig}",)
    with (
        ThreadedKubelet() as kubelet,
        AgentProcess(tmp_path, arguments=arguments, kubelet_dir=kubelet.kubelet.root) as running,
    ):
        wait_until("a report", lambda: status(kubectl))
        yield running


def found(kubectl: Kubectl) -> dict[str, Any]:
    return kubectl.get("nodedevices", NODE) or {}


def status(kubectl: Kubectl) -> dict[str, Any]:
    value: dict[str, Any] = found(kubectl).get("status") or {}
    return value


def writes(agent: AgentProcess) -> float:
    lines = agent.get("/metrics")[1].splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("nodedevices_publish_writes_total"))


def as_operator(kubectl: Kubectl, body: dict[str, Any], *more: str) -> None:
    named = {"apiVersion": "nodedevices.io/v1alpha1", "kind": "NodeDevices", "metadata": {"name": NODE}}
    server_side = ("apply", "--server-side", "--field-manager=nodedevices-operator", *more, "-f", "-")
    kubectl.run(*server_side, stdin=json.dumps(named | body))


def test_the_object_shows_the_devices_and_every_field_of_it_is_the_agents_and_stays_so(
    agent: AgentProcess, kubectl: Kubectl
) -> None:
    _probe_sends(agent, lines=2)  # what it learns while it starts may still be a write
    item = found(kubectl)
    _probe_sends(agent, lines=6)
    assert found(kubectl) == item, "an idle agent writes nothing"
    summary = item["status"]["summary"]
    assert (summary["devices"], summary["healthy"], summary["model"]) == (8, 8, "NVIDIA-H100-80GB-HBM3")
    shown = kubectl.object("nodedevices", NODE)
    assert {entry["manager"] for entry in shown["metadata"]["managedFields"]} == {"nodedevices-agent"}
    assert "spec" not in item or item["spec"] == {}
    assert {one["type"] for one in item["status"]["conditions"]} == {
        "Ready",
        "DevicesHealthy",
        "ConfigApplied",
        "HoldersKnown",
        "AllocatedOnce",
    }
    assert condition(item, "ConfigApplied")["reason"] == "NoConfig"
    assert condition(item, "Ready")["reason"] == "KubeletUnreachable"
    assert agent.lines(
        "the token names no Node, so the NodeDevices object gets no owner: delete it by hand with the node"
    )

    def taken_and_said() -> object:
        """Again where a report with other news came just then: it sets the field, too, and nothing is said of it."""
        kubectl.patch("nodedevices", NODE, {"status": {"summary": {"healthy": 1}}}, subresource="status")
        wait_until("set again", lambda: status(kubectl)["summary"]["healthy"] == 8)
        return agent.lines("fields of the agent's status were changed by another writer, reapplied")

    wait_until("what somebody takes is set again", taken_and_said)
    kubectl.delete("nodedevices", NODE)
    wait_until("a new object", lambda: status(kubectl) and uid(kubectl) != item["metadata"]["uid"])
    assert len(status(kubectl)["devices"]) == 8


def _probe_sends(agent: AgentProcess, *, lines: int) -> None:
    before = _lines_of_the_probe(agent)
    wait_until("more lines", lambda: _lines_of_the_probe(agent) >= before + lines)


def _lines_of_the_probe(agent: AgentProcess) -> float:
    lines = agent.get("/metrics")[1].splitlines()
    return next(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("nodedevices_probe_lines_total"))


def uid(kubectl: Kubectl) -> str:
    text: str = found(kubectl)["metadata"]["uid"]
    return text


@pytest.fixture
def previous_crd(kubectl: Kubectl) -> Iterator[None]:
    """The CRD of the previous version in the place of ours, without a field that the agent writes; ours again
    afterwards."""
    ours = yaml.safe_load((CRDS / "nodedevices.yaml").read_text())
    older = previous.crds()["NodeDevices"]
    schema = older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    del schema["properties"]["status"]["properties"]["mostSeen"]
    kubectl.apply(older)
    yield
    kubectl.apply(ours)


def test_s39_an_agent_newer_than_the_crd_reports_what_the_crd_has_fields_for(
    agent: AgentProcess, kubectl: Kubectl, previous_crd: None
) -> None:
    agent.edit(yaml.safe_dump({"profile": "h100 x 8", "events": [strike(3, 79)]}))
    shown = wait_until("the fault", lambda: status(kubectl) if status(kubectl)["summary"]["healthy"] == 7 else None)
    assert "mostSeen" not in shown, "the older CRD has no such field"
    said = "the NodeDevices CRD is older than this agent: apply the CRDs of its version"
    [line] = wait_until("the log says so", lambda: agent.lines(said))
    assert "status.mostSeen" in line["left_out"]


def test_a_programs_error_is_a_notice_and_a_fault_is_in_the_status_beside_the_operators_part(
    agent: AgentProcess, kubectl: Kubectl
) -> None:
    stale = {"type": "Stale", "status": "False", "reason": "Fresh", "message": "", "lastTransitionTime": stamp()}
    as_operator(kubectl, {"status": {"conditions": [stale]}}, "--subresource=status")
    agent.edit(yaml.safe_dump({"profile": "h100 x 8", "events": [strike(3, 31)]}))

    def noticed() -> list[dict[str, Any]]:
        return [device for device in status(kubectl)["devices"] if device.get("notices")]

    [device] = wait_until("the notice", noticed)
    [notice] = device["notices"]
    assert (device["index"], device["health"]["state"]) == (3, "Healthy")
    assert (notice["code"], notice["count"]) == ("Xid31", 1)
    assert notice["message"] == "GPU memory page fault (XID 31); restart the application"
    counted = f'nodedevices_xids_total{{index="3",uuid="{device["id"]}",xid="31"}} 1.0'
    assert counted in agent.get("/metrics")[1].splitlines()

    agent.edit(h100s(xid79=3, field_230=False))
    item = wait_until("the fault", lambda: found(kubectl) if fault(kubectl) else {})
    [bad] = [device for device in item["status"]["devices"] if device["health"]["state"] != "Healthy"]
    assert (bad["name"], bad["health"]["reason"], bad["health"]["xids"]) == ("gpu-3", "Xid79", [79])
    assert bad["health"]["recoveryAction"] == "RebootNode"
    healthy = condition(item, "DevicesHealthy")
    assert (healthy["status"], healthy["reason"]) == ("False", "DeviceFault")
    assert healthy["message"].startswith("1 of 8: gpu-3 Xid79")
    assert condition(item, "Stale")["reason"] == "Fresh"


def fault(kubectl: Kubectl) -> str:
    """The reason of the first device at fault. No kubelet is there, which is the summary's reason."""
    healths = [device["health"] for device in status(kubectl).get("devices", [])]
    return next((str(health["reason"]) for health in healths if health["state"] == "Unhealthy"), "")


@pytest.mark.usefixtures("agent")
def test_a_device_out_of_service_stays_so_when_the_object_is_deleted_and_is_back_when_its_time_is_over(
    kubectl: Kubectl,
) -> None:
    item = found(kubectl)
    entry = {"id": item["status"]["devices"][0]["id"], "reason": "RMA 4711", "by": "me"}

    def unschedulable(*entries: dict[str, str]) -> None:
        kubectl.patch("nodedevices", NODE, {"spec": {"unschedulable": list(entries)}})

    unschedulable(entry, {"id": "gpu-1", "reason": "by its name"})
    wait_until("it is out of service", lambda: status(kubectl)["devices"][0].get("unschedulable") == "RMA 4711")
    assert (status(kubectl)["summary"]["unschedulable"], status(kubectl)["summary"]["healthy"]) == (1, 8)
    wait_until(
        "a typo is named", lambda: "unschedulable[gpu-1]" in condition(found(kubectl), "ConfigApplied")["message"]
    )
    unschedulable(entry)
    wait_until("no typo", lambda: "gpu-1" not in condition(found(kubectl), "ConfigApplied")["message"])
    kubectl.delete("nodedevices", NODE)
    wait_until("a new object", lambda: found(kubectl).get("status") and uid(kubectl) != item["metadata"]["uid"])
    [again] = found(kubectl)["spec"]["unschedulable"]
    assert {key: again[key] for key in entry} == entry
    assert again["since"]
    assert status(kubectl)["summary"]["unschedulable"] == 1
    unschedulable({"id": entry["id"], "reason": "RMA 4711", "until": stamp(3)})
    wait_until("it is back", lambda: status(kubectl)["summary"]["unschedulable"] == 0)


@pytest.mark.usefixtures("agent")
def test_a_configuration_that_no_kubelet_has_taken_is_not_echoed_and_a_change_of_ids_waits_for_holders(
    kubectl: Kubectl,
) -> None:
    as_operator(kubectl, {"spec": {"config": {}, "configHash": "aa"}})
    wait_until("waiting", lambda: applied(kubectl)["reason"] == "WaitingForKubelet")
    as_operator(kubectl, {"spec": {"config": SIXTEEN, "configHash": "cc"}})
    wait_until("waiting", lambda: applied(kubectl)["reason"] == "WaitingForHolders")
    assert status(kubectl)["resources"][0]["capacity"] == 8
    assert "appliedConfigHash" not in status(kubectl)


def test_what_the_operator_resolves_is_in_effect_until_something_better_and_a_confirmation_counts_once(
    served: AgentProcess, kubectl: Kubectl
) -> None:
    as_operator(kubectl, {"spec": {"config": {"health": {"holdDownSeconds": 0}}, "configHash": "aa"}})
    wait_until("echo", lambda: status(kubectl).get("appliedConfigHash") == "aa")
    assert applied(kubectl)["reason"] == "Applied"
    assert status(kubectl)["observedGeneration"] == found(kubectl)["metadata"]["generation"]
    impossible = {"sharing": TOO_MANY, "health": {"holdDownSeconds": 0}}
    as_operator(kubectl, {"spec": {"config": impossible, "configHash": "bb"}})
    wait_until("refusal", lambda: applied(kubectl)["reason"] == "ConfigInvalid")
    assert "give fewer replicas" in applied(kubectl)["message"]
    assert status(kubectl)["appliedConfigHash"] == "aa"

    served.edit(h100s(xid79=3, field_230=False))
    wait_until("the fault", lambda: fault(kubectl) == "Xid79")
    bad = next(device["id"] for device in status(kubectl)["devices"] if device["health"]["state"] != "Healthy")
    kubectl.run("annotate", "nodedevices", NODE, f"nodedevices.io/confirm={bad}=recovered@{stamp()}")
    wait_until("recovery", lambda: status(kubectl)["summary"]["healthy"] == 8)
    served.edit(h100s(xid79=3, field_230=False))  # strikes again: the same word counts no more
    wait_until("the fault again", lambda: fault(kubectl) == "Xid79")


def applied(kubectl: Kubectl) -> dict[str, Any]:
    return condition(found(kubectl), "ConfigApplied")


def test_an_api_server_that_is_away_costs_one_write_when_it_is_back(
    apiserver: ApiServer, agent: AgentProcess, kubectl: Kubectl
) -> None:
    lines = _lines_of_the_probe(agent)
    wait_until("its first report is counted", lambda: _lines_of_the_probe(agent) >= lines + 3)
    written = writes(agent)
    apiserver.stop_apiserver()
    for lost in (1, 2, 5):
        agent.edit(h100s(lost=lost))
        count = len(agent.lines("device not healthy"))
        wait_until("the agent has seen it", lambda c=count: len(agent.lines("device not healthy")) > c, every=0.05)  # type: ignore[misc]
    apiserver.start_apiserver()
    wait_until("the fault", lambda: fault(kubectl) == "FallenOffBus")
    lines = _lines_of_the_probe(agent)
    wait_until("more lines", lambda: _lines_of_the_probe(agent) >= lines + 3)
    assert writes(agent) == written + 1
    bad = [one["name"] for one in status(kubectl)["devices"] if one["health"]["state"] != "Healthy"]
    assert bad == ["gpu-1", "gpu-2", "gpu-5"]  # the first two are held down
