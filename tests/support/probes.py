"""A probe as a test sees it: a process started by its command, whose lines are read as the agent reads them."""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from nodedevices_plugin.inputs.reader import parse_line
from nodedevices_probe.protocol import DeviceFact, Snapshot
from support.patience import PATIENCE_SECONDS

COMMAND = (sys.executable, "-m", "nodedevices_probe.main")


@dataclass
class RunningProbe:
    """`until` waits for a line that fits; every line must be a good one."""

    process: subprocess.Popen[bytes]
    lines: queue.Queue[bytes] = field(default_factory=queue.Queue)
    latest: Snapshot | None = None

    def until(self, fits: Callable[[Snapshot], object], *, seconds: float = PATIENCE_SECONDS) -> Snapshot:
        """The first line from here on that fits."""
        while True:
            try:
                line = self.lines.get(timeout=seconds)
            except queue.Empty:
                raise AssertionError(f"no line fits within {seconds} s; the last was {self.latest}") from None
            assert line, f"the probe ended with {self.process.wait()}; its last line was {self.latest}"
            self.latest = parse_line(line)
            if fits(self.latest):
                return self.latest

    def until_quiet(self, *, seconds: float = 3.0) -> None:
        """Return when no line came for so long, which is longer than a probe pauses between two."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                assert self.lines.get(timeout=seconds), f"the probe ended with {self.process.wait()}"
            except queue.Empty:
                return
            assert time.monotonic() < deadline, "the probe is not quiet"


@contextmanager
def running(arguments: Sequence[str], *, environment: Mapping[str, str] | None = None) -> Iterator[RunningProbe]:
    """`nodedevices-probe` with these arguments; killed at the end."""
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **(environment or {})},
        start_new_session=True,
    )
    probe = RunningProbe(process)
    output = process.stdout
    assert output is not None

    def read() -> None:
        for line in iter(output.readline, b""):
            probe.lines.put(line.rstrip(b"\n"))
        probe.lines.put(b"")

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield probe
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE_SECONDS)
        thread.join(PATIENCE_SECONDS)
        output.close()


def once(arguments: Sequence[str], *, environment: Mapping[str, str] | None = None, status: int = 0) -> Snapshot:
    """The one line of `--once`, and its exit status: 1 where the file that was named cannot be used."""
    done = subprocess.run(
        [*COMMAND, *arguments, "--once"],
        capture_output=True,
        timeout=PATIENCE_SECONDS,
        env={**os.environ, **(environment or {})},
        check=False,
    )
    assert done.returncode == status, done.stderr
    (line,) = done.stdout.splitlines()
    return parse_line(line)


async def cancelled(running: asyncio.Task[None]) -> None:
    """As the agent ends it."""
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def eventually(fits: Callable[[], object], *, seconds: float = PATIENCE_SECONDS) -> None:
    """Wait on the event loop until it fits."""
    deadline = time.monotonic() + seconds
    while not fits():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        await asyncio.sleep(0.02)


def device(snapshot: Snapshot, index: int) -> DeviceFact:
    """The device with this index."""
    (found,) = [each for each in snapshot.devices if each.index == index]
    return found
