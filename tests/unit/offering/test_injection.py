from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from nodedevices_api.sections import Injection, Partitions, SharedResource, Sharing
from nodedevices_plugin.model import AllocationError, ContainerEdits, DeviceNode, Mount, OfferedResource
from nodedevices_plugin.offering.shape import PlanSettings
from nodedevices_plugin.vendors.nvidia import cdi
from nodedevices_plugin.vendors.nvidia.cdi import Host
from nodedevices_plugin.vendors.nvidia.vendor import InjectionContext
from nodedevices_probe.protocol import DeviceFact
from support.cases import cases
from support.facts import gpu, gpu_id, healthy, inventory_of, mig_id, partition
from support.offers import allocate
from support.plans import make_plan

CONTEXT = InjectionContext()


def offered(*, replicas: int | None = None, fail: bool = False, bad: int | None = None) -> OfferedResource:
    gpus = (gpu(0), gpu(1))
    sharing = Sharing()
    if replicas:
        rule = SharedResource(name="nvidia.com/gpu", replicas=replicas)
        sharing = Sharing(strategy="timeSlicing", resources=(rule,), fail_requests_greater_than_one=fail)
    cordoned = frozenset() if bad is None else frozenset({gpu_id(bad)})
    return make_plan(inventory_of(*gpus), healthy(*gpus), PlanSettings(sharing=sharing), cordoned).resources[0]


def visible(value: str) -> ContainerEdits:
    return ContainerEdits(envs={"NVIDIA_VISIBLE_DEVICES": value})


def test_a_container_sees_its_gpus_once_each_in_the_order_of_the_kubelet_and_mig_devices_by_uuid() -> None:
    answer = allocate(offered(), [gpu_id(1), gpu_id(0)], CONTEXT)
    assert answer == visible(f"{gpu_id(1)},{gpu_id(0)}")
    ids = [f"{gpu_id(1)}::1", f"{gpu_id(0)}::0", f"{gpu_id(1)}::0"]
    assert allocate(offered(replicas=2), ids, CONTEXT) == visible(f"{gpu_id(1)},{gpu_id(0)}")
    assert allocate(offered(), [gpu_id(0), gpu_id(0)], CONTEXT) == visible(gpu_id(0))
    assert allocate(offered(), [], CONTEXT) == visible("")
    cut = gpu(0, mig_enabled=True, partitions=(partition(0, 0),))
    plan = make_plan(inventory_of(cut), healthy(cut), PlanSettings(partitions=Partitions(strategy="mixed")))
    assert allocate(plan.resources[0], [mig_id(0, 0)], CONTEXT) == visible(mig_id(0, 0))


@cases("ids", ["GPU-gone"], [gpu_id(0), "GPU-gone"])
def test_an_unknown_id_is_refused_with_what_to_do(ids: list[str]) -> None:
    with pytest.raises(AllocationError, match=r"nvidia\.com/gpu: this node does not offer GPU-gone .*Delete the pod"):
        allocate(offered(), ids, CONTEXT)


@cases("each", gpu_id(0), f"{gpu_id(0)}::99")
def test_a_whole_gpu_and_an_unknown_share_are_no_ids_of_a_shared_resource(each: str) -> None:
    with pytest.raises(AllocationError, match="does not offer"):
        allocate(offered(replicas=2), [each], CONTEXT)


def test_an_id_that_may_not_be_given_is_refused_in_few_words() -> None:
    with pytest.raises(AllocationError, match=r"\(Cordoned: .*RMA\); see `kubectl describe nodedevices`"):
        allocate(offered(bad=1), [gpu_id(0), gpu_id(1)], CONTEXT)
    resource = offered(replicas=2, fail=True)
    assert allocate(resource, [f"{gpu_id(0)}::0"], CONTEXT) == visible(gpu_id(0))
    with pytest.raises(AllocationError, match=r"2 shares requested; .*Set the limit to 1"):
        allocate(resource, [f"{gpu_id(0)}::0", f"{gpu_id(1)}::0"], CONTEXT)
    with pytest.raises(AllocationError) as refused:
        allocate(offered(), ["x" * 100_000], CONTEXT)
    assert len(str(refused.value)) < 400
    # NVIDIA's plugin counts the ids of a request only if one of them is a share.
    gpus = (gpu(0), gpu(1), gpu(2))
    rule = SharedResource(name="nvidia.com/gpu", replicas=2, devices=("2",))
    sharing = Sharing(strategy="timeSlicing", resources=(rule,), fail_requests_greater_than_one=True)
    resource = make_plan(inventory_of(*gpus), healthy(*gpus), PlanSettings(sharing=sharing)).resources[0]
    assert allocate(resource, [gpu_id(0), gpu_id(1)], CONTEXT) == visible(f"{gpu_id(0)},{gpu_id(1)}")
    with pytest.raises(AllocationError, match="2 shares requested"):
        allocate(resource, [gpu_id(0), f"{gpu_id(2)}::0"], CONTEXT)


# --- strategies, as NVIDIA's plugin v0.20.0 answers -------------------------------------------------------------------
CONTROL = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
GPU_KIND = "k8s.device-plugin.nvidia.com/gpu"
FOLDER = "/var/run/nvidia-container-devices"


def answered(
    *ids: str,
    strategies: tuple[str, ...] = ("envvar",),
    index: bool = False,
    specs: bool = False,
    gpus: tuple[DeviceFact, ...] = (gpu(0), gpu(1)),
    sharing: Sharing | None = None,
    mig: str = "none",
    prefix: str = "cdi.k8s.io/",
    **host: Any,
) -> ContainerEdits:
    """What a container gets on a node whose control nodes exist, unless said otherwise."""
    inventory = inventory_of(*gpus)
    section = Injection(
        device_list_strategies=strategies, device_id_strategy="index" if index else "uuid", pass_device_specs=specs
    )
    context = InjectionContext(
        injection=section,
        units=cdi.units_by_id(inventory),
        host=Host(**{"existing": frozenset(CONTROL), **host}),
        cdi_annotation_prefix=prefix,
    )
    plan_settings = PlanSettings(sharing=sharing or Sharing(), partitions=Partitions(strategy=mig))
    for resource in make_plan(inventory, healthy(*gpus), plan_settings).resources:
        if any(each.id == ids[0] for each in resource.ids):
            return allocate(resource, ids, context)
    raise AssertionError(ids)


def paths(answer: ContainerEdits) -> list[str]:
    assert all(each.permissions == "rw" for each in answer.devices)
    return [each.host_path for each in answer.devices]


def cdi_value(answer: ContainerEdits) -> tuple[str, list[str]]:
    ((key, value),) = answer.annotations.items()
    return key, value.split(",")


def test_volume_mounts_name_devices_by_mounts_that_an_image_cannot_forge() -> None:
    for strategies in (("volume-mounts",), ("envvar", "volume-mounts"), ("volume-mounts", "envvar")):
        answer = answered(gpu_id(1), gpu_id(0), strategies=strategies)
        assert answer.envs == {"NVIDIA_VISIBLE_DEVICES": FOLDER}
        assert answer.mounts == tuple(
            Mount(container_path=f"{FOLDER}/{gpu_id(number)}", host_path="/dev/null", read_only=False)
            for number in (1, 0)
        )


def test_cdi_cri_sets_no_variable_and_the_annotations_key_differs_between_answers() -> None:
    answer = answered(gpu_id(1), gpu_id(0), strategies=("cdi-cri",), specs=True)
    assert answer == ContainerEdits(cdi_devices=(f"{GPU_KIND}={gpu_id(1)}", f"{GPU_KIND}={gpu_id(0)}"))
    # Two resources of one container must not share a key, and a kubelet that calls again gets the same.
    first = answered(gpu_id(0), strategies=("cdi-annotations",))
    assert answered(gpu_id(0), strategies=("cdi-annotations",)) == first
    assert cdi_value(answered(gpu_id(1), strategies=("cdi-annotations",)))[0] != cdi_value(first)[0]


@cases("prefix", "cdi.k8s.io/", "example.com/")
def test_cdi_annotations_name_devices_in_one_annotation(prefix: str) -> None:
    answer = answered(gpu_id(1), gpu_id(0), strategies=("cdi-annotations",), prefix=prefix)
    key, devices = cdi_value(answer)
    assert re.fullmatch(re.escape(prefix) + r"nvidia-device-plugin_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", key)
    assert devices == [f"{GPU_KIND}={gpu_id(1)}", f"{GPU_KIND}={gpu_id(0)}"]
    assert (answer.envs, answer.cdi_devices) == ({}, ())


def test_all_strategies_together_are_the_sum_of_them() -> None:
    strategies = ("envvar", "volume-mounts", "cdi-annotations", "cdi-cri")
    answer = answered(gpu_id(0), strategies=strategies, specs=True)
    assert answer.envs == {"NVIDIA_VISIBLE_DEVICES": FOLDER}
    assert [each.container_path for each in answer.mounts] == [f"{FOLDER}/{gpu_id(0)}"]
    assert cdi_value(answer)[1] == [f"{GPU_KIND}={gpu_id(0)}"] == list(answer.cdi_devices)
    assert paths(answer) == [*CONTROL, "/dev/nvidia0"]


def test_indices_are_nvmls_in_the_order_of_the_kubelet_and_of_mig_devices_two_numbers() -> None:
    gpus = (gpu(0, minor=3), gpu(1, minor=2))
    answer = answered(gpu_id(1), gpu_id(0), gpus=gpus, index=True, specs=True)
    assert answer.envs == {"NVIDIA_VISIBLE_DEVICES": "1,0"}
    assert paths(answer) == [*CONTROL, "/dev/nvidia2", "/dev/nvidia3"]
    answer = answered(mig_id(0, 1), mig_id(0, 0), gpus=(CUT, gpu(1)), mig="mixed", index=True, specs=True)
    assert answer.envs == {"NVIDIA_VISIBLE_DEVICES": "0:1,0:0"}
    caps = [f"/dev/nvidia-caps/nvidia-cap{number}" for number in (7, 8, 5, 6)]
    assert paths(answer) == [*CONTROL, "/dev/nvidia0", *caps]


def test_several_shares_have_one_index_one_mount_one_cdi_name_and_one_node() -> None:
    sharing = Sharing(strategy="timeSlicing", resources=(SharedResource(name="nvidia.com/gpu", replicas=2),))
    ids = [f"{gpu_id(0)}::0", f"{gpu_id(0)}::1"]
    strategies = ("volume-mounts", "cdi-cri")
    answer = answered(*ids, sharing=sharing, index=True, specs=True, strategies=strategies)
    assert [each.container_path for each in answer.mounts] == [f"{FOLDER}/0"]
    assert answer.cdi_devices == (f"{GPU_KIND}=0",)
    assert paths(answer) == [*CONTROL, "/dev/nvidia0"]


CUT = gpu(
    0,
    mig_enabled=True,
    partitions=tuple(
        partition(
            0,
            part,
            device_nodes=tuple(f"/dev/nvidia-caps/nvidia-cap{number}" for number in (5 + 2 * part, 6 + 2 * part)),
        )
        for part in range(2)
    ),
)


def test_control_nodes_are_passed_where_they_exist() -> None:
    answer = answered(gpu_id(0), specs=True, existing=frozenset({"/dev/nvidiactl"}))
    assert paths(answer) == ["/dev/nvidiactl", "/dev/nvidia0"]


@cases(
    ("roots", "expected"),
    ({}, "/dev/nvidia0"),
    ({"driver_root": "/run/nvidia/driver"}, "/run/nvidia/driver/dev/nvidia0"),
    ({"driver_root": "/run/nvidia/driver", "dev_root": "/host"}, "/host/dev/nvidia0"),
    ({"driver_root": "/run/nvidia/driver", "dev_root": "/"}, "/dev/nvidia0"),
    ({"dev_root": "/host/dev"}, "/host/dev/nvidia0"),
    ({"dev_root": "/dev/"}, "/dev/nvidia0"),
)
def test_nodes_are_under_the_dev_root_of_the_host(roots: dict[str, Any], expected: str) -> None:
    answer = answered(gpu_id(0), specs=True, existing=frozenset(), **roots)
    assert answer.devices == (DeviceNode(container_path="/dev/nvidia0", host_path=expected),)


# --- what goes with a GPU ---------------------------------------------------------------------------------------------
ALL_FEATURES = ("gdrcopy", "gds", "mofed")
ENABLED = {"NVIDIA_GDRCOPY": "enabled", "NVIDIA_GDS": "enabled", "NVIDIA_MOFED": "enabled"}


@cases("strategy", "envvar", "volume-mounts", "cdi-cri", "cdi-annotations")
@cases("features", (), *((each,) for each in ALL_FEATURES), ALL_FEATURES)
def test_features_are_variables_whatever_the_strategy(strategy: str, features: tuple[str, ...]) -> None:
    envs = dict(answered(gpu_id(0), strategies=(strategy,), features=features).envs)
    envs.pop("NVIDIA_VISIBLE_DEVICES", None)
    assert envs == {f"NVIDIA_{each.upper()}": "enabled" for each in features}


def test_features_have_cdi_names_where_their_nodes_exist_and_pass_no_nodes_beside() -> None:
    existing = frozenset({*CONTROL, "/dev/gdrdrv", "/dev/nvidia-fs0", "/dev/infiniband/uverbs0"})
    with_nodes = answered(gpu_id(0), strategies=("cdi-cri",), features=ALL_FEATURES, existing=existing)
    vendor = "k8s.device-plugin.nvidia.com"
    extra = [f"{vendor}/gdrcopy=all", f"{vendor}/gds=all", f"{vendor}/mofed=all"]
    assert list(with_nodes.cdi_devices) == [f"{GPU_KIND}={gpu_id(0)}", *extra]
    without = answered(gpu_id(0), strategies=("cdi-cri",), features=ALL_FEATURES)
    assert (without.cdi_devices, without.envs) == ((f"{GPU_KIND}={gpu_id(0)}",), ENABLED)
    existing = frozenset({*CONTROL, "/dev/gdrdrv", "/dev/nvidia-fs0", "/dev/infiniband/rdma_cm"})
    answer = answered(gpu_id(0), features=ALL_FEATURES, existing=existing, specs=True)
    assert paths(answer) == [*CONTROL, "/dev/nvidia0"]


CHANNEL = "/dev/nvidia-caps-imex-channels/channel0"


def test_an_imex_channel_is_a_variable_a_mount_a_node_and_a_cdi_name() -> None:
    plain = answered(gpu_id(0), imex_channels=(0,), specs=True)
    assert plain.envs == {"NVIDIA_VISIBLE_DEVICES": gpu_id(0), "NVIDIA_IMEX_CHANNELS": "0"}
    assert paths(plain) == [*CONTROL, "/dev/nvidia0", CHANNEL]
    mounted = answered(gpu_id(0), imex_channels=(0,), strategies=("volume-mounts",))
    assert mounted.envs == {"NVIDIA_VISIBLE_DEVICES": FOLDER}
    assert [each.container_path for each in mounted.mounts] == [f"{FOLDER}/{gpu_id(0)}", f"{FOLDER}/imex/0"]
    named = answered(gpu_id(0), imex_channels=(0,), strategies=("cdi-cri", "cdi-annotations"))
    names = [f"{GPU_KIND}={gpu_id(0)}", "k8s.device-plugin.nvidia.com/imex-channel=0"]
    assert (named.envs, list(named.cdi_devices), cdi_value(named)[1]) == ({}, names, names)


def test_a_device_that_the_toolkits_own_cdi_spec_has_is_named_there_and_any_other_in_ours() -> None:
    context = InjectionContext(
        injection=Injection(device_list_strategies=("cdi-cri",)),
        units=cdi.units_by_id(inventory_of(gpu(0), gpu(1))),
        cdi_names={gpu_id(0): "0"},
    )
    assert allocate(offered(), [gpu_id(0), gpu_id(1)], context).cdi_devices == (
        "nvidia.com/gpu=0",
        f"k8s.device-plugin.nvidia.com/gpu={gpu_id(1)}",
    )


# --- what always holds ------------------------------------------------------------------------------------------------
STRATEGIES = ("envvar", "volume-mounts", "cdi-annotations", "cdi-cri")


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(STRATEGIES), unique=True, min_size=1).map(tuple),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=1, unique=True),
    st.booleans(),
    st.booleans(),
    st.sets(st.sampled_from(ALL_FEATURES)),
)
def test_whatever_is_requested(
    strategies: tuple[str, ...], shares: list[tuple[int, int]], index: bool, specs: bool, features: set[str]
) -> None:
    gpus = tuple(gpu(number) for number in range(4))
    sharing = Sharing(strategy="timeSlicing", resources=(SharedResource(name="nvidia.com/gpu", replicas=3),))
    ids = [f"{gpu_id(number)}::{replica}" for number, replica in shares]
    options: dict[str, Any] = {"strategies": strategies, "index": index, "specs": specs, "features": tuple(features)}
    answer = answered(*ids, gpus=gpus, sharing=sharing, **options)
    distinct = list(dict.fromkeys(number for number, _ in shares))
    ids_shown = [str(number) if index else gpu_id(number) for number in distinct]
    only_cdi = not {"envvar", "volume-mounts"} & set(strategies)
    assert len(answer.mounts) == (len(ids_shown) if "volume-mounts" in strategies else 0)
    assert len(answer.cdi_devices) == (len(ids_shown) if "cdi-cri" in strategies else 0)
    assert len(answer.annotations) == ("cdi-annotations" in strategies)
    assert ("NVIDIA_VISIBLE_DEVICES" in answer.envs) != only_cdi
    if strategies == ("envvar",):
        assert answer.envs["NVIDIA_VISIBLE_DEVICES"].split(",") == ids_shown
    expected = [*CONTROL, *(f"/dev/nvidia{number}" for number in distinct)] if specs and not only_cdi else []
    assert paths(answer) == expected
    assert answered(*ids, gpus=gpus, sharing=sharing, **options) == answer
