"""Where the lines of a probe come from: a child process (`ProbeProcess`), or a unix socket (`ProbeSocket`).

A child of the agent has a pipe of its own for its lines. The agent writes its wishes to the child's standard input
(nodedevices_probe.loop); the child's output goes to the agent's standard error. A child that ends is replaced. One
that is silent for too long is killed; if the kernel does not let it end, it is left behind, and never waited for. In
both cases lines that are left to read are dropped. A built-in probe ends with the agent (see nodedevices_probe.main);
any other program is killed at the agent's end.

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
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

from nodedevices_common.backoff import Backoff
from nodedevices_probe.protocol import Snapshot, text
from nodedevices_probe.serving import requests

from nodedevices_plugin.inputs.probe_child import Spare, spawn
from nodedevices_plugin.inputs.probe_source import CHUNK_BYTES, END_AFTER_SILENCE_SECONDS, ProbeSource

OURS = (sys.executable, "-m", "nodedevices_probe.main")
REAP_SECONDS = 2.0  # a killed child that is not gone by then is stuck in the kernel
LAST_REAP_SECONDS = 0.2  # the same at the agent's own end, where nothing else may run any more
EXIT_GRACE_SECONDS = 0.2  # for a child that has closed its pipe to exit by itself
MAX_UNREAPED = 4  # children stuck in the kernel; with that many, no further one is started
PROCESS_BACKOFF = Backoff(initial_seconds=0.2, max_seconds=30.0, jitter=0.2)  # before the next child


class ProbeProcess(ProbeSource):
    """A child, and after it the next one.

    `arguments` are those of `nodedevices-probe` (`["nvml"]`), read before each use: a child that has others is
    replaced. `command` replaces the whole command line instead, and gets `--fd N` appended like ours. `spare` is the
    first child, where it is one of ours.
    """

    def __init__(
        self,
        arguments: Sequence[str] | Callable[[], Sequence[str]] = (),
        *,
        on_snapshot: Callable[[Snapshot], None],
        name: str = "",
        command: Sequence[str] | None = None,
        backoff: Backoff = PROCESS_BACKOFF,
        kill_after_silence_seconds: float = END_AFTER_SILENCE_SECONDS,
        spare: Spare | None = None,
    ) -> None:
        super().__init__(
            name, on_snapshot=on_snapshot, backoff=backoff, end_after_silence_seconds=kill_after_silence_seconds
        )
        self._own = list(command) if command else None
        self._arguments = arguments if callable(arguments) else lambda: arguments
        self._spare = spare
        self._child: subprocess.Popen[bytes] | None = None
        self._unreaped: list[subprocess.Popen[bytes]] = []

    @property
    def pid(self) -> int | None:
        """The running child's process id."""
        return self._child.pid if self._child else None

    def _command(self) -> list[str]:
        return self._own or [*OURS, *self._arguments()]

    async def session(self) -> bool:
        """Start a child and follow it to its end. The child is killed when this coroutine is cancelled."""
        self._unreaped = [child for child in self._unreaped if child.poll() is None]
        if len(self._unreaped) >= MAX_UNREAPED:
            self.last_error = f"{len(self._unreaped)} killed probes are stuck in the kernel; reboot the node"
            return False
        command, before = self._command(), self.last_error
        spare, self._spare = self._spare, None
        try:
            taken = spare.take(command[len(OURS) :]) if spare is not None else None
            child, read_end = taken or spawn(command)[:2]
        except (OSError, ValueError) as error:  # ValueError: an argument that no command line can hold
            self.last_error = f"failed to start the probe {command[0]}: {getattr(error, 'strerror', None) or error}"
            return False
        self._child = child
        self.counters.starts += 1
        self.log.info("probe started", pid=child.pid, command=" ".join(command))
        grace_seconds = 0.0
        try:
            await self._follow(child, read_end, command)
            grace_seconds = EXIT_GRACE_SECONDS
        finally:
            self._child = None
            with child.stdin or contextlib.nullcontext():
                code = await self._end(child, grace_seconds)
        return self._exited(code, before)

    async def _follow(self, child: subprocess.Popen[bytes], read_end: int, command: list[str]) -> None:
        """Read until the child closes its end, exits, is silent for too long or is not the one that is wanted."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=CHUNK_BYTES)
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_end, "rb", buffering=0)
        )
        try:
            await self.read(
                reader,
                partial(_write, child),
                is_changed=lambda: command != self._command(),
                has_ended=lambda: _has_exited(child),
            )
        finally:
            transport.close()

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
        self.log.error("probe cannot be killed", pid=child.pid, left_behind=len(self._unreaped))
        return None


def _write(child: subprocess.Popen[bytes], line: bytes) -> None:
    """On its standard input, which it need not read: then the line stays in the pipe, or finds no room and is lost."""
    if child.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(line)


def _kill_session(child: subprocess.Popen[bytes]) -> None:
    """Kill the child and all that it started, unless it is reaped: then its id may belong to another process."""
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)


def _has_exited(child: subprocess.Popen[bytes]) -> bool:
    """True when the child has ended; it stays unreaped."""
    return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


async def _wait_until(done: Callable[[], bool], seconds: float) -> bool:
    """Look every 10 ms, for at most so long, whether it is done."""
    deadline = time.monotonic() + seconds
    while not (ready := done()) and time.monotonic() < deadline:  # noqa: ASYNC110  the kernel has no event for this
        await asyncio.sleep(0.01)
    return ready


# --- over a socket ----------------------------------------------------------------------------------------------------
CONNECT_SECONDS = 5.0
MAX_UNREAD_BYTES = 1 << 16  # of what is sent to the probe and not read; what is more is lost
MAX_WHY = 300  # characters of the server's reason
# Before the next connection. Below the 15 s after which silence is reported.
SOCKET_BACKOFF = Backoff(initial_seconds=0.2, max_seconds=5.0, jitter=0.2)
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
            backoff=backoff or (SOCKET_BACKOFF if arguments is None else SERVER_BACKOFF),
            end_after_silence_seconds=end_after_silence_seconds,
        )
        self._path = path
        self._place = f"the probe at {path}" if arguments is None else f"the probe server at {path}"
        self._arguments = arguments
        self._word: requests.Word | None = None  # the server's

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
                writer.write(requests.encode(requests.StartProbe(arguments=tuple(arguments))))
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
