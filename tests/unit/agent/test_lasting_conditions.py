"""From a probe's lines to what a node says: a condition that has to last, on one of its GPUs."""

from __future__ import annotations

from typing import Self

from nodedevices_plugin.vendors.nvidia.faults import REGISTRATION_AGAIN_SECONDS
from nodedevices_probe.protocol import DeviceFact
from nodedevices_probe.simulated.probe import parse
from support.stepped_node import Node, report_of
from support.there import there

GPU, HOLD = "nvidia.com/gpu", 300
LOST = "fabricState: NotStarted"
WELL, REPORTED = ("Healthy", "", True), ("Degraded", "FabricRegistrationLost", True)


def machine(said: str = "") -> tuple[DeviceFact, ...]:
    """Two simulated GPUs, the first of which says this."""
    file = f"{{profile: h100 x 2, devices: [{{index: 0{', ' if said else ''}{said}}}]}}"
    return parse(file.encode(), node="n").facts.devices


FIRST, SECOND = (each.id for each in machine())


class Machine(Node):
    def lasts(self, seconds: int, said: str = "") -> Self:
        for _ in range(seconds // 10):
            self.line(*machine(said), after=10)
        return self


def test_a_gpu_whose_fabric_registration_stays_lost_is_reported_and_recovers() -> None:
    node = Machine(*machine()).lasts(10).lasts(REGISTRATION_AGAIN_SECONDS, LOST)
    assert node.says(FIRST) == WELL
    node.lasts(10, LOST)
    assert (node.says(FIRST), node.says(SECOND)) == (REPORTED, WELL)
    assert node.counts == {GPU: (2, 2)}, "still offered"
    summary = there(report_of(node.world, node.time).summary)
    assert (summary.degraded, summary.healthy) == (1, 2)
    assert node.lasts(HOLD).says(FIRST) == REPORTED
    assert node.lasts(10).says(FIRST) == WELL


def test_the_step_is_made_again_when_the_condition_will_have_lasted() -> None:
    node = Machine(*machine()).line(*machine(LOST))
    began = node.clock
    while node.clock < began + REGISTRATION_AGAIN_SECONDS - 10:
        node.line(*machine(LOST), after=10)
    assert node.last.deadline == began + REGISTRATION_AGAIN_SECONDS
    assert node.wait(10).says(FIRST) == REPORTED
