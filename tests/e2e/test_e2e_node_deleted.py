"""A Node that is deleted and does not come back: its kubelet is away, and its containers run on."""

from __future__ import annotations

import pytest
from support import audit
from support.cluster import GPU
from support.rig_cluster import UNAUTHORIZED, RigCluster

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(600, method="signal")]

AGENT = "nodedevices-agent"
GONE_SECONDS = 150  # the garbage collector's, on a busy machine
REFUSED_SECONDS = 240  # the agent looks every minute which Node its token names
STAYS_SECONDS = 60
MOST_CREATED = 5  # while it takes its object for deleted by a person; after each one it waits longer


def test_s18_a_node_that_is_deleted_for_good_takes_its_nodedevices_along_and_its_agent_leaves_it_at_that(
    rig: RigCluster,
) -> None:
    agent, processes, log = rig.agent(rig.a), rig.processes(rig.a, AGENT), rig.rig.audit_log
    rig.rig.stop_kubelet(rig.a)
    try:
        begin = audit.end(log)
        rig.kubectl.run("delete", "node", rig.a)
        rig.until("its NodeDevices is gone", lambda: not rig.nodedevices(rig.a), GONE_SECONDS)
        # Kubernetes deletes the agent's pod, too, and with it the token is worth nothing.
        rig.until("the agent is refused", lambda: rig.counted(agent, UNAUTHORIZED), REFUSED_SECONDS)
        rig.until("what it wrote before is gone", lambda: not rig.nodedevices(rig.a), GONE_SECONDS)
        rig.never("it comes back", lambda: rig.nodedevices(rig.a), seconds=STAYS_SECONDS)
        made = [each for each in audit.requests(log, after=begin) if created(each)]
        assert len(made) <= MOST_CREATED, made
        assert rig.processes(rig.a, AGENT) == processes, "the agent runs on"
        assert rig.node_count(rig.b, GPU) == 4, "the other node is as it was"
    finally:
        rig.rig.start_kubelet(rig.a)
    rig.until("a new Node has its NodeDevices", lambda: rig.summary(rig.a).get("healthy") == 8, 180)
    rig.until("and its devices", lambda: rig.node_count(rig.a, GPU) == 8)


def created(request: audit.Request) -> bool:
    """Whether an agent made a NodeDevices."""
    ours = request.right is not None and request.right[1] == "nodedevices"
    return ours and request.account.endswith(f":{AGENT}") and request.code == 201
