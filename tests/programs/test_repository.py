"""Promises that the tree itself keeps, whatever the code in it does."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from support.repository import ROOT, tracked

MOST_OF_PARAMETERS = 120  # characters of a name


def test_no_folder_of_ours_shadows_the_standard_library() -> None:
    """`operator/__init__.py` would become `operator` for every Python started here. -S: .pth files would hide it."""
    assert not (ROOT / "operator/__init__.py").exists()
    assert not (ROOT / "plugin/__init__.py").exists()
    subprocess.run(
        [sys.executable, "-S", "-c", "import collections, operator; operator.itemgetter"], cwd=ROOT, check=True
    )


def test_locks_pin_by_hash_and_name_no_package_index() -> None:
    for lock in (ROOT / "requirements").glob("*.lock"):
        text = lock.read_text()
        assert "--hash=sha256:" in text, lock
        assert "://" not in text, f"{lock} names an address; make lock writes none"
        assert "--index" not in text, lock
        assert "--find-links" not in text, lock
    assert not (ROOT / "uv.lock").exists(), "its every line names a package index"


def test_go_and_c_stay_where_they_belong() -> None:
    for path in tracked():
        inside = path.relative_to(ROOT).as_posix()
        assert path.suffix != ".go" or inside.startswith("tests/cluster/"), inside
        assert path.suffix not in {".c", ".h"} or inside.startswith("tests/nvml/"), inside


def test_no_tracked_file_is_a_build_output() -> None:
    large = [path for path in tracked() if path.stat().st_size > 2 * 1024 * 1024]
    assert not large


def test_the_key_queue_stays_small_enough_to_read_at_once() -> None:
    lines = (ROOT / "operator/nodedevices_operator/cache/queue.py").read_text().splitlines()
    assert len(lines) <= 150


def test_a_terminal_shows_the_name_of_every_test(request: pytest.FixtureRequest) -> None:
    """Of those that this run has collected: one line of ASCII, without an object's address."""
    names = [item.nodeid for item in request.session.items]
    odd = [name for name in names if not (name.isascii() and name.isprintable())]
    odd += [name for name in names if re.search(r"<(lambda|function|[^>]* object)|\b0x[0-9a-f]{9,}", name)]
    long = [name for name in names if len(name.partition("[")[2]) > MOST_OF_PARAMETERS]
    assert not odd + long
