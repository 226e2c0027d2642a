"""The commands start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.patience import PATIENCE_SECONDS


def test_the_help_of_every_command_in_the_docs_is_real() -> None:
    """The commands that the pages speak of start and explain themselves."""
    for command in ("nodedevices-agent", "nodedevices-probe", "nodedevices-operator", "kubectl-nodedevices"):
        done = subprocess.run(
            [Path(sys.executable).with_name(command), "--help"],
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "usage" in done.stdout.lower()
