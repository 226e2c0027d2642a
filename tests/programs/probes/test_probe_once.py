"""`nodedevices-probe ... --once`, as a person or a script uses it to check a file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.patience import PATIENCE_SECONDS


def once(file: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nodedevices_probe.main", "simulated", "--file", str(file), "--once"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)


def test_a_good_file_is_one_line_and_exit_0(tmp_path: Path) -> None:
    file = tmp_path / "good.yaml"
    file.write_text("profile: l4 x 1\n")
    done = once(file)
    assert (done.returncode, done.stdout.count("\n"), done.stderr) == (0, 1, "")


@pytest.mark.parametrize("text", ["profil: l4 x 1\n", None])
def test_a_file_that_cannot_be_used_is_named_on_stderr_and_exit_1(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "bad.yaml"
    if text is not None:
        file.write_text(text)
    done = once(file)
    assert done.returncode == 1
    assert done.stdout.count("\n") == 1
    assert str(file) in done.stderr
