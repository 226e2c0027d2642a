"""nodedevices-check as a script runs it: a process, its output and its exit status.

The process is a fork (preloaded). Where it matters, `fresh` runs the command itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from support.preloaded import Done, run

MODULE = "nodedevices_plugin.check.command"
COMMAND = (sys.executable, "-m", "nodedevices_plugin.check.main")
NODE = "node-a"
OK, WARNING, CRITICAL, UNKNOWN = range(4)


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
    return run(MODULE, arguments, environment(more))


class Simulated:
    """A machine with simulated devices, whose file is written by each test. `more`: arguments of each check."""

    def __init__(self, folder: Path, *more: str) -> None:
        self.file = folder / "devices.yaml"
        self.arguments = ("--probe", "simulated", "--simulated", str(self.file), *more)

    def check(self, devices: str, *arguments: str) -> Done:
        self.file.write_text(devices)
        return check(*self.arguments, *arguments)
