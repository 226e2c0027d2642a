"""Lines of the kernel's log, from the probe kmsg to the devices of other probes: by PCI address, through the step."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any, Self

from msgspec.structs import replace
from nodedevices_plugin.pipeline.configuration import SeenObject
from nodedevices_plugin.pipeline.routing import routed
from nodedevices_probe import kmsg as kinds
from nodedevices_probe.protocol import SWITCH, DeviceFact, Driver, DriverState, Link, ProbeEvent, Problem
from support.cases import cases
from support.facts import CONFIRMED, START, gpu, gpu_id, inventory_of, old
from support.probed_node import CONFIG, GPU, NICS, RDMA, Node, nic, said

KMSG = "kmsg=unix:/run/nodedevices-kmsg/kmsg.sock"
FILE = said("nvml", NICS, KMSG)
LINKS = (Link(kind="NVLink", to=SWITCH, count=18),)
GPUS = tuple(gpu(number, pci_bus_id=f"0000:{27 + number:02x}:00.0", links=LINKS) for number in range(2))
ALONE = gpu(2, pci_bus_id="0000:2b:00.0")  # a GPU without NVLink
SWITCH_AT = "0000:c1:00.0"
HOLD = 300
WELL = ("Healthy", "")


class Logged(Node):
    """A node with GPUs, a NIC, and the kernel's log."""

    def __init__(self, *devices: DeviceFact) -> None:
        super().__init__(FILE)
        self.gpus = devices or (*GPUS, ALONE)
        self.sequence = 0
        self.line("nvml", *self.gpus).line("nics", nic())
        self.log()

    def log(self, kind: str = "", address: str = "", code: int | None = None, count: int = 1, **details: str) -> Self:
        """A line of the probe of the kernel's log, in which this happened."""
        driver, events = Driver(state=DriverState.LOADED), list[ProbeEvent]()
        if kind:
            self.sequence += 1
            happened = ProbeEvent(
                sequence=self.sequence,
                time=self.time,
                kind=kind,
                pci_bus_id=address,
                xid=code,
                count=count,
                details=details,
            )
            events.append(happened)
        self.clock += 1
        self.line("kmsg", driver=driver, events=tuple(events))
        return self

    def passes(self, seconds: float) -> Self:
        self.wait(seconds, nvml=self.gpus, nics=(nic(),))
        return self

    def notices(self, device: str) -> list[tuple[str, int, str]]:
        return [(each.code, each.count, each.message) for each in self.world.state.notices.get(device, ())]


def test_an_mlx5_line_takes_the_nic_of_another_probe_alone_out_of_service_until_it_recovers_on_evidence() -> None:
    node = Logged()
    assert node.offers[RDMA] == ["NIC-0"]
    node.log(kinds.MLX5_STALLED, "0000:3b:00.0")
    assert node.states["NIC-0"] == ("Unhealthy", "FirmwareStalled")
    assert {node.states[each.id] for each in node.gpus} == {WELL}
    assert (node.offers[RDMA], len(node.offers[GPU])) == ([], 3)
    node = Logged().log(kinds.MLX5_STALLED, "0000:3b:00.0").passes(HOLD + 10)
    assert node.states["NIC-0"] == ("Unhealthy", "FirmwareStalled"), "time alone repairs nothing"
    node.line("nics")  # its driver is loaded anew: the NIC leaves and comes back
    node.passes(HOLD + 10)
    assert (node.states["NIC-0"], node.offers[RDMA]) == (WELL, ["NIC-0"])


@cases(("kind", "reason"), (kinds.MLX5_FATAL, "FirmwareFatal"), (kinds.MLX5_STALLED, "FirmwareStalled"))
def test_a_nic_that_its_driver_has_recovered_is_offered_again_after_the_hold_down(kind: str, reason: str) -> None:
    node = Logged().log(kind, "0000:3b:00.0").log(kinds.MLX5_RECOVERED, "0000:3b:00.0")
    assert (node.states["NIC-0"], node.offers[RDMA]) == (("Unhealthy", reason), [])
    assert (node.passes(HOLD + 10).states["NIC-0"], node.offers[RDMA]) == (WELL, ["NIC-0"])


@cases("after", {}, {"after": {"count": 2, "windowSeconds": 60}}, ids=["each", "counted"])
def test_a_rule_with_a_pattern_makes_no_fault_of_a_recovery(after: dict[str, object]) -> None:
    rules = {"health": {"rules": [{"reasons": ["Firmware*"], "state": "Unhealthy", **after}]}}
    node = Logged().given(seen=SeenObject(exists=True, config={**CONFIG, **rules})).step()
    node.log(kinds.MLX5_FATAL, "0000:3b:00.0").log(kinds.MLX5_RECOVERED, "0000:3b:00.0")
    assert node.passes(HOLD + 10).states["NIC-0"] == WELL
    assert [each.reason for each in node.world.state.history["NIC-0"]] == ["FirmwareFatal"]


def test_a_recovery_is_no_evidence_about_what_comes_after_it() -> None:
    node = Logged().log(kinds.MLX5_FATAL, "0000:3b:00.0").log(kinds.MLX5_RECOVERED, "0000:3b:00.0")
    node.log(kinds.MLX5_FATAL, "0000:3b:00.0").passes(HOLD + 10)
    assert node.states["NIC-0"] == ("Unhealthy", "FirmwareFatal")


@cases(
    ("kind", "reason"),
    (kinds.NVIDIA_OFF_BUS, "OffBusAtStart"),
    (kinds.NVIDIA_PROBE_FAILED, "DriverProbeFailed"),
    (kinds.NVIDIA_INIT_FAILED, "DriverInitFailed"),
)
def test_a_gpu_that_never_came_up_is_logged_by_its_address_and_a_listed_one_shows_it(kind: str, reason: str) -> None:
    node = Logged().log(kind, "0000:b3:00.0", text="why")
    [logged] = node.last.logged
    assert (logged.pci_bus_id, logged.reason, logged.message.split(", ")[1]) == ("0000:b3:00.0", reason, "why")
    assert [(said.kind, said.pci_bus_id) for said in node.last.addressed] == [(kind, "0000:b3:00.0")]
    node.log(kind, "0000:1b:00.0")
    assert ([code for code, _, _ in node.notices(gpu_id(0))], set(node.states.values())) == ([reason], {WELL})


def test_a_non_fatal_sxid_changes_no_device_and_is_counted() -> None:
    node = Logged().log(kinds.SXID, SWITCH_AT, 20001, count=7, link="3")
    assert set(node.states.values()) == {WELL}
    assert [(each.kind, each.xid, each.count) for each in node.last.addressed] == [(kinds.SXID, 20001, 7)]
    assert node.last.xids == (), "an SXID is no XID"
    assert node.notices(gpu_id(0)) == []


def test_an_sxid_that_is_fatal_to_one_link_is_shown_on_the_gpus_of_the_switch_and_withdraws_none() -> None:
    node = Logged().log(kinds.SXID_FATAL, SWITCH_AT, 20034, link="28", text="LTSSM Fault Up")
    assert set(node.states.values()) == {WELL}
    [logged] = node.last.logged
    assert (logged.pci_bus_id, logged.reason) == (SWITCH_AT, "Sxid20034")
    message = "an NVSwitch reports LTSSM fault up: the link is down (SXID 20034), link 28, LTSSM Fault Up"
    assert node.notices(gpu_id(0)) == node.notices(gpu_id(1)) == [("Sxid20034", 1, message)]
    assert node.notices(gpu_id(2)) == [], "it has no link to a switch"


def test_an_sxid_that_is_fatal_to_the_fabric_withdraws_the_gpus_that_are_linked_to_a_switch() -> None:
    node = Logged().log(kinds.SXID_FATAL, SWITCH_AT, 12020, link="46")
    assert [node.states[each.id] for each in node.gpus] == [
        ("Unhealthy", "Sxid12020"),
        ("Unhealthy", "Sxid12020"),
        WELL,
    ]
    assert node.world.known.verdicts[gpu_id(0)].recovery_action == "RebootNode"


def test_a_rule_that_counts_counts_lines_of_the_log_of_one_device() -> None:
    after = {"count": 3, "windowSeconds": 86400}
    rules = {"health": {"rules": [{"reasons": ["NvlinkEcc"], "state": "Unhealthy", "after": after}]}}
    node = Logged().given(seen=SeenObject(exists=True, config={**CONFIG, **rules})).step()
    for _ in range(2):
        node.log(kinds.XID_DETAIL, "0000:1b:00.0", 74, link="14", register1="0x10")
    assert set(node.states.values()) == {WELL}
    node.log(kinds.XID_DETAIL, "0000:1b:00.0", 74, link="14", register1="0x10")
    assert (node.states[gpu_id(0)], node.states[gpu_id(1)]) == (("Unhealthy", "NvlinkEcc"), WELL)


@cases(
    ("registers", "reason"),
    ({"register1": "0x10"}, "NvlinkEcc"),
    ({"register1": "0x100"}, "NvlinkConnection"),
    ({"register1": "0x200000"}, "NvlinkSignal"),
    ({"register3": "0x10000"}, "NvlinkError"),
    ({"register5": "0x100000"}, "NvlinkThreshold"),
    ({"register4": "0x10000"}, "NvlinkSecondary"),
    ({"register1": "0x40", "register4": "0x40000000"}, "NvlinkOther"),
    ({"register1": "0x100010"}, "NvlinkEcc"),  # with a secondary error beside it
)
def test_the_registers_of_an_xid_74_say_which_nvlink_error_it_was(registers: dict[str, str], reason: str) -> None:
    """Bits: WORKFLOW_NVLINK_ERR, in NVSentinel's docs/designs/019-workflow-nvlink-err.md."""
    node = Logged().log(kinds.XID_DETAIL, "0000:1b:00.0", 74, 1, link="14", **registers)
    [(code, _, message)] = node.notices(gpu_id(0))
    assert code == reason
    assert all(f"{name} {value}" in message for name, value in registers.items())
    assert "link 14" in message
    assert set(node.states.values()) == {WELL}


@cases("registers", {}, {"register1": "0x40800001"}, {"register2": "0xffff"}, {"register1": "no"})
def test_registers_that_say_nothing_add_nothing(registers: dict[str, str]) -> None:
    node = Logged().log(kinds.XID_DETAIL, "0000:1b:00.0", 74, 1, link="14", **registers)
    assert node.notices(gpu_id(0)) == []


def test_where_an_xid_13_occurred_is_shown_beside_it_and_counts_no_second_xid() -> None:
    node = Logged().log(kinds.XID_DETAIL, "0000:1b:00.0", 13, gpc="9", tpc="1", sm="1")
    [(code, _, message)] = node.notices(gpu_id(0))
    assert code == "GraphicsException"
    assert message.endswith("gpc 9, tpc 1, sm 1")
    assert node.last.xids == ()


def test_a_line_about_a_device_that_no_probe_lists_is_counted_and_logged_and_changes_nothing() -> None:
    node = Logged().log(kinds.MLX5_STALLED, "0000:ff:00.0")
    assert set(node.states.values()) == {WELL}
    assert [each.reason for each in node.last.logged] == ["FirmwareStalled"]
    assert len(node.last.addressed) == 1


@cases("address", "0000:1b:00.0", "00000000:1B:00.0", "1b:00.0")
@cases("said", "0000:1b:00.0", "00000000:1B:00.0")
def test_an_address_may_be_written_as_nvml_has_it(address: str, said: str) -> None:
    parts = {"nvml": inventory_of(gpu(0, pci_bus_id=address))}
    event = ProbeEvent(sequence=1, time=START, kind=kinds.PCIE_FATAL, pci_bus_id=said)
    assert [each.device_id for each in routed((event,), "kmsg", parts)[0]["nvml"]] == [gpu_id(0)]


def test_what_is_said_of_a_place_concerns_the_card_that_is_there_now() -> None:
    event = ProbeEvent(sequence=1, time=START, kind=kinds.PCIE_FATAL, pci_bus_id="0000:1b:00.0")
    [old_card] = inventory_of(gpu(0, pci_bus_id="0000:1b:00.0")).devices
    gone = dataclasses.replace(old_card, present=False)
    part = inventory_of(gpu(1, pci_bus_id="0000:1b:00.0"))
    both = replace(part, devices=(gone, *part.devices))
    assert [each.device_id for each in routed((event,), "kmsg", {"nvml": both})[0]["nvml"]] == [gpu_id(1)]
    alone = replace(part, devices=(gone,))
    assert [each.device_id for each in routed((event,), "kmsg", {"nvml": alone})[0]["nvml"]] == [gpu_id(0)]


def test_an_event_repeated_in_later_lines_is_judged_once() -> None:
    node = Logged().log(kinds.SXID_FATAL, SWITCH_AT, 20034)
    node.sequence -= 1
    node.log(kinds.SXID_FATAL, SWITCH_AT, 20034)
    assert [count for _, count, _ in node.notices(gpu_id(0))] == [1]


def test_what_a_new_process_of_the_probe_reads_again_counts_once() -> None:
    after = {"count": 3, "windowSeconds": 86400}
    rules = {"health": {"rules": [{"reasons": ["SlotPower"], "state": "Unhealthy", "after": after}]}}
    node = Logged().given(seen=SeenObject(exists=True, config={**CONFIG, **rules})).step()
    event = ProbeEvent(sequence=1, time=node.time, kind=kinds.MLX5_SLOT_POWER, pci_bus_id="0000:3b:00.0")
    for number in range(4):
        node.passes(10).line("kmsg", events=(event,), instance=f"process-{number}")
    assert node.states["NIC-0"] == WELL
    node.passes(120).line(
        "kmsg", events=(dataclasses.replace(event, time=node.time),), instance="process-4"
    )  # another one
    node.line("kmsg", events=(dataclasses.replace(event, time=node.time, sequence=2),), instance="process-4")
    assert node.states["NIC-0"] == ("Unhealthy", "SlotPower")


STALLED = ProbeEvent(sequence=7, time=START, kind=kinds.MLX5_STALLED, pci_bus_id="0000:3b:00.0")
SAID: dict[str, Any] = {"events": (STALLED,), "driver": Driver(state=DriverState.LOADED)}


@cases("seconds", 1, 20, 120)
@cases("restarted", False, True, ids=["new", "restarted"])
def test_what_the_log_said_before_a_probes_first_line_is_judged_however_late(seconds: int, restarted: bool) -> None:
    node = Logged().restarts() if restarted else Node(FILE)
    node.line("kmsg", **SAID).line("nvml", *GPUS)
    node.wait(seconds, kmsg=(), nvml=GPUS)
    assert node.offers.get(RDMA, []) == []
    node.line("nics", nic())
    assert (node.states["NIC-0"], node.offers[RDMA]) == (("Unhealthy", "FirmwareStalled"), [])
    assert [(each.reason, each.count) for each in node.world.state.history["NIC-0"]] == [("FirmwareStalled", 1)]
    assert node.world.state.waiting == ()


def test_what_waits_is_logged_only_once_it_is_certain_that_no_device_has_it_and_counted_at_once() -> None:
    node = Logged().restarts()
    event = dataclasses.replace(STALLED, pci_bus_id="0000:ff:00.0")
    node.line("kmsg", events=(event,)).line("nvml", *GPUS).line(
        "kmsg", events=(dataclasses.replace(event, sequence=8),)
    )
    assert (len(node.last.addressed), node.last.logged) == (1, ())
    node.line("nics", nic())
    assert [(each.reason, each.count) for each in node.last.logged] == [("FirmwareStalled", 2)]
    assert node.last.addressed == ()


def test_what_waits_is_kept_over_a_restart_of_the_agent_and_over_after_a_reboot() -> None:
    node = Node(FILE).line("kmsg", **SAID).line("nvml", *GPUS).restarts()
    node.line("nvml", *GPUS).line("nics", nic())
    assert node.states["NIC-0"] == ("Unhealthy", "FirmwareStalled")
    node = Node(FILE).line("kmsg", **SAID).line("nvml", *GPUS).restarts()
    node.line("nvml", *GPUS, boot_id="boot-2").line("nics", nic(), boot_id="boot-2")
    assert node.states["NIC-0"] == WELL


@cases("state", DriverState.UNKNOWN, DriverState.VERSION_MISMATCH)
def test_a_driver_that_cannot_be_asked_yet_may_have_the_device(state: DriverState) -> None:
    node = Node(FILE).line("nics", nic()).line("nvml", driver=Driver(state=state))
    event = dataclasses.replace(STALLED, kind=kinds.SXID_FATAL, pci_bus_id=SWITCH_AT, xid=12020)
    node.line("kmsg", **{**SAID, "events": (event,)}).line("nvml", *GPUS)
    assert node.states[gpu_id(0)] == ("Unhealthy", "Sxid12020")


def test_no_device_waits_for_the_log_and_a_flood_that_waits_is_one_event_with_its_count() -> None:
    node = Node(FILE).line("nics", nic()).line("kmsg", **SAID)
    assert node.states["NIC-0"] == ("Unhealthy", "FirmwareStalled")
    node = Node(FILE)
    node.line("nvml", *GPUS).line("nics", nic())
    assert (len(node.offers[GPU]), node.offers[RDMA]) == (2, ["NIC-0"])
    node = Node(FILE).line("nvml", *GPUS)
    for number in range(300):
        node.line("kmsg", events=(dataclasses.replace(STALLED, sequence=number, count=2),))
    [waiting] = node.world.state.waiting
    assert (waiting.event.count, waiting.event.time) == (600, START)


def test_a_fault_that_a_person_has_confirmed_is_not_back_because_a_new_process_reads_the_log_again() -> None:
    node = Logged().log(kinds.MLX5_STALLED, "0000:3b:00.0")
    event = dataclasses.replace(STALLED, sequence=1, time=node.time - timedelta(seconds=1))
    node.sees(confirm=f"NIC-0=recovered@{CONFIRMED}").line("nics", nic())
    node.passes(120)
    assert node.states["NIC-0"] == WELL
    again = {**SAID, "events": (event,)}
    assert node.line("kmsg", **again, instance="process-2").states["NIC-0"] == WELL
    assert node.restarts().line("kmsg", **again, instance="process-3").line("nics", nic()).states["NIC-0"] == WELL
    assert node.last.addressed == (), "it is counted once, too"
    newer = {**SAID, "events": (event, dataclasses.replace(event, sequence=2, time=node.time))}
    assert node.line("kmsg", **newer, instance="process-4").states["NIC-0"] == ("Unhealthy", "FirmwareStalled")


def test_a_silent_log_leaves_devices_as_they_are_and_one_that_came_back_is_not_read_anew() -> None:
    node = Logged().log(kinds.MLX5_STALLED, "0000:3b:00.0")
    event = dataclasses.replace(STALLED, sequence=1, time=node.time - timedelta(seconds=1))
    node.sees(confirm=f"NIC-0=recovered@{CONFIRMED}").line("nics", nic())
    node.passes(120)
    node.uses(said("nvml", NICS)).uses(FILE)
    assert node.line("kmsg", **{**SAID, "events": (event,)}, instance="process-2").states["NIC-0"] == WELL
    node = Logged().passes(120)
    assert node.last.silent == frozenset({"kmsg"})
    assert set(node.states.values()) == {WELL}
    assert (len(node.offers[GPU]), node.world.lost) == (3, {})


def test_what_the_probe_of_the_log_has_to_say_of_itself_is_a_problem_of_the_node() -> None:
    node = Logged()
    problem = Problem(code="KernelLogUnreadable", message="the kernel log cannot be read")
    node.line("kmsg", driver=Driver(state=DriverState.LOADED), problems=(problem,))
    assert [(each.code, each.message) for each in node.world.known.inventory.problems] == [
        ("KernelLogUnreadable", "kmsg: the kernel log cannot be read")
    ]
    assert set(node.states.values()) == {WELL}


def test_only_what_needs_no_repair_is_over_when_the_driver_requires_nothing() -> None:
    node = Logged().log(kinds.SXID_FATAL, SWITCH_AT, 12020).passes(HOLD + 10)
    assert node.states[gpu_id(0)] == ("Unhealthy", "Sxid12020")
    assert node.restarts().passes(HOLD + 10).states[gpu_id(0)] == ("Unhealthy", "Sxid12020"), "nor after a restart"
    node.line("nvml", *node.gpus, boot_id="boot-2").line("nics", nic(), boot_id="boot-2")
    assert node.states[gpu_id(0)] == WELL
    node = Logged(gpu(0, pci_bus_id="0000:1b:00.0", links=LINKS, readings=old()))
    node.sequence = 1_000
    node.log(kinds.PCIE_FATAL, "0000:1b:00.0")
    assert node.states[gpu_id(0)] == ("Degraded", "PcieFatal")
    assert node.passes(HOLD + 10).states[gpu_id(0)] == WELL


def test_an_event_goes_to_every_device_at_its_address() -> None:
    at = "0000:3b:00.0"
    parts = {"nics": inventory_of(nic(), nic(1)), "own": inventory_of(nic(2, id="OWN", pci_bus_id=at))}
    event = ProbeEvent(sequence=5, time=START, kind=kinds.MLX5_STALLED, pci_bus_id=at)
    found, _ = routed((event,), "kmsg", parts)
    assert {name: [each.device_id for each in some] for name, some in found.items()} == {
        "nics": ["NIC-0"],
        "own": ["OWN"],
    }


def test_an_event_that_names_its_device_or_no_pci_address_goes_nowhere_else() -> None:
    parts = {"nvml": inventory_of(gpu(0, pci_bus_id="0000:1b:00.0"))}
    own = ProbeEvent(sequence=1, time=START, kind=kinds.PCIE_FATAL, pci_bus_id="0000:1b:00.0", device_id="OWN")
    placeless = ProbeEvent(sequence=2, time=START, kind=kinds.PCIE_FATAL)
    assert routed((own, placeless), "other", parts) == ({"other": (own, placeless)}, ())
    parts = {"own": inventory_of(gpu(0, pci_bus_id="slot-1"), gpu(1, pci_bus_id="slot-2"))}
    event = ProbeEvent(sequence=1, time=START, kind=kinds.PCIE_FATAL, pci_bus_id="slot-2")
    assert [each.device_id for each in routed((event,), "kmsg", parts)[0]["own"]] == [gpu_id(1)]
