"""Keeps one probe running as a child and hands on every good line it writes.

A probe may crash, hang for ever inside the kernel, print garbage or write without end. Whatever it does, the agent's
loop is never blocked: lines arrive on a pipe of their own, are capped in size and number per second and read on a
thread of their own, and a bad one is counted while the last good one stays in use. A child that ends is replaced after
a back-off with jitter; one that is silent for too long is killed, and if the kernel does not let it die it is left
behind, never waited for. Neither waits for the lines that are left: both are checked between any two. What silence
means for the devices is judged elsewhere. The child dies with the agent (see `main`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog
from nodedevices_common.backoff import Backoff
from nodedevices_probe.loop import EXIT_WANTS_FRESH_PROCESS
from nodedevices_probe.protocol import MAX_LINE_BYTES, Snapshot

from nodedevices_plugin.inputs.reader import ProbeLineError, parse_line
from nodedevices_plugin.model.probe_counters import ProbeCounters
from nodedevices_plugin.runtime.worker import Worker

log = structlog.get_logger(__name__)

KILL_AFTER_SILENCE_SECONDS = 45.0  # three times the 15 s after which silence is reported
LIVED_WELL_SECONDS = 10.0  # a child that wrote good lines for this long earns a quick restart
REAP_SECONDS = 2.0  # a killed child that is not gone by then is stuck in the kernel
LAST_REAP_SECONDS = 0.2  # the same at the agent's own end, where nothing else may run any more
EXIT_GRACE_SECONDS = 0.2  # for a child that has closed its pipe to exit by itself
MAX_UNREAPED = 4  # children stuck in the kernel; with that many, no further one is started
MIN_LINE_SPACING_SECONDS = 0.02  # at most 50 lines a second are read; the pipe holds back a probe that writes more
LINE_SPACING_FACTOR = 3.0  # a line that took long to read is followed by a pause of so many times that
LAST_WORDS_SECONDS = 1.0  # so long the lines are read that a child left behind
BACKOFF = Backoff(initial_seconds=0.2, max_seconds=30.0, jitter=0.2)  # before the next child
_TICK_SECONDS = 0.5
_CHUNK_BYTES = 1 << 16


class LineSplitter:
    """Cuts a stream of bytes into lines; of a line longer than the cap nothing is kept but the fact."""

    def __init__(self, limit: int = MAX_LINE_BYTES) -> None:
        self._limit = limit
        self._buffer = bytearray()
        self._overlong = False

    def feed(self, chunk: bytes) -> list[bytes | None]:
        """Every line that this chunk completes, without its newline; None for one that was too long."""
        lines: list[bytes | None] = []
        *complete, rest = chunk.split(b"\n")
        for part in complete:
            self._add(part)
            lines.append(None if self._overlong else bytes(self._buffer))
            self._buffer.clear()
            self._overlong = False
        self._add(rest)
        return lines

    def _add(self, part: bytes) -> None:
        if self._overlong or len(self._buffer) + len(part) > self._limit:
            self._overlong = True
            self._buffer.clear()
        else:
            self._buffer += part


@dataclass(slots=True)
class _Following:
    """How one child does, by time.monotonic()."""

    heard: float  # its last good line, or its start
    exited: float | None = None  # when it was first seen to have exited


class ProbeProcess:
    """Supervises one probe. `on_snapshot` is called on the event loop, once for every good line, and must not block.

    `arguments` are those of `nodedevices-probe` (`["nvml"]`), asked for again and again: a child that has others is
    replaced. `command` replaces the whole command line instead, and gets `--fd N` appended like ours.
    """

    def __init__(
        self,
        arguments: Sequence[str] | Callable[[], Sequence[str]] = (),
        *,
        on_snapshot: Callable[[Snapshot], None],
        command: Sequence[str] | None = None,
        backoff: Backoff = BACKOFF,
        kill_after_silence_seconds: float = KILL_AFTER_SILENCE_SECONDS,
    ) -> None:
        self._own = list(command) if command else None
        self._arguments = arguments if callable(arguments) else lambda: arguments
        self._on_snapshot = on_snapshot
        self._backoff = backoff
        self._kill_after = kill_after_silence_seconds
        self._child: subprocess.Popen[bytes] | None = None
        self._unreaped: list[subprocess.Popen[bytes]] = []
        self._last_complaint = ""
        self._reading = Worker("probe-lines")
        self.counters = ProbeCounters()
        self.last_error: str | None = None  # why the last line or child was no good; None after a good line

    @property
    def pid(self) -> int | None:
        """The running child's process id."""
        return self._child.pid if self._child else None

    def _command(self) -> list[str]:
        return self._own or [sys.executable, "-m", "nodedevices_probe.main", *self._arguments()]

    async def run(self) -> None:
        """Keep a child running until this coroutine is cancelled; then the child is killed."""
        failures = 0
        while True:
            started = time.monotonic()
            lines_before = self.counters.lines
            code = await self._one_child()
            lived_well = self.counters.lines > lines_before and time.monotonic() - started >= LIVED_WELL_SECONDS
            wants_fresh = code == EXIT_WANTS_FRESH_PROCESS
            failures = 1 if lived_well or wants_fresh else failures + 1
            delay = self._backoff.after(failures)
            level = log.info if wants_fresh else log.warning
            level("probe ended", cause=self.last_error, restart_in_seconds=round(delay, 1))
            await asyncio.sleep(delay)

    async def _one_child(self) -> int | None:
        """Start a child and follow it to its end: its exit status, None when there is none."""
        self._unreaped = [child for child in self._unreaped if child.poll() is None]
        if len(self._unreaped) >= MAX_UNREAPED:
            self.last_error = f"{len(self._unreaped)} killed probes are stuck in the kernel; reboot the node"
            return None
        command = self._command()
        try:
            child, read_end = _spawn(command)
        except (OSError, ValueError) as error:  # ValueError: an argument that no command line can hold
            self.last_error = f"failed to start the probe {command[0]}: {getattr(error, 'strerror', None) or error}"
            return None
        self._child = child
        self.counters.starts += 1
        log.info("probe started", pid=child.pid, command=" ".join(command))
        grace_seconds = 0.0
        try:
            await self._follow(child, read_end, command)
            grace_seconds = EXIT_GRACE_SECONDS
        finally:
            self._child = None
            code = await self._end(child, grace_seconds)
        if code is not None and code != -signal.SIGKILL:
            last_words = f": {self.last_error}" if self.last_error else ""
            self.last_error = f"the probe exited with status {code}{last_words}"
        elif self.last_error is None:
            self.last_error = "the probe was killed"
        return code

    async def _follow(self, child: subprocess.Popen[bytes], read_end: int, command: list[str]) -> None:
        """Read until the child closes its end, exits, is silent for too long or is not the one that is wanted."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=_CHUNK_BYTES)
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_end, "rb", buffering=0)
        )
        splitter = LineSplitter()
        following = _Following(heard=time.monotonic())
        try:
            while True:
                try:
                    async with asyncio.timeout(_TICK_SECONDS):
                        chunk = await reader.read(_CHUNK_BYTES)
                except TimeoutError:
                    if _has_exited(child):  # somebody else still holds the pipe open
                        return
                    chunk = None
                if chunk == b"" or self._is_over(child, following, command):
                    return
                for line in splitter.feed(chunk) if chunk else ():
                    began = time.monotonic()
                    if await self._take(line):
                        following.heard = time.monotonic()
                    took = time.monotonic() - began
                    await asyncio.sleep(max(MIN_LINE_SPACING_SECONDS, LINE_SPACING_FACTOR * took))
                    if self._is_over(child, following, command):
                        return
        finally:
            transport.close()

    def _is_over(self, child: subprocess.Popen[bytes], following: _Following, command: list[str]) -> bool:
        """True when this child is to be replaced, whatever it has written that is not read yet."""
        now = time.monotonic()
        if now - following.heard >= self._kill_after:
            self.counters.kills += 1
            self.last_error = f"no good line for {self._kill_after:g} s; killed"
            return True
        if command != self._command():
            self.last_error = "other arguments are configured"
            return True
        if following.exited is None and _has_exited(child):
            following.exited = now
        return following.exited is not None and now - following.exited >= LAST_WORDS_SECONDS

    async def _take(self, line: bytes | None) -> bool:
        """Hand on one line; True when it was good."""
        try:
            if line is None:
                raise ProbeLineError("", f"more than {MAX_LINE_BYTES} bytes without an end; the rest was dropped")
            snapshot = await self._reading.run(lambda: parse_line(line))
        except ProbeLineError as error:
            self.counters.bad_lines += 1
            self.last_error = str(error)
            if self._last_complaint != error.place + error.problem[:32]:
                self._last_complaint = error.place + error.problem[:32]
                log.warning("probe line refused", error=str(error), bad_lines=self.counters.bad_lines)
            return False
        if self._last_complaint:
            log.info("probe lines are valid again", bad_lines=self.counters.bad_lines)
            self._last_complaint = ""
        self.counters.lines += 1
        self.last_error = None
        self._on_snapshot(snapshot)
        return True

    async def _end(self, child: subprocess.Popen[bytes], grace_seconds: float) -> int | None:
        """Make sure that the child and what it started is gone. Its exit status; None when the kernel keeps it."""
        try:
            await _wait_until(lambda: _has_exited(child), grace_seconds)  # its own status says more than our signal
            _kill_session(child)
            reaped = await _wait_until(lambda: child.poll() is not None, REAP_SECONDS)
        except asyncio.CancelledError:  # the agent ends now, and takes its children along
            _kill_session(child)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(LAST_REAP_SECONDS)
            raise
        if reaped:
            return child.returncode
        self._unreaped.append(child)
        log.error("probe cannot be killed", pid=child.pid, left_behind=len(self._unreaped))
        return None


def _spawn(command: Sequence[str]) -> tuple[subprocess.Popen[bytes], int]:
    read_end, write_end = os.pipe()
    try:
        child = subprocess.Popen(  # noqa: S603  the command is ours or the test's
            [*command, "--fd", str(write_end)],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno() if _has_descriptor(sys.stderr) else subprocess.DEVNULL,
            pass_fds=(write_end,),
            start_new_session=True,
        )
    except BaseException:
        os.close(read_end)
        raise
    finally:
        os.close(write_end)
    return child, read_end


def _kill_session(child: subprocess.Popen[bytes]) -> None:
    """Kill the child and whatever it started, unless it is reaped: from then on its id may be somebody else's."""
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)


def _has_exited(child: subprocess.Popen[bytes]) -> bool:
    """Whether the child has ended; it stays unreaped."""
    return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


async def _wait_until(done: Callable[[], bool], seconds: float) -> bool:
    """Look every 10 ms, for at most so long, whether it is done."""
    deadline = time.monotonic() + seconds
    while not (ready := done()) and time.monotonic() < deadline:  # noqa: ASYNC110  the kernel has no event for this
        await asyncio.sleep(0.01)
    return ready


def _has_descriptor(stream: object) -> bool:
    try:
        return stream.fileno() >= 0  # type: ignore[attr-defined,no-any-return]
    except (AttributeError, OSError, ValueError):
        return False
