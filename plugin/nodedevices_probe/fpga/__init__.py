"""Xilinx' cards: names that the probe and the agent's vendor share, and the command `nodedevices-probe fpga` with its
flags.

Types, in `extra` (names as the agent and policies see them), and in `readings.conditions`.
"""

from __future__ import annotations

from nodedevices_probe.kind import DRIVER_ROOT, DRIVER_ROOT_FLAG, ProbeKind, any_of, exists, on_pci

VENDOR = "xilinx"
FPGA = "fpga"  # type of a card; of a U30, which has two FPGAs, these are its partitions
MEDIA = "media"  # type of one device of an MA35D card, which has no FPGA
NAMES_FILE = "NameCustomize.json"  # of the agent's --devices-dir

# extra; left out where the driver does not say
SHELL = "shell"  # its VBNV: xilinx_u250_gen3x16_xdma_shell_4_1
TIMESTAMP = "shellTimestamp"  # of the shell
SHELL_UUID = "shellUUID"  # of its logic
DEVICE_TYPE = "deviceType"  # u250, as Xilinx' plugin takes it from the shell's name
SERIAL = "serialNumber"
DEVICE_ID = "deviceID"  # "5005"
PCI_VENDOR = "pciVendor"  # "10ee"
MANAGEMENT_FUNCTION = "managementFunction"  # PCI address; of a U30 both, with a comma
MANAGEMENT_NODES = "managementNodes"  # "/dev/xclmgmt15104"; of a U30 by partition: "/dev/xclmgmt15104,"

U30 = "u30"  # DEVICE_TYPE, and the profile of a U30's partitions

# readings.conditions, beside drm.NODE_MISSING
NO_SHELL = "noShell"  # a new card, or one whose shell was removed: it has its golden image alone
FIREWALL = "firewallTripped"  # the card has cut its FPGA off, until it is reset


_CLASSES, _DRIVERS = ("0x1200",), ("xocl", "xclmgmt")

FPGA_PROBE = ProbeKind(
    name="fpga",
    help="FPGA cards and media accelerators of Xilinx (AMD), by XRT's drivers and ama_transcoder",
    flags=DRIVER_ROOT_FLAG,
    reads="nodedevices_probe.fpga.probe",
    passed_on={DRIVER_ROOT: DRIVER_ROOT},
    opens=frozenset({DRIVER_ROOT}),
    present=any_of(
        on_pci("0x10ee", _CLASSES, _DRIVERS),
        on_pci("0x13fe", _CLASSES, _DRIVERS),
        on_pci("0x3475", _CLASSES, _DRIVERS),
        on_pci("0x1d0f", (), _DRIVERS),  # AWS has other accelerators, too
        exists("sys/module/ama_transcoder"),
    ),
    files=(NAMES_FILE,),
)
