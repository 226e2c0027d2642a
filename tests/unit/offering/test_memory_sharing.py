"""Shares by memory: how many each device has, which of them one container gets, and what it is told of its limit."""

from __future__ import annotations

import random
from collections import Counter
from functools import cache
from typing import Any

import pytest
from msgspec.structs import replace
from nodedevices_api.defaults import with_defaults
from nodedevices_api.errors import parse
from nodedevices_api.sections import Injection, OfferMatch, ResourceRule, Resources, Sections, SharedResource, Sharing
from nodedevices_common.errors import InputError
from nodedevices_common.pod_requests import Demand
from nodedevices_plugin.cores.ledger import Room, Wanted
from nodedevices_plugin.granting.answers import edits, grant, node_containers
from nodedevices_plugin.granting.packing import pack
from nodedevices_plugin.granting.preferred import Topology, build, prefer
from nodedevices_plugin.model import AllocationError, ContainerEdits, Grant, OfferedResource, PlanError, SchedulableId
from nodedevices_plugin.offering.shape import PlanSettings
from nodedevices_plugin.sharing.base import Settings
from nodedevices_plugin.sharing.memory import Memory, fraction
from nodedevices_probe.protocol import DeviceFact
from support.cases import cases
from support.facts import GIB, gpu, gpu_id, healthy, inventory_of
from support.plans import make_plan

GPU, MEMORY, L4S = "nvidia.com/gpu", "nodedevices.io/gpu-memory", "nvidia.com/gpu-l4"
L4 = 24 * GIB - 512 * (1 << 20)  # what a driver says of a card of 24 GB is less


def cards(*sizes: int) -> tuple[DeviceFact, ...]:
    """GPUs of so many GiB each."""
    return tuple(gpu(number, memory_bytes=size * GIB) for number, size in enumerate(sizes))


def plan(
    *gpus: DeviceFact,
    unit: str | None = "1Gi",
    broken: frozenset[str] = frozenset(),
    named: tuple[ResourceRule, ...] = (),
    **rule: Any,
) -> Any:
    sharing = Sharing(strategy="memory", resources=(SharedResource(**{"name": GPU, "memory_unit": unit, **rule}),))
    settings = PlanSettings(sharing=sharing, resources=Resources(devices=named))
    return make_plan(inventory_of(*gpus), healthy(*gpus), settings, broken)


def offered(*gpus: DeviceFact, **rule: Any) -> OfferedResource:
    [found] = plan(*gpus, **rule).resources
    return found  # type: ignore[no-any-return]


def unit_of(resource: OfferedResource) -> str | None:
    memory = resource.sharing.memory
    return memory.unit if memory is not None else None


def counts(resource: OfferedResource) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in resource.ids:
        found[each.device_id] = found.get(each.device_id, 0) + 1
    return found


def asked(
    resource: OfferedResource, available: list[str], size: int, must: tuple[str, ...] = (), gpus: int = 4
) -> tuple[str, ...]:
    return prefer(resource, available, must, size, topology(gpus))


@cache
def topology(gpus: int) -> Topology:
    return build(inventory_of(*(gpu(number) for number in range(gpus))))


def ids(number: int, *shares: int, unit: str = "1Gi") -> list[str]:
    return [f"{gpu_id(number)}::{unit}.{share}" for share in shares]


# --- how many ---------------------------------------------------------------------------------------------------------
def test_each_device_is_divided_by_its_own_memory_without_what_is_reserved_or_fills_no_share() -> None:
    resource = offered(*cards(40, 80, 10))
    assert resource.name == MEMORY
    assert counts(resource) == {gpu_id(0): 40, gpu_id(1): 80, gpu_id(2): 10}
    assert (resource.sharing.name, unit_of(resource), resource.sharing.replicas) == ("memory", "1Gi", None)
    resource = offered(gpu(0, memory_bytes=L4), memory_reserve="512Mi")
    assert counts(resource) == {gpu_id(0): 23}
    assert [each.id for each in offered(*cards(4), unit="2Gi").ids] == ids(0, 0, 1, unit="2Gi")
    assert [each.id for each in offered(*cards(4), unit="2048Mi").ids] == ids(0, 0, 1, unit="2Gi")
    assert counts(offered(*cards(3), unit="2Gi", memory_reserve="1Gi")) == {gpu_id(0): 1}
    with pytest.raises(PlanError, match="3Gi of memory, 2Gi of it reserved: give a smaller unit"):
        offered(*cards(3), unit="2Gi", memory_reserve="2Gi")
    assert counts(offered(gpu(0, memory_bytes=0), *cards(8)[:0], gpu(1, memory_bytes=8 * GIB))) == {gpu_id(1): 8}
    assert {each.numa_node for each in offered(gpu(0, memory_bytes=4 * GIB, numa_node=1)).ids} == {None}
    assert {each.numa_node for each in offered(gpu(0, memory_bytes=4 * GIB, numa_node=1), numa=True).ids} == {1}


@cases(
    ("match", "shared"),
    (OfferMatch(product_name="NVIDIA L4"), {gpu_id(1): 80, gpu_id(2): 23}),
    (OfferMatch(min_memory="40Gi", product_name="NVIDIA L*"), {gpu_id(1): 80}),
    (OfferMatch(vendor="nvidia", ids=(gpu_id(2),)), {gpu_id(2): 23}),
    (OfferMatch(near="nic"), {}),
)
def test_the_l4s_of_a_mixed_node_are_named_and_shared_and_the_others_stay_whole(
    match: OfferMatch, shared: dict[str, int]
) -> None:
    mixed = (gpu(0, product_name="NVIDIA H100 NVL", memory_bytes=94 * GIB), gpu(1, product_name="NVIDIA L4"))
    named = (ResourceRule(match=match, name=L4S),)
    found = plan(*mixed, gpu(2, product_name="NVIDIA L4", memory_bytes=L4), named=named, name=L4S)
    by_name = {each.name: counts(each) for each in found.resources}
    whole = {gpu_id(number): 1 for number in range(3) if gpu_id(number) not in shared}
    assert by_name == {GPU: whole} | ({MEMORY: shared} if shared else {})


def test_shares_have_a_name_that_is_not_that_of_whole_devices() -> None:
    assert offered(*cards(4), rename="aliyun.com/gpu-mem").name == "aliyun.com/gpu-mem"
    with pytest.raises(PlanError, match=r"rename: nvidia\.com/gpu: memory has shares of a name of their own"):
        offered(*cards(4), rename=GPU)


@cases(("name", "unit"), ("aliyun.com/gpu-mem", "1Gi"), ("tencent.com/vcuda-memory", "256Mi"))
def test_a_name_of_another_maker_brings_its_unit(name: str, unit: str) -> None:
    for given in (None, "512Mi"):
        found = plan(*cards(4), rename=name, unit=given).resources
        assert [unit_of(each) for each in found if each.name == name] == [given or unit]


@cases(
    ("unit", "says"),
    ("100", "give whole MiB, such as 1Gi"),
    ("1500k", "give whole MiB"),
    ("48Gi", "has 40Gi of memory: give a smaller unit, or leave the device out"),
)
def test_a_unit_that_cannot_be_is_refused_with_what_would_be_right(unit: str, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        offered(*cards(40, 80), unit=unit)


def test_a_list_that_the_kubelet_would_not_read_is_refused_with_the_next_unit_that_fits() -> None:
    with pytest.raises(PlanError) as refused:
        offered(*cards(*[141] * 8), unit="1Mi")
    too_long = "shares, and one answer to the kubelet would exceed 3 MiB"
    assert str(refused.value).endswith(f": gives 1155072 {too_long}; give 32Mi")
    with pytest.raises(PlanError, match=rf": gives 49152 {too_long}; give 2Mi$"):
        offered(*cards(48), gpu(1, memory_bytes=0), unit="1Mi")
    assert len(offered(*cards(*[141] * 8), unit="32Mi").ids) == 36096


def test_some_devices_of_a_node_are_shared_by_memory_and_others_by_time_slicing() -> None:
    rule = {"match": {"productName": "NVIDIA A10"}, "name": "example.com/slices"}
    memory, slices = {"name": GPU, "memoryUnit": "2Gi"}, {"name": "example.com/slices", "replicas": 3}
    devices = (gpu(0, memory_bytes=8 * GIB), gpu(1, product_name="NVIDIA A10", memory_bytes=24 * GIB))
    for section in (
        {"strategy": "memory", "resources": [memory, {**slices, "strategy": "timeSlicing"}]},
        {
            "strategy": "timeSlicing",
            "failRequestsGreaterThanOne": True,
            "resources": [{**memory, "strategy": "memory"}, slices],
        },
    ):
        sections = with_defaults(parse(Sections, {"resources": {"devices": [rule]}, "sharing": section}))
        offers = make_plan(inventory_of(*devices), healthy(*devices), PlanSettings.from_sections(sections)).resources
        found = {each.name: (each.sharing.name, len(each.ids), each.fail_requests_greater_than_one) for each in offers}
        one = section["strategy"] == "timeSlicing"
        assert found == {MEMORY: ("memory", 4, False), "example.com/slices": ("timeSlicing", 3, one)}


def test_an_entrys_strategy_says_which_unit_it_has_and_an_init_container_decides_the_device() -> None:
    wrong = {"name": GPU, "strategy": "memory", "replicas": 2}
    with pytest.raises(InputError, match="strategy memory needs memoryUnit, and every other one replicas"):
        parse(Sharing, {"strategy": "timeSlicing", "resources": [wrong]})
    resource = offered(*cards(8, 8))
    free = [*ids(0, 0, 1), *ids(1, *range(8))]
    assert asked(resource, free, 3, must=tuple(ids(1, 5))) == tuple(ids(1, 0, 1, 5))


# --- which ------------------------------------------------------------------------------------------------------------


def test_where_no_device_has_room_the_answer_says_how_much_each_has_and_why_it_is_not_enough() -> None:
    resource = offered(*cards(8, 8))
    with pytest.raises(AllocationError) as refused:
        asked(resource, [*ids(0, 1, 2), *ids(1, 0, 3, 5)], 4)
    assert str(refused.value) == (
        f"{MEMORY}: no device of this node has 4 free shares of 1Gi; free are {gpu_id(0)}: 2, {gpu_id(1)}: 3; "
        "delete the pod, so that it is scheduled again."
    )
    resource = offered(*cards(8, 4))
    with pytest.raises(AllocationError, match="the largest device has 8: request fewer"):
        asked(resource, [each.id for each in resource.ids], 9)
    with pytest.raises(AllocationError, match=r"none is free; delete the pod, so that it is scheduled again"):
        asked(resource, [], 8)
    with pytest.raises(AllocationError, match=r"none is free; delete the pod, so that it is scheduled again"):
        asked(replace(resource, ids=()), [], 1)
    resource = offered(*cards(8, 8))
    with pytest.raises(AllocationError) as refused:
        asked(resource, [*ids(0, 0, 1, 2), *ids(1, *range(8))], 5, must=tuple(ids(0, 0, 1)))
    assert str(refused.value) == (
        f"{MEMORY}: the init containers of this pod have shares of {gpu_id(0)}, which has 3 for this pod; 5 are "
        "requested: request the same amount in init containers and containers."
    )
    resource = offered(*cards(8, 8))
    with pytest.raises(AllocationError, match=r"init containers of this pod have shares of 2 devices"):
        asked(resource, [*ids(0, 0), *ids(1, 0, 1)], 3, must=(*ids(0, 0), *ids(1, 0)))


@cases(("devices", "more"), (8, "1; delete"), (10, "1 and 2 more devices; delete"))
def test_of_many_devices_eight_are_named(devices: int, more: str) -> None:
    resource = offered(*cards(*[8] * devices))
    with pytest.raises(AllocationError) as refused:
        asked(resource, [each for number in range(devices) for each in ids(number, 0)], 2)
    assert f"{gpu_id(7)}: {more}" in str(refused.value)
    assert gpu_id(8) not in str(refused.value)


def test_an_init_containers_device_without_computing_power_is_said_to_lack_that_and_no_memory() -> None:
    resource = offered(*cards(8, 8))
    left = {gpu_id(0): 20, gpu_id(1): 100}
    room = Room(wanted=Wanted(demand=Demand(percent=50)), left=left, fits=frozenset({gpu_id(1)}))
    known = [each for each in resource.ids if each.id in {*ids(0, 0, 1), *ids(1, *range(8))}]
    with pytest.raises(
        AllocationError, match=r"has 2 free shares of 1Gi and 50 % .* free are \S+: 2 and 20 %, \S+: 8 and"
    ):
        pack(resource, known, frozenset(ids(0, 0)), 2, room)
    with pytest.raises(AllocationError, match="which has 2 for this pod; 3 are requested"):
        pack(resource, known, frozenset(ids(0, 0)), 3, room)


def test_shares_of_two_devices_are_refused_and_of_unknown_memory_there_is_no_limit() -> None:
    resource = offered(*cards(8, 8))
    with pytest.raises(AllocationError, match=r"free shares of this node are on 2 devices .* a container's are of one"):
        grant(resource, [*ids(0, 7), *ids(1, 7)])
    resource = offered(*cards(40))
    unknown = replace(resource, sharing=replace(resource.sharing, memory=None))
    gone = replace(resource.ids[0], device_id="gone")
    for each in (Grant(resource=unknown, ids=resource.ids[:1]), Grant(resource=resource, ids=(gone,))):
        assert Memory().edits(each, Settings()) == ContainerEdits()


# --- what a container is told -----------------------------------------------------------------------------------------
def variables(resource: OfferedResource, shares: list[str], *gpus: DeviceFact) -> dict[str, str]:
    return dict(edits(grant(resource, shares), node_containers(inventory_of(*gpus), Injection())).envs)


def test_a_container_gets_its_device_and_its_limit() -> None:
    gpus = (gpu(0, memory_bytes=L4), gpu(1, memory_bytes=80 * GIB))
    told = variables(offered(*gpus), ids(0, 0, 1, 2, 3, 4), *gpus)
    assert told == {
        "NVIDIA_VISIBLE_DEVICES": gpu_id(0),
        "NODEDEVICES_MEMORY_DEVICE": gpu_id(0),
        "NODEDEVICES_MEMORY_LIMIT_MIB": "5120",
        "NODEDEVICES_MEMORY_TOTAL_MIB": "24064",
        "NODEDEVICES_MEMORY_FRACTION": "0.2127",
        "NODEDEVICES_MEMORY_UNITS": "5",
    }


STRATEGIES = ("envvar", "volume-mounts", "cdi-annotations", "cdi-cri", "driver-directory")


@cases("strategies", *((each,) for each in STRATEGIES), STRATEGIES[:-1])
@cases("enforcement", "none", "mps")
def test_a_container_gets_its_device_as_a_whole_one_by_any_strategy(
    strategies: tuple[str, ...], enforcement: str
) -> None:
    gpus, modes = cards(8, 8), Settings(mps_root="/run/nvidia/mps")
    nodes = frozenset(("/dev/nvidiactl", "/dev/nvidia-uvm"))
    section = Injection(device_list_strategies=strategies, pass_device_specs=True)
    containers = node_containers(inventory_of(*gpus), section, existing=nodes, modes=modes)
    [whole] = make_plan(inventory_of(*gpus), healthy(*gpus), PlanSettings()).resources
    rule = SharedResource(name=GPU, memory_unit="1Gi", enforcement=enforcement)
    settings = PlanSettings(sharing=Sharing(strategy="memory", resources=(rule,)), modes=modes)
    [shared] = make_plan(inventory_of(*gpus), healthy(*gpus), settings).resources
    expected = edits(grant(whole, [gpu_id(1)]), containers)
    found = edits(grant(shared, ids(1, 0, 1, 2)), containers)
    assert found.envs["NODEDEVICES_MEMORY_UNITS"] == "3"
    ours = ("NODEDEVICES_MEMORY", "CUDA_MPS")
    assert {name: value for name, value in found.envs.items() if not name.startswith(ours)} == expected.envs
    assert [each for each in found.mounts if not each.host_path.startswith("/run/nvidia/mps")] == [*expected.mounts]
    assert (found.devices, found.cdi_devices) == (expected.devices, expected.cdi_devices)
    assert [*found.annotations.values()] == [*expected.annotations.values()]
    assert any((expected.envs, expected.mounts, expected.devices, expected.cdi_devices, expected.annotations))


def test_under_aliyuns_name_it_is_told_so_in_aliyuns_variables_too() -> None:
    gpus = cards(16, 32)
    told = variables(offered(*gpus, rename="aliyun.com/gpu-mem"), ids(1, 0, 1, 2), *gpus)
    assert {name: value for name, value in told.items() if name.startswith("ALIYUN")} == {
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "3",
        "ALIYUN_COM_GPU_MEM_POD": "3",
        "ALIYUN_COM_GPU_MEM_DEV": "32",
    }


@cases(("limit", "total", "text"), (1, 1, "1.0000"), (1, 3, "0.3333"), (2, 3, "0.6666"))
def test_a_fraction_is_rounded_down(limit: int, total: int, text: str) -> None:
    assert fraction(limit, total) == text


# --- through the kubelet's rules --------------------------------------------------------------------------------------
class Kubelet:
    """A kubelet at its hardest: it asks for the best where more ids are free than are requested, and else takes all, as
    it does with NUMA nodes. tests/conformance/kubelet has the kubelet's own code."""

    def __init__(self, resource: OfferedResource) -> None:
        self.resource = resource
        self.held: dict[int, tuple[SchedulableId, ...]] = {}
        self.taken: set[str] = set()
        self.used: Counter[str] = Counter()

    def admit(self, pod: int, size: int) -> bool:
        free = [each.id for each in self.resource.ids if each.healthy and each.id not in self.taken]
        if len(free) < size:
            return False  # no node for it
        try:
            chosen = free if len(free) == size else asked(self.resource, free, size)
            self.held[pod] = grant(self.resource, chosen).ids
        except AllocationError:
            return False
        given = {each.id for each in self.held[pod]}
        assert len(given) == len(self.held[pod]) == size
        assert not given & self.taken, "an id of two pods"
        self.taken |= given
        self.used.update(each.device_id for each in self.held[pod])
        return True

    def ends(self, pod: int) -> None:
        for each in self.held.pop(pod):
            self.taken.remove(each.id)
            self.used[each.device_id] -= 1


@cases("packing", "binpack", "spread")
def test_ten_thousand_grants_and_frees_never_over_book_a_device_nor_split_a_request(packing: str) -> None:
    dice = random.Random(packing)
    grants = refused = 0
    while grants < 10_000:
        sizes = [dice.choice((4, 8, 16, 24)) for _ in range(dice.randint(1, 4))]
        resource = offered(*cards(*sizes), packing=packing)
        kubelet, had = Kubelet(resource), counts(resource)
        for pod in range(400):
            if kubelet.held and dice.random() < 0.4:
                kubelet.ends(dice.choice(list(kubelet.held)))
            size = dice.randint(1, 12)
            if kubelet.admit(pod, size):
                grants += 1
                assert len({each.device_id for each in kubelet.held[pod]}) == 1
                assert all(amount <= had[device] for device, amount in kubelet.used.items())
            else:
                refused += 1
    assert refused, "the hard cases came up"
