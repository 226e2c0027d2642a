"""Tests that wait minutes by their nature: their own cluster, on its own worker, beside everything else."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from support import cluster_provider
from support.rig_cluster import RigCluster


@pytest.fixture(scope="module")
def rig() -> Iterator[RigCluster]:
    """The system installed on a fresh cluster, at its baseline."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("the real cluster needs Linux and root: namespaces, mounts and cgroups (run make test as root)")
    with cluster_provider.of_rig("slow", quick=True) as provider, RigCluster.opened(provider) as cluster:
        cluster.reset()
        yield cluster
