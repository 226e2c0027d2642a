"""A build of the rig as it runs: its last words, and that nothing of it stays."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cluster.rig import binaries, images
from cluster.rig.problem import Progress, RigError


def test_a_failed_build_says_its_last_words_and_guesses_at_the_network(tmp_path: Path) -> None:
    def build(words: str) -> None:
        command = [sys.executable, "-c", f"print({words!r}); raise SystemExit(1)"]
        binaries.run(
            "it", command, log=tmp_path / "log", progress=Progress(quiet=True), cwd=tmp_path, environment=os.environ
        )

    with pytest.raises(RigError, match="it failed: undefined: x"):
        build("undefined: x")
    with pytest.raises(RigError, match="is there a network"):
        build("dial tcp: lookup proxy: no such host")


def test_a_build_that_is_ended_ends_with_all_that_it_has_started(tmp_path: Path) -> None:
    """`make demo` ends the build beside it when it is ended itself; mmdebstrap's children went on alone."""
    alive = tmp_path / "alive"  # a FIFO: at its end when nobody has it open for writing any more
    os.mkfifo(alive)
    script = (
        "import os, signal, sys; from pathlib import Path; from cluster.rig import binaries, problem;"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143));"
        f"binaries.run('it', ['sh', '-c', 'exec > {alive}; (echo begun; exec sleep 600) & wait'], "
        f"log=Path({str(tmp_path / 'log')!r}), progress=problem.Progress(quiet=True), cwd=Path('/'), "
        "environment=os.environ)"
    )
    environment = {**os.environ, "PYTHONPATH": str(images.ROOT / "tests")}
    build = subprocess.Popen([sys.executable, "-c", script], env=environment)
    with alive.open() as child:
        assert child.readline() == "begun\n"
        build.terminate()
        assert child.read() == ""
    assert build.wait() == 143
