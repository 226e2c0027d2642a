"""The real agent where another device plugin serves already: it takes nothing away, and says so; and as an observer it
shows what the other one offers."""

from __future__ import annotations

import urllib.error
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from nodedevices_probe.simulated.probe import from_profile
from support.agentprocess import NODE, AgentProcess, agent_on
from support.kubelet import StandInKubelet
from support.vendor import VendorProcess

GPU = "nvidia.com/gpu"
VENDOR = "nvidia-gpu.sock"
DEVICES = "profile: l4 x 4\n"


@pytest.fixture
async def made(kubelet: StandInKubelet, tmp_path: Path) -> AsyncIterator[AgentProcess]:
    """Four L4s; not started yet."""
    agent = agent_on(kubelet, tmp_path, devices=DEVICES)
    yield agent
    agent.kill()
    print(agent.log.read_text())  # pytest shows it when the test fails


@pytest.fixture
def ids() -> list[str]:
    """The node's devices."""
    return [each.id for each in from_profile("l4 x 4", node=NODE).facts.devices]


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
        await kubelet.restart()  # the other plugin is still the one that serves
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 4)
        looks = kubelet.offers_asked
        await kubelet.until(lambda: kubelet.offers_asked >= looks + 2)
        assert endpoints(kubelet) == [VENDOR] * 2
        vendor.end()
        await serves(kubelet)
        await made.until(lambda: ready(made)[0] == 200)
        assert len(endpoints(kubelet)) == 3
        assert kubelet.ids_in_use(GPU) == set(granted.ids)
        assert set((await kubelet.allocate(GPU, 3, pod="next")).ids) == set(ids) - set(granted.ids)


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


async def test_an_observer_registers_nothing_and_shows_what_the_other_plugin_offers_and_pods_hold(
    made: AgentProcess, kubelet: StandInKubelet, tmp_path: Path, ids: list[str]
) -> None:
    def shown(name: str) -> float | None:
        """The sum of a metric's samples; None: there is none."""
        found = [line for line in made.get("/metrics")[1].splitlines() if line.startswith((f"{name}{{", f"{name} "))]
        return sum(float(line.rsplit(" ", 1)[1]) for line in found) if found else None

    made.start("--serving-mode=Observe")
    await made.until(lambda: ready(made)[0] == 200)
    with VendorProcess(tmp_path, kubelet.plugin_folder, ids) as vendor:
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 4)
        granted = await kubelet.allocate(GPU, 1)
        await made.until(lambda: shown("nodedevices_resource_healthy") == 4)
        await made.until(lambda: shown("nodedevices_device_holders") == 1)
        vendor.unhealthy(granted.ids[0])
        for healthy in (3, 0):
            await made.until(lambda healthy=healthy: shown("nodedevices_resource_healthy") == healthy)  # type: ignore[misc]
            assert shown("nodedevices_resource_capacity") == 4
            assert ready(made)[0] == 200
            vendor.end()
        assert endpoints(kubelet) == [VENDOR]
    kubelet.pod_resources_error = (grpc.StatusCode.UNAVAILABLE, "not today")
    await made.until(lambda: ready(made)[0] == 503 and "not today" in ready(made)[1])


async def test_its_cdi_files_wait_as_well_for_they_have_the_names_of_the_vendors(
    kubelet: StandInKubelet, tmp_path: Path, ids: list[str]
) -> None:
    theirs = tmp_path / "cdi" / "k8s.device-plugin.nvidia.com-gpu.json"
    theirs.parent.mkdir()
    theirs.write_text("the vendor's")
    agent = agent_on(
        kubelet,
        tmp_path,
        devices=DEVICES,
        arguments=(
            "--standalone",
            "--device-list-strategy=cdi-cri",
            f"--cdi-spec-dirs={theirs.parent}",
        ),
        variables={"NODEDEVICES_CDI_WITHOUT_LIBRARIES": "true"},
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


async def test_serving_waits_for_the_pods_of_other_ids_and_for_the_plugin_that_offers_them(
    made: AgentProcess, kubelet: StandInKubelet, tmp_path: Path, ids: list[str]
) -> None:
    def message() -> str:
        reported = made.lines("configuration")
        return str(reported[-1]["message"]) if reported else ""

    made.start("--serving-mode=Observe")
    with VendorProcess(tmp_path, kubelet.plugin_folder, ids, "--replicas=4") as vendor:
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 16)
        await kubelet.allocate(GPU, 1, pod="train-0", namespace="ml")
        await made.until(lambda: ready(made)[0] == 200)
        made.kill()
        made.start("--serving-mode=Serve")
        await made.until(lambda: "ml/train-0" in message())
        kubelet.release("train-0", "ml")
        await made.until(lambda: "until another plugin no longer offers" in message())
        assert endpoints(kubelet) == [VENDOR]
        vendor.end()
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 4)
