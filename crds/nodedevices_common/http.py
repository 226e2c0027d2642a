"""The HTTP server of agent and operator: a few small answers, which no client can block.

/metrics, /healthz and /readyz need no framework, which would cost the agent 12 MiB on every node
(docs/dependencies.md). GET and HEAD are answered, the connection is closed.

A client may open connections and send nothing, or send slowly, and where the kubelet's liveness probe
finds no place the container is killed. So:
- A new connection always finds a place. Where there is none, the one that has waited longest without a request makes
  room, first of the peer that has most; a request that arrives at once is answered before anybody can take its place.
- One peer (an IPv4 address, an IPv6 /64) has at most PEER_SHARE places.
- Headers come within HEAD_SECONDS, the answer is taken within ANSWER_SECONDS.
- A server takes at most so many connections a second, so a flood costs the loop a bounded part of its time; with TLS a
  handshake is part of what each costs.
- The kubelet's probes have their own server, on a port that the manifests' NetworkPolicy opens to no pod (a node always
  reaches its pods), so a flood of the metrics' port is not theirs. It answers on the same event loop as everything
  else, on purpose: a loop that hangs has to fail the probe. An exec probe would need no port, but a disk, and a disk
  that hangs is no reason to kill what works without one.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial

import structlog

from nodedevices_common.address import Address, listening
from nodedevices_common.guard import Guard

log = structlog.get_logger(__name__)

HEAD_SECONDS = 2.0
HEAD_BYTES = 8192
ANSWER_SECONDS = 5.0
MAX_CONNECTIONS = 32
PEER_SHARE = 8
SCRAPES_PER_SECOND = 32  # taken by a server of metrics, which cost some milliseconds each
PROBES_PER_SECOND = 512  # taken by a server of nothing but probes
RETRY_SECONDS = 5.0
METRICS = "/metrics"
CHALLENGE = "WWW-Authenticate: Bearer\r\n"
TEXT = "text/plain; charset=utf-8"
METRICS_TEXT = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    body: bytes
    content_type: str = TEXT


# What fails by the client is the client's affair; a cancelled one made room, or the process ends.
_OF_THE_CLIENT = (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError, asyncio.CancelledError)
HttpHandler = Callable[[], Response]
_REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


@dataclass(slots=True, eq=False)
class Connection:
    """One that is open. `opened` is monotonic seconds."""

    peer: str
    opened: float
    complete: bool = False  # its request is complete


def peer_of(host: str) -> str:
    """Return the peer to which a connection from this address is counted."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))


def makes_room(connections: Collection[Connection], peer: str) -> Connection | None:
    """Return the connection that has to go for one more of this peer; None while there is room."""
    counts = Counter(connection.peer for connection in connections)
    if counts[peer] < PEER_SHARE and len(connections) < MAX_CONNECTIONS:
        return None
    most = max(counts.values())
    peers = {peer} if counts[peer] >= PEER_SHARE else {name for name, count in counts.items() if count == most}
    candidates = (connection for connection in connections if connection.peer in peers)
    return min(candidates, key=lambda connection: (connection.complete, connection.opened))


async def _streams(
    accepted: socket.socket, context: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """`context`: of TLS; None: plain."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=HEAD_BYTES)
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await loop.connect_accepted_socket(
        lambda: protocol, accepted, ssl=context, ssl_shutdown_timeout=ANSWER_SECONDS if context else None
    )
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


class HttpServer:
    """Serves `handlers` by path, on the running loop. `what` it serves is for the log. `guard`: by TLS alone, and whom
    /metrics is for."""

    def __init__(
        self,
        what: str,
        address: Address,
        handlers: Mapping[str, HttpHandler],
        *,
        per_second: int = SCRAPES_PER_SECOND,
        guard: Guard | None = None,
    ) -> None:
        self._what = what
        self._address = address
        self._handlers = handlers
        self._per_second = per_second
        self._guard = guard
        self._socket: socket.socket | None = None
        self._open: dict[Connection, asyncio.Task[None]] = {}
        self.port: int | None = None  # the one that is listened on

    def listen(self) -> socket.socket:
        """Take the address, unless that is done. Raises OSError when it, or the guard's files, cannot be had."""
        if self._socket is None:
            if self._guard is not None:
                self._guard.load()
            self._socket = listening(self._address)
            self.port = int(self._socket.getsockname()[1])
            log.info(f"serving {self._what}", port=self.port, tls=self._guard is not None)
        return self._socket

    async def run(self) -> None:
        """Until cancelled. An address that cannot be had is reported and tried again."""
        try:
            while True:
                try:
                    await self._accept(self.listen())
                except OSError as error:  # taken by another, or too many files are open
                    log.warning(
                        f"{self._what} cannot be served", address=str(self._address), error=error.strerror or str(error)
                    )
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            open_, self._open = list(self._open.values()), {}
            for task in open_:
                task.cancel()
            if self._socket is not None:
                self._socket.close()
                self._socket, self.port = None, None
            await asyncio.gather(*open_, return_exceptions=True)

    async def _accept(self, listening: socket.socket) -> None:
        window, taken = time.monotonic(), 0
        while True:
            if taken >= self._per_second:
                await asyncio.sleep(max(0.0, window + 1.0 - time.monotonic()))
            now = time.monotonic()
            if now - window >= 1.0:
                window, taken = now, 0
            accepted, address = await _next(listening)
            taken += 1
            connection = Connection(peer_of(address[0]), time.monotonic())
            if (leaving := makes_room(self._open, connection.peer)) is not None:
                self._open.pop(leaving).cancel()
            self._open[connection] = task = asyncio.create_task(self._serve(accepted, connection))
            task.add_done_callback(partial(self._open.pop, connection))
            await asyncio.sleep(0)  # _next does not wait while there are connections

    async def _serve(self, accepted: socket.socket, connection: Connection) -> None:
        with contextlib.ExitStack() as closing, contextlib.suppress(*_OF_THE_CLIENT):
            closing.callback(accepted.close)
            async with asyncio.timeout(HEAD_SECONDS):
                reader, writer = await _streams(accepted, self._guard.context() if self._guard is not None else None)
                closing.pop_all()
                closing.callback(writer.transport.abort)  # which never waits
                head = await reader.readuntil(b"\r\n\r\n")
            connection.complete = True
            answer = self._answer(head)
            text = (
                f"HTTP/1.1 {answer.status} {_REASONS[answer.status]}\r\nContent-Type: {answer.content_type}\r\n"
                f"{CHALLENGE if answer.status == 401 else ''}"
                f"Content-Length: {len(answer.body)}\r\nConnection: close\r\n\r\n"
            )
            async with asyncio.timeout(ANSWER_SECONDS):
                writer.write(text.encode("ascii") + (b"" if head.startswith(b"HEAD ") else answer.body))
                writer.close()
                await writer.wait_closed()  # all of it is sent by then

    def _answer(self, head: bytes) -> Response:
        parts = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/"):
            return Response(400, b"not HTTP\n")
        method, target, _ = parts
        if method not in ("GET", "HEAD"):
            return Response(405, b"only GET\n")
        path = target.partition("?")[0]
        handler = self._handlers.get(path)
        if handler is None:
            return Response(404, f"there are {', '.join(sorted(self._handlers))}\n".encode())
        if path == METRICS and self._guard is not None and not self._guard.allows(head):
            return Response(401, b"Authorization: Bearer, with the token of the metrics, is needed\n")
        try:
            return handler()
        except Exception:
            log.exception("an answer failed", path=path)
            return Response(500, b"failed; the log says more\n")


def servers(
    metrics: Address | None,
    probes: Address | None,
    *,
    scrape: Callable[[], bytes],
    checks: Mapping[str, HttpHandler],
    guard: Guard | None = None,
) -> list[HttpServer]:
    """One of /metrics and the checks, which `guard` is for, and one of the checks alone for the kubelet; None: without
    it."""
    made = []
    if metrics is not None:
        answers = {METRICS: lambda: Response(200, scrape(), METRICS_TEXT), **checks}
        made.append(HttpServer("metrics and health", metrics, answers, guard=guard))
    if probes is not None:
        made.append(HttpServer("the kubelet's probes", probes, checks, per_second=PROBES_PER_SECOND))
    return made


async def _next(listening: socket.socket) -> tuple[socket.socket, tuple[str, int]]:
    """Return the next connection and its peer, at once where there is one. Not loop.sock_accept: Python 3.11's logs an
    InvalidStateError where a connection comes in the moment in which the wait is cancelled."""
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    while True:
        with contextlib.suppress(BlockingIOError, InterruptedError):
            accepted, address = listening.accept()
            accepted.setblocking(False)  # noqa: FBT003
            return accepted, address[:2]
        readable.clear()
        loop.add_reader(listening, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(listening)
