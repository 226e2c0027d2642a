"""The command `nodedevices-probe remote` and its flags."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

from nodedevices_probe.kind import ProbeKind
from nodedevices_probe.remote.attributes import OPTION


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--file",
        type=Path,
        required=True,
        metavar="F",
        help="which pools (docs/devices/remote.md); edits appear at once",
    )


REMOTE = ProbeKind(
    name="remote",
    help="pools that live elsewhere, by a configuration file, with checks of their controllers",
    add_arguments=_add_arguments,
    reads="nodedevices_probe.remote.probe",
    interval="between reports; how often controllers are checked is in the file",
    interval_seconds=1.0,
    passed_on={"file": OPTION},
    opens=frozenset({"file"}),
    requires={OPTION: "a file that says which pools there are"},
    auto_by=(OPTION,),
)
