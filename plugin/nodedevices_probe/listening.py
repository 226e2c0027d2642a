"""A unix socket on which a probe's lines can be read: for an agent in another container, and for people.

Every client gets every line from its connection on, the first one at once, and may say what it wants in them
(`loop.follow`). One that does not read for a second, or has gone, is dropped; a fifth one takes the place of the first.
Only the probe's own user may connect. While no client is connected no line is written, so that what happened meanwhile
is in the next client's first line. A probe that is another's child ends with it instead.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import struct
import threading
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path

from nodedevices_common import address

from nodedevices_probe.files import CheckError
from nodedevices_probe.loop import MAX_WANTED_BYTES, follow

MAX_CLIENTS = 4
WRITE_SECONDS = 1
OWNER_ALONE = 0o177  # as a umask: rw-------


class Listener:
    """`on_client` is called whenever a client has connected, `want` with what one of them wants; both on
    threads of this listener's."""

    def __init__(self, path: Path, *, on_client: Callable[[], None], want: Callable[[bool], None]) -> None:
        self._on_client = on_client
        self._want = want
        self.clients: list[socket.socket] = []
        self._lock = threading.Lock()
        self._server = bound(path, MAX_CLIENTS)
        threading.Thread(target=self._accept, name="clients", daemon=True).start()

    def write(self, line: bytes) -> None:
        with self._lock:
            clients = list(self.clients)
        for client in clients:
            try:
                client.sendall(line)
            except OSError:  # TimeoutError too
                self._drop(client)

    def _accept(self) -> None:
        while True:
            client, _ = self._server.accept()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", WRITE_SECONDS, 0))
            with self._lock:
                self.clients.append(client)
                oldest = self.clients[0] if len(self.clients) > MAX_CLIENTS else None
            if oldest is not None:
                self._drop(oldest)
            threading.Thread(target=self._follow, args=[client], name="client", daemon=True).start()
            self._on_client()

    def _follow(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            follow(lambda: client.recv(MAX_WANTED_BYTES), self._want)
        self._drop(client)

    def _drop(self, client: socket.socket) -> None:
        with self._lock, contextlib.suppress(ValueError):
            self.clients.remove(client)
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)
        client.close()


def socket_path(text: str) -> Path:
    """An argument of the command line: unix:PATH."""
    try:
        return Path(address.unix_path(text))
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def bound(path: Path, backlog: int) -> socket.socket:
    """A listening socket there; what an ended probe left behind is replaced. Raises CheckError."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(FileNotFoundError, ConnectionRefusedError), socket.socket(socket.AF_UNIX) as other:
            other.connect(str(path))
            raise OSError("another program listens there already")
        if path.is_socket():
            path.unlink()
        before = os.umask(OWNER_ALONE)
        try:
            server.bind(str(path))
        finally:
            os.umask(before)
        server.listen(backlog)
    except OSError as error:
        server.close()
        raise CheckError(f"--listen unix:{path}: {error.strerror or error}") from error
    return server


PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, even one that hangs inside a driver."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
