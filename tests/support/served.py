"""A probe server for tests, in a process of its own: `python -m support.served PATH`.

It is the real one but for what a request does: the one argument of a probe is a program in Python, which has `--fd N`
in sys.argv. So whatever a probe may do, a test can have done in each form: as the agent's child, and as the server's.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from nodedevices_probe.listening import bound
from nodedevices_probe.registry import KINDS, PROGRAMS
from nodedevices_probe.serving.requests import Allowed, Request, StartProbe
from nodedevices_probe.serving.server import BACKLOG, ProbeServer
from support.patience import PATIENCE_SECONDS
from support.preloaded import Running, fork
from support.probes import COMMAND, MODULE


class Any(Allowed):
    """Allows all."""

    def check(self, request: Request) -> None:
        """Raise nothing."""


def perform(request: Request, descriptor: int) -> int:
    assert isinstance(request, StartProbe)
    sys.argv = ["probe", "--fd", str(descriptor)]
    exec(request.arguments[0], {"__name__": "probe"})
    return 0


def main(path: str) -> None:
    allowed = Any(kinds=KINDS, programs=PROGRAMS, paths={})
    listening = bound(Path(path), BACKLOG)
    ProbeServer(listening=listening, health=None, allowed=allowed, perform=perform).run()


def until_listening(path: Path, process: Running) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        with socket.socket(socket.AF_UNIX) as client:
            try:
                client.connect(str(path))
            except OSError:
                assert process.poll() is None, f"the server ended with {process.poll()}"
                assert time.monotonic() < deadline, "the server does not listen"
                time.sleep(0.02)
            else:
                return


@contextmanager
def process(command: Sequence[str], path: Path, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A server that listens there; killed at the end."""
    started = subprocess.Popen(command, stdin=subprocess.DEVNULL, env={**os.environ, **environment})
    try:
        until_listening(path, started)
        yield started
    finally:
        for each in (signal.SIGCONT, signal.SIGKILL):
            if started.poll() is None:
                started.send_signal(each)
        started.wait(PATIENCE_SECONDS)


@contextmanager
def programs_server(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """One that runs programs of tests."""
    tests = str(Path(__file__).parents[1])
    with process([sys.executable, "-m", "support.served", str(path)], path, {"PYTHONPATH": tests}) as started:
        yield started


@contextmanager
def probe_server(
    path: Path, *options: str, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """`nodedevices-probe serve` as it comes."""
    health = [] if any(each.startswith("--health-address") for each in options) else ["--health-address=off"]
    command = [*COMMAND, "serve", f"--listen=unix:{path}", *health, *options]
    with process(command, path, environment or {}) as started:
        yield started


@contextmanager
def preloaded_server(path: Path, *options: str) -> Iterator[None]:
    """The same, as a fork (preloaded): its probes have to load nothing either."""
    options = (f"--listen=unix:{path}", "--health-address=off", *options)
    server = fork(MODULE, ("serve", *options), os.environ, path.with_name("server.log"))
    try:
        until_listening(path, server)
        yield
    finally:
        server.kill()
        server.wait(PATIENCE_SECONDS)


if __name__ == "__main__":
    main(sys.argv[1])
