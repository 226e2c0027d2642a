"""The real agent beside another device plugin, a separate process: it registers nothing, sees all, and takes over."""

from __future__ import annotations

import json
import urllib.error
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from nodedevices_plugin.kubelet.api import podresources_v1_pb2 as podresources
from support.agentprocess import AgentProcess
from support.kubelet import AdmissionError, StandInKubelet
from support.vendor import VendorProcess

GPU = "nvidia.com/gpu"
OBSERVE = "--serving-mode=Observe"


@pytest.fixture
def made(kubelet: StandInKubelet, tmp_path: Path) -> AgentProcess:
    """Four L4s; not started yet."""
    return AgentProcess(
        tmp_path,
        plugin_folder=kubelet.plugin_folder,
        pod_resources_socket=kubelet.pod_resources_socket,
        devices="profile: l4 x 4\n",
    )


@pytest.fixture
async def observer(made: AgentProcess) -> AsyncIterator[AgentProcess]:
    made.start(OBSERVE)
    yield made
    made.kill()
    print(made.log.read_text())  # pytest shows it when the test fails


async def ids_of(agent: AgentProcess) -> list[str]:
    """The node's device ids, as a running agent keeps them."""
    await agent.until(agent.state_file.exists)
    return [each["fact"]["id"] for each in json.loads(agent.state_file.read_text())["devices"]]


def got(agent: AgentProcess, path: str) -> tuple[int, str]:
    """Like `agent.get`; status 0 while a life begins and nothing is served yet."""
    try:
        return agent.get(path)
    except (IndexError, urllib.error.URLError):
        return 0, ""


def metric(agent: AgentProcess, name: str) -> float | None:
    """The sum of its samples; None: there is none."""
    found = [line for line in got(agent, "/metrics")[1].splitlines() if line.startswith((f"{name}{{", f"{name} "))]
    return sum(float(line.rsplit(" ", 1)[1]) for line in found) if found else None


def endpoints(kubelet: StandInKubelet) -> list[str]:
    return [request.endpoint for request in kubelet.registered]


async def test_it_registers_nothing_and_shows_what_the_other_plugin_offers_and_pods_hold(
    observer: AgentProcess, kubelet: StandInKubelet, tmp_path: Path
) -> None:
    ids = await ids_of(observer)
    with VendorProcess(tmp_path, kubelet.plugin_folder, ids) as vendor:
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 4)
        granted = await kubelet.allocate(GPU, 1)
        assert granted.answer.envs["ALLOCATED_BY"] == "vendor"
        await observer.until(lambda: metric(observer, "nodedevices_resource_healthy") == 4)
        await observer.until(lambda: metric(observer, "nodedevices_device_holders") == 1)
        vendor.unhealthy(granted.ids[0])
        await observer.until(lambda: metric(observer, "nodedevices_resource_healthy") == 3)
        assert metric(observer, "nodedevices_resource_capacity") == 4
        assert got(observer, "/readyz")[0] == 200
        vendor.end()
        await observer.until(lambda: metric(observer, "nodedevices_resource_healthy") == 0)
        assert metric(observer, "nodedevices_resource_capacity") == 4
        assert got(observer, "/readyz")[0] == 200
        assert endpoints(kubelet) == ["nvidia-gpu.sock"]


async def test_a_device_that_fails_is_withdrawn_by_nobody_and_still_reported(
    observer: AgentProcess, kubelet: StandInKubelet, tmp_path: Path
) -> None:
    ids = await ids_of(observer)
    with VendorProcess(tmp_path, kubelet.plugin_folder, ids):
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 4)
        await observer.until(lambda: metric(observer, "nodedevices_device_healthy") == 4)
        observer.edit("profile: l4 x 4\ndevices: [{index: 2, lost: true}]\n")
        await observer.until(lambda: metric(observer, "nodedevices_device_healthy") == 3)
        assert kubelet.allocatable(GPU) == 4


async def test_serving_begins_beside_the_other_plugin_and_goes_on_without_it(
    observer: AgentProcess, kubelet: StandInKubelet, tmp_path: Path
) -> None:
    ids = await ids_of(observer)
    with VendorProcess(tmp_path, kubelet.plugin_folder, ids) as vendor:
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 4)
        held = await kubelet.allocate(GPU, 2, pod="train-0", namespace="ml")
        await observer.until(lambda: metric(observer, "nodedevices_device_holders") == 2)
        observer.kill()
        observer.start("--serving-mode=Serve")
        await observer.until(lambda: got(observer, "/readyz")[0] == 200 and kubelet.registrations_of(GPU) == 2)
        vendor.end()  # on kubelets up to 1.36 this ends our registration, too: it is renewed at once
        await kubelet.until(lambda: kubelet.registrations_of(GPU) == 3 and kubelet.allocatable(GPU) == 4)
        assert kubelet.ids_in_use(GPU) == set(held.ids)
        again = await kubelet.allocate(GPU, 2, pod="train-1", namespace="ml")
        assert "ALLOCATED_BY" not in again.answer.envs
        assert not set(again.ids) & set(held.ids)


async def test_serving_waits_for_the_pods_of_other_ids_and_for_the_plugin_that_offers_them(
    observer: AgentProcess, kubelet: StandInKubelet, tmp_path: Path
) -> None:
    ids = await ids_of(observer)

    def message() -> str:
        reported = observer.lines("configuration")
        return str(reported[-1]["message"]) if reported else ""

    with VendorProcess(tmp_path, kubelet.plugin_folder, ids, "--replicas=4") as vendor:
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 16)
        await kubelet.allocate(GPU, 1, pod="train-0", namespace="ml")
        await observer.until(lambda: metric(observer, "nodedevices_resource_capacity") == 16)
        observer.kill()
        observer.start("--serving-mode=Serve")
        await observer.until(lambda: "ml/train-0" in message())
        kubelet.release("train-0", "ml")
        await observer.until(lambda: "until another plugin no longer offers" in message())
        assert endpoints(kubelet) == ["nvidia-gpu.sock"]
        vendor.end()
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 4)


async def test_serving_ends_when_no_pod_holds_anything_and_leaves_the_name_to_the_other_plugin(
    made: AgentProcess, kubelet: StandInKubelet, tmp_path: Path
) -> None:
    made.start()
    try:
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 4)
        ids = sorted(kubelet.views[GPU].healthy)
        await kubelet.allocate(GPU, 1, pod="train-0", namespace="ml")
        await made.until(lambda: metric(made, "nodedevices_device_holders") == 1)
        made.kill()
        made.start(OBSERVE)
        await made.until(lambda: any("ml/train-0" in each["message"] for each in made.lines("configuration")))
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 4)
        kubelet.release("train-0", "ml")
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 0)
        with pytest.raises(AdmissionError):
            await kubelet.allocate(GPU, 1)
        with VendorProcess(tmp_path, kubelet.plugin_folder, ids):
            await kubelet.until(lambda: kubelet.allocatable(GPU) == 4)
            await made.until(lambda: metric(made, "nodedevices_resource_healthy") == 4)
            state = json.loads(made.state_file.read_text())
            assert (state["offered"], state["retired"]) == ([GPU], {})
    finally:
        made.kill()


async def test_a_dra_drivers_claims_hold_devices(observer: AgentProcess, kubelet: StandInKubelet) -> None:
    pod = podresources.PodResources(name="train-0", namespace="ml")
    claim = pod.containers.add(name="main").dynamic_resources.add(claim_name="gpus", claim_namespace="ml")
    for device in ("gpu-1", "gpu-2"):
        claim.claim_resources.add(driver_name="gpu.nvidia.com", pool_name="node-a", device_name=device)
    kubelet.extra_pods.append(pod)
    await observer.until(lambda: metric(observer, "nodedevices_device_holders") == 2)
    reported = got(observer, "/metrics")[1]
    held = [
        line
        for line in reported.splitlines()
        if line.startswith("nodedevices_device_holders{") and line.endswith(" 1.0")
    ]
    assert [line.partition('index="')[2][0] for line in held] == ["1", "2"]


async def test_an_observer_that_cannot_query_the_kubelet_is_not_ready(
    observer: AgentProcess, kubelet: StandInKubelet
) -> None:
    await observer.until(lambda: got(observer, "/readyz")[0] == 200)
    kubelet.pod_resources_error = (grpc.StatusCode.UNAVAILABLE, "not today")
    await observer.until(lambda: got(observer, "/readyz")[0] == 503)
    assert "not today" in got(observer, "/readyz")[1]
    assert observer.alive
