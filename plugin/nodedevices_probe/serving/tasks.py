"""What a process does that the probe server has started for a request. Its answer is one line on the connection; a
probe's lines go there as they come.

It is a process of its own because all of this may hang in the kernel: a mount that does not answer, a driver.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nodedevices_probe import programs
from nodedevices_probe.kind import ProbeKind
from nodedevices_probe.loop import write_all
from nodedevices_probe.node import optional_paths
from nodedevices_probe.node.presence import Hardware
from nodedevices_probe.node.roots import Roots
from nodedevices_probe.serving.requests import FindHardware, FindPaths, Request, RunProgram, StartProbe

Probe = Callable[[Sequence[str]], int]  # the command nodedevices-probe


def present(kinds: Mapping[str, ProbeKind], root: Path = Path("/")) -> dict[str, str]:
    """Return the kinds whose hardware is there now, each with the reason."""
    machine = Hardware(Roots(root))
    found = {name: kind.present(machine) for name, kind in kinds.items()}
    return {name: why for name, why in found.items() if why}


def perform(
    request: Request,
    descriptor: int,
    *,
    probe: Probe,
    kinds: Mapping[str, ProbeKind],
    known_programs: Mapping[str, programs.Program],
) -> int:
    """Do what was requested and allowed, in this process. Returns its exit status."""
    answer: Any
    match request:
        case StartProbe():
            return probe([*request.arguments, f"--fd={descriptor}"])
        case FindPaths():
            answer = sorted(optional_paths.existing(Path(request.root), request.patterns))
        case FindHardware():
            answer = present(kinds)
        case RunProgram():
            try:
                program = known_programs[request.name]
                done = programs.run(program, request.arguments, driver_root=request.root)
                answer = {"text": done.text, "driverRoot": done.driver_root}
            except programs.ProgramError as error:
                answer = {"error": str(error)}
    write_all(descriptor)(json.dumps({"answer": answer}).encode() + b"\n")
    return 0
