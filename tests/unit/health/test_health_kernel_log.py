"""What lines of the kernel's log mean, by vendor: each kind of the probe means something, and is on the page."""

from __future__ import annotations

from pathlib import Path

from nodedevices_plugin.vendors.faults import Effect, Meaning, meaning_of
from nodedevices_plugin.vendors.nvidia import kernel_log
from nodedevices_plugin.vendors.nvidia.kernel_log import SXIDS, Reach
from nodedevices_probe import kmsg as kinds
from nodedevices_probe.kmsg.probe import ROWS
from nodedevices_probe.protocol import SWITCH_KINDS, ProbeEvent
from support.cases import cases
from support.facts import REGISTERED, START
from support.there import there

PAGE = Path(__file__).parents[3] / "docs" / "devices" / "kernel-log.md"
MAKERS = {"nvidia": "nvidia", "amd": "amd", "nic": "*/nic"}


def meaning(maker: str, kind: str, code: int | None = None, **details: str) -> Meaning | None:
    event = ProbeEvent(sequence=1, time=START, kind=kind, xid=code, pci_bus_id="0000:1b:00.0", details=details)
    return meaning_of(REGISTERED[MAKERS[maker]], event)


@cases(
    ("maker", "kind", "reason", "effect", "action"),
    ("nic", kinds.MLX5_STALLED, "FirmwareStalled", Effect.UNHEALTHY, "ResetDevice"),
    ("nic", kinds.MLX5_FATAL, "FirmwareFatal", Effect.UNHEALTHY, "ResetDevice"),
    ("nic", kinds.MLX5_RECOVERED, "FirmwareRecovered", Effect.REPAIRED, "None"),
    ("nic", kinds.MLX5_COMMAND_TIMEOUT, "FirmwareTimeout", Effect.DEGRADED, "None"),
    ("nic", kinds.MLX5_MODULE_HOT, "ModuleHot", Effect.DEGRADED, "None"),
    ("nic", kinds.MLX5_SLOT_POWER, "SlotPower", Effect.NOTICE, "None"),
    ("amd", kinds.AMDGPU_RESET_FAILED, "GpuResetFailed", Effect.UNHEALTHY, "RebootNode"),
    ("amd", kinds.AMDGPU_RESET, "GpuReset", Effect.DEGRADED, "None"),
    ("amd", kinds.AMDGPU_RING_TIMEOUT, "RingTimeout", Effect.NOTICE, "RestartApp"),
    ("amd", kinds.AMDGPU_UNCORRECTABLE, "RasUncorrectable", Effect.NOTICE, "None"),
    *(
        (maker, kind, reason, effect, "None")
        for maker in MAKERS
        for kind, reason, effect in (
            (kinds.PCIE_FATAL, "PcieFatal", Effect.DEGRADED),
            (kinds.PCIE_NON_FATAL, "PcieError", Effect.NOTICE),
        )
    ),
)
def test_a_line_means_what_the_page_says(maker: str, kind: str, reason: str, effect: Effect, action: str) -> None:
    found = there(meaning(maker, kind))
    assert (found.reason, found.effect, found.action) == (reason, effect, action)


@cases(
    ("kind", "number", "reason", "effect"),
    (kinds.SXID, 20001, "Sxid20001", Effect.COUNTED),
    (kinds.SXID, 12028, "Sxid12028", Effect.NOTICE),
    (kinds.SXID, 28006, "SxidUnlisted", Effect.COUNTED),
    (kinds.SXID_FATAL, 20034, "Sxid20034", Effect.NOTICE),
    (kinds.SXID_FATAL, 28006, "SxidUnlisted", Effect.NOTICE),
    (kinds.SXID_FATAL, 23017, "Sxid23017", Effect.UNHEALTHY),
    (kinds.SXID, 23017, "Sxid23017", Effect.NOTICE),
)
def test_an_sxid_withdraws_gpus_only_where_the_guide_and_the_driver_call_it_fatal_to_the_fabric(
    kind: str, number: int, reason: str, effect: Effect
) -> None:
    found = there(meaning("nvidia", kind, number))
    assert (found.reason, found.effect) == (reason, effect)


@cases(
    ("maker", "kind", "number", "repair", "domain"),
    ("nic", kinds.MLX5_COMMAND_TIMEOUT, None, "ResetDevice", "Device"),
    ("nic", kinds.MLX5_MODULE_HOT, None, "Inspect", "Device"),
    ("amd", kinds.AMDGPU_RING_TIMEOUT, None, "ResetDevice", "Application"),
    ("amd", kinds.AMDGPU_UNCORRECTABLE, None, "ResetDevice", "Device"),
    ("nvidia", kinds.SXID, 12028, "RebootNode", "Node"),
    ("nvidia", kinds.XID_DETAIL, 13, "Inspect", "Application"),
)
def test_where_a_rule_makes_more_of_it_its_repair_and_whose_fault_it_is_are_known(
    maker: str, kind: str, number: int | None, repair: str, domain: str
) -> None:
    found = there(meaning(maker, kind, number))
    assert (found.repair, found.domain) == (repair, domain)


def test_an_error_that_is_fatal_to_the_fabric_is_the_nodes_and_needs_its_reboot() -> None:
    found = there(meaning("nvidia", kinds.SXID_FATAL, 23017))
    assert (found.action, found.domain) == ("RebootNode", "Node")


# By register and reason, the bits of WORKFLOW_NVLINK_ERR (NVSentinel's docs/designs/019-workflow-nvlink-err.md).
WORKFLOW: dict[int, dict[str, tuple[int, ...]]] = {
    1: {
        "": (0, 23, 30),
        "NvlinkSecondary": (1, 20),
        "NvlinkEcc": (4, 5),
        "NvlinkConnection": (8, 9, 12, 16, 17, 24, 28),
        "NvlinkSignal": (21, 22),
        "NvlinkError": (27, 29),
    },
    3: {"NvlinkEcc": (0, 1, 2, 6), "NvlinkError": (13, 16, 17, 18, 19)},
    4: {"NvlinkSecondary": (16, 17, 18)},
    5: {"NvlinkEcc": (18, 19, 21, 22, 24, 25, 27, 28), "NvlinkThreshold": (20, 23, 26, 29)},
}


@cases("register", *range(1, 8))
def test_each_bit_of_a_register_is_what_the_workflow_calls_it(register: int) -> None:
    named = {bit: reason for reason, bits in WORKFLOW.get(register, {}).items() for bit in bits}
    for bit in range(32):
        found = meaning("nvidia", kinds.XID_DETAIL, 74, **{f"register{register}": f"{1 << bit:#x}"})
        reason = named.get(bit, "NvlinkOther") if register in WORKFLOW else ""
        assert ("" if found is None else found.reason) == reason, bit


def test_sxids_and_kinds_of_a_switch_are_those_of_the_guide() -> None:
    """Counts: gpud's copy of the guide's tables (components/accelerator/nvidia/sxid/sxid.go)."""
    assert sum(each.reach is Reach.FABRIC for each in SXIDS.values()) == 21
    assert len(SXIDS) == 93
    assert frozenset({kinds.SXID, kinds.SXID_FATAL}) == SWITCH_KINDS


def test_every_kind_of_the_probe_means_something_and_is_on_the_page() -> None:
    details = {"register1": "0x10"}
    for row in ROWS:
        code = {kinds.XID_DETAIL: 74}.get(row.kind, 20034)
        assert any(meaning(maker, row.kind, code, **details) is not None for maker in MAKERS), row.kind
    said = PAGE.read_text()
    meanings = (kernel_log.MEANINGS, REGISTERED["amd"].meanings, REGISTERED["*/nic"].meanings)
    shown = [each for some in meanings for each in some.values() if each.effect is not Effect.REPAIRED]
    reasons = {kernel_log.UNLISTED, *(each.reason for each in shown)}
    assert {each for each in reasons if f"`{each}`" not in said} == set()
