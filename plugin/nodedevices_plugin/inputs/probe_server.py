"""A probe that the probe server runs, in a container of its own: the agent's has no hardware (`--probe-server`).

A connection for each process: the agent says which probe, with which arguments, then reads lines and writes its wishes
as to a child. The server's last line says how the process ended. When the agent closes the connection, because
the probe is silent, other arguments are configured or the agent itself ends, the server kills the process.
"""

from __future__ import annotations

import asyncio
import select
import signal
import socket
import time
from collections.abc import Callable, Sequence

from nodedevices_common.backoff import Backoff
from nodedevices_probe.loop import EXIT_WANTS_FRESH_PROCESS
from nodedevices_probe.protocol import Snapshot, text
from nodedevices_probe.serving import requests
from nodedevices_probe.serving.requests import StartProbe, Word

from nodedevices_plugin.inputs.probe_socket import CONNECT_SECONDS, send, why
from nodedevices_plugin.inputs.probe_source import (
    CHUNK_BYTES,
    END_AFTER_SILENCE_SECONDS,
    LAST_WORDS_SECONDS,
    ProbeLines,
)

MAX_WHY = 300  # characters of the server's reason
# Before the next process. Below the 15 s after which silence is reported.
BACKOFF = Backoff(initial_seconds=0.2, max_seconds=10.0, jitter=0.2)


class ProbeServed(ProbeLines):
    """A ProbeSource: a process of the server's, and after it the next one.

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
        backoff: Backoff = BACKOFF,
        end_after_silence_seconds: float = END_AFTER_SILENCE_SECONDS,
    ) -> None:
        super().__init__(
            name, on_snapshot=on_snapshot, backoff=backoff, end_after_silence_seconds=end_after_silence_seconds
        )
        self._path = path
        self._arguments = arguments
        self._word: Word | None = None

    def _is_control(self, line: bytes) -> bool:
        """True for what the server itself writes: its word, and the empty line before it."""
        self._word = requests.word(line) or self._word
        return not line or requests.word(line) is not None

    async def session(self) -> bool:
        self._word, before = None, self.last_error
        arguments = list(self._arguments())
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, writer = await asyncio.open_unix_connection(self._path, limit=CHUNK_BYTES)
        except OSError as error:
            self.last_error = f"failed to connect to the probe server at {self._path}: {why(error)}"
            return False
        self.counters.starts += 1
        self.log.info("probe requested", server=self._path, arguments=arguments)
        try:
            writer.write(requests.encode(StartProbe(arguments=tuple(arguments))))
            await self.read(reader, lambda line: send(writer, line), self._until_over(writer, arguments))
        except OSError as error:
            self.last_error = f"the probe server at {self._path}: {why(error)}"
        finally:
            writer.transport.abort()
        return self._ended(before)

    def _until_over(self, writer: asyncio.StreamWriter, arguments: Sequence[str]) -> Callable[[], bool]:
        """The server closes the connection when the process has ended; what is left to read then is read for a moment
        only."""
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
        """Say why; True when the probe wanted a new process. `before`: what was said of earlier ones."""
        said = self._word
        if said is not None and said.refused:
            self.last_error = f"the probe server refused: {text(said.refused, MAX_WHY)}"
        elif said is not None and said.exited not in {None, -signal.SIGKILL}:
            last_words = f": {self.last_error}" if self.last_error not in {None, before} else ""
            self.last_error = f"the probe exited with status {said.exited}{last_words}"
        elif self.last_error is None:
            self.last_error = (
                "the probe was killed"
                if said is not None
                else f"the probe server at {self._path} closed the connection"
            )
        return said is not None and said.exited == EXIT_WANTS_FRESH_PROCESS


def _is_closed(connection: socket.socket) -> bool:
    """True when the other side has closed it, whatever is left to read."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))
