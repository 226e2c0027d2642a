"""tencent.com/vcuda-core: whole GPUs for multiples of 100, and a count beside the memory of those that are shared."""

from __future__ import annotations

import random
from typing import Any

import pytest
from nodedevices_api.sections import Injection, OfferMatch, ResourceRule, Resources, SharedResource, Sharing
from nodedevices_plugin.cores.ids import is_counted
from nodedevices_plugin.granting.answers import edits, grant, node_containers
from nodedevices_plugin.granting.preferred import build, prefer
from nodedevices_plugin.model import AllocationError, Grant, OfferedResource, Plan, PlanError, ids as id_form
from nodedevices_plugin.offering.shape import PlanSettings, shape_of
from nodedevices_probe.protocol import DeviceFact, Link
from support.cases import cases
from support.facts import GIB, gpu, gpu_id, healthy, inventory_of
from support.plans import gated, make_plan

GPU, CORES, MEMORY = "nvidia.com/gpu", "tencent.com/vcuda-core", "tencent.com/vcuda-memory"


def cards(count: int, **rest: Any) -> tuple[DeviceFact, ...]:
    return tuple(gpu(number, memory_bytes=8 * GIB, **rest) for number in range(count))


def plan(*gpus: DeviceFact, broken: frozenset[str] = frozenset(), **rule: Any) -> Plan:
    """The first GPU is shared, the others are whole."""
    shared = SharedResource(name=GPU, rename=MEMORY, **({"devices": ("0",)} | rule))
    settings = PlanSettings(sharing=Sharing(strategy="memory", resources=(shared,)))
    return make_plan(inventory_of(*gpus), healthy(*gpus), settings, broken)


def cores(*gpus: DeviceFact, **rest: Any) -> OfferedResource:
    return next(each for each in plan(*gpus, **rest).resources if each.name == CORES)


def of(number: int) -> list[str]:
    return [f"{gpu_id(number)}::core.{each}" for each in range(100)]


def counted(*numbers: int) -> list[str]:
    return [f"shared::core.{each}" for each in numbers]


def chosen(resource: OfferedResource, free: list[str], size: int, must: tuple[str, ...] = (), **rest: Any) -> list[str]:
    return list(prefer(resource, free, must, size, build(inventory_of(*rest.get("gpus", cards(4))))))


def refused(resource: OfferedResource, free: list[str], size: int, must: tuple[str, ...] = ()) -> str:
    with pytest.raises(AllocationError) as caught:
        chosen(resource, free, size, must)
    return str(caught.value)


def test_whole_gpus_have_a_hundred_ids_each_and_shared_ones_a_hundred_of_no_device() -> None:
    found = {each.name: [one.id for one in each.ids] for each in plan(*cards(3)).resources}
    assert found.keys() == {CORES, MEMORY}
    assert found[CORES] == [*of(1), *of(2), *counted(*range(100))]
    assert len(found[MEMORY]) == 32
    assert [each.id for each in cores(*cards(2), devices=None).ids] == counted(*range(200))
    single = cores(*cards(2), devices=None, memory_unit="8Gi")
    assert [each.id for each in single.ids] == counted(*range(200)), "also one with a single share"
    unknown = gpu(1, memory_bytes=0)
    assert [each.id for each in cores(cards(1)[0], unknown, devices=None).ids] == counted(*range(100))
    alone = plan(*cards(1), devices=("7",))
    assert {each.name: [one.id for one in each.ids] for each in alone.resources} == {CORES: of(0)}


def test_a_failed_gpu_takes_its_own_hundred_or_the_hundred_that_were_counted_for_it() -> None:
    resource = cores(*cards(3), broken=frozenset({gpu_id(1)}))
    assert {each.id for each in resource.ids if not each.healthy} == set(of(1))
    resource = cores(*cards(3), broken=frozenset({gpu_id(0), gpu_id(1)}))
    assert {each.id for each in resource.ids if not each.healthy} == {*of(1), *counted(*range(100))}
    kept = gated(shape_of(plan(*cards(3))), inventory_of(*cards(1)), healthy(*cards(1)))
    [resource] = (each for each in kept.resources if each.name == CORES)
    assert {each.id for each in resource.ids if each.healthy} == set(counted(*range(100)))


def test_ids_of_cores_have_no_numa_node_and_where_no_gpu_is_shared_a_part_is_refused() -> None:
    assert id_form.split(of(1)[7]) == (gpu_id(1), 7)
    assert id_form.memory_held([of(1)[7]]) == {}
    assert {each.numa_node for each in cores(*cards(2, numa_node=1)).ids} == {None}
    why = "30 requested of shared GPUs, but only 0 of 0 on this node are free. No GPU of this node is shared."
    assert why in refused(cores(*cards(3), devices=("7",)), of(1), 30)


def test_two_entries_cannot_both_give_cores() -> None:
    rules = tuple(SharedResource(name=name, rename=MEMORY) for name in (GPU, "nvidia.com/other"))
    other = ResourceRule(match=OfferMatch(ids=(gpu_id(1),)), name="nvidia.com/other")
    sharing = Sharing(strategy="memory", resources=rules)
    settings = PlanSettings(sharing=sharing, resources=Resources(devices=(other,)))
    with pytest.raises(
        PlanError, match=rf"\[nvidia\.com/other\]\.rename: {CORES}: it comes with {MEMORY}, and another "
    ):
        make_plan(inventory_of(*cards(2)), healthy(*cards(2)), settings)


# --- which ------------------------------------------------------------------------------------------------------------
def test_who_shares_gets_ids_of_no_device_and_a_multiple_of_a_hundred_all_of_free_gpus() -> None:
    resource = cores(*cards(3))
    assert chosen(resource, [*of(1), *of(2), *counted(*range(40))], 30) == counted(*range(30))
    assert chosen(resource, [*of(1), *counted(*range(40))], 30, tuple(counted(39))) == counted(*range(29), 39)
    resource = cores(*cards(4))
    assert chosen(resource, [*of(2)[1:], *of(1), *counted(*range(100))], 100) == of(1)
    assert chosen(resource, [*of(1), *of(2), *of(3)], 200, tuple(of(3))) == [*of(1), *of(3)]
    assert chosen(resource, [*of(1), *of(2), *of(3)], 200, tuple(of(1))) == [*of(1), *of(2)]


def test_several_whole_gpus_are_those_connected_best_after_what_an_init_container_had() -> None:
    resource = cores(*cards(4))
    assert chosen(resource, [*of(1), *of(2)], 100, tuple(of(2))) == of(2)
    assert chosen(resource, counted(*range(30)), 30) == counted(*range(30)), "just as many as are free"
    linked = Link(kind="NVLink", to=gpu_id(3), count=4)
    gpus = (*cards(2), gpu(2, memory_bytes=8 * GIB, links=(linked,)), gpu(3, memory_bytes=8 * GIB))
    resource = cores(*gpus)
    assert chosen(resource, [*of(1), *of(2), *of(3)], 200, gpus=gpus) == [*of(2), *of(3)]


@cases(
    ("free", "size", "must", "says"),
    ([*of(1), *of(2)], 150, (), "150 requested; request 1 to 99 with an amount of GPU memory to share a GPU, or a"),
    (of(1)[:99], 100, (), "100 requested, whole GPUs: 1, but only 0 of the 2 that this node gives whole are free"),
    ([*of(1), *of(2)], 300, (), "2 of the 2 that this node gives whole are free. The others are shared: request"),
    ([*of(1), *counted(1)], 30, (), "30 requested of shared GPUs, but only 1 of 100 on this node are free. Delete"),
    ([*of(1), *counted(1)], 100, tuple(counted(1)), "request the same in init containers and containers"),
    ([*of(1), *counted(1)], 30, (of(1)[0],), "request the same in init containers and containers"),
    ([*of(1), *of(2)], 100, (of(1)[0], of(2)[0]), "request the same in init containers and containers"),
    ([*of(1), *of(2)[1:]], 200, (of(1)[0], of(2)[1]), "request the same in init containers and containers"),
    ([*of(1), *counted(1)], 30, (of(1)[0], *counted(1)), "request the same in init containers and containers"),
    (of(1), 200, (), "whole GPUs: 2, but only 1 of the 2 that this node gives whole are free. Delete the pod"),
)
def test_what_cannot_be_is_refused_in_words(free: list[str], size: int, must: tuple[str, ...], says: str) -> None:
    assert says in refused(cores(*cards(3)), free, size, must)


# --- what the kubelet chose without asking ----------------------------------------------------------------------------
@cases(
    ("ids", "says"),
    (counted(*range(100)), "100 requested, whole GPUs: 1, but only 0 of the 2"),
    ([*of(1)[:70], *counted(*range(30))], "whole GPUs: 1, but only 0 of the 2"),
    ([*of(1)[:70], *of(2)[:30]], "whole GPUs: 1, but only 0 of the 2"),
    ([*of(1), *counted(*range(100))], "whole GPUs: 2, but only 1 of the 2"),
    ([*of(1)[:10], *counted(*range(20))], "30 requested of shared GPUs, but only 20 of 100"),
    ([*of(1), *counted(1)], "101 requested; request 1 to 99"),
)
def test_allocate_refuses_ids_that_are_neither_whole_gpus_nor_a_count(ids: list[str], says: str) -> None:
    with pytest.raises(AllocationError) as caught:
        grant(cores(*cards(3)), ids)
    assert says in str(caught.value)


def injected(resource: OfferedResource, ids: list[str]) -> Any:
    node = node_containers(inventory_of(*cards(3)), Injection(pass_device_specs=True))
    return edits(grant(resource, ids), node)


def test_what_an_init_container_had_of_shared_gpus_counts_for_the_container_after_it() -> None:
    for had in ((), (3,), (3, 5)):
        found = chosen(cores(*cards(3)), counted(3, 4, 5, 6), 2, tuple(counted(*had)))
        assert len(found) == 2
        assert set(counted(*had)) <= set(found)


def test_whole_gpus_are_given_as_ever_and_a_count_gives_nothing() -> None:
    gpus = cards(3)
    node = node_containers(inventory_of(*gpus), Injection(pass_device_specs=True))
    [plainly] = make_plan(inventory_of(*gpus), healthy(*gpus), PlanSettings()).resources
    usual = edits(Grant(resource=plainly, ids=plainly.ids[1:]), node)
    assert injected(cores(*gpus), [*of(1), *of(2)]) == usual
    assert usual.envs["NVIDIA_VISIBLE_DEVICES"] == f"{gpu_id(1)},{gpu_id(2)}"
    given = injected(cores(*cards(3)), counted(1, 2, 3))
    assert (given.envs, given.mounts, given.devices, given.cdi_devices) == ({}, (), (), ())
    ids = cores(*cards(3)).ids
    assert is_counted(ids[-2:])
    assert not is_counted((ids[0], ids[-1])), "one that has a device gets it"
    assert not is_counted(())


@cases("seed", *range(20))
def test_no_gpu_is_given_to_two_and_nothing_is_lost_over_many_pods(seed: int) -> None:
    """By the kubelet's rules: it asks unless exactly as many ids are free as are requested."""
    draw = random.Random(seed)
    gpus = cards(draw.randint(1, 5))
    resource = cores(*gpus)
    whole = {each.device_id for each in resource.ids} - {""}
    held: list[list[str]] = []
    for _ in range(120):
        taken = {each for some in held for each in some}
        free = [each.id for each in resource.ids if each.id not in taken]
        draw.shuffle(free)
        size = draw.choice((1, 30, 50, 99, 100, 100, 200, 150))
        if held and draw.random() < 0.4:
            held.pop(draw.randrange(len(held)))
        elif len(free) >= size:
            try:
                ids = free if len(free) == size else chosen(resource, free, size, gpus=gpus)
                grant(resource, ids)
            except AllocationError:
                continue
            assert len(set(ids)) == size
            held.append(ids)
        given = [{id_form.physical_id(each) for each in ids} - {"shared"} for ids in held]
        assert sum(map(len, given)) == len(set().union(*given)) <= len(whole)
        assert all(len(ids) == 100 * len(parts) for ids, parts in zip(held, given, strict=True) if parts)
        assert sum(len(ids) for ids, parts in zip(held, given, strict=True) if not parts) <= 100
