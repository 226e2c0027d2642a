"""An agent that sees none of its node's devices is not ready: a roll-out that lost the driver stops there."""

from __future__ import annotations

from dataclasses import replace

from nodedevices_plugin.model import Cordon
from nodedevices_probe.protocol import Driver, DriverState, Problem
from support.cases import cases
from support.facts import CONFIRMED, START, gpu
from support.probed_node import BOTH, NICS, Node, nic, said

NVML = said("nvml")
IDS = (gpu(0).id, gpu(1).id)
UNLOADED = Driver(state=DriverState.NOT_LOADED, name="nvidia", version="")
NO_LIBRARY = (Problem(code="DriverNotLoaded", message="libnvidia-ml.so.1: not found"),)


def had_two() -> Node:
    """A node that had two GPUs and whose agent is started again."""
    return Node(NVML).line("nvml", gpu(0), gpu(1)).restart()


def test_a_driver_or_all_devices_lost_make_the_agent_not_ready_until_the_first_is_seen() -> None:
    node = had_two().line("nvml", driver=UNLOADED, problems=NO_LIBRARY)
    [why] = node.world.lost.values()
    assert why == (
        "2 devices were here (gpu-0, gpu-1), but none is seen now: DriverNotLoaded: libnvidia-ml.so.1: not found"
    )
    assert list(had_two().line("nvml").world.lost) == ["nvml"]
    assert had_two().line("nvml").line("nvml", gpu(1)).world.lost == {}


def test_devices_that_their_probe_does_not_see_at_all_are_unknown_and_one_beside_others_is_a_fault() -> None:
    """By this a pod is neither marked nor evicted: the operator acts on what is Unhealthy. No new pod gets one."""
    node = had_two().line("nvml")
    assert (node.states, node.offered) == (dict.fromkeys(IDS, ("Unknown", "Missing")), [])
    node = node.restart().line("nvml")
    assert node.states == dict.fromkeys(IDS, ("Unknown", "Missing"))
    node = node.restart().line("nvml", gpu(0), gpu(1))
    assert (node.states, sorted(node.offered)) == (dict.fromkeys(IDS, ("Healthy", "")), list(IDS))
    node = had_two().line("nvml").line("nvml", gpu(1))
    assert node.states == {IDS[0]: ("Unhealthy", "Missing"), IDS[1]: ("Healthy", "")}


def test_a_fault_of_before_stays_while_nothing_is_seen_and_keeps_its_hold_down() -> None:
    node = had_two().line("nvml", gpu(1)).line("nvml")
    assert node.states == {IDS[0]: ("Unhealthy", "Missing"), IDS[1]: ("Unknown", "Missing")}
    node = node.restart().line("nvml", gpu(0), gpu(1))
    assert node.states == {IDS[0]: ("Unhealthy", "Missing"), IDS[1]: ("Healthy", "")}


def test_devices_out_of_service_that_are_not_seen_are_missing_and_lost_again_after_their_time() -> None:
    node = had_two()
    cordons = tuple(Cordon(id=gpu(each).id, reason="RMA 4711") for each in (0, 1))
    node.sees(unschedulable=cordons)
    assert node.line("nvml").states == dict.fromkeys(IDS, ("Unhealthy", "Missing"))
    node = had_two()
    cordons = tuple(Cordon(id=gpu(each).id, reason="RMA 4711", until=START) for each in (0, 1))
    node.sees(unschedulable=cordons)
    assert node.line("nvml").states == dict.fromkeys(IDS, ("Unknown", "Missing"))
    assert list(node.world.lost) == ["nvml"]


def test_neither_a_fault_nor_a_word_of_people_is_a_lost_driver() -> None:
    broken = replace(gpu(0), readings=replace(gpu(0).readings, lost=True))
    assert had_two().line("nvml", broken).world.lost == {}
    node = had_two()
    cordons = tuple(Cordon(id=gpu(each).id, reason="RMA 4711") for each in (0, 1))
    node.sees(unschedulable=cordons)
    assert node.line("nvml", driver=UNLOADED).world.lost == {}
    node = had_two().line("nvml")
    removed = ",".join(f"{gpu(each).id}=removed@{CONFIRMED}" for each in (0, 1))
    node.sees(confirm=removed)
    assert node.line("nvml").line("nvml").world.lost == {}


@cases("driver", UNLOADED, None)
def test_a_node_that_never_had_a_device_lacks_none(driver: Driver | None) -> None:
    node = Node(NVML).line("nvml", **({"driver": driver} if driver else {}))
    assert node.world.lost == {}


def test_hardware_without_its_driver_is_waited_for_also_beside_a_probe_that_has_its_own() -> None:
    node = Node(said("auto"), hardware=frozenset({"nvml"})).line("nvml", driver=UNLOADED, problems=NO_LIBRARY)
    assert node.world.lost["nvml"].startswith("its hardware is on this node, but its driver is not loaded: ")
    node = Node(BOTH).line("nvml", gpu(0)).line("nics", nic()).restart()
    node.line("nvml", driver=UNLOADED, problems=NO_LIBRARY).line("nics", nic())
    assert list(node.world.lost) == ["nvml"]


def test_another_probe_that_sees_nothing_makes_it_not_ready_and_one_taken_away_is_not_lacked() -> None:
    node = Node(NVML).line("nvml", gpu(0), gpu(1)).restart(said("amd")).line("amd")
    assert node.world.lost["nvml"].startswith("its 2 devices were offered before this agent started, ")
    node.wait(60.0, amd=())
    assert list(node.world.lost) == ["nvml"], "as long as this agent runs"
    assert node.restart().line("amd").world.lost == {}
    node = Node(BOTH).line("nvml", gpu(0)).line("nics", nic()).restart(NVML)
    assert node.line("nvml", gpu(0)).world.lost == {}
    node = Node(said(NICS)).line("nics", nic()).uses(NVML)
    assert node.line("nvml").wait(60.0, nvml=()).world.lost == {}
