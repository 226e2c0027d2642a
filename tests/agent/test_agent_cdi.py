"""CDI by the real agent: whose specification is used, and that it follows devices and configuration."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.agentprocess import agent_on
from support.kubelet import StandInKubelet

GPU = "nvidia.com/gpu"
OURS = "k8s.device-plugin.nvidia.com"
CDI = "version: v1\nflags: {plugin: {deviceListStrategy: [cdi-cri]}}\n"
LIBRARY = {"mounts": [{"hostPath": "/lib/libcuda.so.1", "containerPath": "/lib/libcuda.so.1"}]}
CTK = """\
#!/bin/sh
cat "$(dirname "$0")/made.json"
"""
NODES_ALONE = "NODEDEVICES_CDI_WITHOUT_LIBRARIES"


class Node:
    """An agent, its folder for CDI, and what the container toolkit puts beside it."""

    def __init__(self, folder: Path, kubelet: StandInKubelet) -> None:
        self.kubelet = kubelet
        self.cdi, self.programs, self.config = folder / "cdi", folder / "bin", folder / "config.yaml"
        self.programs.mkdir()
        self.cdi.mkdir()
        self.config.write_text(CDI)
        self.agent = agent_on(
            kubelet,
            folder,
            devices="profile: l4 x 2\n",
            arguments=(
                "--standalone",
                f"--config-file={self.config}",
                f"--cdi-spec-dirs={self.cdi}",
            ),
            environment={**os.environ, "PATH": f"{self.programs}:{os.environ['PATH']}"},
            variables={NODES_ALONE: "true"},
        )

    @property
    def files(self) -> set[str]:
        return {each.name for each in self.cdi.iterdir() if not each.name.startswith(".")}

    def spec(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.cdi / f"{OURS}-gpu.json").read_text())
        return found

    def names(self) -> list[str]:
        return [each["name"] for each in self.spec()["devices"]]

    async def given(self) -> str:
        """The CDI name that a container gets for one GPU."""
        granted = await self.kubelet.allocate(GPU, 1)
        self.kubelet.release("pod")
        (device,) = granted.answer.cdi_devices
        return str(device.name)


@pytest.fixture
async def node(tmp_path: Path, kubelet: StandInKubelet) -> AsyncIterator[Node]:
    node = Node(tmp_path, kubelet)
    yield node
    node.agent.kill()
    print(node.agent.log.read_text())


@pytest.fixture
def strict(node: Node) -> Node:
    """The same where device nodes alone will not do: the default."""
    del node.agent.variables[NODES_ALONE]
    return node


def toolkit_has(node: Node, *indices: int) -> Path:
    """The container toolkit's own specification, with libraries."""
    entries = [
        {"name": str(index), "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia{index}"}]}} for index in indices
    ]
    document = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": entries, "containerEdits": LIBRARY}
    path = node.cdi / "nvidia.json"
    path.write_text(json.dumps(document))
    return path


def configuration(node: Node) -> tuple[str, str]:
    """The condition ConfigApplied as it was said last: reason and message."""
    said = node.agent.lines("configuration")
    return (said[-1]["condition"], said[-1]["message"]) if said else ("", "")


async def start(node: Node) -> None:
    node.agent.start()
    await node.kubelet.until(lambda: node.kubelet.allocatable(GPU) == 2)


async def test_without_the_toolkit_a_minimal_specification_is_there_before_anything_is_offered_and_follows_the_devices(
    node: Node,
) -> None:
    await start(node)
    assert (await node.given()) in {f"{OURS}/gpu={name}" for name in node.names()}
    assert [each["path"] for each in node.spec()["devices"][0]["containerEdits"]["deviceNodes"]] == ["/dev/nvidia0"]
    node.agent.edit("profile: l4 x 3\n")
    await node.kubelet.until(lambda: node.kubelet.allocatable(GPU) == 3)
    assert len(node.names()) == 3


async def test_nvidia_ctk_makes_it_where_there_is_one(node: Node) -> None:
    await start(node)
    ids = node.names()
    node.agent.kill()
    await node.kubelet.until(lambda: node.kubelet.allocatable(GPU) == 0)
    entries = [
        {"name": name, "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia{place}"}]}}
        for place, name in enumerate(ids)
    ]
    made = {"cdiVersion": "0.5.0", "kind": f"{OURS}/gpu", "devices": entries, "containerEdits": LIBRARY}
    (node.programs / "made.json").write_text(json.dumps(made))
    (node.programs / "nvidia-ctk").write_text(CTK)
    (node.programs / "nvidia-ctk").chmod(0o755)
    await start(node)
    assert node.spec() == made
    node.agent.edit("profile: l4 x 3\n")  # which it does not know of: what it makes cannot be used any more
    await node.kubelet.until(lambda: node.kubelet.allocatable(GPU) == 3)
    await node.agent.until(lambda: len(node.names()) == 3)
    assert "has no GPU-" in node.agent.lines("nvidia-ctk failed to generate a CDI specification")[-1]["why"]


# --- never without the driver's libraries, unless it is configured ---------------------------------------------------
async def test_without_libraries_a_cdi_strategy_is_refused_and_a_file_of_nvidias_plugin_stays_as_it_is(
    strict: Node,
) -> None:
    node = strict
    theirs = node.cdi / f"{OURS}-gpu.json"
    theirs.write_text(text := json.dumps({"cdiVersion": "0.5.0", "kind": f"{OURS}/gpu", "containerEdits": LIBRARY}))
    node.agent.start()
    await node.agent.until(lambda: configuration(node)[0] == "ConfigInvalid")
    said = configuration(node)[1]
    assert said.startswith("injection.deviceListStrategies: cdi-cri: no CDI specification with the driver's libraries")
    assert "nvidia-ctk is not in the agent's image" in said
    assert NODES_ALONE in said
    assert said.endswith("nothing is offered until there is a valid configuration")
    assert node.kubelet.allocatable(GPU) == 0
    assert theirs.read_text() == text

    toolkit_has(node, 0, 1)
    await node.kubelet.until(lambda: node.kubelet.allocatable(GPU) == 2)
    assert await node.given() in {"nvidia.com/gpu=0", "nvidia.com/gpu=1"}


async def test_after_a_restart_without_any_specification_nothing_is_offered_until_there_is_one(strict: Node) -> None:
    """As after a reboot: /var/run is empty, and the toolkit's service may come later."""
    node = strict
    file = toolkit_has(node, 0, 1)
    await start(node)
    node.agent.kill()
    await node.kubelet.until(lambda: node.kubelet.allocatable(GPU) == 0)
    file.unlink()
    node.agent.start()
    await node.agent.until(lambda: configuration(node)[0] == "ConfigInvalid")
    assert configuration(node)[1].endswith("devices that need it are not offered until then")
    assert node.kubelet.allocatable(GPU) == 0
    assert not node.files
    toolkit_has(node, 0, 1)
    await node.kubelet.until(lambda: node.kubelet.allocatable(GPU) == 2)
