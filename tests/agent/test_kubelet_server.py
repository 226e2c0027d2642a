"""What the kubelet is sent and answered: ListAndWatch, Allocate, GetPreferredAllocation, PreStartContainer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Sequence
from typing import Any

import grpc.aio
import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace
from nodedevices_plugin.kubelet.offer import RECENT_ALLOCATIONS, RecentAllocations
from nodedevices_plugin.kubelet.plugins import DevicePlugins
from nodedevices_plugin.kubelet.server import SnapshotError, is_valid_choice, plain_choice, snapshot
from nodedevices_plugin.model import (
    AllocationError,
    ContainerEdits,
    DeviceNode,
    Mount,
    OfferedResource,
    Plan,
    RegistrationState,
    SchedulableId,
    SharingFacts,
)
from nodedevices_plugin.model.plan import KubeletCall, Method, Result
from support.held_loop import held_loop, plugins_socket
from support.kubelet import AdmissionError, StandInKubelet
from support.offers import GPU, EchoOffer, device_plugins, offered, plan
from support.patience import PATIENCE_SECONDS
from support.probes import eventually

CORES = SharingFacts(cores=True)


async def registered(kubelet: StandInKubelet, plugins: DevicePlugins, offer: Plan) -> None:
    await plugins.set_plan(offer)
    await kubelet.until(lambda: all(kubelet.connected(each.name) for each in offer.resources))


# --- ListAndWatch ---------------------------------------------------------------------------------------------------
async def test_the_whole_list_comes_at_once_in_the_plans_order(kubelet: StandInKubelet, plugins: DevicePlugins) -> None:
    await registered(kubelet, plugins, plan(offered(12, unhealthy=[3])))
    view = kubelet.views[GPU]
    assert len(view.updates) == 1
    assert [device.ID for device in view.updates[0].devices] == [f"GPU-{n}" for n in range(12)]
    assert (kubelet.capacity(GPU), kubelet.allocatable(GPU)) == (12, 11)
    assert view.unhealthy == {"GPU-3"}


async def test_numa_nodes_are_reported_and_an_unknown_one_is_no_topology(
    kubelet: StandInKubelet, plugins: DevicePlugins
) -> None:
    ids = tuple(
        SchedulableId(id=f"GPU-{n}", device_id=f"GPU-{n}", numa_node=numa) for n, numa in enumerate((0, 1, None))
    )
    await registered(kubelet, plugins, plan(OfferedResource(name=GPU, ids=ids)))
    devices = kubelet.views[GPU].devices
    assert [[node.ID for node in devices[f"GPU-{n}"].topology.nodes] for n in range(3)] == [[0], [1], []]
    assert not devices["GPU-2"].HasField("topology")


async def test_a_device_goes_unhealthy_and_comes_back_without_its_neighbours(
    kubelet: StandInKubelet, plugins: DevicePlugins
) -> None:
    await registered(kubelet, plugins, plan(offered(4)))
    await plugins.set_plan(plan(offered(4, unhealthy=[1])))
    await kubelet.until(lambda: kubelet.views[GPU].unhealthy == {"GPU-1"})
    assert (kubelet.capacity(GPU), kubelet.allocatable(GPU)) == (4, 3)
    await plugins.set_plan(plan(offered(4)))
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 4)
    assert len(kubelet.registered) == 1


async def test_an_equal_plan_sends_nothing(kubelet: StandInKubelet, plugins: DevicePlugins) -> None:
    await registered(kubelet, plugins, plan(offered(4)))
    await plugins.set_plan(plan(offered(4)))
    await plugins.set_plan(plan(offered(5)))  # a later message, so that an earlier one would have been seen
    await kubelet.until(lambda: kubelet.capacity(GPU) == 5)
    assert [len(update.devices) for update in kubelet.views[GPU].updates] == [4, 5]


async def test_the_last_of_many_changes_at_once_arrives(kubelet: StandInKubelet, plugins: DevicePlugins) -> None:
    await registered(kubelet, plugins, plan(offered(8)))
    for n in range(12):
        await plugins.set_plan(plan(offered(8, unhealthy=[n % 8])))
    await kubelet.until(lambda: kubelet.views[GPU].unhealthy == {"GPU-3"})


async def test_a_resource_that_never_had_a_device_is_not_registered(
    kubelet: StandInKubelet, plugins: DevicePlugins
) -> None:
    await registered(kubelet, plugins, plan(offered(1, name="nvidia.com/other")))
    await plugins.set_plan(plan(offered(0), offered(2, name="nvidia.com/other")))
    await kubelet.until(lambda: kubelet.capacity("nvidia.com/other") == 2)
    assert kubelet.registrations_of(GPU) == 0
    assert [each.resource for each in plugins.registrations()] == ["nvidia.com/other"]


async def test_a_resource_of_which_pods_hold_the_last_ids_is_registered_by_the_next_process_too(
    kubelet: StandInKubelet, plugins: DevicePlugins
) -> None:
    """Else the kubelet keeps the count from before the restart, and no pod's status says that its device is unfit."""
    held = replace(offered(0), retained=offered(2, unhealthy=[1]).ids)
    await plugins.set_plan(plan(held))
    await kubelet.until(lambda: kubelet.connected(GPU))
    assert (kubelet.capacity(GPU), kubelet.allocatable(GPU)) == (1, 0)
    await plugins.set_plan(plan(replace(held, retained=offered(2).ids)))
    await kubelet.until(lambda: kubelet.capacity(GPU) == 0)


async def test_a_resource_that_loses_its_last_device_is_shown_empty(
    kubelet: StandInKubelet, plugins: DevicePlugins
) -> None:
    await registered(kubelet, plugins, plan(offered(2)))
    await plugins.set_plan(plan(offered(0)))
    await kubelet.until(lambda: kubelet.capacity(GPU) == 0)
    assert kubelet.connected(GPU)
    await plugins.set_plan(plan(offered(2)))
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 2)
    assert len(kubelet.registered) == 1


async def test_a_resource_that_left_the_plan_is_stopped_and_its_neighbour_is_not(
    kubelet: StandInKubelet, plugins: DevicePlugins
) -> None:
    other = offered(2, name="nvidia.com/mig-1g.10gb", prefix="MIG-")
    await registered(kubelet, plugins, plan(offered(4), other))
    await plugins.set_plan(plan(other))
    await kubelet.until(lambda: not kubelet.connected(GPU))
    assert (kubelet.capacity(GPU), kubelet.allocatable(GPU)) == (4, 0)
    assert kubelet.allocatable(other.name) == 2
    assert len(kubelet.views[other.name].updates) == 1
    assert len(list(kubelet.plugin_folder.glob("nodedevices-*"))) == 1


async def test_a_renamed_resource_leaves_before_its_new_name_comes(
    kubelet: StandInKubelet, plugins: DevicePlugins
) -> None:
    await registered(kubelet, plugins, plan(offered(4)))
    shared = offered(4, name="nvidia.com/gpu.shared")
    await plugins.set_plan(plan(shared))
    await kubelet.until(lambda: kubelet.registrations_of(shared.name))
    assert kubelet.allocatable(GPU) == 0
    await kubelet.until(lambda: kubelet.allocatable(shared.name) == 4)


async def test_a_duplicate_id_refuses_its_resource_and_no_other(
    kubelet: StandInKubelet, plugins: DevicePlugins
) -> None:
    other = offered(1, name="nvidia.com/new", prefix="NEW-")
    await registered(kubelet, plugins, plan(offered(4)))
    twice = OfferedResource(name=GPU, ids=(*offered(4, unhealthy=[2]).ids, *offered(1, unhealthy=[0]).ids))
    await plugins.set_plan(plan(twice, other))
    await kubelet.until(lambda: kubelet.allocatable(other.name) == 1)
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 2)  # what it had, with the health of now
    states = {GPU: RegistrationState.REJECTED, other.name: RegistrationState.REGISTERED}
    await kubelet.until(lambda: {each.resource: each.state for each in plugins.registrations()} == states)
    assert "the id GPU-0 is given twice" in plugins.registrations()[0].message
    await plugins.set_plan(plan(offered(5), other))
    await kubelet.until(lambda: kubelet.allocatable(GPU) == 5)
    assert [each.state for each in plugins.registrations()] == [RegistrationState.REGISTERED] * 2


async def test_a_resource_that_is_refused_from_its_first_list_on_is_named_and_not_registered(
    kubelet: StandInKubelet, plugins: DevicePlugins
) -> None:
    twice = OfferedResource(name=GPU, ids=(*offered(1).ids, *offered(1).ids))
    other = offered(1, name="nvidia.com/new", prefix="NEW-")
    await plugins.set_plan(plan(twice, other))
    await kubelet.until(lambda: kubelet.allocatable(other.name) == 1)
    assert [(each.resource, each.state is RegistrationState.REJECTED) for each in plugins.registrations()] == [
        (GPU, True),
        (other.name, False),
    ]
    assert [each.resource_name for each in kubelet.registered] == [other.name]


def test_a_list_that_the_kubelet_could_not_receive_is_refused_with_what_to_do() -> None:
    ids = tuple(SchedulableId(id=f"GPU-{n:059d}", device_id="GPU-0") for n in range(50_000))
    with pytest.raises(SnapshotError, match=r"50000 ids .* fewer replicas"):
        snapshot(OfferedResource(name=GPU, ids=ids))


# --- Allocate -------------------------------------------------------------------------------------------------------
async def test_everything_in_an_answer_reaches_the_kubelet(
    kubelet: StandInKubelet, plugins: DevicePlugins, allocator: EchoOffer
) -> None:
    allocator.on_allocate = lambda _resource, ids: ContainerEdits(
        envs={"NVIDIA_VISIBLE_DEVICES": ids[0]},
        mounts=(Mount(container_path="/run/x", host_path="/dev/null", read_only=False),),
        devices=(DeviceNode(container_path="/dev/nvidia0", host_path="/driver/dev/nvidia0", permissions="rwm"),),
        annotations={"cdi.k8s.io/x": "a=b"},
        cdi_devices=("nodedevices.io/gpu=GPU-0",),
    )
    await registered(kubelet, plugins, plan(offered(1)))
    answer = (await kubelet.allocate(GPU, 1)).answer
    assert dict(answer.envs) == {"NVIDIA_VISIBLE_DEVICES": "GPU-0"}
    [mount] = answer.mounts
    assert (mount.container_path, mount.host_path, mount.read_only) == ("/run/x", "/dev/null", False)
    [node] = answer.devices
    assert (node.container_path, node.host_path, node.permissions) == ("/dev/nvidia0", "/driver/dev/nvidia0", "rwm")
    assert dict(answer.annotations) == {"cdi.k8s.io/x": "a=b"}
    assert [each.name for each in answer.cdi_devices] == ["nodedevices.io/gpu=GPU-0"]


async def test_two_resources_are_answered_by_their_own_names(
    kubelet: StandInKubelet, plugins: DevicePlugins, allocator: EchoOffer
) -> None:
    other = offered(2, name="nvidia.com/mig-1g.10gb", prefix="MIG-")
    await registered(kubelet, plugins, plan(offered(2), other))
    await kubelet.allocate(GPU, 1)
    await kubelet.allocate(other.name, 1)
    assert allocator.received == [(GPU, ("GPU-1",)), (other.name, ("MIG-1",))]


async def test_a_refusal_reaches_the_pod_in_its_own_words(
    kubelet: StandInKubelet, plugins: DevicePlugins, allocator: EchoOffer
) -> None:
    def refuse(_resource: str, ids: Sequence[str]) -> ContainerEdits:
        raise AllocationError(f"a shared device is given once per container, and {len(ids)} were requested")

    allocator.on_allocate = refuse
    await registered(kubelet, plugins, plan(offered(2)))
    with pytest.raises(AdmissionError, match=r"FAILED_PRECONDITION desc = a shared device is given once .* 2 were"):
        await kubelet.allocate(GPU, 2)
    assert plugins.registering.recent.entries() == ()


async def test_a_bug_in_the_answer_is_reported_plainly_and_costs_only_that_pod(
    kubelet: StandInKubelet, plugins: DevicePlugins, allocator: EchoOffer
) -> None:
    def fail(_resource: str, _ids: Sequence[str]) -> ContainerEdits:
        raise KeyError("secret detail")

    allocator.on_allocate = fail
    await registered(kubelet, plugins, plan(offered(2)))
    with pytest.raises(
        AdmissionError, match=r"INTERNAL desc = NodeDevices failed to allocate .*\(KeyError\)"
    ) as caught:
        await kubelet.allocate(GPU, 1)
    assert "secret detail" not in str(caught.value)
    allocator.on_allocate = None
    assert (await kubelet.allocate(GPU, 1)).ids == ("GPU-1",)
    assert kubelet.connected(GPU)


async def test_fifty_allocates_at_once_each_get_their_own(kubelet: StandInKubelet, plugins: DevicePlugins) -> None:
    await registered(kubelet, plugins, plan(offered(50)))
    answers = await asyncio.gather(*(kubelet.allocate_ids(GPU, [f"GPU-{n}"]) for n in range(50)))
    assert [answer.envs["DEVICES"] for answer in answers] == [f"GPU-{n}" for n in range(50)]
    assert len(plugins.registering.recent.entries()) == 50


def test_recent_allocations_are_bounded_and_keep_the_newest() -> None:
    recent = RecentAllocations()
    for n in range(RECENT_ALLOCATIONS + 10):
        recent.add(GPU, (f"GPU-{n}",))
    assert len(recent.entries()) == RECENT_ALLOCATIONS
    assert recent.entries()[-1].ids == (f"GPU-{RECENT_ALLOCATIONS + 9}",)


async def test_pre_start_is_not_requested_and_answered_all_the_same(
    kubelet: StandInKubelet, plugins: DevicePlugins
) -> None:
    await registered(kubelet, plugins, plan(offered(1)))
    assert not kubelet.registered[0].options.pre_start_required
    assert kubelet.registered[0].options.get_preferred_allocation_available
    await kubelet.pre_start(GPU, ["GPU-0"])


class Gate:
    """A StartGate that a test opens. `seen`: what it was asked."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []
        self.open = threading.Event()
        self.refusal = ""

    def ready(self, resource: str, size: int, ids: Sequence[str] = ()) -> None:
        self.seen.append(("ready", resource, size))
        assert self.open.wait(PATIENCE_SECONDS)

    async def before_start(self, resource: str, ids: Sequence[str]) -> None:
        self.seen.append(("start", resource, tuple(ids)))
        if self.refusal:
            raise AllocationError(self.refusal)


async def test_where_computing_power_is_shared_the_kubelet_calls_before_each_start(
    kubelet: StandInKubelet, allocator: EchoOffer
) -> None:
    gate = Gate()
    plugins = device_plugins(kubelet.plugin_folder, allocator, gate=gate)
    try:
        await registered(kubelet, plugins, plan(replace(offered(1), sharing=CORES)))
        assert kubelet.registered[0].options.pre_start_required
        await kubelet.pre_start(GPU, ["GPU-0"])
        assert gate.seen == [("start", GPU, ("GPU-0",))]
        gate.refusal = "not yet"
        with pytest.raises(grpc.aio.AioRpcError, match="not yet"):
            await kubelet.pre_start(GPU, ["GPU-0"])
    finally:
        await plugins.stop()


async def test_calls_that_wait_at_the_gate_keep_no_other_call_waiting(
    kubelet: StandInKubelet, allocator: EchoOffer
) -> None:
    gate = Gate()
    plugins = device_plugins(kubelet.plugin_folder, allocator, gate=gate)
    try:
        await registered(kubelet, plugins, plan(offered(40)))
        waiting = [asyncio.create_task(kubelet.allocate_ids(GPU, [f"GPU-{n}"])) for n in range(40)]
        await eventually(lambda: len(gate.seen) == 40)
        await plugins.set_plan(plan(offered(40, unhealthy=[3])))
        await kubelet.until(lambda: kubelet.allocatable(GPU) == 39)
        gate.open.set()
        assert len(await asyncio.gather(*waiting)) == 40
    finally:
        await plugins.stop()


async def test_the_event_loop_need_not_run_for_the_kubelet_to_be_answered(
    kubelet: StandInKubelet, plugins: DevicePlugins
) -> None:
    await registered(kubelet, plugins, plan(offered(4)))
    with held_loop(plugins_socket(kubelet)) as caller:
        assert caller.options().get_preferred_allocation_available
        assert len(caller.first_list().devices) == 4
        assert caller.preferred(["GPU-0", "GPU-1"], 1) == ["GPU-1"]
        assert caller.allocate(["GPU-1"]).envs == {"DEVICES": "GPU-1"}
    assert [each.ids for each in plugins.registering.recent.entries()] == [("GPU-1",)]


async def test_a_resource_is_registered_anew_when_its_starts_begin_to_matter(
    kubelet: StandInKubelet, plugins: DevicePlugins
) -> None:
    await registered(kubelet, plugins, plan(offered(2)))
    await plugins.set_plan(plan(replace(offered(2), sharing=CORES)))
    await kubelet.until(lambda: len(kubelet.registered) == 2 and kubelet.allocatable(GPU) == 2)
    assert [each.options.pre_start_required for each in kubelet.registered] == [False, True]


async def test_each_answer_is_observed_with_its_result(kubelet: StandInKubelet, allocator: EchoOffer) -> None:
    seen: list[KubeletCall] = []
    plugins = device_plugins(kubelet.plugin_folder, allocator, observe=seen.append)

    def refuse(*_: object) -> Any:
        raise AllocationError("not this one")

    def fail(*_: object) -> Any:
        raise KeyError("a bug")

    await registered(kubelet, plugins, plan(offered(2)))
    for misbehaviour in (None, refuse, fail):
        allocator.on_allocate = allocator.on_prefer = misbehaviour
        with contextlib.suppress(AdmissionError):
            await kubelet.allocate_ids(GPU, ["GPU-1"])
        with contextlib.suppress(grpc.aio.AioRpcError):
            await kubelet.prefer(GPU, ["GPU-0", "GPU-1"], 1)
    await plugins.stop()
    assert {(each.resource, each.seconds > 0) for each in seen} == {(GPU, True)}
    results = [Result.GRANTED, Result.REFUSED, Result.FAILED]
    for method in (Method.ALLOCATE, Method.PREFERRED):
        assert [each.result for each in seen if each.method is method] == results


# --- GetPreferredAllocation -----------------------------------------------------------------------------------------
async def test_a_failing_preference_becomes_a_plain_choice(
    kubelet: StandInKubelet, plugins: DevicePlugins, allocator: EchoOffer
) -> None:
    def fail(_available: Sequence[str], _must: Sequence[str], _size: int) -> Sequence[str]:
        raise RuntimeError("no topology")

    allocator.on_prefer = fail
    await registered(kubelet, plugins, plan(offered(8)))
    available = [f"GPU-{n}" for n in range(8)]
    assert await kubelet.prefer(GPU, available, 3, must_include=["GPU-5"]) == ["GPU-5", "GPU-0", "GPU-1"]


async def test_a_request_for_what_cannot_be_allocated_is_refused_in_the_same_words(
    kubelet: StandInKubelet, plugins: DevicePlugins, allocator: EchoOffer
) -> None:
    def refuse(_available: Sequence[str], _must: Sequence[str], _size: int) -> Sequence[str]:
        raise AllocationError("this node does not offer GPU-9 (any more)")

    allocator.on_prefer = refuse
    await registered(kubelet, plugins, plan(offered(2)))
    with pytest.raises(grpc.aio.AioRpcError, match="does not offer GPU-9"):
        await kubelet.prefer(GPU, ["GPU-9", "GPU-0"], 1)


async def test_a_wrong_preference_becomes_a_plain_choice(
    kubelet: StandInKubelet, plugins: DevicePlugins, allocator: EchoOffer
) -> None:
    await registered(kubelet, plugins, plan(offered(4)))
    available = [f"GPU-{n}" for n in range(4)]
    answers = {
        "twice": ("GPU-3", "GPU-3"),
        "not available": ("GPU-3", "elsewhere"),
        "too few": ("GPU-3",),
        "too many": ("GPU-3", "GPU-1", "GPU-2"),
        "without what must be there": ("GPU-0", "GPU-1"),
    }
    for wrong, answer in answers.items():
        allocator.on_prefer = lambda _available, _must, _size, answer=answer: answer
        assert await kubelet.prefer(GPU, available, 2, must_include=["GPU-3"]) == ["GPU-3", "GPU-0"], wrong


async def test_a_request_that_cannot_be_met_is_no_error(
    kubelet: StandInKubelet, plugins: DevicePlugins, allocator: EchoOffer
) -> None:
    allocator.on_prefer = lambda _available, _must, _size: ()
    await registered(kubelet, plugins, plan(offered(2)))
    assert await kubelet.prefer(GPU, ["GPU-0", "GPU-1"], 5) == []
    assert await kubelet.prefer(GPU, [], 1) == []
    assert await kubelet.prefer(GPU, ["GPU-0"], -1) == []
    assert await kubelet.prefer(GPU, ["GPU-0"], 1, must_include=["GPU-1"]) == []


IDS = st.lists(st.sampled_from([f"GPU-{n}" for n in range(8)]), unique=True)


@given(available=IDS, must=IDS, size=st.integers(-2, 12))
def test_the_plain_choice_is_always_valid(available: list[str], must: list[str], size: int) -> None:
    assert is_valid_choice(plain_choice(available, must, size), available, must, size)


# --- the end --------------------------------------------------------------------------------------------------------
async def test_stop_leaves_no_task_no_file_descriptor_and_no_socket(allocator: EchoOffer) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208

    async def life() -> None:
        async with StandInKubelet() as kubelet:
            plugins = device_plugins(kubelet.plugin_folder, allocator)
            offers = plan(*(offered(4, name=f"nvidia.com/kind-{n}", prefix=f"{n}-") for n in range(4)))
            await registered(kubelet, plugins, offers)
            await kubelet.allocate("nvidia.com/kind-0", 1)
            await plugins.stop()
            assert plugins.registrations() == ()
            assert list(kubelet.plugin_folder.glob("nodedevices-*")) == []

    await life()  # grpc opens what it keeps for the process
    tasks, before = asyncio.all_tasks(), descriptors()
    for _ in range(3):
        await life()
    # grpc's own threads close their ends
    await eventually(lambda: asyncio.all_tasks() == tasks and descriptors() <= before)


async def test_stop_before_the_first_plan_is_fine(kubelet: StandInKubelet, plugins: DevicePlugins) -> None:
    await plugins.stop()
    assert kubelet.registered == []
