"""The command `nodedevices-probe simulated` and its flags."""

from __future__ import annotations

import os
import platform
from argparse import ArgumentParser
from pathlib import Path

from nodedevices_probe.files.check import CheckError
from nodedevices_probe.kind import AgentOptions, ProbeKind


def _add_arguments(parser: ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--file", type=Path, metavar="F", help="a YAML file (docs/simulated-devices.md); edits appear at once"
    )
    what.add_argument("--profile", metavar="P", help="a known machine, such as 'h100 x 8' or 'h100 x 2, u250'")
    parser.add_argument(
        "--node-name",
        default=os.environ.get("NODE_NAME") or platform.node() or "node",
        metavar="N",
        help="device ids are made from it (default: $NODE_NAME, or the host's name)",
    )


def _check(given: AgentOptions) -> None:
    if profile := given["simulated-profile"]:
        from nodedevices_probe.simulated.probe import ProfileSource  # noqa: PLC0415  2 MiB that others do not need

        try:
            ProfileSource.for_profile(str(profile), node="node")
        except CheckError as error:
            raise CheckError(f"--simulated-{error}") from None


SIMULATED = ProbeKind(
    name="simulated",
    help="devices described by a file, or a known machine",
    add_arguments=_add_arguments,
    reads="nodedevices_probe.simulated.probe",
    interval="after which an unchanged line is repeated, at most 5",
    interval_seconds=1.0,
    passed_on={"file": "simulated-file", "profile": "simulated-profile", "node-name": "node-name"},
    opens=frozenset({"file"}),
    one_of=("simulated-file", "simulated-profile"),
    check=_check,
)
