"""nodedevices-check as a script runs it: a process, its output and its exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMMAND = (sys.executable, "-m", "nodedevices_plugin.check.main")
NODE = "node-a"
OK, WARNING, CRITICAL, UNKNOWN = range(4)


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def document(self) -> Any:
        return json.loads(self.out)


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The test's own, without what is said to an agent in it."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("NODEDEVICES_")}
    return {**own, "NODE_NAME": NODE, **(more or {})}


def check(*arguments: str, more: Mapping[str, str] | None = None) -> Done:
    """`more`: variables."""
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, env=environment(more), check=False)
    return Done(done.returncode, done.stdout, done.stderr)


class Simulated:
    """A machine with simulated devices, whose file is written by each test."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "devices.yaml"

    @property
    def arguments(self) -> tuple[str, ...]:
        return ("--probe", "simulated", "--simulated-file", str(self.file))

    def check(self, devices: str, *arguments: str) -> Done:
        self.file.write_text(devices)
        return check(*self.arguments, *arguments)
