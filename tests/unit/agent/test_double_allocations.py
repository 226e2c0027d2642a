"""S31: the kubelet gives one device to two pods. What is one, when it is certain, and what is said of it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from nodedevices_plugin.claims.records import DraFacts, Prepared, Record, Result
from nodedevices_plugin.granting.conflicts import Comparison, DoubleAllocation, held_twice
from nodedevices_plugin.model import DRA_DRIVER, Holder, HoldersState, Holdings
from nodedevices_plugin.offering.occupancy import HeldId
from support.cases import cases
from support.facts import START, gpu, gpu_id
from support.stepped_node import Node

GPU = "nvidia.com/gpu"


def held(
    id_: str, pod: str, *, resource: str | None = GPU, part: str | None = None, replica: int | None = None
) -> HeldId:
    return HeldId(resource=resource, id=id_, device_id="GPU-0", partition_id=part, replica=replica, holder=pod)


def by_claim(pod: str, claim: str = "", *, driver: str = DRA_DRIVER, part: str | None = None) -> HeldId:
    """`claim`: by default one of the pod's own, that has its name."""
    id_ = part or "GPU-0"
    made = HeldId(resource=None, driver=driver, id=id_, device_id="GPU-0", partition_id=part, holder=pod)
    return replace(made, claim=claim or pod)


WHOLE = held("GPU-0", "ml/a")
SHARE = held("GPU-0::1", "ml/a", replica=1)
MIG = held("MIG-1", "ml/a", part="MIG-1")


@cases(
    ("one", "other", "id_"),
    (WHOLE, held("GPU-0", "ml/b"), "GPU-0"),
    (SHARE, held("GPU-0::1", "ml/b", replica=1), "GPU-0::1"),
    (MIG, held("MIG-1", "ml/b", part="MIG-1"), "MIG-1"),
    (WHOLE, held("GPU-0", "ml/b", resource="example.com/h100"), "GPU-0"),
    (WHOLE, held("GPU-0::3", "ml/b", resource="nvidia.com/gpu.shared", replica=3), "GPU-0"),
    (WHOLE, held("MIG-1", "ml/b", part="MIG-1"), "GPU-0"),
    (MIG, held("GPU-0::3", "ml/b", replica=3), "MIG-1"),
    (MIG, held("MIG-1::0", "ml/b", part="MIG-1", replica=0), "MIG-1"),
    (held("GPU-0::core.7", "ml/a", replica=7), held("GPU-0::1Gi.3", "ml/b", replica=3), "GPU-0"),
    (by_claim("ml/a"), by_claim("ml/b"), "GPU-0"),
    (by_claim("ml/a"), held("GPU-0", "ml/b"), "GPU-0"),
    (by_claim("ml/a"), held("GPU-0::3", "ml/b", replica=3), "GPU-0"),
    (by_claim("ml/a"), by_claim("ml/b", part="MIG-1"), "GPU-0"),
    (by_claim("ml/a", part="MIG-1"), held("MIG-1", "ml/b", part="MIG-1"), "MIG-1"),
)
def test_s31_the_same_device_of_two_pods_is_found_under_whatever_ids(one: HeldId, other: HeldId, id_: str) -> None:
    expected = (DoubleAllocation(device_id="GPU-0", id=id_, pods=("ml/a", "ml/b")),)
    assert held_twice([one, other]) == held_twice([other, one]) == expected


@cases(
    "other",
    held("GPU-0::2", "ml/b", replica=2),
    held("GPU-0::1", "ml/a", resource="nvidia.com/gpu.shared", replica=1),
    held("GPU-0::1", "", replica=1),
    by_claim("ml/b", driver="gpu.nvidia.com"),
    replace(held("GPU-0::1", "ml/b", replica=1), device_id="GPU-1"),
    ids=["another-share", "the-same-pod", "a-holder-that-is-not-known", "a-claim-of-another-driver", "another-device"],
)
def test_what_two_pods_may_have_is_no_double_allocation(other: HeldId) -> None:
    assert held_twice([SHARE, other]) == ()


def test_the_pods_of_one_claim_and_those_of_administrators_have_it_together() -> None:
    shared = [by_claim("ml/a", "ml/both"), by_claim("ml/b", "ml/both")]
    assert held_twice(shared) == ()
    assert held_twice([*shared, held("GPU-0", "ml/a")])[0].pods == ("ml/a", "ml/b")
    assert held_twice([*shared, by_claim("ml/c")])[0].pods == ("ml/a", "ml/b", "ml/c")
    looks = by_claim("ops/monitor")
    assert held_twice([*shared, replace(looks, any_shape=True)]) == ()
    assert held_twice([*shared, looks])
    assert held_twice([by_claim("ml/a"), by_claim("ml/a", "ml/second")]) == (), "one pod"
    assert held_twice([by_claim("ml/a", part="MIG-1"), by_claim("ml/b", part="MIG-2")]) == ()


def test_side_by_side_gone_shared_by_nature_or_one_after_the_other_are_none() -> None:
    assert held_twice([MIG, held("MIG-2", "ml/b", part="MIG-2")]) == ()
    assert held_twice([MIG, held("MIG-2::0", "ml/b", part="MIG-2", replica=0)]) == ()
    assert held_twice([MIG, held("GPU-0", "ml/b")], departed={"MIG-1"}) == ()
    hca = held("nic-0::1", "ml/a", resource="rdma/hca", replica=1)
    assert held_twice([hca, held("nic-0", "ml/b", resource="rdma/alone")], by_nature={"rdma/hca"}) == ()
    assert len(held_twice([hca, replace(hca, holder="ml/b")], by_nature={"rdma/hca"})) == 1
    passed_on = replace(A_AND_B, pods=("ml/b", "ml/c"))
    assert Comparison().after([A_AND_B], 1.0).after([passed_on], 2.0).found == ()


A_AND_B = DoubleAllocation(device_id="GPU-0", id="GPU-0", pods=("ml/a", "ml/b"))


def test_one_list_proves_nothing_and_two_in_a_row_do() -> None:
    """A List is put together pod by pod: a device may have gone from the first to the second meanwhile."""
    once = Comparison().after([A_AND_B], 1.0)
    assert (once.found, once.unsure) == ((), True)
    twice = once.after([A_AND_B], 2.0)
    assert (twice.found, twice.unsure) == ((A_AND_B,), False)
    assert twice.after([], 3.0).found == ()
    assert once.after([], 2.0).after([A_AND_B], 3.0).found == ()


# --- in the agent's steps ---------------------------------------------------------------------------------------------
def container(pod: str, *ids: str) -> Holder:
    return Holder(namespace="ml", pod=pod, container="main", resource=GPU, ids=ids, since=START)


def lists(taken: float, *holders: Holder, forgotten: tuple[Holder, ...] = ()) -> Holdings:
    return Holdings(state=HoldersState.SYNCED, holders=holders, forgotten=forgotten, taken=taken)


@pytest.fixture
def node() -> Node:
    return Node(gpu(0), gpu(1)).line()


A, B = container("a", gpu_id(0)), container("b", gpu_id(0))
TWICE = (DoubleAllocation(device_id=gpu_id(0), id=gpu_id(0), pods=("ml/a", "ml/b")),)


def test_a_step_finds_it_with_the_second_list_and_looks_for_that_by_itself(node: Node) -> None:
    node.given(holdings=lists(2.0, A, B)).wait(1.0)
    assert not node.world.allocations.found
    assert node.last.deadline == node.clock + 1.0, "equal lists wake no step"
    node.wait(1.0)
    assert not node.world.allocations.found, "the same list once more"
    node.given(holdings=lists(7.0, A, B)).wait(1.0)
    assert node.world.allocations.found == TWICE
    node.given(holdings=lists(12.0, B)).wait(5.0)
    assert not node.world.allocations.found


def claimant(name: str) -> Holder:
    """The container of a pod with a claim of that name, which has the node's first device."""
    device = f"{DRA_DRIVER}/n1/gpu-0"
    return Holder(namespace="ml", pod=name, container="main", claim=f"ml/{name}", ids=(device,), since=START)


def test_claims_are_told_apart_in_steps_and_a_record_says_who_only_looks(node: Node) -> None:
    for taken in (2.0, 7.0):
        node.given(holdings=lists(taken, claimant("a"), claimant("b"))).wait(1.0)
    assert node.world.allocations.found == TWICE
    result = Result(request="gpu", device="gpu-0", admin=True)
    given = Prepared(result=result, part_id=gpu_id(0), resource=GPU)
    looks = Record(uid="u", namespace="ml", name="b", prepared=(given,))
    node.given(holdings=lists(12.0, claimant("a"), claimant("b")), dra=DraFacts(records={"u": looks})).wait(1.0)
    assert not node.world.allocations.found


def test_neither_an_incomplete_list_nor_a_pod_that_the_kubelet_forgot_ends_it(node: Node) -> None:
    node.given(holdings=lists(2.0, A, B)).wait().given(holdings=lists(7.0, A, B)).wait()
    for state in (HoldersState.INCOMPLETE, HoldersState.UNAVAILABLE, HoldersState.RATE_LIMITED):
        node.given(holdings=replace(lists(12.0), state=state)).wait(1.0)
        assert node.world.allocations.found == TWICE
    node = Node(gpu(0), gpu(1)).line()
    for taken in (2.0, 7.0):
        node.given(holdings=lists(taken, B, forgotten=(A,))).wait(1.0)
    assert node.world.allocations.found == TWICE


def test_the_kubelet_is_answered_all_the_same(node: Node) -> None:
    """It decides: only it knows which pods have ended, and each list is older than its request."""
    node.now({}, A)
    assert node.offers[GPU] == [gpu_id(0), gpu_id(1)]
    assert node.container(GPU, gpu_id(0)).envs["NVIDIA_VISIBLE_DEVICES"] == gpu_id(0)
