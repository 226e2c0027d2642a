"""The whole agent and a stand-in kubelet: no GPU goes to two pods, whatever is restarted, lost, full or not known."""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from nodedevices_plugin.offering import occupancy
from nodedevices_plugin.pipeline import step
from support.fakestore import FakeStore
from support.held_loop import held_loop, plugins_socket
from support.kubelet import AdmissionError, StandInKubelet
from support.running_agent import NODE, RunningAgent

GPU = "nvidia.com/gpu"
FOUR = {"sharing": {"strategy": "timeSlicing", "resources": [{"name": GPU, "replicas": 4}]}}
Start = Callable[..., Any]


def resolved(config: dict[str, Any] | None, *, generation: int = 2) -> dict[str, Any]:
    """The node's object with the operator's word in it."""
    metadata = {"name": NODE, "uid": "nd", "resourceVersion": "100", "generation": generation}
    spec = {} if config is None else {"config": config, "configHash": str(generation)}
    return {"metadata": metadata | {"ownerReferences": [{"uid": "node-uid"}]}, "spec": spec, "status": {}}


class Node(RunningAgent):
    """One agent after the other on the same folders."""

    def __init__(self, folder: Path, kubelet: StandInKubelet) -> None:
        super().__init__(folder, kubelet, "--probe=simulated", "--simulated=h100 x 2")
        self.state = kubelet.plugin_folder / "nodedevices-state.json"
        self.store = FakeStore(item=resolved({}))

    def asks_for(self, config: dict[str, Any], generation: int = 3) -> None:
        assert self.store.item is not None
        self.store.replace(self.store.item | {"spec": resolved(config, generation=generation)["spec"]})

    async def until(self, holds: Callable[[], object]) -> None:
        await self.kubelet.until(holds)


@pytest.fixture
def node(kubelet: StandInKubelet, tmp_path: Path) -> Node:
    return Node(tmp_path, kubelet)


def physical(ids: tuple[str, ...]) -> set[str]:
    return {each.partition("::")[0] for each in ids}


async def refused(allocate: Awaitable[object]) -> str:
    with pytest.raises(AdmissionError) as caught:
        await allocate
    return str(caught.value)


async def test_what_is_granted_while_the_event_loop_is_held_counts_when_it_runs_again(
    node: Node, kubelet: StandInKubelet
) -> None:
    async with node.running():
        await node.until(lambda: kubelet.allocatable(GPU) == 2)
        mine, other = sorted(kubelet.views[GPU].healthy)
        with held_loop(plugins_socket(kubelet)) as caller:
            assert caller.preferred([mine, other], 1) == [mine]
            node.asks_for(FOUR)  # of which the loop hears when it runs again
            assert caller.allocate([mine]).envs["NVIDIA_VISIBLE_DEVICES"] == mine
        await node.until(lambda: kubelet.capacity(GPU) == 8)
        assert kubelet.views[GPU].healthy == {f"{other}::{n}" for n in range(4)}


async def test_since_when_a_pod_has_its_gpu_outlives_the_agent(node: Node, kubelet: StandInKubelet) -> None:
    def since() -> dict[str, str]:
        held = (holder for device in node.devices.values() for holder in device.get("holders", ()))
        return {holder["pod"]: holder["since"] for holder in held}

    async with node.running():
        await node.until(lambda: kubelet.allocatable(GPU) == 2)
        await kubelet.allocate(GPU, 1, pod="train-0")
        await kubelet.allocate(GPU, 1, pod="train-1")
        await node.until(lambda: len(since()) == 2)
        before = since()
    kubelet.release("train-1")
    node.store.statuses.clear()
    async with node.running():
        await node.until(lambda: kubelet.allocatable(GPU) == 2)
        await kubelet.allocate(GPU, 1, pod="train-1")
        await node.until(lambda: len(since()) == 2)
        assert since()["train-0"] == before["train-0"]
        assert since()["train-1"] > before["train-1"]


async def test_a_kubelet_that_forgot_its_pods_ends_no_wait(node: Node, kubelet: StandInKubelet) -> None:
    async with node.running():
        await node.until(lambda: kubelet.allocatable(GPU) == 2)
        whole = await kubelet.allocate(GPU, 1, pod="train")
        node.asks_for(FOUR)
        await node.until(lambda: (kubelet.capacity(GPU), kubelet.allocatable(GPU)) == (8, 4))
        await node.until(lambda: "default/train" in node.condition("ConfigApplied")[1])
        assert node.condition("ConfigApplied")[0] == "WaitingForHolders"
        await kubelet.restart(knows_pods=False)
        await node.until(lambda: node.condition("HoldersKnown")[0] == "PodResourcesIncomplete")
        assert (kubelet.capacity(GPU), kubelet.allocatable(GPU)) == (8, 4)
        for number in range(4):
            share = await kubelet.allocate(GPU, 1, pod=f"share-{number}")
            assert not physical(share.ids) & physical(whole.ids)
        kubelet.knows_pods = True
        await node.until(lambda: node.condition("HoldersKnown")[0] == "Synced")
        assert kubelet.allocatable(GPU) == 4
        kubelet.release("train")
        await node.until(lambda: kubelet.allocatable(GPU) == 8)
        await node.until(lambda: node.condition("ConfigApplied")[0] == "Applied")


async def test_a_gpu_of_an_init_container_goes_to_nobody_in_shares(
    node: Node, kubelet: StandInKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No List shows it, however long it runs: the Allocate is forgotten meanwhile."""
    monkeypatch.setattr(occupancy, "RECENT_SECONDS", 1.0)
    monkeypatch.setattr(step, "RECENT_SECONDS", 1.0)
    async with node.running():
        await node.until(lambda: kubelet.allocatable(GPU) == 2)
        whole = await kubelet.allocate(GPU, 1, pod="convert", container="fetch", init=True)
        lists = kubelet.lists
        await node.until(lambda: kubelet.lists > lists + 1)  # the second one is seconds younger
        node.asks_for(FOUR)
        await node.until(lambda: (kubelet.capacity(GPU), kubelet.allocatable(GPU)) == (8, 4))
        await node.until(lambda: node.condition("ConfigApplied")[0] == "WaitingForHolders")
        for number in range(4):
            share = await kubelet.allocate(GPU, 1, pod=f"share-{number}")
            assert not physical(share.ids) & physical(whole.ids)
        kubelet.release("convert")
        await node.until(lambda: kubelet.allocatable(GPU) == 8)


async def test_a_gpu_of_a_pod_that_ended_while_the_kubelet_was_away_is_offered_again(
    node: Node, kubelet: StandInKubelet
) -> None:
    """The checkpoint names it, and nothing is allocated that would make the kubelet write it."""
    async with node.running():  # an agent that is no pod
        await node.until(lambda: kubelet.allocatable(GPU) == 2)
        await kubelet.allocate(GPU, 2, pod="train")
        node.asks_for(FOUR)
        await node.until(lambda: (kubelet.capacity(GPU), kubelet.allocatable(GPU)) == (8, 0))
        await kubelet.stop()
        kubelet.release("train")
        await kubelet.start()
        await node.until(lambda: kubelet.allocatable(GPU) == 8)


@pytest.mark.parametrize("api_server", ["up", "away"])
async def test_a_lost_state_file_gives_nobody_a_gpu_that_is_shared(
    node: Node, kubelet: StandInKubelet, api_server: str
) -> None:
    node.store = FakeStore(item=resolved(FOUR))
    async with node.running():
        await node.until(lambda: kubelet.allocatable(GPU) == 8)
        share = await kubelet.allocate(GPU, 1, pod="notebook")
        await node.until(node.state.exists)
    node.state.write_bytes(node.state.read_bytes()[:-10])
    node.store = FakeStore(item=resolved(FOUR) if api_server == "up" else resolved(None))
    async with node.running(wait_seconds=600 if api_server == "up" else 1):
        if api_server == "up":
            await node.until(lambda: kubelet.allocatable(GPU) == 8)
            return
        await node.until(lambda: (kubelet.capacity(GPU), kubelet.allocatable(GPU)) == (2, 1))
        other = await kubelet.allocate(GPU, 1, pod="train")
        assert not physical(other.ids) & physical(share.ids)
        await refused(kubelet.allocate(GPU, 1, pod="train-2"))


async def test_a_state_file_of_before_a_change_gives_nobody_a_gpu_that_is_held_since(
    node: Node, kubelet: StandInKubelet
) -> None:
    async with node.running():
        await node.until(lambda: kubelet.allocatable(GPU) == 2)
        await node.until(node.state.exists)
        outdated = node.state.read_bytes()
        node.asks_for(FOUR)
        await node.until(lambda: kubelet.allocatable(GPU) == 8)
        share = await kubelet.allocate(GPU, 1, pod="notebook")
    node.state.write_bytes(outdated)
    node.store = FakeStore(item=resolved(None))
    async with node.running():
        await node.until(lambda: (kubelet.capacity(GPU), kubelet.allocatable(GPU)) == (2, 1))
        other = await kubelet.allocate(GPU, 1, pod="train")
        assert not physical(other.ids) & physical(share.ids)


async def test_no_change_is_in_effect_while_the_disk_is_full(
    node: Node, kubelet: StandInKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = False
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    async with node.running():
        await node.until(lambda: kubelet.allocatable(GPU) == 2 and node.state.exists())
        full = True
        node.asks_for(FOUR)
        await node.until(lambda: node.condition("ConfigApplied")[0] == "StateNotSaved")
        assert "No space left on device" in node.condition("ConfigApplied")[1]
        assert kubelet.capacity(GPU) == 2
        whole = await kubelet.allocate(GPU, 1, pod="train")
    async with node.running():
        await node.until(lambda: kubelet.allocatable(GPU) == 2)
        full = False
        await node.until(lambda: (kubelet.capacity(GPU), kubelet.allocatable(GPU)) == (8, 4))
        share = await kubelet.allocate(GPU, 1, pod="notebook")
        assert not physical(share.ids) & physical(whole.ids)


async def test_a_new_node_offers_nothing_before_the_operators_configuration(
    node: Node, kubelet: StandInKubelet
) -> None:
    node.store = FakeStore(item=None)
    async with node.running(wait_seconds=60):
        await node.until(lambda: node.condition("Ready")[0] == "Starting" and node.condition("Ready")[1])
        assert "the operator's configuration of this node, 60 s at most" in node.condition("Ready")[1]
        assert not kubelet.registered
        node.asks_for(FOUR)
        await node.until(lambda: kubelet.allocatable(GPU) == 8)
        assert {len(each.devices) for each in kubelet.views[GPU].updates} == {8}, "no whole GPU was ever offered"


async def test_a_node_without_an_operator_serves_after_that_time(node: Node, kubelet: StandInKubelet) -> None:
    node.store = FakeStore(item=resolved(None))
    async with node.running(wait_seconds=1):
        await node.until(lambda: kubelet.allocatable(GPU) == 2)
    async with node.running(wait_seconds=600):  # what was in effect is remembered now
        await node.until(lambda: kubelet.allocatable(GPU) == 2)
