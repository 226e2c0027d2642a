"""What a person sees: progress with the time it took, and the one line that says why it cannot go on."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TypeVar

POLL_SECONDS = 0.05

T = TypeVar("T")


class RigError(Exception):
    """The rig cannot go on; the text is one line for a person: what is missing, and what would help."""


class Progress:
    """Lines on standard error, so that a command's output stays what it is meant to be."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._began = time.monotonic()
        self._quiet = quiet

    def seconds(self) -> float:
        return time.monotonic() - self._began

    def say(self, text: str) -> None:
        if not self._quiet:
            print(f"{self.seconds():6.1f} s  {text}", file=sys.stderr, flush=True)


def wait_for(what: str, look: Callable[[], T | None], *, seconds: float, hint: str = "") -> T:
    """The first truthy thing that `look` returns; RigError with the hint when there is none in time."""
    deadline = time.monotonic() + seconds
    while True:
        seen = look()
        if seen:
            return seen
        if time.monotonic() >= deadline:
            waited = f": not within {seconds:g} s" if seconds else ""
            raise RigError(f"{what}{waited}{'; ' + hint if hint else ''}")
        time.sleep(POLL_SECONDS)
