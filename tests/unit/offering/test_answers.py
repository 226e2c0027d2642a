"""Answers while the offer changes: what a plan takes away is granted to nobody between its decision and its use."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import pytest
from msgspec.structs import replace
from nodedevices_plugin.granting.answers import Answers, NodeContainers, edits, grant
from nodedevices_plugin.kubelet.offer import RecentAllocations
from nodedevices_plugin.model import (
    AllocationError,
    Blocked,
    ContainerEdits,
    Grant,
    OfferedResource,
    Plan,
    RecentAllocate,
    SchedulableId,
    SharingFacts,
)
from nodedevices_plugin.vendors.base import DeviceNodes
from support.cases import cases
from support.exclusive_window import ExclusiveWindow
from support.facts import START, gpu, inventory_of

GPU, NIC = "nvidia.com/gpu", "example.com/nic"


def resource(name: str, *ids: str) -> OfferedResource:
    return OfferedResource(name=name, ids=tuple(SchedulableId(id=each, device_id=each) for each in ids))


def plan(*gpus: str) -> Plan:
    return Plan(resources=(resource(NIC, "nic-0"), resource(GPU, *gpus)))


def allocate(*ids: str, name: str = GPU) -> RecentAllocate:
    return RecentAllocate(resource=name, ids=ids, time=START, monotonic=1.0)


class Lately:
    """What was granted since the plan was decided."""

    granting = nullcontext()

    def __init__(self, *after: RecentAllocate) -> None:
        self.after = after

    def since(self, known: Sequence[RecentAllocate]) -> Sequence[RecentAllocate]:
        return self.after


def answers(*after: RecentAllocate) -> Answers:
    made = Answers(recent=Lately(*after))
    made.use(plan("GPU-0", "GPU-1"), inventory_of(gpu(0)), NodeContainers())
    return made


def granted(of: Answers, *ids: str, name: str = GPU) -> list[str]:
    return [each.id for each in of.grant(name, ids).ids]


def test_an_id_that_is_about_to_go_is_granted_to_nobody_unless_its_plan_was_dropped() -> None:
    some = answers()
    assert some.withdraw(plan("GPU-1"), inventory_of(gpu(0)), known=())
    with pytest.raises(AllocationError, match=r"nvidia\.com/gpu: this node is about to stop offering GPU-0\. Delete"):
        some.grant(GPU, ["GPU-1", "GPU-0"])
    assert granted(some, "GPU-1") == ["GPU-1"]
    assert granted(some, "nic-0", name=NIC) == ["nic-0"]
    some = answers()
    some.withdraw(plan("GPU-1"), inventory_of(gpu(0)), known=())
    some.use(plan("GPU-0", "GPU-1"), inventory_of(gpu(0)), NodeContainers())
    assert granted(some, "GPU-0") == ["GPU-0"]


@cases(
    ("after", "may"),
    ((allocate("GPU-0"),), False),
    ((allocate("GPU-1"), allocate("GPU-1", "GPU-0")), False),
    ((allocate("GPU-0"), allocate("GPU-1")), False),
    ((allocate("GPU-1"), allocate("GPU-0", name=NIC)), True),
    ((), True),
)
def test_a_plan_is_decided_again_where_an_id_of_it_was_granted(after: tuple[RecentAllocate, ...], may: bool) -> None:
    assert answers(*after).withdraw(plan("GPU-1"), inventory_of(gpu(0)), known=()) is may


def test_an_id_that_a_plan_blocks_is_granted_to_nobody_from_its_decision_on() -> None:
    """A device at fault: files are written before the plan is used, and a disk may take its time."""
    first, second = plan("GPU-0", "GPU-1"), Blocked(reason="Unhealthy", message="Xid79")
    ids = tuple(replace(each, blocked=second if each.id == "GPU-0" else None) for each in first.resources[1].ids)
    faulty = Plan(resources=(first.resources[0], replace(first.resources[1], ids=ids)))
    for after, may in ((), True), ((allocate("GPU-1"),), True), ((allocate("GPU-0"),), False):
        some = answers(*after)
        assert some.withdraw(faulty, inventory_of(gpu(0)), known=()) is may
        with pytest.raises(AllocationError, match="GPU-0"):
            some.grant(GPU, ["GPU-0"])
        assert granted(some, "GPU-1") == ["GPU-1"]


def test_an_id_that_would_be_given_with_other_device_nodes_is_granted_to_nobody_until_it_is_given_with_these() -> None:
    """What was granted in between would have a node that another device has by now."""
    here, moved = (inventory_of(gpu(0, id="GPU-0", device_nodes=(f"/dev/nvidia{n}",))) for n in (1, 0))
    for after, may in ((), True), ((allocate("GPU-0"),), False):
        some = Answers(recent=Lately(*after))
        some.use(plan("GPU-0", "GPU-1"), here, NodeContainers())
        assert some.withdraw(plan("GPU-0", "GPU-1"), moved, known=()) is may
        with pytest.raises(AllocationError, match="GPU-0"):
            some.grant(GPU, ["GPU-0"])
        assert granted(some, "GPU-1") == ["GPU-1"]
        some.use(plan("GPU-0", "GPU-1"), moved, NodeContainers())
        assert granted(some, "GPU-0") == ["GPU-0"]


def test_a_plan_that_takes_nothing_away_waits_for_nothing_and_a_gone_resource_is_refused_in_words() -> None:
    some = answers(allocate("GPU-0"))
    assert some.withdraw(plan("GPU-0", "GPU-1", "GPU-2"), inventory_of(gpu(0)), known=())
    assert granted(some, "GPU-0") == ["GPU-0"]
    with pytest.raises(AllocationError, match=r"example\.com/other: this node no longer offers it; delete the pod"):
        answers().grant("example.com/other", ["x"])
    alone = Answers(recent=RecentAllocations())
    alone.use(plan("GPU-0", "GPU-1"), inventory_of(gpu(0)), NodeContainers())
    assert alone.withdraw(plan("GPU-1"), inventory_of(gpu(0)), known=())


def in_shares(*devices: str) -> OfferedResource:
    """Two shares of each, with windows; the last device is whole."""
    *shared, whole = devices
    ids = [SchedulableId(id=f"{each}::{n}", device_id=each, replica=n) for each in shared for n in (0, 1)]
    windows = SharingFacts(mode=ExclusiveWindow(), replicas=2)
    return OfferedResource(name=GPU, ids=(*ids, SchedulableId(id=whole, device_id=whole)), sharing=windows)


@cases(("packed", "preferred"), ({}, "GPU-1::0"), ({"packed": False}, "GPU-1::0"), ({"packed": True}, "GPU-0::1"))
def test_shares_come_from_the_least_shared_device_unless_packed(packed: dict[str, bool], preferred: str) -> None:
    some = Answers(recent=RecentAllocations())
    offered = in_shares("GPU-0", "GPU-1", "GPU-2")
    some.use(Plan(resources=(offered,)), inventory_of(gpu(0)), NodeContainers(), **packed)
    assert some.prefer(GPU, ["GPU-0::1", "GPU-1::0", "GPU-1::1"], [], 1) == (preferred,)


@cases(
    ("ids", "windows"),
    (["GPU-0::1"], {"EXCLUSIVE_WINDOW": "1 of 2"}),
    (["GPU-1", "GPU-0::1"], {"EXCLUSIVE_WINDOW": "1 of 2"}),
    (["GPU-1"], {}),
)
def test_what_shares_need_is_not_decided_by_whole_devices_beside(ids: list[str], windows: dict[str, str]) -> None:
    known = DeviceNodes(nodes={"GPU-0": (), "GPU-1": ()})
    assert edits(grant(in_shares("GPU-0", "GPU-1"), ids), NodeContainers(by_vendor={"": known})).envs == windows


def test_a_container_that_gets_none_of_a_resource_of_two_makers_is_told_so_by_both() -> None:
    """An image may request everything that there is of one of them."""

    class Tells:
        def __init__(self, name: str) -> None:
            self.name = name

        def edits(self, grant: Grant) -> ContainerEdits:
            return ContainerEdits(envs={self.name: ",".join(each.id for each in grant.ids) or "void"})

    makers = {"one": Tells("ONE"), "other": Tells("OTHER")}
    node = NodeContainers(vendors={"GPU-0": "one", "NIC-0": "other"}, by_vendor=makers)
    mixed = resource(GPU, "GPU-0", "NIC-0")
    assert edits(Grant(resource=mixed, ids=()), node).envs == {"ONE": "void", "OTHER": "void"}
    assert edits(grant(mixed, ["NIC-0"]), node).envs == {"OTHER": "NIC-0"}
    assert edits(grant(mixed, ["NIC-0", "GPU-0"]), node).envs == {"ONE": "GPU-0", "OTHER": "NIC-0"}


def test_gpus_are_preferred_by_how_they_are_connected() -> None:
    gpus = gpu(0, numa_node=0), gpu(1, numa_node=1), gpu(2, numa_node=1)
    some, all_ = Answers(recent=RecentAllocations()), tuple(each.id for each in gpus)
    some.use(Plan(resources=(resource(GPU, *all_),)), inventory_of(*gpus), NodeContainers())
    assert some.prefer(GPU, all_, [], 2) == all_[1:]
