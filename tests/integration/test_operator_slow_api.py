"""S12: the real operator beside an API server whose answers take five seconds, while a policy reaches all nodes and
some of them report a fault. The policy's writes are not answered at all until every pod is marked: what waited for them
would wait for ever. So nothing here depends on how long anything takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from nodedevices_operator.kube.client import MAX_CALLS, KubeClient
from nodedevices_operator.kube.election import Election, LostLeadershipError
from nodedevices_operator.manager import NODE_WORKERS
from support import fleet
from support.apiserver import ApiServer
from support.direct import reach
from support.fleet import FleetNode, get_pod, pod, policy
from support.kubectl import Kubectl, condition, wait_until
from support.operatorprocess import NAMESPACE, OperatorProcess, service_account
from support.patience import CLUSTER_PATIENCE_SECONDS
from support.slow_api import Sent, SlowApi

ANSWER_SECONDS = 5.0
AT_FAULT = 4  # nodes
WELL = NODE_WORKERS  # so that some of the nodes wait for a worker
REPORTS = 3  # of each node at fault, in a row
ROLL_OUT = "fieldManager=nodedevices-operator-config"  # what a policy has written on each node
MARK = "fieldManager=nodedevices-operator-pod-condition"
DEVICE_HEALTHY = "nodedevices.io/DeviceHealthy"


@dataclass(frozen=True)
class Slow:
    """What was sent while it was slow, until every pod was marked and the leader had gone."""

    sent: tuple[Sent, ...]
    most_at_once: int
    leader: Election
    why_lost: str


@pytest.fixture(scope="module")
def slow(apiserver: ApiServer, admin: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slow]:
    folder = tmp_path_factory.mktemp("slow")
    fleet.namespace(admin)
    nodes = [FleetNode(admin, f"n{number:02d}", gpus=1).create() for number in range(AT_FAULT + WELL)]
    failing = nodes[-AT_FAULT:]  # the last ones to which the policy comes
    for node in failing:
        pod(admin, f"on-{node.name}", node.name)
        node.hold(0, f"on-{node.name}")
        node.report()
    with (
        SlowApi(service_account(admin, folder), folder / "slow.kubeconfig") as api,
        ThreadPoolExecutor() as threads,
        OperatorProcess(folder, api.kubeconfig) as operator,
    ):
        wait_until("the nodes have been seen", lambda: all(condition(it.object, "PolicyResolved") for it in nodes))
        wait_until("it rests", lambda: operator.metric("nodedevices_operator_queue_depth") == 0)
        elected: Future[Election] = Future()
        leading = threads.submit(asyncio.run, lead(api.kubeconfig, elected))
        leader = elected.result(CLUSTER_PATIENCE_SECONDS)
        api.slow(ANSWER_SECONDS, held=ROLL_OUT)
        admin.apply(policy("everywhere", health={"holdDownSeconds": 7}))
        wait_until("the roll-out has begun", lambda: sum(ROLL_OUT in it.path for it in api.sent) >= NODE_WORKERS)
        for _ in range(REPORTS):
            for node in failing:
                node.fail(0)
        for node in failing:
            wait_until(
                "marked",
                lambda node=node: condition(get_pod(admin, f"on-{node.name}"), DEVICE_HEALTHY).get("status") == "False",  # type: ignore[misc]
            )
        sent, most = tuple(api.sent), api.most_at_once
        why = leading.result()
        api.fast()
        yield Slow(sent, most, leader, why)
        wait_until("rolled out", lambda: all("health" in it.object["spec"].get("config", {}) for it in nodes))
    direct = reach(admin.kubeconfig, "node")
    assert direct is not None
    direct.clear()


async def lead(kubeconfig: Path, elected: Future[Election]) -> str:
    """Lead until that is over; returns why."""
    client = await KubeClient.connect(str(kubeconfig))
    try:
        election = Election(client, namespace=NAMESPACE, identity="first")
        await election.acquire()
        elected.set_result(election)
        await election.keep()
    except LostLeadershipError as error:
        return str(error)
    finally:
        await client.close()
    return ""


def test_s12_a_fault_does_not_wait_behind_a_roll_out_while_answers_take_five_seconds(slow: Slow) -> None:
    """Every worker that a roll-out has still waited for an answer when the pods were marked."""
    assert sum(MARK in each.path for each in slow.sent) == AT_FAULT


def test_s12_nothing_piles_up_while_answers_take_five_seconds(slow: Slow) -> None:
    """Of each object one request is under way at a time, however often it changes meanwhile."""
    assert slow.most_at_once <= MAX_CALLS
    again = [each for each in slow.sent if each.method != "POST" and "/leases" not in each.path and not each.alone]
    assert again == []


def test_s12_who_cannot_renew_the_lease_in_time_leads_no_more(slow: Slow) -> None:
    assert "the Lease was not renewed for 9 s" in slow.why_lost
    assert not slow.leader.may_write()
