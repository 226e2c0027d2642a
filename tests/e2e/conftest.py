"""The end-to-end tests' cluster, their time limit, and what our parts said when one fails."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest
from support import audit, cluster_provider
from support.cluster import SYSTEM, Cluster
from support.fixtures import cluster, installed, provider, rig  # noqa: F401 - pytest finds them here
from support.kubectl import KubectlError

LOG_LINES = 60
# Files whose tests take the roles away under running parts, or stop the API server (one that has just started refuses
# everybody until it has read the roles), or have nothing installed, or a cluster of their own.
NOT_AUDITED = ("chaos", "chart", "held_devices", "migration", "observe", "restarts", "upgrade")
# The first test's includes the cluster's start. By a signal: a thread would end pytest and leave the cluster behind.
LIMIT_SECONDS = 900


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/e2e/") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(LIMIT_SECONDS, method="signal"))


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
