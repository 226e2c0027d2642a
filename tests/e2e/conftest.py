"""The end-to-end tests' cluster and installation, one for a worker, the baseline for each test, their time limit, and
what our parts said when one fails.

Without root, or not on Linux, our rig cannot run; each test then says so. With REGISTRY and KUBECONFIG the tests marked
`any_cluster` run on the user's cluster, and the others say why they do not.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterator

import pytest
from support import audit, cluster_provider
from support.cluster import SYSTEM, Cluster
from support.cluster_provider import ClusterProvider
from support.kubectl import KubectlError
from support.rig_cluster import RigCluster

LOG_LINES = 60
# Files whose tests take the roles away under running parts, or stop the API server (one that has just started refuses
# everybody until it has read the roles), or have nothing installed, or a cluster of their own.
NOT_AUDITED = ("chaos", "chart", "held_devices", "migration", "observe", "restarts", "upgrade")
# The first test's includes the cluster's start. By a signal: a thread would end pytest and leave the cluster behind.
LIMIT_SECONDS = 900
CLUSTERS = 3  # of a session, those of `make test-all`; tests/conftest.py has which tests share one


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/e2e/") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(LIMIT_SECONDS, method="signal"))


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


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_refused(request: pytest.FixtureRequest) -> Iterator[None]:
    """Roles and admission policies let our parts do all that they do in a file's tests; on our own rig."""
    if request.path.stem.removeprefix("test_e2e_") in NOT_AUDITED or cluster_provider.is_users():
        yield
        return
    log = request.getfixturevalue("installed").own_rig.audit_log
    begin = audit.end(log)
    yield
    assert [each.text for each in audit.requests(log, after=begin) if each.refused] == []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test's report ends with the last lines of agent and operator."""
    report = yield
    found = getattr(item, "funcargs", {}).get("installed")
    if report.failed and isinstance(found, Cluster):
        for component in ("agent", "operator"):
            report.sections.append((f"the last lines of every {component}", said(found, component)))
    return report


def said(by: Cluster, component: str) -> str:
    label = f"app.kubernetes.io/component={component}"
    try:
        return by.kubectl.run("logs", "-n", SYSTEM, "-l", label, f"--tail={LOG_LINES}", "--prefix")
    except (KubectlError, OSError) as error:  # kubectl goes with the cluster
        return str(error)
