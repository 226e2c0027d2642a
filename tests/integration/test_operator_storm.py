"""Faults and a policy's roll-out at the same time, with the operator's own workers and a real API server.

What is checked is the order of the calls, never the time: a fault does not wait behind the roll-out, whatever each call
takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from nodedevices_operator.cache.lanes import IN_A_ROW
from nodedevices_operator.kube.client import KubeClient
from nodedevices_operator.manager import MARK_WORKERS, Manager
from nodedevices_operator.metrics import OperatorMetrics
from nodedevices_operator.records.kinds import Kind, read
from nodedevices_operator.records.names import NODE_DEVICES, POLICIES
from support import fleet
from support.apiserver import ApiServer
from support.crashes import CrashingKube
from support.fleet import FleetNode, get_pod, pod, policy
from support.kubectl import Kubectl, condition
from support.marking import next_node
from support.patience import CLUSTER_PATIENCE_SECONDS

AT_FAULT = 2 * MARK_WORKERS  # nodes
WELL = 4
DEVICE_HEALTHY = "nodedevices.io/DeviceHealthy"


@pytest.fixture
async def client(apiserver: ApiServer) -> AsyncIterator[KubeClient]:
    made = await KubeClient.connect(str(apiserver.kubeconfig))
    yield made
    await made.close()


async def settled(manager: Manager) -> None:
    while (name := await next_node(manager)) is not None:
        await manager.reconcile_node(name)
        manager.nodes.done(name)


async def test_pods_of_failing_devices_are_marked_before_a_policys_roll_out_goes_on(
    client: KubeClient, kubectl: Kubectl
) -> None:
    fleet.namespace(kubectl)
    nodes = [FleetNode(kubectl, f"n{number:02d}", gpus=1).create() for number in range(AT_FAULT + WELL)]
    failing = nodes[:AT_FAULT]
    for node in failing:
        pod(kubectl, f"on-{node.name}", node.name)
        node.hold(0, f"on-{node.name}")
        node.report()
    kube = CrashingKube(client)
    manager = Manager(kube, OperatorMetrics())
    await manager.relister.once()
    await settled(manager)

    kubectl.apply(policy("everywhere", health={"holdDownSeconds": 7}))
    for node in failing:
        node.fail(0)
    raw = {path: await client.get(path) for path in (f"{NODE_DEVICES}/{node.name}" for node in failing)}
    everywhere = await client.get(f"{POLICIES}/everywhere")
    kube.writes.clear()
    manager.arrived(Kind.POLICY, False, read(Kind.POLICY, everywhere))
    assert len(manager.nodes) == len(nodes)  # the roll-out is queued, and then come the faults
    for each in raw.values():
        manager.arrived(Kind.NODE_DEVICES, False, read(Kind.NODE_DEVICES, each))
    tasks = manager.lead()
    try:
        async with asyncio.timeout(CLUSTER_PATIENCE_SECONDS):
            while len(manager.nodes):  # noqa: ASYNC110  the queue has no event for that it is empty
                await asyncio.sleep(0.05)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    assert all(condition(get_pod(kubectl, f"on-{it.name}"), DEVICE_HEALTHY)["status"] == "False" for it in failing)
    written = [nodes_of(call) for call in kube.writes]
    marks = [at for at, call in enumerate(kube.writes) if "pod-condition" in call]
    assert len(marks) == AT_FAULT  # each pod once
    # While marks wait for a worker, one node of the roll-out goes on for every so many marks that have begun.
    before = {name for name in written[: marks[AT_FAULT - MARK_WORKERS - 1]] if name}
    assert len(before) <= AT_FAULT // IN_A_ROW, kube.writes
    for node in failing:  # nothing of its own roll-out, its Node's condition or labels goes before a pod's mark
        mark = next(at for at, call in enumerate(kube.writes) if f"/on-{node.name}/status" in call)
        assert node.name not in written[:mark], kube.writes


def nodes_of(call: str) -> str:
    """The node for which something else than a mark was written; empty: it was a mark, or is of no node."""
    what, _, path = call.partition(" ")[2].partition(" ")
    name = path.removesuffix("/status").rpartition("/")[2]
    others = ("config", "node-condition", "object-labels", "labels", "capacity", "taint")
    return name if what.removeprefix("nodedevices-operator-") in others else ""
