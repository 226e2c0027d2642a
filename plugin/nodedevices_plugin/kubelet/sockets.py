"""Names and identities of unix sockets in the kubelet's folders, and a gRPC server on one.

Every start of a server takes a new name. gRPC's core unlinks its socket's *path* when it shuts down, so of two servers
that share a path the older one's end removes the younger one's socket; and a kubelet of 1.37 or later refuses a path
that is still connected ("device plugin already connected").
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import secrets
import socket
import stat
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import grpc

from nodedevices_plugin.runtime.threads import Threads

PREFIX = "nodedevices-"
MAX_PATH_BYTES = 107  # sun_path of unix(7) has 108 with the closing NUL
NONCE_BYTES = 4
STOP_GRACE_SECONDS = 1.0  # for an answer under way
SETTLING_SECONDS = 2.0  # a socket this young may stand between bind and listen


class FileIdentity(NamedTuple):
    """Identifies the file at a path. An inode number alone may be given to the next file at once (tmpfs, ext4).

    The change time is left out on purpose: a chmod or an SELinux relabel of kubelet.sock does not make it another
    kubelet, and restarting the server for it would cost the node its devices for a moment.
    """

    device: int
    inode: int
    modified_ns: int


def identity(path: Path) -> FileIdentity | None:
    """Identify the socket at this path; None: absent, not a socket, or not visible to us."""
    try:
        found = path.stat()
    except OSError:
        return None
    return FileIdentity(found.st_dev, found.st_ino, found.st_mtime_ns) if stat.S_ISSOCK(found.st_mode) else None


def new_path(folder: Path, resource: str) -> Path:
    """Return an unused path: nodedevices-<resource>-<nonce>.sock; a long name is cut and made unique by its hash.

    Raises ValueError when the folder leaves no room for a name.
    """
    nonce = secrets.token_hex(NONCE_BYTES)
    return folder / f"{PREFIX}{_word(folder, resource)}-{nonce}.sock"


def of_our_kind(folder: Path, resource: str) -> bool:
    """True when another process of ours serves this resource: a socket with a name like ours accepts connections."""
    named = folder.glob(f"{PREFIX}{_word(folder, resource)}-{'?' * 2 * NONCE_BYTES}.sock")
    return any(listening(path) for path in named)


def of_others(folder: Path, resource: str) -> tuple[Path, ...]:
    """Return the listening sockets of other plugins that are named after this resource: by the last part of its name,
    as NVIDIA's (nvidia-gpu.sock) and AMD's (amd.com_gpu) are."""
    named = re.compile(rf"(?!{PREFIX})(^|.*[^A-Za-z0-9]){re.escape(resource.rpartition('/')[2])}(\.sock)?")
    found = (path for path in sorted(folder.glob("*")) if named.fullmatch(path.name))
    return tuple(path for path in found if path.is_socket() and listening(path))


def of_other_plugins(folder: Path) -> frozenset[tuple[str, int]]:
    """Return names and inodes of all other entries but plain files: other plugins' sockets, and the kubelet's."""
    try:
        with os.scandir(folder) as found:
            return frozenset(
                (file.name, file.inode())
                for file in found
                if not file.name.startswith(PREFIX) and not file.is_file(follow_symlinks=False)
            )
    except OSError:
        return frozenset()


def _word(folder: Path, resource: str) -> str:
    slug = re.sub(r"[^A-Za-z0-9.]+", "-", resource)
    room = MAX_PATH_BYTES - len(bytes(folder)) - len(f"/{PREFIX}-.sock") - 2 * NONCE_BYTES
    if len(slug) > room:
        digest = hashlib.sha256(resource.encode()).hexdigest()[:8]
        if room < len(digest):
            raise ValueError(f"the folder {folder} is too long for a unix socket in it: {MAX_PATH_BYTES} bytes in all")
        slug = f"{slug[: max(0, room - len(digest) - 1)]}-{digest}"[-room:]
    return slug


def remove_stale(folder: Path) -> tuple[str, ...]:
    """Remove sockets with names like ours on which no process listens, and return their names.

    Connecting shows it, since a process id means nothing across containers. The kubelet removes them as well, but only
    at its own start.
    """
    removed = []
    for path in sorted(folder.glob(f"{PREFIX}*.sock")):
        with contextlib.suppress(OSError):
            found = path.lstat()
            if stat.S_ISSOCK(found.st_mode) and time.time() - found.st_mtime > SETTLING_SECONDS and not listening(path):
                path.unlink()
                removed.append(path.name)
    return tuple(removed)


def listening(path: Path) -> bool:
    """True when a process accepts connections there. Never blocks; True when in doubt."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
        except OSError:
            return True
        return True


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
        self._identity: FileIdentity | None = None
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
        self._identity = identity(self.path)

    async def stop(self) -> None:
        """Let an answer under way finish, close and remove the socket."""
        stopped = self._server.stop(STOP_GRACE_SECONDS)
        await asyncio.to_thread(stopped.wait, STOP_GRACE_SECONDS + 1.0)
        self._threads.end()
        if self.is_there():
            self.path.unlink(missing_ok=True)

    def is_there(self) -> bool:
        """True while our socket is still there: the kubelet removes all sockets of device plugins when it starts."""
        return self._identity is not None and identity(self.path) == self._identity
