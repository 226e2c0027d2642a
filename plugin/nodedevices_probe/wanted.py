"""Requests of the agent to a probe: lines of JSON the other way, on a child's standard input or on the same socket.

    {"protocol": "nodedevices.io/probe/v1alpha1", "use": true}

`use`: read who uses the devices as well (idle.afterSeconds of a policy); absent: no. Keys that this probe does not know
are ignored, and so is a line that it does not understand: a probe may also read none of it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

from nodedevices_probe.protocol import PROTOCOL

MAX_BYTES = 4096


def encode(*, use: bool) -> bytes:
    """Return the line, newline included."""
    return json.dumps({"protocol": PROTOCOL, "use": use}).encode() + b"\n"


def decode(line: bytes) -> bool:
    """Return `use`. ValueError: the line is not understood."""
    said = json.loads(line)
    if not isinstance(said, dict) or said.get("protocol") != PROTOCOL:
        raise ValueError(f'give {{"protocol": "{PROTOCOL}", "use": true}}')
    match said.get("use", False):
        case bool(use):
            return use
        case odd:
            raise ValueError(f"use: {odd!r} is not allowed; give true or false")


def follow(read: Callable[[], bytes], want: Callable[[bool], None]) -> None:
    """Until there is nothing more to read (`read`: some bytes, none at the end)."""
    rest = b""
    while chunk := read():
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > MAX_BYTES:
            lines, rest = [*lines, rest[:MAX_BYTES]], b""
        for line in lines:
            try:
                want(decode(line))
            except (ValueError, RecursionError) as error:
                say(f"a line of the agent is not understood: {error}")


def say(message: str) -> None:
    """Write to the log, for people."""
    print(f"nodedevices-probe: {message}", file=sys.stderr, flush=True)  # noqa: T201
