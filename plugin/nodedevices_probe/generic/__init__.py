"""Any device that has a node in /dev, or is a USB device, by a configuration file: names that the probe and the agent's
vendor share, and the command `nodedevices-probe generic` with its flags.
"""

from __future__ import annotations

from pathlib import Path

from nodedevices_probe.kind import DRIVER_ROOT, DRIVER_ROOT_FLAG, ProbeKind

VENDOR = "generic"
TYPE = "generic"
FILE = "generic.yaml"  # of the agent's --devices-dir
ENTRY = "entry"  # the `name` in the file
SHAPE = "entryShape"  # of its group (config.shape): parts mean something only together with it
PARTS = "parts"  # of which part of the group each of the device nodes is: "0,1,1"
EXCLUSIVE = "exclusiveNodes"  # so many of the device nodes, the first ones, are this device's alone
MATCH = "match"  # what the wildcards stand for
SERIAL = "serial"  # of a USB device
PORT = "usbPort"  # where it is plugged in: 1-1.4
MOUNTS = "mounts"  # which of the group's parts are there and are mounted: "2,3"


def mount_of(part: int) -> str:
    """The attribute with the host's path of a mounted part, where its wildcards leave several."""
    return f"path{part}"


GENERIC = ProbeKind(
    name="generic",
    help="devices by a configuration file: nodes of /dev and USB devices",
    flags={
        "file": {
            "type": Path,
            "required": True,
            "metavar": "F",
            "help": "which devices (docs/devices/generic.md); edits appear at once",
        },
        **DRIVER_ROOT_FLAG,
    },
    reads="nodedevices_probe.generic.probe",
    interval="between searches for devices",
    interval_seconds=1.0,
    passed_on={"file": FILE, DRIVER_ROOT: DRIVER_ROOT},
    opens=frozenset({"file", DRIVER_ROOT}),
    requires={FILE: "which says what devices there are"},
    files=(FILE,),
)
