"""Promises that the tree itself keeps, whatever the code in it does."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import yaml
from support.repository import ROOT, tracked

MOST_OF_PARAMETERS = 120  # characters of a name
SHELLS = {b"#!/bin/sh", b"#!/bin/bash", b"#!/usr/bin/env bash"}


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


def test_what_images_and_scripts_install_is_pinned_bases_by_digest_and_packages_by_hash() -> None:
    dockerfiles = [path for path in tracked() if path.name == "Dockerfile"]
    scripts = [path for path in tracked() if path.read_bytes().partition(b"\n")[0] in SHELLS]
    assert len(dockerfiles) == 2
    assert ROOT / "tests/cluster/tools" in scripts
    for path in dockerfiles:
        text = path.read_text()
        [base] = re.findall(r"^ARG BASE=(\S+)$", text, re.MULTILINE)
        assert re.search(r"@sha256:[0-9a-f]{64}$", base)
        assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) == {"${BASE}"}
    for path in (*dockerfiles, *scripts):
        for line in path.read_text().replace("\\\n", " ").splitlines():
            for command in re.findall(r"pip (?:\S+ )*?install [^&|;]*", line):
                assert "--require-hashes" in command or re.search(r" /wheel/\*\.whl\s*$", command), f"{path}: {command}"


def test_workflows_run_pinned_actions_and_may_write_nothing_but_findings() -> None:
    workflows = [yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").glob("*")]
    assert workflows
    for workflow in workflows:
        assert not {"pull_request_target", "workflow_run"} & set(workflow[True])  # YAML 1.1 reads `on` so
        assert workflow["permissions"] == {"contents": "read"}
        for job in workflow["jobs"].values():
            assert {name for name, right in job["permissions"].items() if right != "read"} <= {"security-events"}
            for step in job["steps"]:
                assert re.search(r"@[0-9a-f]{40}$", step["uses"])


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
