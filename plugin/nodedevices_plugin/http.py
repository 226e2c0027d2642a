"""/metrics, /healthz and /readyz, on the event loop that answers the kubelet.

The same loop on purpose: when it hangs, Allocate hangs, and then the liveness probe must fail. Three small answers
need no framework, which would cost 12 MiB of memory on every node (docs/dependencies.md): a request line and headers
of at most 8 KiB are read within 5 s, GET and HEAD are answered, the connection is closed. At most 32 at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from nodedevices_plugin.settings.flags import Address

log = structlog.get_logger(__name__)

REQUEST_SECONDS = 5.0
REQUEST_BYTES = 8192
MAX_CONNECTIONS = 32
RETRY_SECONDS = 5.0
TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    content_type: str = TEXT


Handler = Callable[[], Answer]
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


class HttpServer:
    """Serves `handlers` by path. An address that is taken is reported and tried again: devices come first."""

    def __init__(self, address: Address, handlers: dict[str, Handler]) -> None:
        self._address = address
        self._handlers = handlers
        self._open = 0
        self.port: int | None = None  # the one that is listened on

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                server = await asyncio.start_server(
                    self._serve, self._address.host or None, self._address.port, limit=REQUEST_BYTES
                )
            except OSError as error:
                log.warning(
                    "metrics and health are not served",
                    address=f"{self._address.host}:{self._address.port}",
                    error=error.strerror or str(error),
                )
                await asyncio.sleep(RETRY_SECONDS)
                continue
            async with server:
                self.port = int(server.sockets[0].getsockname()[1])
                log.info("serving metrics and health", port=self.port)
                await server.serve_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open > MAX_CONNECTIONS:
                return
            async with asyncio.timeout(REQUEST_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                answer, with_body = self._answer(head)
                reason = _REASONS[answer.status]
                writer.write(
                    f"HTTP/1.1 {answer.status} {reason}\r\nContent-Type: {answer.content_type}\r\n"
                    f"Content-Length: {len(answer.body)}\r\nConnection: close\r\n\r\n".encode("ascii")
                    + (answer.body if with_body else b"")
                )
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return  # the client's affair
        except asyncio.CancelledError:
            return  # the agent is ending; a cancelled connection would be logged as an error by asyncio
        finally:
            self._open -= 1
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    def _answer(self, head: bytes) -> tuple[Answer, bool]:
        parts = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/"):
            return Answer(400, b"not HTTP\n"), True
        method, target, _ = parts
        if method not in ("GET", "HEAD"):
            return Answer(405, b"only GET\n"), True
        handler = self._handlers.get(target.partition("?")[0])
        if handler is None:
            return Answer(404, f"there are {', '.join(sorted(self._handlers))}\n".encode()), method == "GET"
        return handler(), method == "GET"
