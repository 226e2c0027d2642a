"""Addresses to listen on: `127.0.0.1:9736`, `[::1]:9736`, `:9736`; and unix sockets, `unix:/run/nics/probe.sock`, as
gRPC and systemd's tools write them."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from nodedevices_common.text import show

MAX_PORT = 65535
BACKLOG = 128
UNIX_SCHEME = "unix:"
MAX_UNIX_BYTES = 107  # sun_path of unix(7) has 108, the last one for a zero


@dataclass(frozen=True, slots=True)
class Address:
    """An address to listen on. `host` empty: every address of the machine."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """`127.0.0.1:9736`, `[::1]:9736` or `:9736`. ValueError with what would be right."""
    host, colon, port = text.rpartition(":")
    bare = ":" in host and not (host[0] == "[" and host[-1] == "]")
    if not colon or not port.isdecimal() or int(port) > MAX_PORT or bare:
        raise ValueError(f"{text!r} is not host:port; give 127.0.0.1:PORT, or :PORT for every address")
    return Address(host.strip("[]"), int(port))


def listening(address: Address) -> socket.socket:
    """A socket that listens there, and never waits. Raises OSError."""
    everywhere = not address.host
    both = everywhere and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both or ":" in address.host else socket.AF_INET
    made = socket.create_server((address.host, address.port), family=family, backlog=BACKLOG, dualstack_ipv6=both)
    made.settimeout(0)
    return made


def unix_path(text: str) -> str:
    """The path of a unix socket. ValueError: there is none that a socket can have."""
    path = text.removeprefix(UNIX_SCHEME)
    if path == text or not path.startswith("/") or len(os.fsencode(path)) > MAX_UNIX_BYTES:
        right = f"an absolute path of at most {MAX_UNIX_BYTES} bytes, as in {UNIX_SCHEME}/run/nics/probe.sock"
        raise ValueError(f"{show(text)} is not allowed; give {UNIX_SCHEME} and {right}")
    return path
