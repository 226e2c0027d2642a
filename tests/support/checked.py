"""nodedevices-check as a script runs it: a process, its output and its exit status.

The process is a fork (preloaded); tests/programs/check/test_check_page.py runs the command itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.patience import PATIENCE_SECONDS
from support.preloaded import fork

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


def check(*arguments: str, more: Mapping[str, str] | None = None, fresh: bool = False) -> Done:
    """`more`: variables. `fresh`: by a new interpreter, which reads some of them when it starts."""
    if fresh:
        command = [*COMMAND, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=environment(more), check=False)
        return Done(done.returncode, done.stdout, done.stderr)
    with tempfile.TemporaryDirectory() as folder:
        out, errors = Path(folder, "out"), Path(folder, "errors")
        process = fork("nodedevices_plugin.check.command", arguments, environment(more), out, errors)
        return Done(process.wait(PATIENCE_SECONDS), out.read_text(), errors.read_text())


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
