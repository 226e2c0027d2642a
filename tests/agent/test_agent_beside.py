"""The real agent, configured to serve, where another device plugin serves already: it takes nothing away, and says
so."""

from __future__ import annotations

import urllib.error
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from nodedevices_probe.simulated.probe import ProfileSource
from support.agentprocess import NODE, AgentProcess
from support.kubelet import StandInKubelet
from support.vendor import VendorProcess

GPU = "nvidia.com/gpu"
VENDOR = "nvidia-gpu.sock"
DEVICES = "profile: l4 x 4\n"


@pytest.fixture
async def made(kubelet: StandInKubelet, tmp_path: Path) -> AsyncIterator[AgentProcess]:
    """Four L4s; not started yet."""
    agent = AgentProcess(
        tmp_path,
        plugin_folder=kubelet.plugin_folder,
        pod_resources_socket=kubelet.pod_resources_socket,
        devices=DEVICES,
    )
    yield agent
    agent.kill()
    print(agent.log.read_text())  # pytest shows it when the test fails


@pytest.fixture
def ids() -> list[str]:
    """The node's devices."""
    return [each.id for each in ProfileSource.for_profile("l4 x 4", node=NODE).poll().devices]


def ready(agent: AgentProcess) -> tuple[int, str]:
    try:
        return agent.get("/readyz")
    except (IndexError, urllib.error.URLError):
        return 0, ""


def endpoints(kubelet: StandInKubelet) -> list[str]:
    return [request.endpoint for request in kubelet.registered]


async def serves(kubelet: StandInKubelet) -> None:
    """Waits until the kubelet's devices are the agent's."""
    await kubelet.until(lambda: endpoints(kubelet)[-1] != VENDOR and kubelet.allocatable(GPU) == 4)


async def waits(agent: AgentProcess) -> str:
    """What it says once it waits."""
    await agent.until(lambda: "another device plugin serves" in ready(agent)[1])
    status, text = ready(agent)
    assert status == 503
    return text


async def test_it_leaves_the_name_to_who_serves_it_says_so_and_serves_when_that_one_is_gone(
    made: AgentProcess, kubelet: StandInKubelet, tmp_path: Path, ids: list[str]
) -> None:
    with VendorProcess(tmp_path, kubelet.plugin_folder, ids) as vendor:
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 4)
        made.start()
        text = await waits(made)
        assert f"serves {GPU} to this kubelet: 4 healthy ids, such as {min(ids)}; remove it from this node, or" in text
        looks = kubelet.offers_asked
        await kubelet.until(lambda: kubelet.offers_asked >= looks + 2)
        assert endpoints(kubelet) == [VENDOR]
        granted = await kubelet.allocate(GPU, 1)
        assert granted.answer.envs["ALLOCATED_BY"] == "vendor"
        metrics = made.get("/metrics")[1]
        assert f'nodedevices_resource_served_by_another{{resource="{GPU}"}} 1.0' in metrics
        assert f'nodedevices_resource_healthy{{resource="{GPU}"}} 0.0' in metrics
        logged = [each for each in made.lines("registration") if each["state"] == "ServedByAnother"]
        assert len(logged) == 1
        vendor.end()
        await serves(kubelet)
        await made.until(lambda: ready(made)[0] == 200)
        assert len(endpoints(kubelet)) == 2
        assert kubelet.ids_in_use(GPU) == set(granted.ids)
        assert set((await kubelet.allocate(GPU, 3, pod="next")).ids) == set(ids) - set(granted.ids)


async def test_shares_of_its_devices_under_another_name_are_in_its_way(
    made: AgentProcess, kubelet: StandInKubelet, tmp_path: Path, ids: list[str]
) -> None:
    arguments = ("--replicas=2", "--resource=nvidia.com/gpu.shared")
    with VendorProcess(tmp_path, kubelet.plugin_folder, ids, *arguments) as vendor:
        await kubelet.until(lambda: kubelet.allocatable("nvidia.com/gpu.shared") == 8)
        made.start()
        assert "nvidia.com/gpu.shared to this kubelet: 8 healthy ids" in await waits(made)
        vendor.end()
        await serves(kubelet)


async def test_a_plugin_that_comes_later_with_its_devices_under_another_name_has_them_alone(
    made: AgentProcess, kubelet: StandInKubelet, tmp_path: Path, ids: list[str]
) -> None:
    made.start()
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 4)
    held = await kubelet.allocate(GPU, 1, pod="train")
    with VendorProcess(
        tmp_path, kubelet.plugin_folder, ids, "--resource=nvidia.com/gpu.shared", "--replicas=2"
    ) as vendor:
        assert "nvidia.com/gpu.shared to this kubelet: 8 healthy ids" in await waits(made)
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 0)
        given = await kubelet.allocate("nvidia.com/gpu.shared", 1, pod="other")
        assert kubelet.ids_in_use(GPU) == set(held.ids)
        vendor.end()
        await made.until(lambda: ready(made)[0] == 200)
    taken = {each.partition("::")[0] for each in given.ids}
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 4 - len(taken))


async def test_other_devices_of_another_plugin_are_not(
    made: AgentProcess, kubelet: StandInKubelet, tmp_path: Path
) -> None:
    with VendorProcess(tmp_path, kubelet.plugin_folder, ["nic-0", "nic-1"], "--resource=nvidia.com/nic"):
        await kubelet.until(lambda: kubelet.allocatable("nvidia.com/nic") == 2)
        made.start()
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 4)
        assert not [each for each in made.lines("registration") if each["state"] == "ServedByAnother"]


async def test_a_kubelet_restart_does_not_turn_the_two_round(
    made: AgentProcess, kubelet: StandInKubelet, tmp_path: Path, ids: list[str]
) -> None:
    with VendorProcess(tmp_path, kubelet.plugin_folder, ids) as vendor:
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 4)
        made.start()
        await waits(made)
        for count in (2, 3):
            await kubelet.restart()
            await kubelet.until(lambda: kubelet.allocatable(GPU) == 4)
            looks = kubelet.offers_asked
            await kubelet.until(lambda: kubelet.offers_asked >= looks + 2)  # noqa: B023  waited for right here
            assert endpoints(kubelet) == [VENDOR] * count
        vendor.end()
        await serves(kubelet)


async def test_its_own_restarts_and_the_kubelets_are_as_before(made: AgentProcess, kubelet: StandInKubelet) -> None:
    made.start()
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 4)
    made.kill()
    made.start()
    await kubelet.until(lambda: kubelet.registrations_of(GPU) == 2 and kubelet.allocatable(GPU) == 4)
    await kubelet.restart()
    await kubelet.until(lambda: kubelet.registrations_of(GPU) == 3 and kubelet.allocatable(GPU) == 4)
    assert not [each for each in made.lines("registration") if each["state"] == "ServedByAnother"]


async def test_an_older_agent_that_still_runs_is_not_another_plugin(
    made: AgentProcess, kubelet: StandInKubelet, tmp_path: Path
) -> None:
    folder = tmp_path / "older"
    folder.mkdir()
    older = AgentProcess(
        folder, plugin_folder=kubelet.plugin_folder, pod_resources_socket=kubelet.pod_resources_socket, devices=DEVICES
    )
    with older:
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 4)
        made.start()
        await made.until(lambda: ready(made)[0] == 200)
        older.terminate()
    await kubelet.until(lambda: kubelet.connected(GPU) and kubelet.allocatable(GPU) == 4)


@pytest.mark.parametrize("how", ["no PodResources", "no GetAllocatableResources"])
async def test_where_the_kubelet_does_not_say_it_registers(
    made: AgentProcess, kubelet: StandInKubelet, tmp_path: Path, ids: list[str], how: str
) -> None:
    if how == "no PodResources":
        await kubelet.remove_pod_resources()
    else:
        kubelet.offers_error = (grpc.StatusCode.UNIMPLEMENTED, "unknown method GetAllocatableResources")
    with VendorProcess(tmp_path, kubelet.plugin_folder, ids):
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 4)
        made.start()
        await kubelet.until(lambda: kubelet.registrations_of(GPU) == 2)
        await made.until(lambda: ready(made)[0] == 200)


async def test_observe_helps_at_once_though_pods_hold_what_the_other_plugin_gave_them(
    made: AgentProcess, kubelet: StandInKubelet, tmp_path: Path, ids: list[str]
) -> None:
    with VendorProcess(tmp_path, kubelet.plugin_folder, ids):
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 4)
        await kubelet.allocate(GPU, 2, pod="train-0", namespace="ml")
        made.start()
        await waits(made)
        made.kill()
        made.start("--serving-mode=Observe")
        await made.until(lambda: ready(made)[0] == 200)
        await made.until(lambda: f'nodedevices_resource_healthy{{resource="{GPU}"}} 4.0' in made.get("/metrics")[1])
        assert endpoints(kubelet) == [VENDOR]


async def test_its_cdi_files_wait_as_well_for_they_have_the_names_of_the_vendors(
    kubelet: StandInKubelet, tmp_path: Path, ids: list[str]
) -> None:
    theirs = tmp_path / "cdi" / "k8s.device-plugin.nvidia.com-gpu.json"
    theirs.parent.mkdir()
    theirs.write_text("the vendor's")
    agent = AgentProcess(
        tmp_path,
        plugin_folder=kubelet.plugin_folder,
        pod_resources_socket=kubelet.pod_resources_socket,
        devices=DEVICES,
        arguments=(
            "--standalone",
            "--device-list-strategy=cdi-cri",
            f"--cdi-dir={theirs.parent}",
            "--cdi-without-libraries",
        ),
    )
    with VendorProcess(tmp_path, kubelet.plugin_folder, ids) as vendor:
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 4)
        with agent:
            await waits(agent)
            assert theirs.read_text() == "the vendor's"
            vendor.end()
            await serves(kubelet)
            granted = await kubelet.allocate(GPU, 1)
            assert granted.answer.cdi_devices[0].name.partition("=")[2] in theirs.read_text()
