"""Ending a process that a test has started."""

from __future__ import annotations

import subprocess
from typing import Any


def end(process: subprocess.Popen[Any], *, seconds: float = 10) -> None:
    """Terminate it, and kill it where it is still there after so long. Returns when it has ended."""
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
