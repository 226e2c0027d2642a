"""`nodedevices-operator check` says in one line where the chain breaks, and that it works only when it does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace
from nodedevices_common.conditions import ConditionRecord
from nodedevices_operator.check import Report, Seen, check, judge
from nodedevices_operator.records import names
from support.fakekube import FakeKube

WELL = Report(ConditionRecord("Ready", "True", "AgentRunning"), ConditionRecord("Stale", "False", "Fresh"), 8, 7)
LEASE_BEFORE = "10:00:00"
WORKS = Seen(frozenset({"n1", "n2"}), {"n1": "", "n2": ""}, {"n1": WELL, "n2": WELL}, lease="10:00:02")


def said(now: Seen, *, elected: bool = True) -> str:
    verdict = judge(now, elected=elected, lease_before=LEASE_BEFORE)
    assert verdict.works is verdict.sentence.startswith("works")
    return verdict.sentence


def test_a_chain_that_works_says_how_many_nodes_and_devices() -> None:
    assert said(WORKS) == "works: 2 nodes report 16 devices, 14 healthy"


def test_a_node_that_is_down_breaks_nothing_and_is_counted() -> None:
    down = replace(WORKS, agents={**WORKS.agents, "n3": "ContainerCreating"})
    assert (
        said(down) == "works: 2 nodes report 16 devices, 14 healthy; 1 not looked at, since their Nodes are not Ready"
    )


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (replace(WORKS, crds=False), "broken at the CRDs: the API server does not know NodeDevices"),
        (replace(WORKS, agents={}), "broken at the agents: no Node that is Ready has a pod of nodedevices-agent"),
        (
            replace(WORKS, agents={"n1": "ImagePullBackOff", "n2": ""}),
            "broken on 1 of 2 nodes: n1: the agent's pod does not run (ImagePullBackOff)",
        ),
        (
            replace(WORKS, reports={"n2": WELL}),
            "broken on 1 of 2 nodes: n1: the agent runs and has written no NodeDevices",
        ),
        (
            replace(
                WORKS,
                reports={"n1": WELL, "n2": replace(WELL, ready=ConditionRecord("Ready", "False", "Why", "so it is"))},
            ),
            "broken on 1 of 2 nodes: n2: the agent is not ready (Why: so it is)",
        ),
        (
            replace(WORKS, reports={"n1": replace(WELL, stale=None), "n2": WELL}),
            "broken on 1 of 2 nodes: n1: the agent reports, and no operator has seen it",
        ),
        (
            replace(
                WORKS, reports={"n1": replace(WELL, stale=ConditionRecord("Stale", "True", "AgentLost")), "n2": WELL}
            ),
            "broken on 1 of 2 nodes: n1: the report is out of date (AgentLost)",
        ),
        (
            replace(WORKS, lease=LEASE_BEFORE),
            "broken at the operator: none leads, as its Lease nodedevices-operator is not renewed",
        ),
    ],
    ids=lambda value: value.split(" (")[0].replace(" ", "-")[:40] if isinstance(value, str) else "",
)
def test_the_first_break_of_the_chain_is_named(now: Seen, why: str) -> None:
    assert said(now) == why


def test_of_many_broken_nodes_three_are_named() -> None:
    many = [f"n{number}" for number in range(9)]
    now = replace(WORKS, ready_nodes=frozenset(many), agents=dict.fromkeys(many, "Pending"))
    assert said(now).endswith("; and 6 more")


def test_where_there_is_no_election_no_lease_is_asked_for() -> None:
    assert said(replace(WORKS, lease=""), elected=False).startswith("works")


def condition(kind: str, status: str) -> Mapping[str, Any]:
    return {"type": kind, "status": status, "reason": "Because", "lastTransitionTime": "2026-01-01T00:00:00Z"}


async def test_it_reads_the_cluster_until_it_works_or_the_time_is_over() -> None:
    kube = FakeKube()
    kube.put(f"{names.NODES}/n1", {"metadata": {"name": "n1"}, "status": {"conditions": [condition("Ready", "True")]}})
    running = {"containerStatuses": [{"name": "agent", "state": {"running": {}}}]}
    kube.put(names.pod_path("nodedevices-system", "a"), {"metadata": {}, "spec": {"nodeName": "n1"}, "status": running})
    broken = await check(kube, "nodedevices-system", elected=False, seconds=0, pause=0)
    assert broken.sentence == "broken on 1 of 1 nodes: n1: the agent runs and has written no NodeDevices"
    conditions = [condition("Ready", "True"), condition("Stale", "False")]
    status = {"summary": {"devices": 2, "healthy": 1}, "conditions": conditions}
    kube.put(f"{names.NODE_DEVICES}/n1", {"metadata": {"name": "n1"}, "status": status})
    assert (await check(kube, "nodedevices-system", elected=False, seconds=0, pause=0)).works
    assert not (await check(kube, "nodedevices-system", elected=True, seconds=0, pause=0)).works


async def test_to_see_whether_its_lease_is_renewed_only_the_lease_is_read_twice() -> None:
    kube = FakeKube()
    asked: list[str] = []

    def note(_verb: str, path: str) -> None:
        asked.append(path)

    kube.fails = note
    await check(kube, "nodedevices-system", elected=True, seconds=0, pause=0)
    lease = names.lease_path("nodedevices-system")
    assert asked == [lease, names.NODES, names.PODS, names.NODE_DEVICES, lease]
