"""A probe as a test sees it: a process (preloaded) whose lines are read as the agent reads them."""

from __future__ import annotations

import asyncio
import os
import queue
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from nodedevices_plugin.inputs.reader import parse_line
from nodedevices_probe.protocol import DeviceFact, Snapshot
from support.patience import PATIENCE_SECONDS
from support.preloaded import Done, Running, command, fork, run

MODULE = "nodedevices_probe.main"
COMMAND = (sys.executable, "-m", MODULE)


def busy(folder: Path) -> list[str]:
    """Return the arguments of a simulated probe of one device, which a process uses."""
    file = folder / "busy.yaml"
    if not file.exists():
        file.write_text("{profile: l4 x 1, devices: [{index: 0, processes: 1}]}")
    return ["simulated", f"--file={file}", "--node-name=n"]


@dataclass
class RunningProbe:
    """`until` waits for a line that fits; every line must be a good one."""

    process: Running
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
def running(
    arguments: Sequence[str], *, environment: Mapping[str, str] | None = None, fresh: bool = False
) -> Iterator[RunningProbe]:
    """`nodedevices-probe` with these arguments; killed at the end. `fresh`: by a new interpreter."""
    with tempfile.TemporaryDirectory() as folder:
        lines, errors = Path(folder, "lines"), Path(folder, "errors")
        os.mkfifo(lines)
        read: queue.Queue[bytes] = queue.Queue()

        def follow() -> None:
            with lines.open("rb") as output:
                for line in output:
                    read.put(line.rstrip(b"\n"))
            read.put(b"")

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        start = command if fresh else fork
        process = start(MODULE, arguments, {**os.environ, **(environment or {})}, lines, errors)
        try:
            yield RunningProbe(process, read)
        finally:
            process.kill()
            process.wait(PATIENCE_SECONDS)
            thread.join(PATIENCE_SECONDS)
            print(errors.read_text())  # pytest shows it when the test fails


def ended(*arguments: str, environment: Mapping[str, str] | None = None) -> Done:
    """`nodedevices-probe` with these arguments, to its end."""
    return run(MODULE, arguments, {**os.environ, **(environment or {})})


def once(*arguments: str, environment: Mapping[str, str] | None = None, status: int = 0) -> Snapshot:
    """The one line of `--once`, and its exit status: 1 where the file that was named cannot be used."""
    done = ended(*arguments, "--once", environment=environment)
    assert done.code == status, done.err
    (line,) = done.lines
    return parse_line(line.encode())


async def cancelled(running: asyncio.Task[None]) -> None:
    """As the agent ends it."""
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def until(fits: Callable[[], object]) -> None:
    """Wait until it fits."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not fits():
        assert time.monotonic() < deadline
        time.sleep(0.02)


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
