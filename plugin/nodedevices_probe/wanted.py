"""Requests of the agent to a probe: lines of JSON the other way, on a child's standard input or on the same socket.

    {"protocol": "nodedevices.io/probe/v1alpha1", "use": true}

`use`: read who uses the devices as well (idle.afterSeconds of a policy); absent: no. Keys that this probe does not know
are ignored, and so is a line that it does not understand: a probe may also read none of it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass

from nodedevices_probe.protocol import PROTOCOL

MAX_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One such line. What it does not say is wanted no longer."""

    use: bool = False


def encode(wanted: Wanted) -> bytes:
    """Return the line, newline included."""
    return json.dumps({"protocol": PROTOCOL, "use": wanted.use}).encode() + b"\n"


def decode(line: bytes) -> Wanted:
    """ValueError: it is not understood."""
    said = json.loads(line)
    if not isinstance(said, dict) or said.get("protocol") != PROTOCOL:
        raise ValueError(f'give {{"protocol": "{PROTOCOL}", "use": true}}')
    use = said.get("use", False)
    if type(use) is not bool:
        raise ValueError(f"use: {use!r} is not allowed; give true or false")
    return Wanted(use=use)


def follow(read: Callable[[], bytes], want: Callable[[Wanted], None]) -> None:
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
                print(f"nodedevices-probe: a line of the agent is not understood: {error}", file=sys.stderr)  # noqa: T201
