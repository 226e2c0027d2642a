"""Google's way of handing GPUs out: what containers get, and what is refused.

The golden answers are those of Google's device plugin (container-engine-accelerators, beta_plugin.go and manager.go)
for the same request: device nodes of the GPU, control nodes as far as they exist, two read-only mounts, and for a
client of MPS two variables. Google's have the permission to make nodes (mrw), ours have not.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

import pytest
from hypothesis import given, strategies as st
from nodedevices_api.errors import parse
from nodedevices_api.sections import Injection, Partitions, SharedResource, Sharing
from nodedevices_common.errors import InputError
from nodedevices_common.options import Values
from nodedevices_plugin.granting.answers import node_containers
from nodedevices_plugin.model import (
    ContainerEdits,
    DeviceNode,
    Mount,
    OfferedResource,
    PlanError,
    SchedulableId,
    SharingFacts,
)
from nodedevices_plugin.offering.shape import PlanSettings
from nodedevices_plugin.settings import options
from nodedevices_plugin.settings.effective import resolve
from nodedevices_plugin.settings.file import parse as parse_file
from nodedevices_plugin.settings.flags import parse as parse_flags
from nodedevices_plugin.sharing.base import Settings
from nodedevices_plugin.sharing.mps import Mps
from nodedevices_plugin.vendors.base import NodeView, value_of
from nodedevices_plugin.vendors.nvidia import flags
from nodedevices_plugin.vendors.nvidia.cdi import NEEDED
from nodedevices_plugin.vendors.nvidia.vendor import Nvidia, mps_limits
from nodedevices_plugin.vendors.registry import VendorValues
from nodedevices_probe.protocol import DeviceFact
from support.cases import cases
from support.facts import gpu, gpu_id, healthy, inventory_of, mig_id, partition
from support.offers import allocate
from support.plans import make_plan

CONTROL = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
BY_DIRECTORY = Injection(device_list_strategies=("driver-directory",))
MOUNTS = (
    Mount(container_path="/usr/local/nvidia", host_path="/home/kubernetes/bin/nvidia"),
    Mount(container_path="/etc/vulkan/icd.d", host_path="/home/kubernetes/bin/nvidia/vulkan/icd.d"),
)
MIB = 1 << 20


def answered(
    *ids: str,
    gpus: tuple[DeviceFact, ...] = (gpu(0), gpu(1)),
    arguments: tuple[str, ...] = (),
    existing: Set[str] = frozenset(CONTROL),
    sharing: Sharing | None = None,
    mig: str = "none",
) -> ContainerEdits:
    """What a container gets on a node of those GPUs, with these flags of the agent."""
    inventory = inventory_of(*gpus)
    local = parse_flags(["--standalone", "--node-name=n", *arguments], {})
    containers = node_containers(
        inventory,
        BY_DIRECTORY,
        existing=existing,
        values=VendorValues(local={"nvidia": flags.settings(Values(local.given, options.by_name()))}),
        modes=Settings(mps_root="/run/nvidia/mps"),
    )
    settings = PlanSettings(
        sharing=sharing or Sharing(), partitions=Partitions(strategy=mig), modes=Settings(mps_root="/run/nvidia/mps")
    )
    resource = next(
        each
        for each in make_plan(inventory, healthy(*gpus), settings).resources
        if ids[0] in {schedulable.id for schedulable in each.ids}
    )
    return allocate(resource, ids, containers)


def nodes(*paths: str) -> tuple[DeviceNode, ...]:
    return tuple(DeviceNode(container_path=path, host_path=path) for path in paths)


def test_a_container_gets_its_gpus_nodes_and_the_driver_and_no_variable() -> None:
    answer = answered(gpu_id(1), gpu_id(0), gpus=(gpu(0, minor=3), gpu(1, minor=2)))
    assert answer == ContainerEdits(mounts=MOUNTS, devices=nodes(*CONTROL, "/dev/nvidia2", "/dev/nvidia3"))
    assert all(mount.read_only for mount in answer.mounts)
    answer = answered(gpu_id(0), existing=frozenset(NEEDED))
    assert answer.devices == nodes("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0")
    caps = ("/dev/nvidia-caps/nvidia-cap30", "/dev/nvidia-caps/nvidia-cap31")
    cut = gpu(0, mig_enabled=True, partitions=(partition(0, 0, device_nodes=caps), partition(0, 1)))
    answer = answered(mig_id(0, 0), gpus=(cut,), mig="single")
    assert answer == ContainerEdits(mounts=MOUNTS, devices=nodes(*CONTROL, "/dev/nvidia0", *caps))


def test_shares_by_time_are_the_gpu_and_one_of_unknown_memory_has_no_limit() -> None:
    rule = SharedResource(name="nvidia.com/gpu", replicas=4)
    shared = Sharing(strategy="timeSlicing", resources=(rule,), fail_requests_greater_than_one=True)
    assert answered(f"{gpu_id(0)}::3", sharing=shared) == ContainerEdits(
        mounts=MOUNTS, devices=nodes(*CONTROL, "/dev/nvidia0")
    )
    resource = OfferedResource(name="nvidia.com/gpu", ids=(), sharing=SharingFacts(mode=Mps(), replicas=4))
    share = SchedulableId(id="a::0", device_id="a", replica=0)
    assert mps_limits(resource, [share], {"a": 0}) == {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25"}


def test_a_client_of_mps_has_its_part_of_its_own_gpus_memory_and_not_of_gpu_0s() -> None:
    shared = Sharing(strategy="mps", resources=(SharedResource(name="nvidia.com/gpu", replicas=8),))
    gpus = (gpu(0, memory_bytes=80_000 * MIB), gpu(1, memory_bytes=40_000 * MIB))
    for number, limit in ((0, 10_000), (1, 5_000)):
        answer = answered(f"{gpu_id(number)}::3", gpus=gpus, sharing=shared)
        assert answer.envs["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "12"
        assert answer.envs["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"0={limit}M"
        assert set(MOUNTS) <= set(answer.mounts)


def test_several_shares_by_mps_are_as_many_parts_by_the_gpus_numbers_in_the_container() -> None:
    resource = OfferedResource(name="nvidia.com/gpu", ids=(), sharing=SharingFacts(mode=Mps(), replicas=4))
    memory = {"a": 8000 * MIB, "b": 4000 * MIB, "c": 400 * MIB}
    shares = [
        SchedulableId(id=f"{device}::{replica}", device_id=device, replica=replica)
        for device, replica in (("c", 0), ("a", 1), ("a", 2))
    ]
    assert mps_limits(resource, shares, memory) == {
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=4000M,1=100M",
    }


@given(st.integers(2, 48), st.integers(1, 48), st.integers(0, 1 << 40))
def test_limits_of_mps_are_never_more_than_the_gpu(replicas: int, count: int, memory: int) -> None:
    resource = OfferedResource(name="nvidia.com/gpu", ids=(), sharing=SharingFacts(mode=Mps(), replicas=replicas))
    shares = [SchedulableId(id=f"a::{each}", device_id="a", replica=each) for each in range(min(count, replicas))]
    limits = mps_limits(resource, shares, {"a": memory})
    assert 0 < int(limits["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"]) <= 100
    limit = limits.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=0M")
    assert 0 <= int(limit.removeprefix("0=").removesuffix("M")) * MIB <= memory


@cases("dashes", "-", "--")
def test_the_folder_is_a_flag_with_googles_name_as_alias(dashes: str) -> None:
    answer = answered(gpu_id(0), arguments=(f"{dashes}host-path=/opt/nvidia/",))
    assert answer.mounts == (
        Mount(container_path="/usr/local/nvidia", host_path="/opt/nvidia"),
        Mount(container_path="/etc/vulkan/icd.d", host_path="/opt/nvidia/vulkan/icd.d"),
    )


@cases("text", "", "nvidia", "/", "//", "/.", "/a\nb")
def test_a_folder_that_is_none_is_refused_by_its_flag(text: str) -> None:
    refused = r"--driver-directory: .*: give the absolute path of a directory other than /"
    with pytest.raises(InputError, match=refused):
        parse_flags(["--standalone", "--node-name=n", f"--driver-directory={text}"], {})


@cases("other", "envvar", "volume-mounts", "cdi-annotations", "cdi-cri")
def test_beside_another_strategy_it_is_refused_since_a_container_would_get_two_drivers(other: str) -> None:
    with pytest.raises(
        InputError, match=r"driver-directory brings the driver by itself.*give it alone, or leave it out"
    ):
        parse(Injection, {"deviceListStrategies": [other, "driver-directory"]})
    refused = rf"deviceListStrategy: {other}, driver-directory: each of the others .* give driver-directory alone"
    with pytest.raises(InputError, match=refused):
        parse_flags(["--standalone", "--node-name=n", f"--device-list-strategy={other},driver-directory"], {})
    with pytest.raises(InputError, match=refused):
        parse_file(f"flags: {{plugin: {{deviceListStrategy: [{other}, driver-directory]}}}}".encode())


def test_a_policy_may_replace_it_and_the_folders_stay_the_nodes() -> None:
    local = parse_flags(
        ["--standalone", "--node-name=n", "--device-list-strategy=driver-directory", "--driver-directory=/opt/nv"], {}
    )
    assert resolve(local, None, None).sections.injection.device_list_strategies == ("driver-directory",)
    replaced = resolve(local, None, {"injection": {"deviceListStrategies": ["envvar"]}})
    assert replaced.sections.injection.device_list_strategies == ("envvar",)
    assert value_of(replaced.node.vendors["nvidia"], flags.NvidiaSettings).driver_path == "/opt/nv"


def _node(existing: Set[str], *gpus: DeviceFact, injection: Injection = BY_DIRECTORY) -> NodeView:
    return NodeView(inventory=inventory_of(*gpus), injection=injection, existing=existing)


def test_a_node_without_its_control_nodes_offers_nothing_yet_and_says_which_are_missing() -> None:
    with pytest.raises(
        PlanError, match=r"driver-directory: /dev/nvidia-uvm does not exist on this node, or this agent"
    ):
        Nvidia().check(_node({"/dev/nvidiactl"}, gpu(0)))
    with pytest.raises(PlanError, match=r"/dev/nvidiactl and /dev/nvidia-uvm do not exist"):
        Nvidia().check(_node(set(), gpu(0)))


@cases("node", _node(set()), _node(set(CONTROL), gpu(0)), _node(set(), gpu(0), injection=Injection()))
def test_nothing_is_missing_where_there_is_no_gpu_or_the_nodes_are_not_needed(node: NodeView) -> None:
    Nvidia().check(node)


GOOGLES: Mapping[str, str] = {"0": "nvidia3", "1": "nvidia2"}


@cases("form", "{}", "{}/vgpu2")
def test_googles_ids_choose_the_devices_that_are_shared(form: str) -> None:
    gpus = (gpu(0, minor=3), gpu(1, minor=2))
    rule = SharedResource(name="nvidia.com/gpu", replicas=2, devices=(form.format(GOOGLES["1"]),))
    settings = PlanSettings(sharing=Sharing(strategy="timeSlicing", resources=(rule,)))
    resource = make_plan(inventory_of(*gpus), healthy(*gpus), settings).resources[0]
    assert [each.id for each in resource.ids] == [gpu_id(0), f"{gpu_id(1)}::0", f"{gpu_id(1)}::1"]


def test_googles_id_of_a_mig_device_chooses_it() -> None:
    cut = gpu(0, minor=1, mig_enabled=True, partitions=(partition(0, 0, gi=7), partition(0, 1, gi=8)))
    rule = SharedResource(name="nvidia.com/gpu", replicas=2, devices=("nvidia1/gi8",))
    settings = PlanSettings(
        partitions=Partitions(strategy="single"), sharing=Sharing(strategy="timeSlicing", resources=(rule,))
    )
    resource = make_plan(inventory_of(cut), healthy(cut), settings).resources[0]
    assert [each.id for each in resource.ids] == [mig_id(0, 0), f"{mig_id(0, 1)}::0", f"{mig_id(0, 1)}::1"]
