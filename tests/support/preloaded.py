"""Programs of ours as processes of their own that need not import everything anew: nine tenths of a start, a second
of CPU, and the tests start hundreds.

The standard library's fork server has imported them; each process is a fork of it, with arguments, environment and log
of its own. What a fork does not show, `python -m` shows: the interpreter's end, memory, the time of a start. Tests and
benchmarks that are about these take the whole way (`command`).
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

from support.patience import PATIENCE_SECONDS

# What is imported once. The agent imports its API client on first use.
MODULES = (
    "nodedevices_plugin.agent",
    "nodedevices_plugin.check.command",
    "nodedevices_operator.main",
    "nodedevices_kube.client",
    "nodedevices_probe.main",
    "nodedevices_probe.nvidia.probe",
    "nodedevices_probe.serving.server",
    "nodedevices_probe.simulated.probe",
    "yaml",
)


class Running(Protocol):
    """The part of subprocess.Popen that tests use."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, sig: int) -> None: ...

    def kill(self) -> None: ...


class Fork:
    """A process that was forked, with Popen's words."""

    def __init__(self, process: BaseProcess) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        """Negative: the signal that ended it."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0.0)
        return code

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def fork(
    module: str, arguments: Sequence[str], environment: Mapping[str, str], log: Path, errors: Path | None = None
) -> Fork:
    """`main(arguments)` of one of MODULES, in a process that writes to the end of `log`; `errors`: its standard error
    goes there instead."""
    log.touch()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(MODULES))  # heard before the first fork only
    # A daemon: it does not outlive the tests.
    process = context.Process(
        target=_main, args=(module, list(arguments), dict(environment), log, errors or log), name=module, daemon=True
    )
    process.start()
    return Fork(process)


@dataclass(frozen=True)
class Done:
    """What a process that has ended has said."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def document(self) -> Any:
        return json.loads(self.out)


def run(module: str, arguments: Sequence[str], environment: Mapping[str, str]) -> Done:
    """A fork, to its end."""
    with tempfile.TemporaryDirectory() as folder:
        out, errors = Path(folder, "out"), Path(folder, "errors")
        process = fork(module, arguments, environment, out, errors)
        return Done(process.wait(PATIENCE_SECONDS), out.read_text(), errors.read_text())


def command(
    package: str, arguments: Sequence[str], environment: Mapping[str, str], log: Path, errors: Path | None = None
) -> subprocess.Popen[bytes]:
    """`python -m package arguments`, with a new interpreter."""
    with log.open("ab") as end, (errors or log).open("ab") as end_of_errors:
        argv = [sys.executable, "-m", package, *arguments]
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=end, stderr=end_of_errors, env=dict(environment))


def _main(module: str, arguments: list[str], environment: dict[str, str], log: Path, errors: Path) -> None:
    """In the new process."""
    with log.open("ab") as end, errors.open("ab") as end_of_errors, Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(end.fileno(), 1)
        os.dup2(end_of_errors.fileno(), 2)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [module, *arguments]
    raise SystemExit(importlib.import_module(module).main(arguments))
