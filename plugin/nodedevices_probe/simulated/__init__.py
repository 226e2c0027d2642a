"""The command `nodedevices-probe simulated` and its flags: devices as a file or a profile describes them."""

from __future__ import annotations

from pathlib import Path

from nodedevices_probe.files import CheckError
from nodedevices_probe.kind import AgentOptions, ProbeKind

OPTION = "simulated"  # of the agent


def is_file(value: str) -> bool:
    """True where the agent's option names a file; all else is a profile."""
    return value.startswith("/") or value.endswith((".yaml", ".json"))


def _check(given: AgentOptions) -> None:
    value = str(given[OPTION])
    if value and not is_file(value):
        from nodedevices_probe.simulated.probe import from_profile  # noqa: PLC0415  2 MiB that others do not need

        try:
            from_profile(value, node="node")
        except CheckError as error:
            what = "taken for a profile, as a file begins with / or ends in .yaml or .json"
            raise CheckError(f"--{OPTION}: {what}: {str(error).removeprefix('profile: ')}") from None


SIMULATED = ProbeKind(
    name="simulated",
    help="devices described by a file, or a known machine",
    flags={
        "file": {"type": Path, "metavar": "F", "help": "a YAML file (docs/simulated-devices.md); edits appear at once"},
        "profile": {"metavar": "P", "help": "a known machine, such as 'h100 x 8' or 'h100 x 2, u250'"},
        "node-name": {
            "metavar": "N",
            "help": "device ids are made from it (default: $NODE_NAME, or the host's name)",
        },
    },
    alternatives=frozenset({"file", "profile"}),
    reads="nodedevices_probe.simulated.probe",
    interval="after which an unchanged line is repeated, at most 5",
    interval_seconds=1.0,
    passed_on={"file": OPTION, "profile": OPTION, "node-name": "node-name"},
    passes=lambda flag, value: flag == "node-name" or is_file(str(value)) == (flag == "file"),
    opens=frozenset({"file"}),
    requires={OPTION: "a file of devices or a profile such as 'h100 x 8'"},
    alone=True,
    check=_check,
)
