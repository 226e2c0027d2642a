"""A disk that hangs and answers again, for the processes that are started with its environment."""

from __future__ import annotations

import os
from pathlib import Path


class HangingDisk:
    def __init__(self, folder: Path) -> None:
        self._hangs = folder / "the-disk-hangs"
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parent),  # sitecustomize.py
            "FSYNC_HANGS_WHILE": str(self._hangs),
        }

    def hang(self) -> None:
        self._hangs.touch()

    def let_go(self) -> None:
        self._hangs.unlink()
