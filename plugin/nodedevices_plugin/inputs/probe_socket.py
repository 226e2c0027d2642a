"""Probes that the agent does not run itself: it connects to a unix socket, and reads lines such as a child writes.

A probe that runs elsewhere, such as in its own container, listens on a socket of its own. Any program that may make a
socket at that path is taken for the probe: the folder's permissions decide which may.

The probe server runs built-in probes in a container of its own, where the agent's has no hardware (`--probe-server`):
the agent says on each connection which probe it wants, with which arguments, then reads lines and writes its wishes as
to a child. The server's last line says how the process ended. When the agent closes the connection, because the probe
is silent, other arguments are configured or the agent itself ends, the server kills the process.

When a connection ends, cannot be made or brings no good line for too long, the agent connects again; half a line at its
end is dropped.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable, Sequence
from functools import partial

from nodedevices_common.backoff import Backoff
from nodedevices_probe.protocol import Snapshot, text
from nodedevices_probe.serving import requests
from nodedevices_probe.serving.requests import StartProbe, Word

from nodedevices_plugin.inputs.probe_source import CHUNK_BYTES, END_AFTER_SILENCE_SECONDS, ProbeSource

CONNECT_SECONDS = 5.0
MAX_UNREAD_BYTES = 1 << 16  # of what is sent to the probe and not read; what is more is lost
MAX_WHY = 300  # characters of the server's reason
# Before the next connection. Below the 15 s after which silence is reported.
BACKOFF = Backoff(initial_seconds=0.2, max_seconds=5.0, jitter=0.2)
SERVER_BACKOFF = Backoff(initial_seconds=0.2, max_seconds=10.0, jitter=0.2)


class ProbeSocket(ProbeSource):
    """A connection to the probe that listens at `path`, and after it the next one.

    `arguments`: a probe server listens there, and runs `nodedevices-probe` with these (`["nvml"]`). They are read
    before each use: a process that has others is replaced.
    """

    def __init__(
        self,
        path: str,
        arguments: Callable[[], Sequence[str]] | None = None,
        *,
        on_snapshot: Callable[[Snapshot], None],
        name: str = "",
        backoff: Backoff | None = None,
        end_after_silence_seconds: float = END_AFTER_SILENCE_SECONDS,
    ) -> None:
        super().__init__(
            name,
            on_snapshot=on_snapshot,
            backoff=backoff or (BACKOFF if arguments is None else SERVER_BACKOFF),
            end_after_silence_seconds=end_after_silence_seconds,
        )
        self._path = path
        self._place = f"the probe at {path}" if arguments is None else f"the probe server at {path}"
        self._arguments = arguments
        self._word: Word | None = None  # the server's

    async def session(self) -> bool:
        before = self.last_error
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, writer = await asyncio.open_unix_connection(self._path, limit=CHUNK_BYTES)
        except OSError as error:
            self.last_error = f"failed to connect to {self._place}: {_why(error)}"
            return False
        self.counters.starts += 1
        arguments = self._wanted_arguments()
        connection: socket.socket = writer.get_extra_info("socket")
        try:
            if arguments is None:
                self.log.info("probe connected", socket=self._path)
            else:
                self.log.info("probe requested", server=self._path, arguments=arguments)
                writer.write(requests.encode(StartProbe(arguments=tuple(arguments))))
            await self.read(
                reader,
                partial(_send, writer),
                is_changed=lambda: arguments != self._wanted_arguments(),
                has_ended=lambda: _is_closed(connection),
            )
        except OSError as error:
            self.last_error = f"{self._place}: {_why(error)}"
        finally:
            writer.transport.abort()
        said, self._word = self._word, None
        if said is None:
            self.last_error = self.last_error or f"{self._place} closed the connection"
            return False
        if said.refused:
            self.last_error = f"the probe server refused: {text(said.refused, MAX_WHY)}"
            return False
        return self._exited(said.exited, before)

    def _wanted_arguments(self) -> list[str] | None:
        return None if self._arguments is None else list(self._arguments())

    def _is_control(self, line: bytes) -> bool:
        """True for what a server itself writes: its word, and the empty line before it."""
        if self._arguments is None:
            return False
        said = requests.word(line)
        self._word = said or self._word
        return not line or said is not None


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
