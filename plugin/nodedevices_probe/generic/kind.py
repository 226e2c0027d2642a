"""The command `nodedevices-probe generic` and its flags."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

from nodedevices_probe.generic.attributes import OPTION
from nodedevices_probe.kind import DRIVER_ROOT, ProbeKind, add_driver_root


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--file",
        type=Path,
        required=True,
        metavar="F",
        help="which devices (docs/devices/generic.md); edits appear at once",
    )
    add_driver_root(parser)


GENERIC = ProbeKind(
    name="generic",
    help="devices by a configuration file: nodes of /dev and USB devices",
    add_arguments=_add_arguments,
    reads="nodedevices_probe.generic.probe",
    interval="between searches for devices",
    interval_seconds=1.0,
    passed_on={"file": OPTION, DRIVER_ROOT: DRIVER_ROOT},
    opens=frozenset({"file", DRIVER_ROOT}),
    requires={OPTION: "a file that says which devices there are"},
    auto_by=(OPTION,),
)
