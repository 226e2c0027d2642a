"""A real kube-apiserver with our CRDs, one for all tests of a worker, and a clean slate for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from nodedevices_operator.concerns.fleet_gate import NAME as RECORD
from support.apiserver import ApiServer
from support.direct import reach
from support.kubectl import Kubectl, wait_until
from support.operatorprocess import NAMESPACE, OperatorProcess, service_account

ROOT = Path(__file__).parents[2]
LEASE = "nodedevices-operator"
CRDS = ("nodedevices", "devicepolicies")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever uses the API server bears its mark."""
    for item in items:
        if "apiserver" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.apiserver)


@pytest.fixture(scope="package")
def apiserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """etcd and kube-apiserver on loopback, with the CRDs established. Needs no root."""
    with ApiServer(tmp_path_factory.mktemp("apiserver")) as server:
        kubectl = Kubectl(server.kubeconfig, str(server.kubectl))
        kubectl.run("apply", "--server-side", "-k", str(ROOT / "crds"))
        named = [f"crd/{name}.nodedevices.io" for name in CRDS]
        # kubectl wait fails on an object that has no conditions yet.
        wait_until("CRDs", lambda: kubectl.run("wait", "--for=condition=Established", "--timeout=30s", *named))
        yield server


@pytest.fixture(scope="package")
def admin(apiserver: ApiServer) -> Kubectl:
    """kubectl as cluster-admin, for tests that leave nothing behind."""
    return Kubectl(apiserver.kubeconfig, str(apiserver.kubectl))


@pytest.fixture
def kubectl(admin: Kubectl) -> Iterator[Kubectl]:
    """kubectl as cluster-admin; afterwards no object of ours, no pod and no Node is left."""
    yield admin
    direct = reach(admin.kubeconfig, "node")
    assert direct is not None, "the kubeconfig is of our own making"
    direct.clear()


@pytest.fixture(scope="module", autouse=True)
def _no_operators_record_or_lease(request: pytest.FixtureRequest) -> Iterator[None]:
    """What operators of one file leave on purpose reaches no other file: what was granted counts for an hour."""
    if not any("apiserver" in getattr(item, "fixturenames", ()) for item in _of_the_file(request)):
        yield
        return
    admin: Kubectl = request.getfixturevalue("admin")
    yield
    admin.delete("configmap", RECORD, namespace=NAMESPACE)
    admin.delete("lease", LEASE, namespace=NAMESPACE)


def _of_the_file(request: pytest.FixtureRequest) -> Iterator[pytest.Item]:
    return (item for item in request.session.items if item.path == request.path)


@pytest.fixture(scope="module")
def kinds_of_others(admin: Kubectl) -> Iterator[None]:
    """Those of the Prometheus Operator, the Node Readiness Controller and OpenShift that our components and pages have,
    with the fields that these have."""
    here = Path(__file__).parent
    named = ("prometheus_operator", "node_readiness", "openshift")
    files = [argument for name in named for argument in ("-f", str(here / f"{name}.yaml"))]
    admin.run("apply", "--server-side", *files)
    wait_until("CRDs", lambda: admin.run("wait", "--for=condition=Established", "--timeout=30s", *files))
    yield
    admin.run("delete", *files)  # with every object of theirs


@pytest.fixture(scope="module")
def _operator(
    apiserver: ApiServer, admin: Kubectl, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    folder = tmp_path_factory.mktemp("operator")
    with OperatorProcess(folder, service_account(admin, folder), relist_seconds=3) as running:
        yield running


@pytest.fixture
def operator(_operator: OperatorProcess, kubectl: Kubectl) -> OperatorProcess:
    """The real operator with its real permissions, one for a file of tests; it lists everything every three seconds."""
    if not _operator.running:
        _operator.start()
    return _operator
