"""A probe that runs elsewhere, such as in its own container, and listens on a unix socket.

The agent connects as a client and reads the same lines that a child writes. When a connection ends, cannot be made
or brings no good line for too long, the agent connects again; half a line at its end is dropped. Any program that may
make a socket at that path is taken for the probe: the folder's permissions decide which may.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from nodedevices_common.backoff import Backoff
from nodedevices_probe.protocol import Snapshot

from nodedevices_plugin.inputs.probe_source import CHUNK_BYTES, END_AFTER_SILENCE_SECONDS, ProbeLines

CONNECT_SECONDS = 5.0
MAX_UNREAD_BYTES = 1 << 16  # of what is sent to the probe and not read; what is more is lost
BACKOFF = Backoff(initial_seconds=0.2, max_seconds=5.0, jitter=0.2)  # below the 15 s of silence that are reported


class ProbeSocket(ProbeLines):
    """A ProbeSource: a connection, and after it the next one."""

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

    async def session(self) -> bool:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, writer = await asyncio.open_unix_connection(self._path, limit=CHUNK_BYTES)
        except OSError as error:
            self.last_error = f"failed to connect to {self._path}: {why(error)}"
            return False
        self.counters.starts += 1
        self.log.info("probe connected", socket=self._path)
        try:
            await self.read(reader, lambda line: send(writer, line))
        except OSError as error:
            self.last_error = f"{self._path}: {why(error)}"
        finally:
            writer.transport.abort()
        if self.last_error is None:
            self.last_error = f"the probe at {self._path} closed the connection"
        return False


def send(writer: asyncio.StreamWriter, line: bytes) -> None:
    """To a probe that need not read it: where it finds no room it is lost."""
    if writer.transport.get_write_buffer_size() < MAX_UNREAD_BYTES:
        writer.write(line)


def why(error: OSError) -> str:
    """Return why a connection failed, for people."""
    return error.strerror or (f"no answer for {CONNECT_SECONDS:g} s" if isinstance(error, TimeoutError) else str(error))
