"""What the demo says and how: a line when a step begins, the command that a person would type, what it really printed.

Plain text without a terminal or with NO_COLOR set; the same words either way. Every line of output is a command's own:
nothing is retold. `Stage.done` times each step, so that a reader sees what takes how long. What goes on
beside it says its lines from a thread of its own, between blocks.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence

from demo.picture import Block

BOLD, DIM, GREEN, RED, PLAIN = "\033[1m", "\033[2m", "\033[32m", "\033[31m", "\033[0m"


class Stage:
    def __init__(self) -> None:
        self._began = time.monotonic()
        self._step = self._began
        self._block = threading.RLock()
        self._title = ""
        self.pictured: list[Block] = []
        self._colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")

    def _paint(self, colour: str, text: str) -> str:
        return f"{colour}{text}{PLAIN}" if self._colour else text

    def seconds(self) -> float:
        return time.monotonic() - self._began

    def say(self, text: str = "") -> None:
        with self._block:
            print(text, flush=True)

    def aside(self, text: str) -> None:
        """A line of what goes on beside the story."""
        self.say(self._paint(DIM, f"         | {text}"))

    def step(self, text: str) -> None:
        """A new part of the story."""
        self._step, self._title = time.monotonic(), text
        with self._block:
            self.say()
            self.say(f"{self._paint(DIM, f'{self.seconds():5.1f} s')}  {self._paint(BOLD, text)}")

    def done(self, text: str) -> None:
        """The step reached what it was for, after so long."""
        took = time.monotonic() - self._step
        self.say(f"         {self._paint(GREEN, 'ok')} {text} {self._paint(DIM, f'({took:.1f} s)')}")

    def note(self, text: str) -> None:
        self.say(f"         {text}")

    def shown(self, command: str, output: str, *, pictured: bool = False) -> None:
        """A command as one would type it, and what it printed; `pictured`: it is in README's picture, too."""
        if pictured:
            self.pictured.append(Block(self._title, command, output))
        with self._block:
            for number, line in enumerate(command.splitlines()):
                self.say(f"         {self._paint(DIM, '$' if number == 0 else ' ')} {line}")
            for line in output.rstrip("\n").splitlines():
                self.say(f"         {line.rstrip()}")

    def failed(self, text: str) -> None:
        self.say()
        self.say(self._paint(RED, f"The demo stopped after {self.seconds():.1f} s: {text}"))

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        widths = [max(len(row[at]) for row in [header, *rows]) for at in range(len(header))]
        with self._block:
            for number, row in enumerate([header, *rows]):
                line = "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
                self.say(f"         {self._paint(BOLD, line) if number == 0 else line}")
