"""What a step is asked for, and what it reports: part by part, since it may be ended at any time.

A part that fails is recorded with the end of its traceback, and the next one runs.
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Json = dict[str, Any]
DONE, SKIPPED, FAILED = "done", "skipped", "failed"
SHOWN_LINES = 6  # of a traceback


class SkippedError(Exception):
    """Raised where a step or a part of one cannot run here; the text says why."""


def write_json(path: Path, value: object) -> None:
    """Replace the file at once."""
    new = path.with_name(f".{path.name}")
    new.write_text(json.dumps(value, indent=1, default=str) + "\n")
    new.replace(path)


def why(error: BaseException) -> str:
    """Return the end of the traceback."""
    lines = "".join(traceback.format_exception(error)).rstrip().splitlines()
    return "\n".join(lines[-SHOWN_LINES:])


@dataclass
class Report:
    """What a step found so far; each change of it is written to the file."""

    path: Path
    outcome: str = DONE
    because: str = ""
    found: Json = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)  # parts

    def add(self, name: str, value: object) -> None:
        self.found[name] = value
        self.write()

    def write(self) -> None:
        because = self.because or (f"failed: {', '.join(self.failed)}" if self.failed else "")
        outcome = FAILED if self.failed else self.outcome
        write_json(self.path, {"outcome": outcome, "why": because, "found": self.found})

    def note(self, name: str, error: Exception) -> None:
        """Record what a part raised."""
        if isinstance(error, SkippedError):
            self.add(name, f"skipped: {error}")
        else:
            self.failed.append(name)
            self.add(name, {"error": why(error)})

    def part(self, name: str, run: Callable[[], object]) -> None:
        """Run a part, and record what it returns or raises."""
        try:
            self.add(name, run())
        except Exception as error:
            self.note(name, error)

    async def part_of(self, name: str, running: Awaitable[object]) -> None:
        """Await a part, and record the same of it."""
        try:
            self.add(name, await running)
        except Exception as error:
            self.note(name, error)


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was asked for on the command line."""

    out: Path
    seconds: float = 60.0  # of the watch
    faults: bool = True
    nvidia_plugin: str = ""
    may_set_compute_mode: bool = False
    nvml_state: str = ""  # of the stand-in for NVIDIA's library (tests/nvml): its XIDs come by that file

    @property
    def start_seconds(self) -> float:
        """Return how long the start of an agent is waited for: on a stand-in beside a test run that has all
        processors."""
        return 150.0 if self.nvml_state else 30.0

    @classmethod
    def read(cls, path: Path) -> Request:
        given = json.loads(path.read_text())
        return cls(**{**given, "out": Path(given["out"])})

    def write(self, path: Path) -> None:
        write_json(path, {**vars(self), "out": str(self.out)})


def seconds_since(began: float) -> float:
    return round(time.monotonic() - began, 3)
