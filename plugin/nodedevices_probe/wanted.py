"""Requests of the agent to a probe: lines of JSON the other way, on a child's standard input or on the same socket.

    {"protocol": "nodedevices.io/probe/v1alpha1", "intervalSeconds": 2}

`intervalSeconds`: poll so often (health.probe.intervalSeconds of a policy); null: as often as the probe does by itself.
Keys that this probe does not know are ignored, and so is a line that it does not understand: a probe may also read none
of it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

from nodedevices_probe.protocol import PROTOCOL

MAX_BYTES = 4096
LEAST_SECONDS, MOST_SECONDS = 0.1, 3600.0


def encode(interval_seconds: float | None) -> bytes:
    """Return the line, newline included."""
    return json.dumps({"protocol": PROTOCOL, "intervalSeconds": interval_seconds}).encode() + b"\n"


def interval(line: bytes) -> float | None:
    """Return the interval that the line wants. ValueError: it is not understood."""
    said = json.loads(line)
    if not isinstance(said, dict) or said.get("protocol") != PROTOCOL or "intervalSeconds" not in said:
        raise ValueError(f'give {{"protocol": "{PROTOCOL}", "intervalSeconds": 5}}')
    seconds = said["intervalSeconds"]
    if seconds is None:
        return None
    if type(seconds) not in (int, float) or not LEAST_SECONDS <= seconds <= MOST_SECONDS:
        raise ValueError(f"intervalSeconds: {seconds!r} is not allowed; give {LEAST_SECONDS:g} to {MOST_SECONDS:g}")
    return float(seconds)


def follow(read: Callable[[], bytes], set_interval: Callable[[float | None], None]) -> None:
    """Until there is nothing more to read (`read`: some bytes, none at the end)."""
    rest = b""
    while chunk := read():
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > MAX_BYTES:
            lines, rest = [*lines, rest[:MAX_BYTES]], b""
        for line in lines:
            try:
                set_interval(interval(line))
            except (ValueError, RecursionError) as error:
                print(f"nodedevices-probe: a line of the agent is not understood: {error}", file=sys.stderr)  # noqa: T201
