"""The wall clock is set under a running agent (NTP after a boot, a resumed virtual machine): nothing waits for longer
or for less than it would have."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Self

import pytest
from nodedevices_plugin.model import InventoryDevice
from nodedevices_plugin.pipeline import inventory as stage
from nodedevices_plugin.pipeline.state import State, restored_devices
from nodedevices_plugin.settings.flags import parse
from nodedevices_probe.protocol import DeviceFact
from support.cases import cases
from support.facts import START, gpu, gpu_id, old, snapshot, xid
from support.stepped_node import Node

LOCAL = parse(["--node-name=n1"], {})
HOUR = 3600.0
DAY = 24 * HOUR
SET = cases("set_by", 0.0, -HOUR, 2 * DAY, ids=lambda by: f"{by:+.0f}s")


class Timed(Node):
    """A node that starts at 0 s; a test sets the wall clock `ahead`."""

    def __init__(self, state: State | None = None) -> None:
        super().__init__(local=LOCAL, state=state, clock=0.0)

    def at(self, seconds: float, device: DeviceFact, *xids: int) -> Self:
        events = tuple(xid(number, after=seconds + self.ahead) for number in xids)
        return self.line(device, after=seconds - self.clock, xids=events)

    def until(self, seconds: float, device: DeviceFact) -> Self:
        while self.clock + 10 < seconds:
            self.at(self.clock + 10, device)
        return self.at(seconds, device)


@SET
def test_what_waits_for_its_neighbours_is_decided_in_time(set_by: float) -> None:
    fine = gpu(0, readings=old())
    node = Timed().at(1, fine, 48)
    node.ahead = set_by
    node.at(3, fine)
    assert node.says() == ("Degraded", "Correlating", False)
    assert node.last.deadline == pytest.approx(11)
    assert node.at(11.001, fine).says() == ("Unhealthy", "Xid48", False)


@SET
def test_a_hold_down_lasts_as_long_as_it_would_have(set_by: float) -> None:
    node = Timed().at(1, gpu(0), 109).at(2, gpu(0))
    node.ahead = set_by
    node.until(300, gpu(0))
    assert node.says() == ("Unhealthy", "Xid109", False)
    assert node.at(301.001, gpu(0)).says() == ("Healthy", "", True)


@SET
def test_an_xid_reported_as_the_clock_is_set_is_held_down_for_its_time(set_by: float) -> None:
    """The probe gave it a time by the old clock, the agent reads it by the new one."""
    node = Timed().at(1, gpu(0))
    came = xid(109, sequence=1, after=2)
    node.ahead = set_by
    node.line(gpu(0), after=2, events=(came,))
    node.until(240, gpu(0))
    assert node.says() == ("Unhealthy", "Xid109", False)
    assert node.at(304, gpu(0)).says() == ("Healthy", "", True)


@SET
def test_a_missing_gpu_is_missing_for_as_long_as_it_was(set_by: float) -> None:
    node = Timed().at(1, gpu(0)).at(5, gpu(1))
    node.ahead = set_by
    inventory = node.at(6, gpu(1)).world.known.inventory
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
    node = Timed().at(1, gpu(0), 109)
    since = node.world.known.verdicts[gpu_id(0)].since
    node.ahead = DAY
    assert node.at(2, gpu(0)).world.known.verdicts[gpu_id(0)].since == since


def test_times_that_a_clock_ahead_of_ours_has_saved_count_from_now() -> None:
    before = Timed()
    before.ahead = DAY
    before.at(1, gpu(0), 109)
    node = Timed(before.world.state).at(1, gpu(0))
    assert node.until(300, gpu(0)).says() == ("Unhealthy", "Xid109", False)
    assert node.at(302, gpu(0)).says() == ("Healthy", "", True)
    gone = InventoryDevice(fact=gpu(0), present=False, last_seen=START + timedelta(days=1))
    assert restored_devices(State(devices=(gone,)), START) == (replace(gone, last_seen=START),)
