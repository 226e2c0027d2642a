"""Two real operators, a real API server and its Lease: one writes, whatever becomes of the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support import audit, fleet
from support.apiserver import ApiServer
from support.fleet import FleetNode, get_pod, pod
from support.kubectl import Kubectl, condition, wait_until
from support.operatorprocess import NAMESPACE, OperatorProcess, service_account

DEVICE_HEALTHY = "nodedevices.io/DeviceHealthy"
ACCOUNT = f"{NAMESPACE}:nodedevices-operator"
READS = {"get", "list", "watch"}


@pytest.fixture(autouse=True)
def _namespace(kubectl: Kubectl) -> Iterator[None]:
    fleet.namespace(kubectl)
    yield
    kubectl.delete("lease", "nodedevices-operator", namespace=NAMESPACE)


@pytest.fixture
def two(kubectl: Kubectl, tmp_path: Path) -> Iterator[tuple[OperatorProcess, OperatorProcess]]:
    """The leader, and a standby; both are ready."""
    rights = service_account(kubectl, tmp_path)
    folders = (tmp_path / "first", tmp_path / "second")
    for each in folders:
        each.mkdir()
    with OperatorProcess(folders[0], rights, leader_elect=True) as leader:
        wait_until("it leads", lambda: leads(leader))
        with OperatorProcess(folders[1], rights, leader_elect=True) as standby:
            yield leader, standby


def leads(operator: OperatorProcess) -> bool:
    return operator.metric("nodedevices_operator_leader") == 1


def marked(kubectl: Kubectl, name: str, status: str) -> None:
    wait_until(f"{name} is {status}", lambda: condition(get_pod(kubectl, name), DEVICE_HEALTHY).get("status") == status)


def faulty_node(kubectl: Kubectl) -> FleetNode:
    node = FleetNode(kubectl, "n1").create()
    pod(kubectl, "a", "n1")
    node.hold(0, "a")
    node.fail(0)
    return node


def written(apiserver: ApiServer, after: int) -> list[str]:
    """What operators wrote since, but for the Lease."""
    made = [each for each in audit.requests(apiserver.audit_log, after=after) if each.account == ACCOUNT]
    return [
        each.text
        for each in made
        if each.right is not None and each.right[1] != "leases" and each.right[2] not in READS
    ]


def test_one_of_two_writes_and_the_other_shows_no_metrics_of_the_fleet(
    two: tuple[OperatorProcess, OperatorProcess], kubectl: Kubectl
) -> None:
    leader, standby = two
    faulty_node(kubectl)
    marked(kubectl, "a", "False")
    wait_until("the fault is counted", lambda: leader.metric("nodedevices_operator_devices_at_fault") == 1)
    assert not leads(standby)
    assert standby.metric("nodedevices_operator_writes_total") == 0
    assert standby.metric("nodedevices_operator_devices_at_fault") == 0
    assert "standing by, another replica is the leader" in standby.said()


def test_a_leader_that_is_stopped_releases_the_lease_and_the_other_goes_on(
    two: tuple[OperatorProcess, OperatorProcess], kubectl: Kubectl
) -> None:
    leader, standby = two
    node = faulty_node(kubectl)
    marked(kubectl, "a", "False")
    assert leader.stop() == 0
    assert "released the Lease" in leader.said()
    wait_until("the other leads", lambda: leads(standby))
    node.recover(0)
    marked(kubectl, "a", "True")


def test_a_leader_that_is_killed_is_followed_when_its_lease_is_over(
    two: tuple[OperatorProcess, OperatorProcess], kubectl: Kubectl
) -> None:
    leader, standby = two
    node = faulty_node(kubectl)
    marked(kubectl, "a", "False")
    leader.kill()
    node.recover(0)
    marked(kubectl, "a", "True")
    assert leads(standby)


def test_a_frozen_leader_that_goes_on_writes_nothing_and_ends(
    two: tuple[OperatorProcess, OperatorProcess], apiserver: ApiServer, kubectl: Kubectl
) -> None:
    leader, standby = two
    node = faulty_node(kubectl)
    marked(kubectl, "a", "False")
    leader.freeze()
    try:
        wait_until("the other leads", lambda: leads(standby))
        node.recover(0)
        marked(kubectl, "a", "True")
        wait_until("its entry is gone", lambda: not node.object["status"].get("affectedPods"))
        begin = audit.end(apiserver.audit_log)
        node.fail(0)  # both want to mark the pod again now, and one of them still believes that it leads
    finally:
        leader.thaw()
    marked(kubectl, "a", "False")
    assert wait_until("it has ended", lambda: (code := leader.ended()) is not None and f"code {code}") == "code 1"
    assert "the Lease was not renewed" in leader.said() or "is the leader" in leader.said()
    assert leads(standby)
    patches = [each for each in written(apiserver, begin) if "/pods/a/status" in each]
    assert len(patches) == 1, patches


def test_without_the_right_to_the_lease_none_writes_and_readyz_says_what_is_missing(
    kubectl: Kubectl, tmp_path: Path
) -> None:
    rights = service_account(kubectl, tmp_path)
    kubectl.run("delete", "rolebinding", "nodedevices-operator", "-n", NAMESPACE)
    faulty_node(kubectl)
    operator = OperatorProcess(tmp_path, rights, leader_elect=True).start(ready=False)
    try:
        wait_until("it says so", lambda: "cannot use Lease" in operator.get("/readyz")[1])
        assert "install the operator's RBAC (Role nodedevices-operator)" in operator.get("/readyz")[1]
        assert operator.metric("nodedevices_operator_writes_total") == 0
        service_account(kubectl, tmp_path)
        marked(kubectl, "a", "False")
        assert operator.get("/readyz")[0] == 200
    finally:
        operator.kill()


def test_sigterm_ends_a_standby_cleanly(two: tuple[OperatorProcess, OperatorProcess]) -> None:
    leader, standby = two
    assert standby.stop() == 0
    assert leads(leader)
