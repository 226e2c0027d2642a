"""What make and the demo print for people: bold on a terminal only, and a hint that helps."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from demo.__main__ import shell
from demo.stage import Stage
from support.cluster_provider import ClusterProvider
from support.kubectl import Kubectl
from support.terminal import ESCAPE, environment, on_a_terminal

ROOT = Path(__file__).parents[2]
NOBODY = 65534


def test_make_writes_escape_codes_to_a_terminal_only() -> None:
    piped = subprocess.run(["make", "help"], cwd=ROOT, env=environment(), capture_output=True, text=True, check=True)
    assert "make test" in piped.stdout
    assert ESCAPE not in piped.stdout + piped.stderr
    assert ESCAPE in on_a_terminal("make", "help")
    assert ESCAPE not in on_a_terminal("make", "help", NO_COLOR="1")


@pytest.fixture
def not_ours() -> Iterator[Path]:
    """A copy of our Makefile in a folder that whoever runs it there may not write."""
    folder = Path(tempfile.mkdtemp())  # pytest's own folders are closed to other users
    try:
        (folder / "tests/cluster").mkdir(parents=True)
        (folder / "requirements").mkdir()
        for name in ("Makefile", "tests/cluster/cluster.mk", "pyproject.toml", "requirements/dev.lock"):
            shutil.copy(ROOT / name, folder / name)
        (folder / ".tools").mkdir()
        (folder / ".tools").chmod(0o555)
        folder.chmod(0o777)
        yield folder
    finally:
        shutil.rmtree(folder)


def test_a_folder_that_cannot_be_written_is_named_with_its_owner_and_what_helps(not_ours: Path) -> None:
    user = NOBODY if os.geteuid() == 0 else None
    done = subprocess.run(
        ["make", "venv"], cwd=not_ours, env=environment(), user=user, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert f"{not_ours / '.tools'} cannot be written by" in done.stdout
    assert "it belongs to" in done.stdout
    assert "chown" in done.stdout
    assert "python3-venv" not in done.stdout


def test_the_demos_last_words_make_kubectl_work() -> None:
    kubectl = Kubectl(Path("/state/kubeconfig"), "/cache/bin/kubectl")
    ours = ClusterProvider(kubectl, ("n1", "n2"), {}, SimpleNamespace())  # type: ignore[arg-type]
    assert shell(ours) == "export KUBECONFIG=/state/kubeconfig PATH=/cache/bin:$PATH"
    theirs = ClusterProvider(Kubectl(Path("/home/me/config")), ("a", "b"), {}, None)
    assert shell(theirs) == "export KUBECONFIG=/home/me/config"


def test_the_demo_is_plain_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    stage = Stage()
    stage.step("A step")
    stage.done("it is up")
    assert ESCAPE not in capsys.readouterr().out
