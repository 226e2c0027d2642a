"""The fixtures of the end-to-end tests: one cluster and one installation for a worker, the baseline for each test.

Without root, or not on Linux, our rig cannot run; each test then says so. With REGISTRY and KUBECONFIG the tests marked
`any_cluster` run on the user's cluster, and the others say why they do not.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from support import ground
from support.ground import Ground
from support.world import World
from support.world_rig import RigWorld

CLUSTERS = 2  # of a session; tests/conftest.py has which tests share one


@pytest.fixture(scope="package")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """The cluster of this session."""
    if worker := os.environ.get("PYTEST_XDIST_WORKER"):
        # A third cluster would only make everything slow, and nobody would know why.
        (tmp_path_factory.getbasetemp().parent / f"end-to-end-{worker}").touch()
        workers = sorted(each.name for each in tmp_path_factory.getbasetemp().parent.glob("end-to-end-*"))
        assert len(workers) <= CLUSTERS, f"{workers} all have end-to-end tests: is tests/conftest.py at work?"
    if ground.users_cluster():
        yield ground.users()
        return
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("the real cluster needs Linux and root: namespaces, mounts and cgroups (run make test as root)")
    with ground.own("e2e") as cluster:
        yield cluster


@pytest.fixture(scope="package")
def installed(here: Ground) -> Iterator[World]:
    kind = World if here.cluster is None else RigWorld
    with kind.opened(here) as world:
        yield world


@pytest.fixture
def world(installed: World) -> World:
    """The system at its baseline, on any cluster."""
    installed.reset()
    return installed


@pytest.fixture
def rig(world: World) -> RigWorld:
    """The same on our own rig, for tests that stop kubelets, API server or processes."""
    if not isinstance(world, RigWorld):
        pytest.skip("stops kubelets, the API server or processes of a node: only on our own rig")
    return world
