"""Which lines of the kernel's log are events, and which are not.

The lines are those of other projects' tests and documents: NVSentinel's (syslog-health-monitor: sxid, nicdriver, and
docs/designs/019-workflow-nvlink-err.md), gpud's (components/memory/testdata/dmesg.decode.iso.log and
components/accelerator/nvidia/infiniband), and the formats in the kernel's own sources.
"""

from __future__ import annotations

from hypothesis import given, strategies as st
from nodedevices_probe import kmsg as kinds
from nodedevices_probe.kmsg.probe import MAX_LINES, read
from nodedevices_probe.protocol import MAX_DETAILS, MAX_TEXT
from support.cases import cases

KERNEL, USER, DAEMON = "<3>", "<11>", "<27>"
SWITCH = "0000:c1:00.0"
STALLED = "mlx5_core 0000:d2:00.0: poll_health:825:(pid 0): device's health compromised - reached miss count"
NVLINK = (
    "NVRM: Xid (PCI:0003:00:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 14"
    "(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)"
)
GRAPHICS = (
    "NVRM: Xid (PCI:0000:38:00): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp Exception on "
    "(GPC 9, TPC 1, SM 1): Out Of Range Address"
)
COMMAND = (
    "mlx5_core 0000:03:00.0: wait_func:1195:(pid 1967079): ENABLE_HCA(0x104) timeout. Will cause a leak of a command "
    "resource"
)
# One record of the kernel, whose lines each have its priority and time (NVIDIA's osinit.c, NVSentinel's tests).
NO_ANSWER = "fallen off the bus and is not responding"
OFF_BUS = (
    "NVRM: The NVIDIA GPU 0000:b3:00.0\n"
    "<3>[  830.456422] NVRM: (PCI ID: 10de:26b5) installed in this system has\n"
    f"<3>[  830.456422] NVRM: {NO_ANSWER} to commands."
)
NOT_SUPPORTED = (
    "NVRM: The NVIDIA GPU 0000:0b:00.0 (PCI ID: 10de:0dd8)\n"
    "<3>[  830.456422] NVRM: installed in this system is not supported by the\n"
    f"<3>[  830.456422] NVRM: The NVIDIA GPU {NO_ANSWER}"
)
KNOWN: tuple[tuple[str, tuple[str, str, int | None, dict[str, str]]], ...] = (
    (
        "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore MCTO (First)",
        (kinds.SXID, SWITCH, 28006, {"link": "46", "text": "MC TS crumbstore MCTO (First)"}),
    ),
    (
        "nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): 20034, Fatal, Link 28 LTSSM Fault Up",
        (kinds.SXID_FATAL, "0000:c2:00.0", 20034, {"link": "28", "text": "LTSSM Fault Up"}),
    ),
    (
        "nvidia-nvswitch1: SXid (PCI:0000:c1:00.0): 10004, Non-fatal, Host_thermal_event_start",
        (kinds.SXID, SWITCH, 10004, {"text": "Host_thermal_event_start"}),
    ),
    (NVLINK, (kinds.XID_DETAIL, "0003:00:00.0", 74, {"link": "14", "register3": "0x10000"})),
    (GRAPHICS, (kinds.XID_DETAIL, "0000:38:00.0", 13, {"gpc": "9", "tpc": "1", "sm": "1"})),
    (OFF_BUS, (kinds.NVIDIA_OFF_BUS, "0000:b3:00.0", None, {"text": NO_ANSWER})),
    (
        f"NVRM: The NVIDIA GPU 0000:05:00.0 installed in this system has {NO_ANSWER} to commands.",
        (kinds.NVIDIA_OFF_BUS, "0000:05:00.0", None, {"text": NO_ANSWER}),
    ),
    (
        "NVRM: GPU 0000:b3:00.0: RmInitAdapter failed! (0x26:0x56:1474)",
        (kinds.NVIDIA_INIT_FAILED, "0000:b3:00.0", None, {"text": "RmInitAdapter failed! (0x26:0x56:1474)"}),
    ),
    (
        "nvidia: probe of 0000:b3:00.0 failed with error -1",
        (kinds.NVIDIA_PROBE_FAILED, "0000:b3:00.0", None, {"text": "error -1"}),
    ),
    (
        "nvidia 0000:b3:00.0: probe with driver nvidia failed with error -1",
        (kinds.NVIDIA_PROBE_FAILED, "0000:b3:00.0", None, {"text": "error -1"}),
    ),
    (STALLED, (kinds.MLX5_STALLED, "0000:d2:00.0", None, {})),
    (COMMAND, (kinds.MLX5_COMMAND_TIMEOUT, "0000:03:00.0", None, {"text": "ENABLE_HCA(0x104)"})),
    (
        "mlx5_core 0000:05:00.0: mlx5_health_try_recover:338:(pid 268269): health recovery succeeded",
        (kinds.MLX5_RECOVERED, "0000:05:00.0", None, {}),
    ),
    (
        "mlx5_core 0000:05:00.0: mlx5_health_try_recover:343:(pid 1): health revovery succeded",
        (kinds.MLX5_RECOVERED, "0000:05:00.0", None, {}),
    ),
    (
        "mlx5_core 0000:5c:00.0: Port module event[error]: module 0, Cable error, High Temperature",
        (kinds.MLX5_MODULE_HOT, "0000:5c:00.0", None, {"module": "0"}),
    ),
    (
        "mlx5_core 0000:5c:00.0: mlx5_pcie_event:299:(pid 268269): Detected insufficient power on the PCIe slot (27W).",
        (kinds.MLX5_SLOT_POWER, "0000:5c:00.0", None, {}),
    ),
    (
        "mlx5_core 0000:05:00.0: poll_health:839:(pid 0): Fatal error 3 detected",
        (kinds.MLX5_FATAL, "0000:05:00.0", None, {"text": "Fatal error 3 detected"}),
    ),
    (
        "amdgpu 0000:c3:00.0: amdgpu: 2 uncorrectable hardware errors detected in umc block",
        (kinds.AMDGPU_UNCORRECTABLE, "0000:c3:00.0", None, {"errors": "2", "block": "umc"}),
    ),
    (
        "amdgpu 0000:c3:00.0: amdgpu: socket: 0, die: 1, 4 new uncorrectable hardware errors detected in gfx block",
        (kinds.AMDGPU_UNCORRECTABLE, "0000:c3:00.0", None, {"errors": "4", "block": "gfx"}),
    ),
    (
        "amdgpu 0000:03:00.0: amdgpu: ring gfx_0.0.0 timeout, signaled seq=1, emitted seq=3",
        (kinds.AMDGPU_RING_TIMEOUT, "0000:03:00.0", None, {"ring": "gfx_0.0.0"}),
    ),
    ("amdgpu 0000:03:00.0: amdgpu: GPU reset begin!", (kinds.AMDGPU_RESET, "0000:03:00.0", None, {})),
    (
        "amdgpu 0000:03:00.0: amdgpu: GPU reset end with ret = -62",
        (kinds.AMDGPU_RESET_FAILED, "0000:03:00.0", None, {"text": "GPU reset end with ret = -62"}),
    ),
    (
        "mlx5_core 0000:01:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)",
        (kinds.PCIE_FATAL, "0000:01:00.0", None, {"layer": "Transaction Layer"}),
    ),
    (
        "nvidia 0000:3b:00.0: AER: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Data Link Layer, (Agent)",
        (kinds.PCIE_NON_FATAL, "0000:3b:00.0", None, {"layer": "Data Link Layer"}),
    ),
)
HARMLESS = (
    "NVRM: Xid (PCI:0000:4e:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",  # NVML says it
    NOT_SUPPORTED,
    "NVRM: The NVIDIA probe routine failed for 1 device(s).",  # the kernel's own line has the address
    "NVRM: RmInitAdapter failed! (0x27:0x38:1193)",
    "nvidia-nvswitch2: SXid (PCI:0000:c4:00.0): 10002, Severity 5 Engine instance 00 Sub-engine instance 00",
    "amdgpu 0000:c3:00.0: amdgpu: no uncorrectable hardware errors detected in umc block",
    "amdgpu 0000:c3:00.0: amdgpu: 0 uncorrectable hardware errors detected in umc block",
    "amdgpu 0000:03:00.0: amdgpu: GPU reset end with ret = 0",
    "amdgpu 0000:03:00.0: amdgpu: GPU reset(2) succeeded!",
    "mlx5_core 0000:d2:00.0: mlx5_cmd_out_err:838:(pid 268269): ACCESS_REG(0x805) op_mod(0x1) failed",
    "mlx5_core 0000:01:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
    "EXT4-fs (vda): mounted filesystem",
    "",
)


def line(text: str, prefix: str = KERNEL) -> bytes:
    return f"{prefix}[  830.456422] {text}\n".encode()


@cases(("text", "event"), *KNOWN)
def test_a_drivers_line_is_an_event_with_its_address_number_and_details(text: str, event: tuple[object, ...]) -> None:
    [said] = read(line(text))[0]
    assert (said.key.kind, said.key.pci_bus_id, said.key.xid, said.details) == event
    assert said.seconds == 830.456422


@cases("text", *HARMLESS)
def test_other_lines_are_none(text: str) -> None:
    assert read(line(text))[0] == []


@cases("prefix", USER, DAEMON, "<1023>", "", "<>", "[  830.456422] ")
def test_what_a_program_writes_into_the_log_is_not_the_kernels_word(prefix: str) -> None:
    assert read(line(STALLED, prefix))[0] == []


@cases(
    "text",
    f"systemd[1]: {STALLED}",
    f"{STALLED[:20]}\x1b[2K{STALLED[20:]}",
    "NVRM: Xid (PCI:0000:38:00): 13, pid=1, name=(GPC 1, TPC 2, , no place",
    "mlx5_core: INFO: synd 0x8: unrecoverable hardware error.",
    "nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): 99999999999, Fatal, Link 28 LTSSM Fault Up",
)
def test_a_line_that_only_contains_such_words_is_none(text: str) -> None:
    assert read(line(text))[0] == []


def test_kernels_that_name_callers_or_no_times_are_read_and_long_lines_cut() -> None:
    called = f"<3>[  830.456422][  T812] {STALLED}\n<3>{STALLED}\n"
    assert [(each.key.kind, each.seconds) for each in read(called.encode())[0]] == [
        (kinds.MLX5_STALLED, 830.456422),
        (kinds.MLX5_STALLED, None),
    ]
    raw = b"<3>[    1.000000] nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): 20034, Fatal, Link 28 LT\x1b]0;x\x07\xff Up\n"
    [said] = read(raw)[0]
    assert said.details == {"link": "28", "text": "LT ]0;x �� Up".replace("��", " �").replace("  ", " ")}
    [said] = read(line(f"nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): 20034, Fatal, Link 28 {'x' * 8192}"))[0]
    assert len(said.details["text"]) == MAX_TEXT


@cases(
    ("said", "address"),
    ("0000:c2:00", "0000:c2:00.0"),
    ("00000000:C2:00", "0000:c2:00.0"),
    ("00010000:c2:00.1", "10000:c2:00.1"),
    ("10000:c2:00", "10000:c2:00.0"),
)
def test_an_address_is_reported_as_sysfs_has_it(said: str, address: str) -> None:
    [found] = read(line(f"nvidia-nvswitch0: SXid (PCI:{said}): 20034, Fatal, Link 28 LTSSM Fault Up"))[0]
    assert found.key.pci_bus_id == address


def test_a_flood_of_one_drivers_lines_hides_no_other_and_as_many_as_are_read_at_a_time_are_read() -> None:
    flood = b"".join(line(f"mlx5_core 0000:d2:00.0: firmware version: {number}") for number in range(MAX_LINES + 5))
    events, unread = read(flood + line(KNOWN[1][0]))
    assert ([event.key.kind for event in events], unread) == ([kinds.SXID_FATAL], True)
    events, unread = read(line(STALLED) * MAX_LINES)
    assert (len(events), unread) == (MAX_LINES, False)
    assert [each.key.kind for each in read(b"\n" + line(STALLED))[0]] == [kinds.MLX5_STALLED]


_PIECES = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"<3>[ 1.0] ", b"<11>", b"\n", b"Xid (PCI:", b"mlx5_core ", b"amdgpu ", b"0000:d2:00.0", b": "]),
    st.sampled_from([text.encode() for text, _ in KNOWN]),
)


@given(st.lists(_PIECES, max_size=30).map(b"".join))
def test_whatever_the_log_has_is_read_and_what_is_found_fits_a_line(raw: bytes) -> None:
    for said in read(raw)[0]:
        assert len(said.details) <= MAX_DETAILS
        assert all(value and len(value) <= MAX_TEXT and value.isprintable() for value in said.details.values())
        assert len(said.key.pci_bus_id) <= MAX_TEXT
