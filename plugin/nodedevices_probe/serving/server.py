"""The probe server: one thread, one loop, and a process for each request that does what may hang.

A process is forked from this one, which has loaded what all probes need and nothing of a vendor's: it starts in
milliseconds, shares that memory, and maps the driver's library anew, so that a driver that was replaced needs no new
container. It has the connection alone. When the agent closes that, the process and all that it started are killed; when
it ends by itself, the agent is told how. It ends with this server, too.

A process that the kernel does not let end is left behind, and with MAX_UNREAPED of them none is started. Nothing here
waits: a request has to come within seconds, the number of connections is bounded, and a client that does not read is
not written to. The same loop answers the kubelet's liveness probe: a server that hangs is ended.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NoReturn

from nodedevices_probe.listening import end_with_parent
from nodedevices_probe.loop import say
from nodedevices_probe.serving.requests import (
    MAX_REQUEST_BYTES,
    Allowed,
    Request,
    RequestError,
    StartProbe,
    Word,
    decode,
)

MAX_PROCESSES = 32
MAX_UNREAPED = 4  # killed and not gone: stuck in the kernel
REAP_SECONDS = 2.0  # a killed process that is not gone by then is stuck
REQUEST_SECONDS = 5.0  # for a request to come
MAX_WAITING = 16  # connections without a request yet, and those for health, each
HEALTH_SECONDS = 2.0
MAX_HEALTH_BYTES = 8192
TICK_SECONDS = 0.5
BACKLOG = 64
GONE = select.POLLRDHUP | select.POLLHUP | select.POLLERR
ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(slots=True, eq=False)
class _Waiting:
    """A connection from which a request, or the head of a request for health, has not been read yet."""

    connection: socket.socket
    until: float  # time.monotonic()
    read: bytes = b""


@dataclass(slots=True, eq=False)
class _Process:
    """`killed`: since when it should be gone (time.monotonic())."""

    pid: int
    name: str
    connection: socket.socket | None
    killed: float | None = None


@dataclass(slots=True, kw_only=True)
class ProbeServer:
    """`listening`, `health`: bound sockets, which it closes at its end. `perform` does a request in a new process, with
    the connection's descriptor."""

    listening: socket.socket
    health: socket.socket | None
    allowed: Allowed
    perform: Callable[[Request, int], int]
    _poll: select.poll = field(default_factory=select.poll)
    _requests: dict[int, _Waiting] = field(default_factory=dict)  # these by descriptor
    _checks: dict[int, _Waiting] = field(default_factory=dict)
    _connected: dict[int, _Process] = field(default_factory=dict)
    _processes: dict[int, _Process] = field(default_factory=dict)  # by pid
    _ended: bool = False
    _wakeups: tuple[socket.socket, socket.socket] = field(default_factory=socket.socketpair)

    def run(self) -> None:
        """Serve until a signal ends it; then nothing that it started is left, as far as the kernel lets it go."""
        self._listen()
        gc.collect()
        gc.freeze()  # else the collector touches all that processes share
        try:
            while not self._ended:
                for descriptor, events in self._poll.poll(TICK_SECONDS * 1000):
                    self._handle(descriptor, events)
                self._reap()
                self._forget_late()
        finally:
            for process in list(self._processes.values()):
                self._kill(process)
            for listener in (self.listening, self.health):
                if listener is not None:
                    listener.close()

    def _listen(self) -> None:
        reader, writer = self._wakeups
        reader.settimeout(0)
        writer.settimeout(0)
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for signum in ENDS:
            signal.signal(signum, self._end)
        self._poll.register(reader, select.POLLIN)
        for listener in (self.listening, self.health):
            if listener is not None:
                listener.settimeout(0)
                self._poll.register(listener, select.POLLIN)

    def _end(self, *_: object) -> None:
        self._ended = True

    def _handle(self, descriptor: int, events: int) -> None:
        if descriptor == self.listening.fileno():
            self._accept(self.listening, self._requests, REQUEST_SECONDS)
        elif self.health is not None and descriptor == self.health.fileno():
            self._accept(self.health, self._checks, HEALTH_SECONDS)
        elif (request := self._requests.get(descriptor)) is not None:
            self._read_request(request, events)
        elif (check := self._checks.get(descriptor)) is not None:
            self._answer_check(check)
        elif (process := self._connected.get(descriptor)) is not None:
            self._kill(process)
        else:
            with contextlib.suppress(BlockingIOError):
                self._wakeups[0].recv(4096)

    def _accept(self, listener: socket.socket, waiting: dict[int, _Waiting], seconds: float) -> None:
        try:
            connection, _ = listener.accept()
        except OSError as error:  # it has gone again; or there are too many open files, for a moment
            if error.errno in {errno.EMFILE, errno.ENFILE}:
                time.sleep(0.05)
            return
        connection.settimeout(None)  # a process writes to it as to a pipe; nothing here waits all the same
        if len(waiting) >= MAX_WAITING:
            self._forget(waiting, next(iter(waiting)))
        waiting[connection.fileno()] = _Waiting(connection, time.monotonic() + seconds)
        self._poll.register(connection, select.POLLIN | select.POLLRDHUP)

    def _forget(self, waiting: dict[int, _Waiting], descriptor: int) -> None:
        self._poll.unregister(descriptor)
        waiting.pop(descriptor).connection.close()

    def _forget_late(self) -> None:
        now = time.monotonic()
        for waiting in (self._requests, self._checks):
            for descriptor in [late for late, it in waiting.items() if it.until <= now]:
                self._forget(waiting, descriptor)

    # --- requests -----------------------------------------------------------------------------------------------------
    def _read_request(self, it: _Waiting, events: int) -> None:
        """Read to the end of the line and no further: what follows is for the probe."""
        descriptor = it.connection.fileno()
        if events & GONE:  # an agent that has given up starts nothing
            self._forget(self._requests, descriptor)
            return
        try:
            seen = it.connection.recv(MAX_REQUEST_BYTES, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            end = seen.find(b"\n") + 1
            it.read += it.connection.recv(end or len(seen), socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            self._forget(self._requests, descriptor)
            return
        if not end and len(it.read) <= MAX_REQUEST_BYTES:
            return
        try:
            if len(it.read) > MAX_REQUEST_BYTES:
                raise RequestError(f"more than {MAX_REQUEST_BYTES} bytes")
            request = decode(it.read)
            self.allowed.check(request)
            self._check_room()
            self._start(request, it.connection)
        except RequestError as error:
            say(f"request refused: {error}")
            _send(it.connection, Word(refused=str(error)))
            self._forget(self._requests, descriptor)

    def _check_room(self) -> None:
        late = time.monotonic() - REAP_SECONDS
        stuck = [process for process in self._processes.values() if process.killed and process.killed < late]
        if len(stuck) >= MAX_UNREAPED:
            raise RequestError(f"{len(stuck)} killed probes are stuck in the kernel; reboot the node")
        if len(self._processes) >= MAX_PROCESSES:
            raise RequestError(f"{len(self._processes)} processes are running, which is the most")

    def _start(self, request: Request, connection: socket.socket) -> None:
        name = request.arguments[0] if isinstance(request, StartProbe) else ""
        server = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            pid = os.fork()
        except OSError as error:
            raise RequestError(f"failed to start a process: {error.strerror}") from error
        if pid == 0:
            self._become(request, connection, server)
        descriptor = connection.fileno()
        del self._requests[descriptor]
        self._poll.modify(descriptor, select.POLLRDHUP)
        process = _Process(pid, name, connection)
        self._connected[descriptor] = self._processes[pid] = process
        if name:
            say(f"{name} started (pid {pid})")

    def _become(self, request: Request, connection: socket.socket, server: int) -> NoReturn:
        """In the new process: do what is requested, and exit."""
        status = 1
        try:
            os.setsid()
            end_with_parent()
            if os.getppid() != server:
                os._exit(1)
            signal.set_wakeup_fd(-1)
            for signum in (signal.SIGCHLD, *ENDS):
                signal.signal(signum, signal.SIG_DFL)
            mine = connection.fileno()
            for other in self._sockets():
                if other is not None and other.fileno() != mine:
                    other.close()
            os.dup2(mine, 0)
            status = self.perform(request, mine)
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else 1
        except BrokenPipeError:
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.flush()
            os._exit(status)

    def _sockets(self) -> Iterator[socket.socket | None]:
        yield from (self.listening, self.health, *self._wakeups)
        for waiting in (self._requests, self._checks):
            yield from (client.connection for client in waiting.values())
        yield from (process.connection for process in self._processes.values())

    # --- their end ----------------------------------------------------------------------------------------------------
    def _kill(self, process: _Process) -> None:
        """The agent has closed the connection, or this server ends."""
        self._disconnect(process)
        process.killed = time.monotonic()
        for kill in (os.killpg, os.kill):  # it may not have its own session yet
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(process.pid, signal.SIGKILL)

    def _disconnect(self, process: _Process) -> None:
        connection, process.connection = process.connection, None
        if connection is not None:
            self._poll.unregister(connection)
            del self._connected[connection.fileno()]
            connection.close()

    def _reap(self) -> None:
        """Take note of processes that have ended; what they left behind is killed first, while the id is theirs."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            process = self._processes.pop(ended.si_pid, None)
            if process is not None:  # else an orphan of one of them: this is process 1 of its container
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
            _, status = os.waitpid(ended.si_pid, 0)
            if process is None:
                continue
            code = os.waitstatus_to_exitcode(status)
            if process.name:
                say(f"{process.name} ended with status {code} (pid {process.pid})")
            if process.connection is not None:
                _send(process.connection, Word(exited=code))
                self._disconnect(process)

    # --- health -------------------------------------------------------------------------------------------------------
    def _answer_check(self, it: _Waiting) -> None:
        """GET /healthz: the answer itself says that the loop turns."""
        try:
            it.read += it.connection.recv(MAX_HEALTH_BYTES, socket.MSG_DONTWAIT) or b"\r\n\r\n"
        except BlockingIOError:
            return
        except OSError:
            it.read = b"\r\n\r\n"
        if b"\r\n\r\n" in it.read or len(it.read) >= MAX_HEALTH_BYTES:
            good = it.read.startswith((b"GET /healthz ", b"GET /healthz?"))
            head, body = ("200 OK", "ok\n") if good else ("404 Not Found", "GET /healthz\n")
            text = f"HTTP/1.1 {head}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
            with contextlib.suppress(OSError):
                it.connection.send(f"{text}Connection: close\r\n\r\n{body}".encode(), socket.MSG_DONTWAIT)
            self._forget(self._checks, it.connection.fileno())


def _send(connection: socket.socket, said: Word) -> None:
    """As far as it finds room: a client that does not read misses it, and sees the end of the connection."""
    with contextlib.suppress(OSError):
        connection.send(said.line(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
