"""How many nodes each target of make asks for."""

from __future__ import annotations

import os
import subprocess

import pytest
from support.repository import ROOT


@pytest.mark.parametrize(
    ("target", "command"),
    [
        pytest.param(("cluster-up",), 'cluster up --name "default" --nodes "2"', id="two nodes"),
        pytest.param(("cluster-up", "NODES=3"), '--nodes "3"', id="three"),
        pytest.param(("bench-scale",), "benchmarks operator --nodes 5000", id="the fleet of a benchmark"),
        pytest.param(("bench-scale", "NODES=70"), "benchmarks operator --nodes 70", id="a smaller one"),
    ],
)
def test_each_target_has_its_own_number_of_nodes(target: tuple[str, ...], command: str) -> None:
    ours = {"NODES", "NAME", "MAKEFLAGS", "MFLAGS", "MAKELEVEL"}
    said = subprocess.run(
        ["make", "--dry-run", "REGISTRY=none", *target],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name not in ours},
        capture_output=True,
        text=True,
        check=True,
    )
    assert command in said.stdout
