"""Addresses to listen on: `127.0.0.1:9736`, `[::1]:9736`, `:9736`."""

from __future__ import annotations

import socket
from dataclasses import dataclass

MAX_PORT = 65535
BACKLOG = 128


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
