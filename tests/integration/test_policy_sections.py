"""Every section that an agent acts on, all the way: policy, real operator, real API server, real agent, what it offers.

The kubelet is the stand-in, so that what it is offered and answered can be seen. The devices are a whole H100, index 0,
and one in MIG mode with two MIG devices of one profile. All of it happens to one agent, which is never restarted.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.agentprocess import NODE, AgentProcess
from support.apiserver import ApiServer
from support.fleet import FleetNode, policy
from support.kubectl import Kubectl, condition, wait_until
from support.kubelet import StandInKubelet

GPU, SHARED, MIG, OURS = "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb", "example.com/h100"
DEVICES = """
profile: h100 x 2
devices:
- {index: 1, migEnabled: true, mig: [{profile: 1g.10gb}, {profile: 1g.10gb}]}
"""
XID13 = f"{DEVICES}\nevents:\n- {{id: first, device: 0, xid: 13}}\n"


@pytest.fixture
async def kubelet() -> AsyncIterator[StandInKubelet]:
    async with StandInKubelet() as kubelet:
        yield kubelet


@pytest.fixture
async def agent(
    apiserver: ApiServer, kubectl: Kubectl, kubelet: StandInKubelet, tmp_path: Path
) -> AsyncIterator[AgentProcess]:
    kubectl.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    made = AgentProcess(
        tmp_path,
        kubelet_dir=kubelet.root,
        devices=DEVICES,
        arguments=(f"--kubeconfig={apiserver.kubeconfig}",),
        variables={"NODEDEVICES_CDI_WITHOUT_LIBRARIES": "true"},
    )
    async with made:
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 2)
        yield made
        assert made.alive


async def seen(what: str, look: Callable[[], object]) -> None:
    """kubectl blocks; the stand-in kubelet must go on answering meanwhile."""
    await asyncio.to_thread(wait_until, what, lambda: look() or None)


@pytest.mark.usefixtures("operator", "agent")
@pytest.mark.parametrize(
    ("section", "offers"),
    [
        ({"resources": {"devices": [{"match": {"productName": "*H100*"}, "name": OURS}]}}, {GPU: 0, OURS: 2}),
        ({"resources": {"exclude": ["GPU-*"]}}, {GPU: 0}),
        (
            {"sharing": {"strategy": "timeSlicing", "resources": [{"name": GPU, "devices": ["0"], "replicas": 3}]}},
            {GPU: 4},
        ),
        (
            {
                "sharing": {
                    "strategy": "timeSlicing",
                    "renameByDefault": True,
                    "failRequestsGreaterThanOne": True,
                    "resources": [{"name": GPU, "replicas": 3}],
                }
            },
            {GPU: 0, SHARED: 6},
        ),
        ({"partitions": {"strategy": "mixed"}}, {GPU: 1, MIG: 2}),
        ({"serving": {"mode": "Observe"}}, {GPU: 0}),
    ],
    ids=["names", "exclude", "some shared", "shared under another name", "mig mixed", "observe"],
)
async def test_a_section_of_a_policy_changes_what_the_kubelet_is_offered_and_its_end_takes_it_back(
    kubelet: StandInKubelet, kubectl: Kubectl, section: dict[str, Any], offers: dict[str, int]
) -> None:
    def offered() -> dict[str, int]:
        return {name: kubelet.allocatable(name) for name in offers}

    kubectl.apply(policy("section", **section))
    await kubelet.until(lambda: offered() == offers)
    await seen("accepted", lambda: condition(kubectl.get("dp", "section"), "Accepted").get("status") == "True")
    await seen("applied", lambda: condition(kubectl.get("dp", "section"), "Applied").get("status") == "True")
    assert (kubectl.get("nodedevices", NODE) or {})["spec"]["config"] == section
    await asyncio.to_thread(kubectl.delete, "dp", "section")
    await kubelet.until(lambda: offered() == dict.fromkeys(offers, 0) | {GPU: 2})


@pytest.mark.usefixtures("operator", "agent")
async def test_a_name_that_no_node_offers_is_reported_on_the_node_and_to_the_policys_author(kubectl: Kubectl) -> None:
    entry = {"name": "nvidia.com/gpuu", "replicas": 3}
    kubectl.apply(policy("section", sharing={"strategy": "timeSlicing", "resources": [entry]}))
    shown = f"sharing.resources[0].name nvidia.com/gpuu: no such resource on this node; offered: {GPU}"
    await seen("on the node", lambda: condition(kubectl.get("nodedevices", NODE), "ConfigApplied")["message"] == shown)
    await seen("on the policy", lambda: shown in condition(kubectl.get("dp", "section"), "Applied").get("message", ""))
    for kind, name, about in (("nodedevices", NODE, "ConfigApplied"), ("dp", "section", "Applied")):
        assert condition(kubectl.get(kind, name), about)["status"] == "True"


@pytest.mark.usefixtures("operator", "agent")
async def test_an_excluded_gpu_is_seen_as_such_on_the_node_and_not_while_another_plugin_serves(
    kubectl: Kubectl,
) -> None:
    def devices() -> list[dict[str, Any]]:
        found = kubectl.get("nodedevices", NODE) or {}
        return list(found.get("status", {}).get("devices", ()))

    def excluded() -> list[str | None]:
        return [each.get("excluded") for each in devices()]

    def column() -> str:
        header, line = kubectl.run("get", "nodedevices", NODE, "-o", "wide").splitlines()
        return line[header.index("WITHHELD") :].split()[0]

    await seen("the first report", devices)
    second = devices()[1]["id"]
    kubectl.apply(policy("section", resources={"exclude": [second]}))
    await seen("on the device", lambda: excluded() == [None, second])
    assert column() == "Excluded=1"
    kubectl.apply(policy("section", resources={"exclude": [second]}, serving={"mode": "Observe"}))
    await seen("not ours to keep back", lambda: excluded() == [None, None])


@pytest.mark.usefixtures("operator", "agent")
async def test_of_several_policies_the_one_fails_whose_section_the_agent_refuses(kubectl: Kubectl) -> None:
    """This agent has no folder for MPS."""

    def shown(name: str) -> tuple[str, str]:
        found = condition(kubectl.get("dp", name), "Applied")
        return found.get("reason", ""), found.get("message", "")

    FleetNode(kubectl, NODE).kubelet({GPU: 2})  # the Node is Ready: its agent's word counts
    clients = {"strategy": "mps", "resources": [{"name": GPU, "replicas": 2}]}
    slices = {"strategy": "timeSlicing", "resources": [{"name": GPU, "replicas": 2}]}
    kubectl.apply(
        policy("strong", priority=10, sharing=clients),
        policy("weak", sharing=slices),
        policy("beside", health={"holdDownSeconds": 5}),
    )
    why = (
        f"{NODE}: sharing.strategy: mps: needs the host's directory for MPS; install the component mps, "
        "or give --mps-root (MPS_ROOT); "
        "the previous configuration stays in effect"
    )
    await seen("failed", lambda: shown("strong") == ("Failed", f"1 of 1 nodes: {why}"))
    await seen("waits", lambda: shown("beside") == ("Progressing", f"in effect on 0 of 1 nodes; {why}"))
    await seen("overridden", lambda: shown("weak")[0] == "NoNodes")
    await asyncio.to_thread(kubectl.delete, "dp", "strong")
    await seen("the weak one alone", lambda: shown("weak")[0] == "Applied")
    await seen("no longer waits", lambda: shown("beside")[0] == "Applied")


@pytest.mark.usefixtures("operator", "agent")
async def test_policies_that_make_no_sense_together_leave_the_last_good_configuration_and_both_say_why(
    kubelet: StandInKubelet, kubectl: Kubectl
) -> None:
    """The API server takes each of them; only the node sees both."""

    def said(kind: str, name: str, about: str) -> tuple[str, str]:
        found = condition(kubectl.get(kind, name), about)
        return found.get("reason", ""), found.get("message", "")

    FleetNode(kubectl, NODE).kubelet({GPU: 2})
    slices = {"strategy": "timeSlicing", "resources": [{"name": GPU, "devices": ["0"], "replicas": 3}]}
    kubectl.apply(policy("sharing", sharing=slices), policy("cut", partitions={"strategy": "mixed"}))
    offered = {GPU: 3, MIG: 2}
    await kubelet.until(lambda: {name: kubelet.allocatable(name) for name in offered} == offered)
    await seen("applied", lambda: said("dp", "cut", "Applied")[0] == "Applied")
    applied = (kubectl.get("nodedevices", NODE) or {})["status"]["appliedConfigHash"]
    clients = {"strategy": "mps", "resources": [{"name": GPU, "replicas": 2}]}
    kubectl.apply(policy("sharing", sharing=clients))
    why = "sharing.strategy: mps: not possible with partitions.strategy mixed; use timeSlicing, or none"
    await seen("on the one", lambda: said("dp", "sharing", "Applied")[0] == "Failed")
    await seen("on the other", lambda: why in said("dp", "cut", "Applied")[1])
    assert why in said("dp", "sharing", "Applied")[1]
    assert why in said("nodedevices", NODE, "ConfigApplied")[1]
    assert said("nodedevices", NODE, "ConfigApplied")[0] == "ConfigInvalid"
    assert (kubectl.get("nodedevices", NODE) or {})["status"]["appliedConfigHash"] == applied
    assert {name: kubelet.allocatable(name) for name in offered} == offered


@pytest.mark.usefixtures("operator", "agent")
async def test_injection_by_a_policy_is_what_the_next_container_gets(kubelet: StandInKubelet, kubectl: Kubectl) -> None:
    section = {"deviceListStrategies": ["volume-mounts", "cdi-cri"], "deviceIDStrategy": "index"}
    kubectl.apply(policy("section", injection=section, sharing={"strategy": "none"}))
    await seen("applied", lambda: condition(kubectl.get("dp", "section"), "Applied").get("status") == "True")
    granted = await kubelet.allocate(GPU, 2)
    assert granted.answer.envs["NVIDIA_VISIBLE_DEVICES"] == "/var/run/nvidia-container-devices"
    assert {each.container_path for each in granted.answer.mounts} == {
        "/var/run/nvidia-container-devices/0",
        "/var/run/nvidia-container-devices/1",
    }
    assert granted.answer.cdi_devices


@pytest.mark.usefixtures("operator")
async def test_xids_of_a_policy_decide_what_is_a_fault(
    agent: AgentProcess, kubelet: StandInKubelet, kubectl: Kubectl
) -> None:
    """XID 13 is an application's own fault by the catalogue."""
    rules = [{"reasons": ["Xid13"], "state": "Unhealthy"}, {"reasons": ["Xid79"], "state": "Ignored"}]
    kubectl.apply(policy("section", health={"rules": rules}))
    await seen("applied", lambda: condition(kubectl.get("dp", "section"), "Applied").get("status") == "True")
    agent.edit(XID13.replace("xid: 13", "xid: 79"))
    agent.edit(XID13)
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 1)
    await seen("reported", lambda: (kubectl.get("nodedevices", NODE) or {})["status"]["summary"]["reason"] == "Xid13")


@pytest.mark.usefixtures("operator")
async def test_a_reading_that_a_policy_calls_too_high_is_shown_everywhere_and_takes_the_device_from_nobody(
    agent: AgentProcess, kubelet: StandInKubelet, kubectl: Kubectl
) -> None:
    def shown() -> tuple[str, str, int, str]:
        status = (kubectl.get("nodedevices", NODE) or {})["status"]
        first = status["devices"][0]["health"]
        summary = status["summary"]
        return first["state"], first.get("reason", ""), summary.get("degraded", 0), summary.get("reason", "")

    agent.edit(DEVICES.replace("devices:", "devices:\n- {index: 0, temperatureCelsius: 90}"))
    kubectl.apply(policy("section", health={"degraded": [{"signal": "temperatureCelsius", "threshold": 85}]}))
    await seen("degraded", lambda: shown() == ("Degraded", "TemperatureCelsius", 1, "TemperatureCelsius"))
    healthy = condition(kubectl.get("nodedevices", NODE), "DevicesHealthy")
    assert (healthy["status"], healthy["message"]) == ("True", "degraded: 1 of 2: gpu-0 TemperatureCelsius (not held)")
    assert 'nodedevices_devices{state="degraded"} 1' in agent.get("/metrics")[1]
    assert kubelet.allocatable(GPU) == 2
    await asyncio.to_thread(kubectl.delete, "dp", "section")
    await seen("well without the policy", lambda: shown() == ("Healthy", "", 0, ""))


@pytest.mark.usefixtures("operator")
async def test_devices_that_a_policy_expects_are_reported_until_they_are_found_and_without_it_not_at_all(
    agent: AgentProcess, kubelet: StandInKubelet, kubectl: Kubectl
) -> None:
    def shown() -> tuple[str | None, str | None]:
        found = condition(kubectl.get("nodedevices", NODE), "ExpectedDevices")
        return found.get("status"), found.get("reason")

    kubectl.apply(policy("section", expect=[{"match": {"type": "gpu"}, "count": 3}]))
    await seen("too few", lambda: shown() == ("False", "Expected3Found2"))
    assert kubelet.allocatable(GPU) == 2
    agent.edit(DEVICES.replace("x 2", "x 3"))
    await seen("all of them", lambda: shown() == ("True", "AllFound"))
    kubectl.apply(policy("section", expect=[{"match": {"type": "nic"}, "count": 1}]))
    await seen("none of an entry", lambda: shown() == ("False", "Expected1Found0"))
    assert condition(kubectl.get("nodedevices", NODE), "Ready")["status"] == "True"
    assert kubelet.allocatable(GPU) == 3
    await asyncio.to_thread(kubectl.delete, "dp", "section")
    await seen("nothing is expected", lambda: shown() == (None, None))


@pytest.mark.usefixtures("operator")
async def test_a_missing_gpu_leaves_the_node_in_time_but_not_while_a_pod_holds_it(
    agent: AgentProcess, kubelet: StandInKubelet, kubectl: Kubectl
) -> None:
    """The agent is stopped for an hour, as its state file has it, so that nobody waits for one."""

    def states() -> list[tuple[int, str]]:
        found = kubectl.get("nodedevices", NODE) or {}
        return [(each["index"], each["health"]["state"]) for each in found.get("status", {}).get("devices", ())]

    async def an_hour_passes() -> None:
        agent.kill()
        state = json.loads(agent.state_file.read_text())
        for device in state["devices"]:
            if not device["present"]:
                device["last_seen"] = _earlier(device["last_seen"])
        agent.state_file.write_text(json.dumps(state))
        agent.start()

    kubectl.apply(policy("section", health={"forgetMissingSeconds": 600}))
    await seen("applied", lambda: condition(kubectl.get("dp", "section"), "Applied").get("status") == "True")
    await kubelet.allocate(GPU, 2, pod="train")
    agent.edit("profile: h100 x 2\ndevices:\n- {index: 1, absent: true}\n")
    await seen("missing", lambda: states() == [(0, "Healthy"), (1, "Unhealthy")])
    await an_hour_passes()
    for again in ("serving metrics and health", "pod resources"):
        await agent.until(lambda again=again: len(agent.lines(again)) == 2)  # type: ignore[misc]
    await agent.until(lambda: _lines(agent) > 3)
    assert states() == [(0, "Healthy"), (1, "Unhealthy")], "its pod runs"
    assert len(kubelet.views[GPU].devices) == 2
    kubelet.release("train")
    await seen("forgotten", lambda: states() == [(0, "Healthy")])
    await kubelet.until(lambda: len(kubelet.views[GPU].devices) == 1)
    agent.edit("profile: h100 x 2\n")
    await seen("a new device", lambda: states() == [(0, "Healthy"), (1, "Healthy")])


def _earlier(time: str) -> str:
    return (datetime.fromisoformat(time) - timedelta(hours=1)).isoformat()


def _lines(agent: AgentProcess) -> float:
    """Good lines of the probe since the agent started."""
    return sum(
        float(line.rpartition(" ")[2])
        for line in agent.get("/metrics")[1].splitlines()
        if line.startswith("nodedevices_probe_lines_total")
    )
