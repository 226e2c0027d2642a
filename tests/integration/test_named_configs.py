"""Named configurations all the way: the Node's label, the real operator, the real API server, the real agent.

The kubelet is the stand-in, so that what it is offered can be seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from support.agentprocess import NODE, AgentProcess
from support.apiserver import ApiServer
from support.kubectl import Kubectl, condition, wait_until
from support.kubelet import StandInKubelet

GPU = "nvidia.com/gpu"
LABEL = "nvidia.com/device-plugin.config"


@pytest.fixture
def configs(tmp_path: Path) -> Path:
    """`default` shares nothing, `twice` and `fourfold` share each GPU."""
    folder = tmp_path / "available-configs"
    folder.mkdir()
    (folder / "default").write_text("version: v1\n")
    for name, replicas in (("twice", 2), ("fourfold", 4)):
        (folder / name).write_text(sliced(replicas))
    return folder


def sliced(replicas: int) -> str:
    return f"version: v1\nsharing: {{timeSlicing: {{resources: [{{name: nvidia.com/gpu, replicas: {replicas}}}]}}}}\n"


@pytest.fixture
async def kubelet() -> AsyncIterator[StandInKubelet]:
    async with StandInKubelet() as kubelet:
        yield kubelet


@pytest.fixture
async def agent(
    apiserver: ApiServer, kubectl: Kubectl, kubelet: StandInKubelet, tmp_path: Path, configs: Path
) -> AsyncIterator[AgentProcess]:
    """Four L4s on a Node without the label."""
    kubectl.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    made = AgentProcess(
        tmp_path,
        kubelet_dir=kubelet.root,
        devices="profile: l4 x 4\n",
        arguments=(f"--kubeconfig={apiserver.kubeconfig}", f"--config-dir={configs}"),
    )
    async with made:
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 4)
        yield made


async def seen(what: str, look: Callable[[], object]) -> None:
    """kubectl blocks; the stand-in kubelet must go on answering meanwhile."""
    await asyncio.to_thread(wait_until, what, lambda: look() or None)


@pytest.mark.usefixtures("operator")
async def test_the_nodes_label_chooses_the_file_without_a_restart(
    agent: AgentProcess, kubelet: StandInKubelet, kubectl: Kubectl, configs: Path
) -> None:
    def applied() -> dict[str, str]:
        return condition(kubectl.get("nodedevices", NODE) or {}, "ConfigApplied")

    def active() -> bool:
        item = kubectl.get("nodedevices", NODE) or {}
        return bool(item["status"]["appliedConfigHash"] == item["spec"]["configHash"])

    kubectl.run("label", "node", NODE, f"{LABEL}=twice")
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 8)
    await seen("which one", lambda: "configuration 'twice'" in applied().get("message", ""))
    await seen("in effect", active)

    (configs / "twice").write_text(sliced(3))
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 12)

    kubectl.run("label", "--overwrite", "node", NODE, f"{LABEL}=twise")
    await seen("refused", lambda: applied().get("reason") == "ConfigInvalid")
    await seen("what there is", lambda: "available: default, fourfold, twice" in applied().get("message", ""))
    assert kubelet.allocatable(GPU) == 12

    agent.kill()
    agent.start()
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 12)

    kubectl.run("label", "--overwrite", "node", NODE, f"{LABEL}=fourfold")
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 16)
    kubectl.run("label", "node", NODE, f"{LABEL}-")
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 4)
    await seen("in effect", active)
