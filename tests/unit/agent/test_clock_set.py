"""The wall clock is set under a running agent (NTP after a boot, a resumed virtual machine): nothing waits for longer
or for less than it would have."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from nodedevices_plugin.model import HoldersState, Holdings, InventoryDevice
from nodedevices_plugin.pipeline import inventory as stage
from nodedevices_plugin.pipeline.state import State, restored_devices
from nodedevices_plugin.pipeline.world import Inputs, begin
from nodedevices_plugin.settings.flags import parse
from nodedevices_probe.protocol import DeviceFact, ProbeEvent
from support.facts import START, gpu, gpu_id, old, snapshot, xid
from support.steps import step

LOCAL = parse(["--node-name=n1"], {})
NOBODY = Holdings(state=HoldersState.SYNCED, taken=1.0)
HOUR = 3600.0
DAY = 24 * HOUR
SET = pytest.mark.parametrize("set_by", [0.0, -HOUR, HOUR, -2 * DAY, 2 * DAY], ids=lambda by: f"{by:+.0f}s")


class Node:
    """An agent's steps by two clocks: seconds since its start, and a wall clock that is ahead by `ahead`."""

    def __init__(self, state: State | None = None) -> None:
        self.seconds, self.ahead, self.sequence = 0.0, 0.0, 0
        self.world = begin(state or State(), LOCAL, now=START, monotonic=0.0)
        self.deadline: float | None = None

    def line(self, device: DeviceFact, *xids: int, at: float) -> Node:
        events: list[ProbeEvent] = []
        for number in xids:
            self.sequence += 1
            events.append(xid(number, sequence=self.sequence, after=at + self.ahead))
        self.seconds = at
        line = snapshot(device, events=tuple(events))
        inputs = Inputs(snapshot=line, arrived=at, holdings=NOBODY)
        now = START + timedelta(seconds=at + self.ahead)
        outcome = step(self.world, inputs, LOCAL, now=now, monotonic=at)
        self.world, self.deadline = outcome.world, outcome.deadline
        return self

    def until(self, device: DeviceFact, at: float) -> Node:
        while self.seconds + 10 < at:
            self.line(device, at=self.seconds + 10)
        return self.line(device, at=at)

    @property
    def says(self) -> tuple[str, str, bool]:
        verdict = self.world.verdicts[gpu_id(0)]
        return verdict.state.value, verdict.reason, verdict.offered


@SET
def test_what_waits_for_its_neighbours_is_decided_in_time(set_by: float) -> None:
    fine = gpu(0, readings=old())
    node = Node().line(fine, 48, at=1)
    node.ahead = set_by
    node.line(fine, at=3)
    assert node.says == ("Degraded", "Correlating", False)
    assert node.deadline == pytest.approx(11)
    assert node.line(fine, at=11.001).says == ("Unhealthy", "Xid48", False)


@SET
def test_a_hold_down_lasts_as_long_as_it_would_have(set_by: float) -> None:
    node = Node().line(gpu(0), 109, at=1).line(gpu(0), at=2)
    node.ahead = set_by
    node.until(gpu(0), at=300)
    assert node.says == ("Unhealthy", "Xid109", False)
    assert node.line(gpu(0), at=301.001).says == ("Healthy", "", True)


@SET
def test_an_xid_reported_as_the_clock_is_set_is_held_down_for_its_time(set_by: float) -> None:
    """The probe gave it a time by the old clock, the agent reads it by the new one."""
    node = Node().line(gpu(0), at=1)
    came = xid(109, sequence=1, after=2)
    node.ahead = set_by
    now = START + timedelta(seconds=3 + set_by)
    inputs = Inputs(snapshot=snapshot(gpu(0), events=(came,)), arrived=3, holdings=NOBODY)
    node.world = step(node.world, inputs, LOCAL, now=now, monotonic=3).world
    node.seconds = 3
    node.until(gpu(0), at=240)
    assert node.says == ("Unhealthy", "Xid109", False)
    assert node.line(gpu(0), at=304).says == ("Healthy", "", True)


@SET
def test_a_missing_gpu_is_missing_for_as_long_as_it_was(set_by: float) -> None:
    node = Node().line(gpu(0), at=1).line(gpu(1), at=5)
    node.ahead = set_by
    inventory = node.line(gpu(1), at=6).world.inventory
    now = START + timedelta(seconds=set_by)
    # Missing since the line at 5.
    kept = stage.update(
        inventory, snapshot(gpu(1)), now=now + timedelta(seconds=65), monotonic=65, forget_missing_seconds=61
    )
    assert [device.fact.index for device in kept.devices] == [0, 1]
    gone = stage.update(
        inventory, snapshot(gpu(1)), now=now + timedelta(seconds=66), monotonic=66, forget_missing_seconds=61
    )
    assert [device.fact.index for device in gone.devices] == [1]


def test_what_is_shown_stays_as_it_was_reported() -> None:
    node = Node().line(gpu(0), 109, at=1)
    since = node.world.verdicts[gpu_id(0)].since
    node.ahead = DAY
    assert node.line(gpu(0), at=2).world.verdicts[gpu_id(0)].since == since


def test_times_that_a_clock_ahead_of_ours_has_saved_count_from_now() -> None:
    before = Node()
    before.ahead = DAY
    before.line(gpu(0), 109, at=1)
    node = Node(before.world.state).line(gpu(0), at=1)
    assert node.until(gpu(0), at=300).says == ("Unhealthy", "Xid109", False)
    assert node.line(gpu(0), at=302).says == ("Healthy", "", True)


def test_a_missing_gpu_saved_by_a_clock_ahead_of_ours_is_missing_since_now() -> None:
    gone = InventoryDevice(fact=gpu(0), present=False, last_seen=START + timedelta(days=1))
    assert restored_devices(State(devices=(gone,)), START) == (replace(gone, last_seen=START),)
