"""Swapping a device: out of service, drained, gone without a fault, and another one in its place. The walk of
docs/maintenance.md, by the agent's steps."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import replace
from nodedevices_plugin.claims.records import DraFacts, Prepared, Record, Result
from nodedevices_plugin.model import Cordon, Holder, HoldersState, Holdings, RecentAllocate
from nodedevices_plugin.pipeline.configuration import SeenObject
from nodedevices_probe.protocol import DeviceFact, Readings
from support.cases import cases
from support.facts import gpu, gpu_id, snapshot, xid
from support.stepped_node import NOBODY, Node, report_of

GPU = "nvidia.com/gpu"
OLD, NEW = gpu_id(1), gpu_id(2)


def card(index: int, readings: Readings | None = None) -> DeviceFact:
    """One whose product and address make the node remember that it had it."""
    return dataclasses.replace(gpu(index, readings=readings), pci_bus_id=f"0000:{index + 16:02x}:00.0")


FIRST, SECOND, THIRD = card(0), card(1), card(2)


def node(**more: Any) -> Node:
    made = Node(FIRST, SECOND, **more)
    return made.given(seen=SeenObject(exists=True, generation=1, config={})).line().line()


def cordoned(made: Node, id_: str = OLD) -> Node:
    """A person takes it out of service."""
    return made.sees(unschedulable=(Cordon(id=id_, reason="RMA 4711", since=made.time),)).line()


def held(made: Node, *ids: str) -> Node:
    holders = tuple(
        Holder(namespace="ml", pod="train", container="main", resource=GPU, ids=(each,), since=made.time)
        for each in ids
    )
    return made.given(holdings=replace(NOBODY, holders=holders, taken=made.clock)).line()


def drained(made: Node) -> dict[str, datetime]:
    devices = report_of(made.world, made.time).devices
    return {each.id: each.drained_since for each in devices if each.drained_since is not None}


def says(made: Node, kind: str) -> tuple[str, str] | None:
    shown = {each.type: each for each in report_of(made.world, made.time).conditions}
    return (shown[kind].status, shown[kind].reason) if kind in shown else None


def test_a_gpu_is_swapped_without_a_fault_and_without_a_restart() -> None:
    made = held(node(), OLD)
    cordoned(made).line(after=20)
    assert drained(made) == {}, "a pod holds it"
    held(made)
    assert list(drained(made)) == [OLD]
    made.line(FIRST)  # pulled out
    assert OLD not in made.states
    assert made.says() == ("Healthy", "", True)
    assert (says(made, "DevicesHealthy"), says(made, "Ready")) == (("True", "AllHealthy"), ("True", "AgentRunning"))
    assert says(made, "ExpectedDevices") is None, "the node does not miss it"
    made.line(FIRST, THIRD)  # another one in its place
    assert sorted(made.offers[GPU]) == [gpu_id(0), NEW]


def test_a_gpu_in_a_slice_is_drained_when_no_claim_has_it() -> None:
    result = Result(request="gpu", device="gpu-1")
    own = Prepared(result=result, part_id=OLD, resource=GPU)
    record = Record(uid="u", namespace="ml", name="train", prepared=(own,))
    slices = frozenset({"gpu-0", "gpu-1"})
    made = cordoned(held(node()).given(dra=DraFacts(records={"u": record}, in_slices=slices))).line(after=20)
    assert drained(made) == {}, "a claim has it"
    made.given(dra=DraFacts(in_slices=slices)).line()
    assert list(drained(made)) == [OLD]
    made.line(FIRST)  # pulled out, and the slice is not written yet
    assert OLD not in made.states
    assert made.says() == ("Healthy", "", True)


def test_a_device_that_goes_before_it_is_drained_is_missing_also_when_it_is_taken_out_of_service_later() -> None:
    made = cordoned(held(node(), OLD)).line(after=20).line(FIRST)
    assert made.states[OLD] == ("Unhealthy", "Missing")
    assert drained(made) == {}
    made = cordoned(node().line(FIRST)).line(FIRST, after=20)
    assert made.states[OLD] == ("Unhealthy", "Missing")
    assert drained(made) == {}


@cases(
    ("readings", "is_drained"),
    (Readings(recovery_action="None"), True),
    (Readings(recovery_action="None", processes=0, memory_allocated_bytes=2 << 20), True),
    (Readings(recovery_action="None", processes=1), False),
    (Readings(recovery_action="None", memory_allocated_bytes=500 << 20), False),
    ids=["the driver does not say", "none", "a process", "memory of one that is not seen"],
)
def test_a_process_outside_kubernetes_keeps_a_device_from_being_drained(readings: Readings, is_drained: bool) -> None:
    made = cordoned(node()).line(FIRST, card(1, readings), after=20)
    assert (OLD in drained(made)) is is_drained


def test_it_is_drained_only_once_the_probe_has_had_the_time_to_say_what_runs_on_it() -> None:
    made = cordoned(node())
    assert drained(made) == {}
    assert OLD in drained(made.line(after=15))


def test_a_probe_that_sees_no_device_at_all_makes_no_faulty_one_forgotten() -> None:
    made = node()
    cordoned(made.line(xids=(dataclasses.replace(xid(79, 1), time=made.time),))).line(after=20)
    assert list(drained(made)) == [OLD]
    made.clock += 5
    made.step(snapshot()).step()
    assert made.states[OLD][0] == "Unhealthy"
    made.line()
    assert (made.states[OLD], list(drained(made))) == (("Unhealthy", "Xid79"), [OLD])
    made.line(FIRST)
    assert OLD not in made.states, "and it may go"


def test_the_only_device_may_go_once_it_is_drained() -> None:
    made = Node(SECOND).given(seen=SeenObject(exists=True, generation=1, config={})).line()
    cordoned(made).line(after=20)
    made.clock += 5
    made.step(snapshot())
    assert (made.states, made.world.lost) == ({}, {})


def test_an_agent_that_was_restarted_knows_what_was_drained_and_waits_for_what_runs() -> None:
    used = card(1, Readings(recovery_action="None", processes=1))
    made = cordoned(node()).line(FIRST, used, after=20).restarts().line()  # which was not asked yet
    assert drained(made) == {}
    assert drained(made.line(FIRST, used, after=15)) == {}
    made = cordoned(node()).line(after=20)
    before = drained(made)
    assert list(before) == [OLD]
    assert drained(made.restarts().line()) == before


@cases("ago", 3600, -3600, ids=["before it was seen", "by a clock that is ahead"])
def test_the_time_that_a_person_wrote_is_not_the_one_since_which_the_probe_is_asked(ago: float) -> None:
    made = node()
    made.sees(unschedulable=(Cordon(id=OLD, reason="RMA", since=made.time - timedelta(seconds=ago)),)).line()
    assert drained(made) == {}
    assert OLD in drained(made.line(after=15))


def test_what_people_knew_or_a_list_did_not_show_drains_nothing() -> None:
    made = node()
    recent = RecentAllocate(resource=GPU, ids=(OLD,), time=made.time, monotonic=made.clock)
    made.given(recent=(recent,), holdings=replace(NOBODY, taken=made.clock - 1))
    assert drained(cordoned(made).line(after=20)) == {}
    made = Node(FIRST, SECOND, holdings=Holdings(state=HoldersState.UNAVAILABLE))
    made.given(seen=SeenObject(exists=True, generation=1, config={})).line()
    assert drained(cordoned(made).line(after=20)) == {}


def test_back_in_service_or_after_its_time_a_device_is_not_drained_and_a_fault_when_it_goes() -> None:
    made = cordoned(node()).line(after=20)
    assert OLD in drained(made)
    made.sees(unschedulable=()).line()
    assert drained(made) == {}
    assert made.line(FIRST).states[OLD] == ("Unhealthy", "Missing")
    made = node()
    until = made.time + timedelta(seconds=60)
    made.sees(unschedulable=(Cordon(id=OLD, reason="RMA", since=made.time, until=until),)).line().line(after=20)
    assert OLD in drained(made)
    assert drained(made.line(after=60)) == {}


def test_a_device_that_is_attached_again_is_the_same_one_and_still_out_of_service() -> None:
    made = cordoned(node()).line(after=20)
    since = drained(made)
    made.line(FIRST).line(FIRST, SECOND)
    assert made.states[OLD] == ("Healthy", "")
    assert made.offers[GPU] == [gpu_id(0)]
    assert list(since) == [OLD]
    assert drained(made) == since
