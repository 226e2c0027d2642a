"""Probes that the agent does not run itself: it connects to a unix socket, and reads lines such as a child writes.

A probe that runs elsewhere, such as in its own container, listens on a socket of its own (`ProbeSocket`). Any program
that may make a socket at that path is taken for the probe: the folder's permissions decide which may.

The probe server runs built-in probes in a container of its own, where the agent's has no hardware (`ProbeServed`,
`--probe-server`): the agent says on each connection which probe it wants, with which arguments, then reads lines and
writes its wishes as to a child. The server's last line says how the process ended. When the agent closes the
connection, because the probe is silent, other arguments are configured or the agent itself ends, the server kills the
process.

When a connection ends, cannot be made or brings no good line for too long, the agent connects again; half a line at its
end is dropped.
"""

from __future__ import annotations

import asyncio
import select
import signal
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial

from nodedevices_common.backoff import Backoff
from nodedevices_probe.loop import EXIT_WANTS_FRESH_PROCESS
from nodedevices_probe.protocol import Snapshot, text
from nodedevices_probe.serving import requests
from nodedevices_probe.serving.requests import StartProbe, Word

from nodedevices_plugin.inputs.probe_source import (
    CHUNK_BYTES,
    END_AFTER_SILENCE_SECONDS,
    LAST_WORDS_SECONDS,
    ProbeSource,
)

CONNECT_SECONDS = 5.0
MAX_UNREAD_BYTES = 1 << 16  # of what is sent to the probe and not read; what is more is lost
MAX_WHY = 300  # characters of the server's reason
# Before the next connection. Below the 15 s after which silence is reported.
BACKOFF = Backoff(initial_seconds=0.2, max_seconds=5.0, jitter=0.2)
SERVER_BACKOFF = Backoff(initial_seconds=0.2, max_seconds=10.0, jitter=0.2)


class ProbeSocket(ProbeSource):
    """A connection to a probe, and after it the next one."""

    def __init__(
        self,
        path: str,
        *,
        on_snapshot: Callable[[Snapshot], None],
        name: str = "",
        backoff: Backoff = BACKOFF,
        end_after_silence_seconds: float = END_AFTER_SILENCE_SECONDS,
    ) -> None:
        super().__init__(
            name, on_snapshot=on_snapshot, backoff=backoff, end_after_silence_seconds=end_after_silence_seconds
        )
        self._path = path
        self._place = path  # as messages name it

    async def session(self) -> bool:
        before = self.last_error
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, writer = await asyncio.open_unix_connection(self._path, limit=CHUNK_BYTES)
        except OSError as error:
            self.last_error = f"failed to connect to {self._place}: {_why(error)}"
            return False
        self.counters.starts += 1
        try:
            is_over = self._connected(writer)
            await self.read(reader, partial(_send, writer), is_over)
        except OSError as error:
            self.last_error = f"{self._place}: {_why(error)}"
        finally:
            writer.transport.abort()
        return self._ended(before)

    def _connected(self, writer: asyncio.StreamWriter) -> Callable[[], bool]:
        """Return what tells whether the connection is to be ended."""
        self.log.info("probe connected", socket=self._path)
        return lambda: False

    def _ended(self, before: str | None) -> bool:
        """Say why; True when the probe wanted a new process. `before`: what was said of earlier ones."""
        if self.last_error is None:
            self.last_error = f"the probe at {self._path} closed the connection"
        return False


class ProbeServed(ProbeSocket):
    """A process of the probe server's, and after it the next one.

    `arguments` are those of `nodedevices-probe` (`["nvml"]`), read before each use: a process that has others is
    replaced.
    """

    def __init__(
        self,
        path: str,
        arguments: Callable[[], Sequence[str]],
        *,
        on_snapshot: Callable[[Snapshot], None],
        name: str = "",
        backoff: Backoff = SERVER_BACKOFF,
        end_after_silence_seconds: float = END_AFTER_SILENCE_SECONDS,
    ) -> None:
        super().__init__(
            path,
            on_snapshot=on_snapshot,
            name=name,
            backoff=backoff,
            end_after_silence_seconds=end_after_silence_seconds,
        )
        self._place = f"the probe server at {path}"
        self._arguments = arguments
        self._word: Word | None = None

    def _is_control(self, line: bytes) -> bool:
        """True for what the server itself writes: its word, and the empty line before it."""
        self._word = requests.word(line) or self._word
        return not line or requests.word(line) is not None

    def _connected(self, writer: asyncio.StreamWriter) -> Callable[[], bool]:
        """The server closes the connection when the process has ended; what is left to read then is read for a moment
        only."""
        self._word, arguments = None, list(self._arguments())
        self.log.info("probe requested", server=self._path, arguments=arguments)
        writer.write(requests.encode(StartProbe(arguments=tuple(arguments))))
        connection: socket.socket = writer.get_extra_info("socket")
        closed: float | None = None  # when that was first seen

        def is_over() -> bool:
            nonlocal closed
            if arguments != list(self._arguments()):
                self.last_error = "other arguments are configured"
                return True
            if closed is None and _is_closed(connection):
                closed = time.monotonic()
            return closed is not None and time.monotonic() - closed >= LAST_WORDS_SECONDS

        return is_over

    def _ended(self, before: str | None) -> bool:
        said = self._word
        if said is not None and said.refused:
            self.last_error = f"the probe server refused: {text(said.refused, MAX_WHY)}"
        elif said is not None and said.exited not in {None, -signal.SIGKILL}:
            last_words = f": {self.last_error}" if self.last_error not in {None, before} else ""
            self.last_error = f"the probe exited with status {said.exited}{last_words}"
        elif self.last_error is None:
            self.last_error = "the probe was killed" if said is not None else f"{self._place} closed the connection"
        return said is not None and said.exited == EXIT_WANTS_FRESH_PROCESS


def _send(writer: asyncio.StreamWriter, line: bytes) -> None:
    """To a probe that need not read it: where it finds no room it is lost."""
    if writer.transport.get_write_buffer_size() < MAX_UNREAD_BYTES:
        writer.write(line)


def _why(error: OSError) -> str:
    """Return why a connection failed, for people."""
    return error.strerror or (f"no answer for {CONNECT_SECONDS:g} s" if isinstance(error, TimeoutError) else str(error))


def _is_closed(connection: socket.socket) -> bool:
    """True when the other side has closed it, whatever is left to read."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))
