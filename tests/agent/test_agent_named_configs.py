"""The real agent and a folder of configuration files, on its own: default, edits, and names that are not there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.agentprocess import AgentProcess
from support.kubelet import StandInKubelet

GPU = "nvidia.com/gpu"


def sliced(replicas: int) -> str:
    return f"version: v1\nsharing: {{timeSlicing: {{resources: [{{name: nvidia.com/gpu, replicas: {replicas}}}]}}}}\n"


@pytest.fixture
def configs(tmp_path: Path) -> Path:
    folder = tmp_path / "available-configs"
    folder.mkdir()
    (folder / "twice").write_text(sliced(2))
    (folder / "fourfold").write_text(sliced(4))
    return folder


@pytest.fixture
def make(kubelet: StandInKubelet, tmp_path: Path, configs: Path) -> Callable[..., AgentProcess]:
    """An agent of four L4s with these variables; not started yet."""

    def made(**environment: str) -> AgentProcess:
        return AgentProcess(
            tmp_path,
            plugin_folder=kubelet.plugin_folder,
            pod_resources_socket=kubelet.pod_resources_socket,
            devices="profile: l4 x 4\n",
            environment={"PATH": "/usr/bin", "CONFIG_FILE_SRCDIR": str(configs), **environment},
        )

    return made


def said(agent: AgentProcess) -> str:
    lines = agent.lines("configuration")
    return str(lines[-1]["message"]) if lines else ""


async def test_the_default_applies_without_a_label_and_follows_edits(
    make: Callable[..., AgentProcess], kubelet: StandInKubelet, configs: Path
) -> None:
    async with make(DEFAULT_CONFIG="twice"):
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 8)
        (configs / "fourfold").write_text("no yaml: [")  # not the one that applies
        (configs / "twice").write_text(sliced(3))
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 12)


async def test_a_file_that_disappears_leaves_the_last_good_one_in_effect(
    make: Callable[..., AgentProcess], kubelet: StandInKubelet, configs: Path
) -> None:
    async with make(DEFAULT_CONFIG="twice") as agent:
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 8)
        (configs / "twice").unlink()
        await agent.until(lambda: "available: fourfold; the previous configuration stays in effect" in said(agent))
        assert kubelet.allocatable(GPU) == 8


async def test_where_none_can_be_chosen_at_the_first_start_nothing_is_offered_until_one_can(
    make: Callable[..., AgentProcess], kubelet: StandInKubelet, configs: Path
) -> None:
    async with make() as agent:
        await agent.until(lambda: "available: fourfold, twice; nothing is offered" in said(agent))
        assert not kubelet.registered
        (configs / "twice").unlink()
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 16)


async def test_the_fallback_empty_leaves_flags_and_variables_alone(
    make: Callable[..., AgentProcess], kubelet: StandInKubelet
) -> None:
    async with make(FALLBACK_STRATEGIES="named,single,empty"):
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 4)
