"""A terminal for a program of ours: what it prints when its output goes to one."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
ESCAPE = "\033["


def on_a_terminal(*command: str, **more: str) -> str:
    """What it prints when its standard output is a terminal."""
    kept = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as reader:
        running = subprocess.Popen(command, cwd=ROOT, stdout=theirs, stderr=theirs, env={**kept, **more})
        os.close(theirs)
        said = b""
        try:
            while chunk := reader.read(65536):
                said += chunk
        except OSError:  # EIO: Linux ends a terminal so
            pass
        assert running.wait() == 0, said
    return said.decode()
