"""The lines of one probe, from a process or a socket: cut, checked, counted and handed on.

A probe may crash, hang for ever inside the kernel, print garbage or write without end. Even then the agent's
loop is never blocked: lines are capped in size and in number per second and read on their own thread, and a bad
one is counted while the last good one stays in use. A probe that ends, or goes away, is started or connected to
again after a back-off with jitter; so is one that is silent for too long. Health (health/) judges what
silence means for the devices.
"""

from __future__ import annotations

import asyncio
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

import structlog
from nodedevices_common.backoff import Backoff
from nodedevices_common.periodic import within
from nodedevices_probe.loop import EXIT_WANTS_FRESH_PROCESS, encode_wanted
from nodedevices_probe.protocol import MAX_LINE_BYTES, Snapshot

from nodedevices_plugin.inputs.reader import ProbeLineError, parse_line
from nodedevices_plugin.model.plan import ProbeCounters
from nodedevices_plugin.runtime.threads import Worker

log = structlog.get_logger(__name__)

END_AFTER_SILENCE_SECONDS = 45.0  # three times the 15 s after which silence is reported
LIVED_WELL_SECONDS = 10.0  # a probe that wrote good lines for this long earns a quick restart
MIN_LINE_SPACING_SECONDS = 0.02  # at most 50 lines a second are read; the pipe holds back a probe that writes more
LINE_SPACING_FACTOR = 3.0  # a line that took long to read is followed by a pause of so many times that
CHUNK_BYTES = 1 << 16
LAST_WORDS_SECONDS = 1.0  # so long the lines are read that a process left behind
_TICK_SECONDS = 0.5


def split_lines(stream: bytes, limit: int = MAX_LINE_BYTES) -> tuple[list[bytes | None], bytes]:
    """Return the whole lines, without their newlines, None for one that was too long; and what belongs before the next
    bytes of the stream. Of a line longer than the cap nothing is kept but the fact."""
    *lines, rest = stream.split(b"\n")
    return [line if len(line) <= limit else None for line in lines], rest[: limit + 1]  # one more shows: it is too long


class ProbeSource(ABC):
    """The lines of one probe, over all its processes or connections (`session`). Each good line is handed on once, on
    the event loop, to a function that must not block; everything else that happens is counted and said here, and never
    raised. `name`: the probe's, for the log. `last_error`: why there is no good line; None after a good one."""

    def __init__(
        self, name: str, *, on_snapshot: Callable[[Snapshot], None], backoff: Backoff, end_after_silence_seconds: float
    ) -> None:
        self.log = log.bind(probe=name) if name else log
        self._on_snapshot = on_snapshot
        self._backoff = backoff
        self._end_after = end_after_silence_seconds
        self._last_problem = ""
        self._reading = Worker("probe-lines")
        self.counters = ProbeCounters()
        self.last_error: str | None = None
        self._wants_use = False
        self._send: Callable[[bytes], None] | None = None  # to the probe, while there is one

    def want(self, *, use: bool) -> None:
        """Ask the probe who uses the devices, or no longer. It may ignore it."""
        if use != self._wants_use:
            self._wants_use = use
            if self._send is not None:
                self._send(encode_wanted(use=use))

    @abstractmethod
    async def session(self) -> bool:
        """One process or connection, to its end. True when it ended because the probe wanted a new one."""

    async def run(self) -> None:
        """Keep the stream going, one session after the other, until cancelled; then nothing of it is left."""
        failures = 0
        try:
            while True:
                started = time.monotonic()
                lines_before = self.counters.lines
                planned = await self.session()
                lived_well = self.counters.lines > lines_before and time.monotonic() - started >= LIVED_WELL_SECONDS
                failures = 1 if lived_well or planned else failures + 1
                delay = self._backoff.after(failures)
                level = self.log.info if planned else self.log.warning
                level("probe ended", cause=self.last_error, restart_in_seconds=round(delay, 1))
                await asyncio.sleep(delay)
        finally:
            self._reading.end()

    async def read(
        self,
        reader: asyncio.StreamReader,
        send: Callable[[bytes], None],
        *,
        is_changed: Callable[[], bool],
        has_ended: Callable[[], bool],
    ) -> None:
        """Read until the stream ends, no good line came for too long, other arguments are configured (`is_changed`), or
        for a moment after its writer has ended; lines that are left then are dropped. `send` writes a line to the
        probe, as far as that is possible without waiting."""
        rest = b""
        last_read = time.monotonic()
        ended: float | None = None  # when that was first seen

        def is_over() -> bool:
            nonlocal ended
            now = time.monotonic()
            if now - last_read >= self._end_after:
                self.counters.kills += 1
                self.last_error = f"no good line for {self._end_after:g} s; started again"
                return True
            if is_changed():
                self.last_error = "other arguments are configured"
                return True
            if ended is None and has_ended():
                ended = now
            return ended is not None and now - ended >= LAST_WORDS_SECONDS

        self._send = send
        try:
            if self._wants_use:
                send(encode_wanted(use=True))
            while True:
                chunk = await within(_TICK_SECONDS, reader.read(CHUNK_BYTES))
                if chunk == b"" or is_over():
                    return
                lines, rest = split_lines(rest + (chunk or b""))
                for line in lines:
                    if line is not None and self._is_control(line):
                        continue
                    began = time.monotonic()
                    if await self._take(line):
                        last_read = time.monotonic()
                    took = time.monotonic() - began
                    await asyncio.sleep(max(MIN_LINE_SPACING_SECONDS, LINE_SPACING_FACTOR * took))
                    if is_over():
                        return
        finally:
            self._send = None

    def _exited(self, status: int | None, before: str | None) -> bool:
        """Say how the process ended; None: it is not known. True when it wanted a new one. `before`: what was said of
        earlier ones."""
        if status not in {None, -signal.SIGKILL}:
            last_words = f": {self.last_error}" if self.last_error not in {None, before} else ""
            self.last_error = f"the probe exited with status {status}{last_words}"
        elif self.last_error is None:
            self.last_error = "the probe was killed"
        return status == EXIT_WANTS_FRESH_PROCESS

    def _is_control(self, line: bytes) -> bool:
        """True for a line that is not the probe's."""
        return False

    async def _take(self, line: bytes | None) -> bool:
        """Hand on one line; True when it was good."""
        try:
            if line is None:
                raise ProbeLineError("", f"more than {MAX_LINE_BYTES} bytes without an end; the rest was dropped")
            snapshot = await self._reading.run(lambda: parse_line(line))
        except ProbeLineError as error:
            self.counters.bad_lines += 1
            self.last_error = str(error)
            if self._last_problem != error.place + error.problem[:32]:
                self._last_problem = error.place + error.problem[:32]
                self.log.warning("probe line refused", error=str(error), bad_lines=self.counters.bad_lines)
            return False
        if self._last_problem:
            self.log.info("probe lines are valid again", bad_lines=self.counters.bad_lines)
            self._last_problem = ""
        self.counters.lines += 1
        self.last_error = None
        self._on_snapshot(snapshot)
        return True
