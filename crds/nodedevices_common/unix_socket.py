"""The name of a unix socket in flags: `unix:/run/nics/probe.sock`, as gRPC and systemd's tools write it."""

from __future__ import annotations

import os

from nodedevices_common.text import show

SCHEME = "unix:"
MAX_BYTES = 107  # sun_path of unix(7) has 108, the last one for a zero


def path_of(text: str) -> str:
    """The path. ValueError: there is none that a socket can have."""
    path = text.removeprefix(SCHEME)
    if path == text or not path.startswith("/") or len(os.fsencode(path)) > MAX_BYTES:
        right = f"give {SCHEME} and an absolute path of at most {MAX_BYTES} bytes, as in {SCHEME}/run/nics/probe.sock"
        raise ValueError(f"{show(text)} is not allowed; {right}")
    return path
