"""The command `nodedevices-probe kmsg` and its flags."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

from nodedevices_probe.kind import ProbeKind


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--kmsg-path",
        type=Path,
        metavar="F",
        help="read this file's end in the place of the kernel's log, for tests: lines as `dmesg --syslog --raw` prints"
        " them (default: the kernel's log)",
    )


KMSG = ProbeKind(
    name="kmsg",
    help="no devices, but what the kernel's log says of those of other probes; needs the capability SYSLOG",
    add_arguments=_add_arguments,
    reads="nodedevices_probe.kmsg.probe",
    interval="between two looks at the log",
    interval_seconds=1.0,
    lists_devices=False,
)
