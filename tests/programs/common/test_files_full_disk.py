"""A replaced file on a disk that takes no more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.patience import PATIENCE_SECONDS


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    """A full disk, as a limit on a file's size shows it; in a separate process."""
    path = tmp_path / "state.json"
    path.write_text("old")
    program = (
        "import pathlib, resource, signal; from nodedevices_common import files\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        f"files.replace(pathlib.Path({str(path)!r}), 'x' * 100_000)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )
    assert "OSError" in done.stderr
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
