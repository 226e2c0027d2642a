"""A gRPC server on a unix socket, which the kubelet calls. The answers are given in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import grpc

from nodedevices_plugin.kubelet import sockets
from nodedevices_plugin.runtime.threads import Threads

STOP_GRACE_SECONDS = 1.0  # for an answer under way


class UnixServer:
    """Serves from `start` to `stop`; not to be started again. Its methods are for the event loop.

    `name`: of what is served, for people. `max_calls`: at once. `max_bytes`: of a request; 4 MiB is gRPC's default.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        handlers: Iterable[grpc.GenericRpcHandler],
        *,
        max_calls: int,
        max_bytes: int = 4 << 20,
    ) -> None:
        self.name = name
        self.path = path
        self._identity: sockets.FileIdentity | None = None
        self._threads = Threads(f"kubelet {name}")
        self._server = grpc.server(
            self._threads,  # type: ignore[arg-type]  # grpc calls `submit` alone
            handlers=list(handlers),
            options=[("grpc.max_receive_message_length", max_bytes), ("grpc.so_reuseport", 0)],
            maximum_concurrent_rpcs=max_calls,
        )

    def start(self) -> None:
        """Raises OSError when the socket cannot be made. Afterwards the kubelet may dial."""
        try:
            self._server.add_insecure_port(f"unix:{self.path}")
            self._server.start()
        except RuntimeError as error:  # grpc raises it for every failure to bind
            raise OSError(f"cannot serve {self.name} on {self.path}: {error}") from error
        self._identity = sockets.identity(self.path)

    async def stop(self) -> None:
        """Let an answer under way finish, close and remove the socket."""
        stopped = self._server.stop(STOP_GRACE_SECONDS)
        await asyncio.to_thread(stopped.wait, STOP_GRACE_SECONDS + 1.0)
        self._threads.end()
        if self.has_socket():
            self.path.unlink(missing_ok=True)

    def has_socket(self) -> bool:
        """True while our socket is still there: the kubelet removes all sockets of device plugins when it starts."""
        return self._identity is not None and sockets.identity(self.path) == self._identity
