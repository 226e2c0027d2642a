"""The faults of a vendor that the tests bring go through the agent's step with one line of registration."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from nodedevices_plugin.model import HoldersState, Holdings
from nodedevices_plugin.pipeline.requesting import SeenObject
from nodedevices_plugin.pipeline.state import State
from nodedevices_plugin.pipeline.step import Step
from nodedevices_plugin.pipeline.world import Inputs, World, begin
from nodedevices_plugin.settings.flags import parse
from nodedevices_plugin.vendors.faults import EVERY, FaultSources
from nodedevices_probe.protocol import DeviceFact, ProbeEvent, Readings
from support.facts import REGISTERED, START, gpu, gpu_id, snapshot
from support.link_vendor import LinkVendor
from support.steps import step

LOCAL = parse(["--node-name=n1", "--operator-wait-seconds=0"], {})
NIC = "0000:81:00.0"
WITHOUT_NICS: FaultSources = {key: each for key, each in REGISTERED.items() if not key.startswith(EVERY)}
WITH_NICS: FaultSources = {**WITHOUT_NICS, f"{LinkVendor().name}/nic": LinkVendor()}  # the line of registration
HOLD = 300


def nic(*conditions: str, **readings: Any) -> DeviceFact:
    return DeviceFact(
        id=NIC, index=0, type="nic", vendor="example", readings=Readings(conditions=conditions, **readings)
    )


class Node:
    """A node with a GPU and a NIC; each line comes some seconds after the one before."""

    def __init__(self, vendors: FaultSources = WITH_NICS, state: State | None = None) -> None:
        self.vendors = vendors
        self.clock = 100.0
        self.world: World = begin(state or State(), LOCAL, now=START, monotonic=self.clock)
        self.config: dict[str, Any] = {}
        self.last: Step | None = None
        self._sequence = 0

    def line(self, device: DeviceFact, *kinds: str, codes: tuple[int, ...] = (), after: float = 1.0) -> Node:
        self.clock += after
        at = START + timedelta(seconds=self.clock)
        happened: list[tuple[str, int | None]] = [*((kind, None) for kind in kinds), *(("xid", code) for code in codes)]
        events = []
        for kind, code in happened:
            self._sequence += 1
            events.append(ProbeEvent(sequence=self._sequence, time=at, kind=kind, device_id=NIC, xid=code))
        holdings = Holdings(state=HoldersState.SYNCED, taken=self.clock)
        inputs = Inputs(
            snapshot=snapshot(gpu(0), device, events=tuple(events)),
            arrived=self.clock,
            seen=SeenObject(exists=True, config=self.config),
            holdings=holdings,
        )
        self.last = step(self.world, inputs, LOCAL, now=at, monotonic=self.clock, vendors=self.vendors)
        self.world = self.last.world
        return self

    def wait(self, device: DeviceFact, seconds: float) -> Node:
        for _ in range(round(seconds / 10)):
            self.line(device, after=10)
        return self

    def says(self, device: str = NIC) -> tuple[str, str, bool]:
        verdict = self.world.verdicts[device]
        return verdict.state.value, verdict.reason, verdict.offered


WELL = ("Healthy", "", True)


def test_an_event_of_its_own_degrades_the_device_until_the_hold_down_is_over_and_no_other() -> None:
    node = Node().line(nic()).line(nic(), "LinkFlap")
    assert (node.says(), node.says(gpu_id(0))) == (("Degraded", "LinkFlap", True), WELL)
    assert node.world.verdicts[NIC].message.startswith("the link went down and came back; no action is needed any more")
    assert node.wait(nic(), HOLD).says() == WELL


def test_a_reading_of_its_own_takes_the_device_out_of_service_while_it_lasts() -> None:
    node = Node().line(nic()).line(nic("linkDown"))
    assert (node.says(), node.says(gpu_id(0))) == (("Unhealthy", "LinkDown", False), WELL)
    assert node.world.verdicts[NIC].message == "the link is down; is the cable plugged in?; inspect the device"
    node.wait(nic("linkDown"), HOLD)
    assert node.says()[0] == "Unhealthy"
    node.wait(nic(), HOLD)
    assert node.says()[0] == "Unhealthy", "the hold-down begins with the first line without it"
    assert node.wait(nic(), 10).says() == WELL


def test_a_device_that_does_not_answer_says_nothing_of_its_link() -> None:
    node = Node().line(nic("linkDown")).line(nic(error="the firmware does not answer"))
    assert node.says() == ("Unhealthy", "ProbeError", False)
    assert {fault.reason: fault.last_seen for fault in node.world.verdicts[NIC].faults} == {
        "LinkDown": None,
        "ProbeError": None,
    }


def test_what_every_device_can_have_it_has_too_in_its_own_word() -> None:
    node = Node().line(nic()).line(nic(lost=True))
    assert node.says() == ("Unhealthy", "FallenOffBus", False)
    assert node.world.verdicts[NIC].message == "NIC has fallen off the bus; reboot the node"


@pytest.mark.parametrize(
    ("codes", "after"),
    [((7,), ("Unhealthy", "Nic7", False)), ((7, 8), WELL), ((8,), WELL)],
)
def test_its_undecided_events_wait_for_their_neighbours_and_no_new_pod_gets_the_device_meanwhile(
    codes: tuple[int, ...], after: tuple[str, str, bool]
) -> None:
    node = Node().line(nic()).line(nic(), codes=codes)
    assert node.says() == (("Degraded", "Correlating", False) if 7 in codes else WELL)
    assert node.wait(nic(), 20).says() == after


def test_a_number_is_read_by_the_catalogue_of_the_devices_own_vendor() -> None:
    """8 is an application's error there, too; 79 is a fatal XID of a GPU and nothing known of a NIC."""
    node = Node().line(nic()).line(nic(), codes=(8, 79))
    assert node.last is not None
    assert [(each.device_id, each.message) for each in node.last.logged] == [
        (NIC, "a queue pair of a program broke (8)")
    ]
    assert node.says() == WELL


def test_a_policys_rules_name_its_reasons() -> None:
    node = Node()
    rules = [{"reasons": ["LinkFlap"], "state": "Unhealthy"}, {"reasons": ["Link?own"], "state": "Ignored"}]
    node.config = {"health": {"rules": rules}}
    node.line(nic()).line(nic("linkDown"), "LinkFlap")
    assert node.says() == ("Unhealthy", "LinkFlap", False)
    assert node.world.verdicts[NIC].recovery_action == "Replace"
    assert node.world.config.unmatched == ()
    other = Node(WITHOUT_NICS)
    other.config = node.config
    other.line(nic()).line(nic())
    entries = [each.entry for each in other.world.config.unmatched]
    assert entries == ["rules[0].reasons LinkFlap", "rules[1].reasons Link?own"]


def test_its_faults_outlive_a_restart_of_the_agent() -> None:
    node = Node().line(nic()).line(nic(), codes=(7,)).wait(nic(), 20)
    again = Node(WITH_NICS, replace(node.world.state))
    assert again.line(nic()).says() == ("Unhealthy", "Nic7", False)


def test_a_maker_that_is_not_registered_has_what_every_probe_says_and_no_more() -> None:
    node = Node(WITHOUT_NICS).line(nic()).line(nic("linkDown"), "LinkFlap")
    assert node.says() == WELL
    assert node.line(nic(lost=True)).says()[:2] == ("Unhealthy", "FallenOffBus")
