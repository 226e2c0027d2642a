"""A container whose GPU fell off the bus under it: what it shows once the GPU is back, and for how long."""

from __future__ import annotations

import dataclasses
from typing import Any

from msgspec.structs import replace
from nodedevices_plugin.model import Holder, HoldersState
from support.facts import START, gpu, gpu_id, mig_id, partition, well, xid
from support.stepped_node import NOBODY, Node, report_of

GPU = "nvidia.com/gpu"
BACK = 400.0  # seconds until a hold-down is over


def holder(pod: str = "train-0", *ids: str) -> Holder:
    return Holder(namespace="ml", pod=pod, container="main", resource=GPU, ids=ids or (gpu_id(0),), since=START)


def holding(*holders: Holder) -> dict[str, Any]:
    return {"holdings": replace(NOBODY, holders=holders)}


def fell(*holders: Holder, **line: Any) -> Node:
    """A node whose GPU 0 fell off the bus under these, and came back."""
    node = Node(gpu(0), gpu(1)).given(**holding(*holders)).line()
    node.line(xids=(xid(79),), **line).line(gpu(0, readings=well(lost=True)), gpu(1), **line)
    return node.line(**line).line(after=BACK, **line).line(**line)


def shown(node: Node) -> dict[str, tuple[str, str | None]]:
    """By pod, what its entry says of it alone."""
    return {
        each.pod: (each.health.reason, each.health.recovery_action)
        for device in report_of(node.world, node.time).devices
        for each in device.holders
        if each.health is not None
    }


def test_the_gpu_is_back_and_who_held_it_still_says_what_it_lost() -> None:
    node = fell(holder(), holder("other", gpu_id(1)))
    assert node.says() == ("Healthy", "", True)
    assert shown(node) == {"train-0": ("Xid79", "RestartApp")}
    assert shown(node.restarts().line()) == {"train-0": ("Xid79", "RestartApp")}
    node = Node(gpu(0)).given(**holding(holder())).line().line(xids=(xid(79),))
    assert (node.says()[:2], shown(node)) == (("Unhealthy", "Xid79"), {})


def test_who_comes_after_it_lost_nothing_and_the_entry_goes_with_its_pod() -> None:
    node = fell(holder())
    node.given(**holding(holder("next"))).line()
    assert shown(node) == {}
    assert not node.world.state.lost_contexts


def test_nothing_is_forgotten_while_the_holders_are_not_known_but_a_boot_ends_it() -> None:
    node = fell(holder())
    node.given(holdings=replace(NOBODY, state=HoldersState.UNAVAILABLE)).line()
    assert shown(node.given(**holding(holder())).line()) == {"train-0": ("Xid79", "RestartApp")}
    node = fell(holder())
    assert shown(node.restarts().line(boot_id="another")) == {}


def test_a_gpu_that_stayed_takes_nothing_from_its_holders_and_who_holds_a_part_lost_it_with_the_gpu() -> None:
    node = Node(gpu(0)).given(**holding(holder())).line().line(xids=(xid(48),))
    assert node.says()[0] == "Unhealthy"
    assert not node.world.state.lost_contexts
    cut = gpu(0, mig_enabled=True, partitions=(partition(0, 0),))
    node = Node(cut).given(**holding(holder("slice", mig_id(0, 0)))).line()
    lost = dataclasses.replace(cut, readings=well(lost=True))
    node.line(lost).line().line(after=BACK).line()
    assert shown(node) == {"slice": ("FallenOffBus", "RestartApp")}
