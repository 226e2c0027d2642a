from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings, strategies as st
from msgspec.structs import replace
from nodedevices_api.sections import SharedResource, Sharing
from nodedevices_plugin.granting import preferred
from nodedevices_plugin.granting.preferred import Topology, gather, prefer
from nodedevices_plugin.model import AllocationError, OfferedResource, SchedulableId
from nodedevices_plugin.offering.shape import PlanSettings
from nodedevices_probe.protocol import DeviceFact, Link, PcieNeighbour, PciePath
from support.cases import cases
from support.facts import gpu, gpu_id, healthy, inventory_of, silent_gpu
from support.fuzzing import scaled
from support.plans import UNFIT, make_plan

# What NVIDIA's device plugin v0.20.0 answered on these machines (go-gpuallocator's best-effort policy).
# Pairs of GPUs and their direct NVLinks; every other pair has none.
CUBE = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2, (2, 6): 1, (3, 7): 1,
    (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip
ALL = tuple(range(8))


def machine(count: int, nvlinks: dict[tuple[int, int], int], *, per_socket: int) -> tuple[DeviceFact, ...]:
    """GPUs on sockets: one PCIe switch per socket, and direct NVLinks as given."""
    gpus = []
    for one in range(count):
        links = [
            Link(kind="NVLink", to=gpu_id(sum(pair) - one), count=links)
            for pair, links in nvlinks.items()
            if one in pair and max(pair) < count
        ]
        near = [
            PcieNeighbour(
                to=gpu_id(other), path=PciePath.SINGLE if one // per_socket == other // per_socket else PciePath.SYSTEM
            )
            for other in range(count)
            if other != one
        ]
        gpus.append(gpu(one, links=tuple(links), pcie=tuple(near), numa_node=one // per_socket))
    return tuple(gpus)


A100X8 = machine(8, {}, per_socket=4)
GB200X8 = machine(8, {}, per_socket=2)
NVLINK_CUBE = machine(8, CUBE, per_socket=4)
NVLINK_FOUR = machine(4, CUBE, per_socket=4)
RECORDED = [
    (A100X8, ALL, (), 1, (0,)),
    (A100X8, ALL, (), 2, (0, 1)),
    (A100X8, ALL, (), 3, (0, 1, 2)),
    (A100X8, ALL, (), 4, (0, 1, 2, 3)),
    (A100X8, ALL, (), 8, ALL),
    (A100X8, ALL, (5,), 2, (4, 5)),
    (A100X8, ALL, (0, 7), 4, (0, 1, 2, 7)),
    (A100X8, ALL, (2, 6), 2, (2, 6)),
    (A100X8, (0, 4, 5), (), 2, (4, 5)),
    (A100X8, (1, 2, 3, 6, 7), (), 3, (1, 2, 3)),
    (GB200X8, ALL, (), 2, (0, 1)),
    (GB200X8, ALL, (), 3, (0, 1, 2)),
    (GB200X8, ALL, (), 4, (0, 1, 2, 3)),
    (GB200X8, (0, 2, 3, 5), (), 2, (2, 3)),
    (GB200X8, ALL, (3,), 2, (2, 3)),
    (NVLINK_CUBE, ALL, (), 1, (0,)),
    (NVLINK_CUBE, ALL, (), 2, (0, 3)),
    (NVLINK_CUBE, ALL, (), 3, (0, 2, 3)),
    (NVLINK_CUBE, ALL, (), 4, (0, 1, 2, 3)),
    (NVLINK_CUBE, ALL, (5,), 2, (5, 6)),
    (NVLINK_CUBE, (0, 1, 5, 6, 7), (), 2, (6, 7)),
    (NVLINK_CUBE, (1, 2, 4, 7), (), 2, (1, 2)),
    (NVLINK_CUBE, (0, 1, 2, 3, 4, 7), (), 4, (0, 1, 2, 3)),
    (NVLINK_CUBE, ALL, (0,), 4, (0, 1, 2, 3)),
    (NVLINK_FOUR, (0, 1, 2, 3), (), 1, (0,)),
    (NVLINK_FOUR, (0, 1, 2, 3), (), 2, (0, 3)),
    (NVLINK_FOUR, (0, 1, 2, 3), (), 3, (0, 2, 3)),
    (NVLINK_FOUR, (0, 1, 2, 3), (1,), 2, (1, 2)),
    (NVLINK_FOUR, (0, 1, 2), (), 2, (1, 2)),
]


def whole(gpus: tuple[DeviceFact, ...], *, cordoned: frozenset[str] = frozenset()) -> OfferedResource:
    return make_plan(inventory_of(*gpus), healthy(*gpus), PlanSettings(), cordoned).resources[0]


def shares(count: int, replicas: int, *, cordoned: frozenset[str] = frozenset()) -> OfferedResource:
    gpus = tuple(gpu(number) for number in range(count))
    rule = SharedResource(name="nvidia.com/gpu", replicas=replicas)
    settings = PlanSettings(sharing=Sharing(strategy="timeSlicing", resources=(rule,)))
    return make_plan(inventory_of(*gpus), healthy(*gpus), settings, cordoned).resources[0]


def ids(numbers: tuple[int, ...]) -> list[str]:
    return [gpu_id(number) for number in numbers]


def share(device: int, replica: int) -> str:
    return f"{gpu_id(device)}::{replica}"


def inside(scores: Topology, chosen: list[str] | tuple[str, ...]) -> int:
    return sum(scores.score(one, other) for one, other in combinations(chosen, 2))


def per_gpu(chosen: tuple[str, ...]) -> list[int]:
    devices = [each.partition("::")[0] for each in chosen]
    return sorted(devices.count(each) for each in set(devices))


# --- whole GPUs -------------------------------------------------------------------------------------------------------
@cases(("gpus", "available", "must", "size", "recorded"), *RECORDED)
def test_the_choice_is_as_good_as_nvidias(
    gpus: tuple[DeviceFact, ...],
    available: tuple[int, ...],
    must: tuple[int, ...],
    size: int,
    recorded: tuple[int, ...],
) -> None:
    scores = preferred.build(inventory_of(*gpus))
    chosen = prefer(whole(gpus), ids(available), ids(must), size, scores)
    rest = [each for each in ids(available) if each not in chosen]
    recorded_rest = [each for each in ids(available) if each not in ids(recorded)]
    assert len(chosen) == size
    assert set(ids(must)) <= set(chosen)
    assert inside(scores, chosen) == inside(scores, ids(recorded))
    assert inside(scores, rest) == inside(scores, recorded_rest)


def test_a_single_gpu_is_taken_where_it_breaks_no_pair_in_whatever_order_is_asked() -> None:
    """NVIDIA's plugin takes the first, and so breaks NVLink pairs (its issue 1193)."""
    pairs = machine(5, {(0, 1): 2, (3, 4): 2}, per_socket=5)
    assert prefer(whole(pairs), ids((0, 1, 2, 3, 4)), [], 1, preferred.build(inventory_of(*pairs))) == (gpu_id(2),)
    scores = preferred.build(inventory_of(*A100X8))
    backwards = prefer(whole(A100X8), ids(ALL[::-1]), [], 4, scores)
    assert backwards == tuple(ids((0, 1, 2, 3)))
    assert prefer(whole(A100X8), ids(ALL), [], 3, Topology()) == tuple(ids((0, 1, 2)))


def test_what_is_known_of_a_pair_is_from_links_of_either_end_or_numa_and_not_through_a_switch() -> None:
    scores = preferred.build(inventory_of(gpu(0), gpu(1)))
    assert scores.score(gpu_id(0), gpu_id(1)) > 0
    for pair in ((gpu_id(0), "gone"), ("gone", gpu_id(1)), ("gone", "gone"), (gpu_id(1), gpu_id(1))):
        assert scores.score(*pair) == 0
    gpus = tuple(gpu(number, numa_node=number % 2) for number in range(4))
    scores = preferred.build(inventory_of(*gpus))
    assert (scores.score(gpu_id(0), gpu_id(2)), scores.score(gpu_id(0), gpu_id(1))) == (20, 10)
    assert prefer(whole(gpus), ids((0, 1, 2, 3)), [], 2, scores) == tuple(ids((0, 2)))
    gpus = tuple(gpu(number, links=(Link(kind="NVLink", to="switch", count=18),)) for number in range(2))
    assert preferred.build(inventory_of(*gpus)).score(gpu_id(0), gpu_id(1)) == 20
    one = gpu(0, links=(Link(kind="NVLink", to=gpu_id(1), count=4),), numa_node=None)
    assert preferred.build(inventory_of(one, gpu(1))).score(gpu_id(0), gpu_id(1)) == 400


@cases(
    ("available", "must", "size"),
    ((0, 1), (), 3),
    (ALL, (), 0),
    ((), (), 1),
    (ALL, (0, 1), 1),
    ((0, 1, 2), (7,), 2),
    (ALL, (), -1),
)
def test_an_impossible_request_gets_an_empty_list(available: tuple[int, ...], must: tuple[int, ...], size: int) -> None:
    scores = preferred.build(inventory_of(*A100X8))
    assert prefer(whole(A100X8), ids(available), ids(must), size, scores) == ()


def test_what_an_init_container_had_is_all_that_its_pod_gets_where_that_is_enough() -> None:
    resource, scores = whole(A100X8), preferred.build(inventory_of(*A100X8))
    assert prefer(resource, ids((2, 5)), ids((2, 5)), 2, scores) == tuple(ids((2, 5)))


def test_an_unknown_id_is_an_error_only_when_the_others_do_not_suffice() -> None:
    resource, scores = whole(A100X8), preferred.build(inventory_of(*A100X8))
    with pytest.raises(AllocationError, match="does not offer GPU-gone"):
        prefer(resource, ["GPU-gone"], [], 1, scores)
    with pytest.raises(AllocationError, match="does not offer GPU-gone"):
        prefer(resource, ids(ALL), ["GPU-gone"], 2, scores)
    assert prefer(resource, ["GPU-gone", *ids((0, 1))], [], 2, scores) == tuple(ids((0, 1)))
    with pytest.raises(AllocationError, match=r"does not offer a, b, c \(any more\)"):
        prefer(resource, ["d", "c", "b", "a"], [], 1, scores)
    with pytest.raises(AllocationError, match=r"does not offer x{128} \(any more\)"):
        prefer(resource, ["x" * 200], [], 1, scores)


def test_partitions_of_several_devices_are_those_with_the_best_pairs() -> None:
    """Six pairs: of 3 and 1 partitions three are of one device, of 2 and 2 two; the others are pairs of devices."""
    near, far = 60, 10
    of = {"a": 3, "b": 3, "c": 2, "d": 2}
    rows = tuple(
        tuple(70 if one == other else near if {one, other} == {"c", "d"} else far for other in of) for one in of
    )
    assert gathered(of, rows, 4) == {"c", "d"}


@cases(("pair", "chosen"), (15, {"b", "c"}), (5, {"a"}))
def test_two_partitions_are_of_one_device_where_that_is_the_best_pair(pair: int, chosen: set[str]) -> None:
    of = {"a": 2, "b": 1, "c": 1}
    rows = ((10, 0, 0), (0, 0, pair), (0, pair, 0))
    assert gathered(of, rows, 2) == chosen


def test_partitions_are_spread_or_taken_of_the_device_with_the_fewest_that_are_free() -> None:
    pairs = Topology({"a": 0, "b": 1}, ((9, 0), (0, 9)), frozenset({"a"}))
    ids = tuple(SchedulableId(id=f"{of}.{n}", device_id=of, partition_id=f"{of}.{n}") for of in "ab" for n in (0, 1))
    chosen = prefer(OfferedResource(name="example.com/part", ids=ids), [each.id for each in ids], [], 2, pairs)
    assert chosen == ("a.0", "b.0")
    of = {"a": 3, "b": 2, "c": 2}
    assert gathered(of, ((0, 0, 0), (0, 0, 0), (0, 0, 0)), 2) == {"b"}


@cases("best", range(6), range(6, 12), range(0, 12, 2))
def test_the_best_of_very_many_sets_of_partitions_is_found_wherever_it_is(best: range) -> None:
    """Of 12 devices there are 220 sets of 3, and more of 4: not all are tried."""
    rows = tuple(tuple(100 if {one, other} <= {*best} else 1 for other in range(12)) for one in range(12))
    assert gathered({str(each): 1 for each in range(12)}, rows, 6) == {str(each) for each in best}


def test_of_very_many_equally_good_sets_the_first_are_taken_and_a_lost_neighbour_fails_nothing() -> None:
    rows = ((1,) * 12,) * 12
    assert gathered({f"{each:02}": 1 for each in range(12)}, rows, 6) == {f"{each:02}" for each in range(6)}
    # One GPU off the bus made every call of NVIDIA's plugin fail (its issue 2038).
    gpus = (gpu(0), silent_gpu(1), gpu(2), gpu(3))
    scores = preferred.build(inventory_of(*gpus))
    assert len(prefer(whole(gpus), ids((0, 2, 3)), [], 2, scores)) == 2


def gathered(of: dict[str, int], rows: tuple[tuple[int, ...], ...], needed: int) -> set[str]:
    """The devices of the partitions that are chosen, of so many free ones of each."""
    pairs = Topology({name: at for at, name in enumerate(of)}, rows, frozenset(of))
    free = [SchedulableId(id=f"{name}.{part}", device_id=name) for name, count in of.items() for part in range(count)]
    chosen = gather((), free, needed, pairs)
    assert len(chosen) == needed
    return {each.device_id for each in chosen}


def linked(count: int, *groups: tuple[int, ...]) -> tuple[OfferedResource, Topology]:
    """So many devices, those of a group with links to each other."""
    names = [gpu_id(number) for number in range(count)]
    near = [{one, other} for group in groups for one, other in combinations(group, 2)]
    rows = tuple(
        tuple((one != other) * (100 if {one, other} in near else 10) for other in range(count)) for one in range(count)
    )
    ids = tuple(SchedulableId(id=name, device_id=name) for name in names)
    return OfferedResource(name="nvidia.com/gpu", ids=ids), Topology({name: at for at, name in enumerate(names)}, rows)


@cases(
    ("count", "groups", "must", "size", "chosen"),
    (20, ((3, 8, 11, 14, 19),), (), 5, (3, 8, 11, 14, 19)),
    (20, ((3, 8, 11, 14, 19),), (14,), 5, (3, 8, 11, 14, 19)),
    (20, ((3, 8, 11, 14, 19),), (14,), 6, (0, 3, 8, 11, 14, 19)),
    (16, ((3, 12), (7, 14)), (), 4, (3, 7, 12, 14)),
    (20, ((3, 12), (7, 14), (8, 15)), (12,), 5, (0, 3, 7, 12, 14)),
    (20, ((0, 1), (2, 3), (8, 9, 10, 11)), (), 5, (4, 8, 9, 10, 11)),
    (20, (), (), 5, (0, 1, 2, 3, 4)),
    (20, (), (7,), 5, (0, 1, 2, 3, 7)),
    (16, (), (), 9, (0, 1, 2, 3, 4, 5, 6, 7, 8)),
    (20, (tuple(range(16)),), (), 5, (0, 1, 2, 3, 4)),
)
def test_of_many_devices_those_with_links_go_together_and_no_link_is_broken_without_need(
    count: int, groups: tuple[tuple[int, ...], ...], must: tuple[int, ...], size: int, chosen: tuple[int, ...]
) -> None:
    resource, scores = linked(count, *groups)
    assert prefer(resource, ids(tuple(range(count))), ids(must), size, scores) == tuple(ids(chosen))


# --- shares -----------------------------------------------------------------------------------------------------------
def test_shares_come_from_the_least_shared_gpu_first_and_packed_from_the_most() -> None:
    resource = shares(2, 4)
    everything = [each.id for each in resource.ids]
    assert per_gpu(prefer(resource, everything, [], 2, Topology())) == [1, 1]
    assert per_gpu(prefer(resource, everything, [], 3, Topology())) == [1, 2]
    assert prefer(resource, everything, [share(0, 1)], 2, Topology()) == (share(0, 1), share(1, 0))
    uneven = [share(0, 0), share(0, 1), share(0, 2), share(1, 0)]
    assert prefer(resource, uneven, [], 1, Topology()) == (share(0, 0),)
    resource = shares(2, 4)
    three_of_the_second = [each.id for each in resource.ids if each.id != share(1, 0)]
    assert prefer(resource, three_of_the_second, [], 2, Topology()) == (share(0, 0), share(1, 1))
    available = [share(0, 0), share(0, 1), share(1, 0)]
    assert prefer(shares(2, 4), available, [], 1, Topology(), packed=True) == (share(1, 0),)


@cases(
    ("available", "must", "size", "recorded"),
    ([share(g, r) for g in (0, 1) for r in range(4)], [], 2, [2]),
    ([share(g, r) for g in (0, 1) for r in range(4)], [], 4, [4]),
    ([share(g, r) for g in (0, 1) for r in range(4)], [share(0, 1)], 2, [2]),
    ([share(0, 0), share(0, 1), share(0, 2), share(1, 0)], [], 2, [1, 1]),
    ([share(0, 0), share(0, 1), share(1, 0)], [], 1, [1]),
)
def test_packed_shares_are_nvidias(available: list[str], must: list[str], size: int, recorded: list[int]) -> None:
    chosen = prefer(shares(2, 4), available, must, size, Topology(), packed=True)
    assert per_gpu(chosen) == recorded
    assert set(must) <= set(chosen) <= set(available)


def test_a_share_out_of_service_does_not_count_as_taken_and_too_many_are_an_error() -> None:
    """NVIDIA's plugin takes it for allocated, and so packs onto the GPU with the bad one."""
    resource = shares(2, 4)
    held = (share(0, 0), share(0, 1))  # under another id: blocked, and not allocated under this one
    ids = tuple(replace(each, blocked=UNFIT) if each.id in held else each for each in resource.ids)
    available = [each.id for each in ids if each.id not in (*held, share(1, 0))]
    assert prefer(replace(resource, ids=ids), available, [], 1, Topology()) == (share(0, 2),)
    assert prefer(replace(resource, ids=ids), available, [], 1, Topology(), packed=True) == (share(1, 1),)
    resource = shares(2, 4)
    with pytest.raises(AllocationError, match="9 requested, 8 are available"):
        prefer(resource, [each.id for each in resource.ids], [], 9, Topology())
    with pytest.raises(AllocationError, match="does not offer GPU-none::0"):
        prefer(resource, ["GPU-none::0"], [], 1, Topology())


# --- what always holds ------------------------------------------------------------------------------------------------
@st.composite
def requests(draw: st.DrawFn, most: int) -> tuple[tuple[DeviceFact, ...], tuple[int, ...], tuple[int, ...], int]:
    count = draw(st.integers(1, most))
    pairs = list(combinations(range(count), 2))
    nvlinks = draw(st.dictionaries(st.sampled_from(pairs), st.integers(1, 4))) if pairs else {}
    available = draw(st.lists(st.integers(0, count - 1), unique=True, min_size=1))
    must = draw(st.lists(st.sampled_from(available), unique=True))
    size = draw(st.integers(max(1, len(must)), len(available)))
    return machine(count, nvlinks, per_socket=4), tuple(available), tuple(must), size


@settings(max_examples=scaled(150), deadline=None)
@given(requests(8))
def test_up_to_eight_gpus_no_set_is_better_and_none_as_good_comes_before_it(
    request: tuple[tuple[DeviceFact, ...], tuple[int, ...], tuple[int, ...], int],
) -> None:
    gpus, available, must, size = request
    scores = preferred.build(inventory_of(*gpus))
    chosen = prefer(whole(gpus), ids(available), ids(must), size, scores)
    assert len(set(chosen)) == size
    assert set(ids(must)) <= set(chosen) <= set(ids(available))

    def worth(some: tuple[str, ...]) -> tuple[int, int]:
        return inside(scores, some), inside(scores, [each for each in ids(available) if each not in some])

    others = [some for some in combinations(ids(tuple(sorted(available))), size) if set(ids(must)) <= set(some)]
    assert chosen == max(others, key=worth), "of equals the first by index: max keeps it"
    assert prefer(whole(gpus), ids(available[::-1]), ids(must), size, scores) == chosen


@settings(max_examples=scaled(40), deadline=None)
@given(requests(20))
def test_beyond_eight_gpus_the_set_is_valid_and_no_worse_than_the_first_ones(
    request: tuple[tuple[DeviceFact, ...], tuple[int, ...], tuple[int, ...], int],
) -> None:
    gpus, available, must, size = request
    scores = preferred.build(inventory_of(*gpus))
    chosen = prefer(whole(gpus), ids(available), ids(must), size, scores)
    assert len(set(chosen)) == size
    assert set(ids(must)) <= set(chosen) <= set(ids(available))
    first = [*ids(must), *(each for each in ids(tuple(sorted(available))) if each not in ids(must))][:size]
    assert inside(scores, chosen) >= inside(scores, first)


@settings(deadline=None)
@given(st.data(), st.integers(1, 4), st.integers(2, 4), st.booleans())
def test_shares_are_always_a_valid_answer(data: st.DataObject, count: int, replicas: int, packed: bool) -> None:
    resource = shares(count, replicas)
    everything = [each.id for each in resource.ids]
    available = data.draw(st.lists(st.sampled_from(everything), unique=True, min_size=1))
    must = data.draw(st.lists(st.sampled_from(available), unique=True))
    size = data.draw(st.integers(max(1, len(must)), len(available)))
    chosen = prefer(resource, available, must, size, Topology(), packed=packed)
    assert len(set(chosen)) == size
    assert set(must) <= set(chosen) <= set(available)
    assert prefer(resource, available[::-1], must[::-1], size, Topology(), packed=packed) == chosen


@cases(
    ("path", "score"),
    (PciePath.SYSTEM, 10),
    (PciePath.NODE, 20),
    (PciePath.HOSTBRIDGE, 30),
    (PciePath.MULTIPLE, 40),
    (PciePath.SINGLE, 50),
    (PciePath.INTERNAL, 60),
)
def test_paths_on_pcie_count_as_in_nvidias_allocator(path: PciePath, score: int) -> None:
    one, other = gpu(0, pcie=(PcieNeighbour(to=gpu_id(1), path=path),)), gpu(1)
    assert preferred.build(inventory_of(one, other)).score(gpu_id(0), gpu_id(1)) == score
