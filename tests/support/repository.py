"""The files of this repository, for tests of what is in it."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def tracked() -> list[Path]:
    if not (ROOT / ".git").exists():  # an unpacked archive: everything in it was tracked
        return [path for path in ROOT.rglob("*") if path.is_file() and ".venv" not in path.parts]
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]
