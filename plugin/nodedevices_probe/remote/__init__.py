"""Pools that live elsewhere, by a configuration file: names that the probe and the agent's vendor share, and the
command `nodedevices-probe remote` with its flags.
"""

from __future__ import annotations

from pathlib import Path

from nodedevices_probe.kind import ProbeKind

VENDOR = "remote"
TYPE = "pool"
FILE = "remote.yaml"  # of the agent's --devices-dir
POOL = "pool"  # the `name` in the file
CONTROLLER = "controller"
UNREACHABLE = "controllerUnreachable"  # in readings.conditions
UNCHECKED = "controllerUnchecked"  # the same: not known yet


REMOTE = ProbeKind(
    name="remote",
    help="pools that live elsewhere, by a configuration file, with checks of their controllers",
    flags={
        "file": {
            "type": Path,
            "required": True,
            "metavar": "F",
            "help": "which pools (docs/devices/remote.md); edits appear at once",
        }
    },
    reads="nodedevices_probe.remote.probe",
    interval="between reports; how often controllers are checked is in the file",
    interval_seconds=1.0,
    passed_on={"file": FILE},
    opens=frozenset({"file"}),
    requires={FILE: "which says what pools there are"},
    files=(FILE,),
)
