"""The fixtures of the end-to-end tests: one cluster and one installation for a worker, the baseline for each test.

Without root, or not on Linux, our rig cannot run; each test then says so. With REGISTRY and KUBECONFIG the tests marked
`any_cluster` run on the user's cluster, and the others say why they do not.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from support import cluster_provider
from support.cluster import Cluster
from support.cluster_provider import ClusterProvider
from support.rig_cluster import RigCluster

CLUSTERS = 3  # of a session, those of `make test-all`; tests/conftest.py has which tests share one


@pytest.fixture(scope="package")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProvider]:
    """The cluster of this session."""
    if worker := os.environ.get("PYTEST_XDIST_WORKER"):
        # One more would only make everything slow, and nobody would know why.
        (tmp_path_factory.getbasetemp().parent / f"end-to-end-{worker}").touch()
        workers = sorted(each.name for each in tmp_path_factory.getbasetemp().parent.glob("end-to-end-*"))
        assert len(workers) <= CLUSTERS, f"{workers} all have end-to-end tests: is tests/conftest.py at work?"
    if cluster_provider.is_users():
        yield cluster_provider.of_user()
        return
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("the real cluster needs Linux and root: namespaces, mounts and cgroups (run make test as root)")
    with cluster_provider.of_rig("e2e", quick=True) as own_rig:
        yield own_rig


@pytest.fixture(scope="package")
def installed(provider: ClusterProvider) -> Iterator[Cluster]:
    kind = Cluster if provider.own_rig is None else RigCluster
    with kind.opened(provider) as cluster:
        yield cluster


@pytest.fixture
def cluster(installed: Cluster) -> Cluster:
    """The system at its baseline, on any cluster."""
    installed.reset()
    return installed


@pytest.fixture
def rig(cluster: Cluster) -> RigCluster:
    """The same on our own rig, for tests that stop kubelets, API server or processes."""
    if not isinstance(cluster, RigCluster):
        pytest.skip("stops kubelets, the API server or processes of a node: only on our own rig")
    return cluster
