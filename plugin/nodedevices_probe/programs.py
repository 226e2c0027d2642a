"""Programs of vendors that print a CDI specification as JSON, such as nvidia-ctk. They call the driver, so they run
where a probe runs: here, in the agent's own container or in the probe's.

Which arguments they get, and which results are acceptable, is decided in the agent (vendors.cdi.SpecRequest).
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nodedevices_common.errors import OperationError

RUN_SECONDS = 30.0
MAX_PRINTED_BYTES = 2 << 20  # a specification of 16 GPUs in 7 parts each has less than 1
SHOWN = 300  # characters of the end of its output


class ProgramError(OperationError):
    """It printed nothing that can be used; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """command: the arguments that each run begins with. flags: those that may follow, each with a value. roots: the
    flags for the driver's root and for the root of its /dev. places: folders below the driver root where it is
    searched for, after PATH."""

    name: str
    command: tuple[str, ...]
    flags: frozenset[str]
    roots: tuple[str, str]
    places: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """driver_root: the folder that the paths in the text begin with; empty: this container's own root."""

    text: str
    driver_root: str = ""


def run(program: Program, arguments: Sequence[str], *, driver_root: str = "") -> Printed:
    """What it prints. `driver_root`: where the driver's root is mounted, if it is. Raises ProgramError. Blocks."""
    mounted = driver_root if driver_root and Path(driver_root).is_dir() else ""
    found = _find(program, driver_root)
    dev = mounted if Path(mounted, "dev").is_dir() else "/"
    roots = [f"--{flag}={value}" for flag, value in zip(program.roots, (mounted, dev), strict=True)]
    command = [found, *program.command, *arguments, *(roots if mounted else [])]
    try:
        done = subprocess.run(  # noqa: S603
            command, capture_output=True, timeout=RUN_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise ProgramError(f"{program.name}: {error}") from error
    if done.returncode != 0:
        output = " ".join(done.stderr.decode(errors="replace").split())[-SHOWN:]
        raise ProgramError(f"{program.name}: status {done.returncode}: {output or 'no output'}")
    if len(done.stdout) > MAX_PRINTED_BYTES:
        raise ProgramError(f"{program.name}: its output has more than {MAX_PRINTED_BYTES >> 20} MiB")
    return Printed(text=done.stdout.decode(errors="replace"), driver_root=mounted)


def _find(program: Program, driver_root: str) -> str:
    below = [str(Path(driver_root, place)) for place in program.places] if driver_root else []
    found = shutil.which(program.name) or shutil.which(program.name, path=":".join(below) or "/nowhere")
    if found is None:
        places = f" nor below {driver_root}" if below else ""
        raise ProgramError(f"{program.name} is not in the agent's image{places}")
    return found
