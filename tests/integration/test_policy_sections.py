"""Every section that an agent acts on, all the way: policy, real operator, real API server, real agent, what it offers.

The kubelet is the stand-in, so that what it is offered and answered can be seen. The devices are a whole H100, index 0,
and one in MIG mode with two MIG devices of one profile. All of it happens to one agent, which is never restarted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from support.agentprocess import NODE, AgentProcess
from support.apiserver import ApiServer
from support.fleet import policy
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
async def test_injection_by_a_policy_is_what_the_next_container_gets(kubelet: StandInKubelet, kubectl: Kubectl) -> None:
    section = {"deviceListStrategies": ["volume-mounts", "cdi-cri"], "deviceIDStrategy": "index"}
    kubectl.apply(policy("section", injection=section, sharing={"strategy": "none"}))
    await seen("applied", lambda: condition(kubectl.get("dp", "section"), "Applied").get("status") == "True")
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 1)  # CDI has no name for one that is in MIG mode
    granted = await kubelet.allocate(GPU, 1)
    assert granted.answer.envs["NVIDIA_VISIBLE_DEVICES"] == "/var/run/nvidia-container-devices"
    assert [mount.container_path for mount in granted.answer.mounts] == ["/var/run/nvidia-container-devices/0"]
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
