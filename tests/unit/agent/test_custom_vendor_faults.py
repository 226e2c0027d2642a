"""The faults of a vendor that the tests bring go through the agent's step with one line of registration."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any, Self

from nodedevices_plugin.pipeline.configuration import SeenObject
from nodedevices_plugin.pipeline.state import State
from nodedevices_plugin.vendors.faults import EVERY, FaultSources
from nodedevices_probe.protocol import DeviceFact, ProbeEvent, Readings
from support.cases import cases
from support.facts import REGISTERED, gpu, gpu_id
from support.link_vendor import LinkVendor
from support.stepped_node import Node

NIC = "0000:81:00.0"
WITHOUT_NICS: FaultSources = {key: each for key, each in REGISTERED.items() if not key.startswith(EVERY)}
WITH_NICS: FaultSources = {**WITHOUT_NICS, f"{LinkVendor().name}/nic": LinkVendor()}  # the line of registration
HOLD = 300


def nic(*conditions: str, **readings: Any) -> DeviceFact:
    return DeviceFact(
        id=NIC, index=0, type="nic", vendor="example", readings=Readings(conditions=conditions, **readings)
    )


class WithNic(Node):
    """A node with a GPU and a NIC."""

    def __init__(self, vendors: FaultSources = WITH_NICS, state: State | None = None) -> None:
        super().__init__(vendors=vendors, state=state)

    def nic(self, device: DeviceFact, *kinds: str, codes: tuple[int, ...] = (), after: float = 1.0) -> Self:
        """A line in which this is the NIC, and these happened to it."""
        happened: list[tuple[str, int | None]] = [*((kind, None) for kind in kinds), *(("xid", code) for code in codes)]
        at = self.time + timedelta(seconds=after)
        events = [ProbeEvent(sequence=0, time=at, kind=kind, device_id=NIC, xid=code) for kind, code in happened]
        return self.line(gpu(0), device, after=after, xids=tuple(events))

    def lasts(self, device: DeviceFact, seconds: float) -> Self:
        for _ in range(round(seconds / 10)):
            self.nic(device, after=10)
        return self


WELL = ("Healthy", "", True)


def test_an_event_of_its_own_degrades_the_device_until_the_hold_down_is_over_and_no_other() -> None:
    node = WithNic().nic(nic()).nic(nic(), "LinkFlap")
    assert (node.says(NIC), node.says(gpu_id(0))) == (("Degraded", "LinkFlap", True), WELL)
    assert node.world.known.verdicts[NIC].message.startswith(
        "the link went down and came back; no action is needed any more"
    )
    assert node.lasts(nic(), HOLD).says(NIC) == WELL


def test_a_reading_of_its_own_takes_the_device_out_of_service_while_it_lasts() -> None:
    node = WithNic().nic(nic()).nic(nic("linkDown"))
    assert (node.says(NIC), node.says(gpu_id(0))) == (("Unhealthy", "LinkDown", False), WELL)
    assert node.world.known.verdicts[NIC].message == "the link is down; is the cable plugged in?; inspect the device"
    node.lasts(nic("linkDown"), HOLD)
    assert node.says(NIC)[0] == "Unhealthy"
    node.lasts(nic(), HOLD)
    assert node.says(NIC)[0] == "Unhealthy", "the hold-down begins with the first line without it"
    assert node.lasts(nic(), 10).says(NIC) == WELL


def test_what_every_device_can_have_it_has_in_its_own_word_and_nothing_while_it_does_not_answer() -> None:
    node = WithNic().nic(nic("linkDown")).nic(nic(error="the firmware does not answer"))
    assert node.says(NIC) == ("Unhealthy", "ProbeError", False)
    assert {fault.reason: fault.last_seen for fault in node.world.known.verdicts[NIC].faults} == {
        "LinkDown": None,
        "ProbeError": None,
    }
    node = WithNic().nic(nic()).nic(nic(lost=True))
    assert node.says(NIC) == ("Unhealthy", "FallenOffBus", False)
    assert node.world.known.verdicts[NIC].message == "NIC has fallen off the bus; reboot the node"


@cases(("codes", "after"), ((7,), ("Unhealthy", "Nic7", False)), ((7, 8), WELL), ((8,), WELL))
def test_its_undecided_events_wait_for_their_neighbours_and_no_new_pod_gets_the_device_meanwhile(
    codes: tuple[int, ...], after: tuple[str, str, bool]
) -> None:
    node = WithNic().nic(nic()).nic(nic(), codes=codes)
    assert node.says(NIC) == (("Degraded", "Correlating", False) if 7 in codes else WELL)
    assert node.lasts(nic(), 20).says(NIC) == after


def test_a_number_is_read_by_the_catalogue_of_the_devices_own_vendor() -> None:
    """8 is an application's error there, too; 79 is a fatal XID of a GPU and nothing known of a NIC."""
    node = WithNic().nic(nic()).nic(nic(), codes=(8, 79))
    assert [(each.device_id, each.message) for each in node.last.logged] == [
        (NIC, "a queue pair of a program broke (8)")
    ]
    assert node.says(NIC) == WELL


def test_a_policys_rules_name_its_reasons() -> None:
    rules = [{"reasons": ["LinkFlap"], "state": "Unhealthy"}, {"reasons": ["Link?own"], "state": "Ignored"}]
    seen = SeenObject(exists=True, config={"health": {"rules": rules}})
    node = WithNic().given(seen=seen).nic(nic()).nic(nic("linkDown"), "LinkFlap")
    assert node.says(NIC) == ("Unhealthy", "LinkFlap", False)
    assert node.world.known.verdicts[NIC].recovery_action == "Replace"
    assert node.world.config.unmatched == ()
    other = WithNic(WITHOUT_NICS).given(seen=seen).nic(nic()).nic(nic())
    entries = [each.entry for each in other.world.config.unmatched]
    assert entries == ["rules[0].reasons LinkFlap", "rules[1].reasons Link?own"]


def test_its_faults_outlive_a_restart_and_a_maker_that_is_not_registered_has_what_every_probe_says() -> None:
    node = WithNic().nic(nic()).nic(nic(), codes=(7,)).lasts(nic(), 20)
    again = WithNic(WITH_NICS, replace(node.world.state))
    assert again.nic(nic()).says(NIC) == ("Unhealthy", "Nic7", False)
    node = WithNic(WITHOUT_NICS).nic(nic()).nic(nic("linkDown"), "LinkFlap")
    assert node.says(NIC) == WELL
    assert node.nic(nic(lost=True)).says(NIC)[:2] == ("Unhealthy", "FallenOffBus")
