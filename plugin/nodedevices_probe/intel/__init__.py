"""Intel's GPUs: names that the probe and the agent's vendor share, and the command `nodedevices-probe intel` with its
flags.
"""

from __future__ import annotations

from nodedevices_probe.kind import DRIVER_ROOT, DRIVER_ROOT_FLAG, ProbeKind, on_pci
from nodedevices_probe.node.sysfs import COMPUTE_CLASSES

VENDOR = "intel"
DRIVERS = ("i915", "xe")
DRIVER = "driver"  # one of these
FUNCTIONS = "virtualFunctions"  # how many a physical function has


INTEL = ProbeKind(
    name="intel",
    help="Intel GPUs and their virtual functions, by the kernel's drivers i915 and xe",
    flags={
        **DRIVER_ROOT_FLAG,
        "allow-ids": {
            "default": "",
            "metavar": "IDS",
            "help": "report only GPUs with these PCI device ids: 0x49c5,0x56c0 (default: all)",
        },
        "deny-ids": {"default": "", "metavar": "IDS", "help": "leave GPUs with these PCI device ids out"},
    },
    alternatives=frozenset({"allow-ids", "deny-ids"}),
    reads="nodedevices_probe.intel.probe",
    passed_on={DRIVER_ROOT: DRIVER_ROOT},
    opens=frozenset({DRIVER_ROOT}),
    choices=frozenset({"allow-ids", "deny-ids"}),
    present=on_pci("0x8086", COMPUTE_CLASSES, drivers=("i915", "xe")),
)
