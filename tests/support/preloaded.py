"""Programs of ours as processes of their own that need not import everything anew: nine tenths of a start, a second
of CPU, and the tests start hundreds.

The standard library's fork server has imported them; each process is a fork of it, with arguments, environment and log
of its own. An agent's first probe is one as well: the spare process that every agent starts with. What a fork does not
show, `python -m` shows: the interpreter's end, memory, the time of a start. Tests and benchmarks that are about these
take the whole way (`command`).
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
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn, Protocol

from nodedevices_plugin.inputs.probe_child import Spare
from nodedevices_probe import spare
from support.patience import PATIENCE_SECONDS

TESTS = Path(__file__).parents[1]
AGENT = "nodedevices_plugin.agent"
# What is imported once. The agent imports its API client on first use.
MODULES = (
    AGENT,
    "nodedevices_plugin.check.command",
    "nodedevices_plugin.mps.main",
    "nodedevices_operator.main",
    "nodedevices_kube.client",
    "nodedevices_probe.main",
    "nodedevices_probe.nvidia.probe",
    "nodedevices_probe.serving.server",
    "nodedevices_probe.simulated.probe",
    "support.vendorplugin",
    "support.warm",
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
    module: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    errors: Path | None = None,
    *,
    fixed: Mapping[str, object] = MappingProxyType({}),
) -> Fork:
    """`main(arguments, **fixed)` of one of MODULES, in a process that writes to the end of `log`; `errors`: its
    standard error goes there instead."""
    log.touch()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(MODULES))  # heard before the first fork only
    with _tests_on_path():
        forkserver.ensure_running()
    # A daemon: it does not outlive the tests.
    process = context.Process(
        target=_main,
        args=(module, list(arguments), dict(environment), (log, errors or log), dict(fixed)),
        name=module,
        daemon=True,
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


@contextmanager
def _tests_on_path() -> Iterator[None]:
    """For the fork server, which begins with an interpreter of its own."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(TESTS), *([before] if before else [])])
    try:
        yield
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before


def command(
    package: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    errors: Path | None = None,
    *,
    fixed: Mapping[str, object] = MappingProxyType({}),
) -> subprocess.Popen[bytes]:
    """`python -m package arguments`, with a new interpreter; with `fixed` the same by its main(**fixed)."""
    with log.open("ab") as end, (errors or log).open("ab") as end_of_errors:
        code = f"from {package}.main import main; raise SystemExit(main(**{dict(fixed)!r}))"
        argv = [sys.executable, *(("-c", code) if fixed else ("-m", package)), *arguments]
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=end, stderr=end_of_errors, env=dict(environment))


def _main(
    module: str, arguments: list[str], environment: dict[str, str], logs: tuple[Path, Path], fixed: Mapping[str, Any]
) -> None:
    """In the new process."""
    with logs[0].open("ab") as end, logs[1].open("ab") as end_of_errors, Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(end.fileno(), 1)
        os.dup2(end_of_errors.fileno(), 2)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [module, *arguments]
    main = importlib.import_module(module).main
    if module == AGENT:
        probe = ForkedSpare()
        try:
            raise SystemExit(main(arguments, spare=probe, **fixed))
        finally:
            probe.end()
    raise SystemExit(main(arguments, **fixed))


class ForkedSpare(Spare):
    """The agent's process for its first probe, forked from the agent while that has no thread yet."""

    def __init__(self) -> None:
        self._read_end, self._write_end = os.pipe()
        input_read, input_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(self._read_end)
            os.close(input_write)
            os.dup2(input_read, 0)
            _wait_to_be_taken()
        os.close(self._write_end)
        os.close(input_read)
        os.set_blocking(input_write, False)
        self._child = _Child(pid, input_write)


class _Child(subprocess.Popen[bytes]):
    """A process that was forked and not started: to be waited for, written to and killed like any other."""

    def __init__(self, pid: int, stdin: int) -> None:
        self.args, self.pid, self.returncode = "a fork", pid, None
        self.stdin, self.stdout, self.stderr = os.fdopen(stdin, "wb", buffering=0), None, None
        self._child_created, self._waitpid_lock = True, threading.Lock()  # as its methods have them


def _wait_to_be_taken() -> NoReturn:
    """In the new process, which has no other end than this."""
    code: object = 1
    try:
        os.setsid()
        os.dup2(2, 1)
        code = spare.run()
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        traceback.print_exc()
    os._exit(code if isinstance(code, int) else 1)
