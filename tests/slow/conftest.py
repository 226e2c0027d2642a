"""Tests that wait minutes by their nature: a cluster of their own, on a worker of its own, beside everything else."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from support import ground
from support.world_rig import RigWorld


@pytest.fixture(scope="module")
def rig() -> Iterator[RigWorld]:
    """The system installed on a fresh cluster, at its baseline."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("the real cluster needs Linux and root: namespaces, mounts and cgroups (run make test as root)")
    with ground.own("slow") as here, RigWorld.opened(here) as world:
        world.reset()
        yield world
