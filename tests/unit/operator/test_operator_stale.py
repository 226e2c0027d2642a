"""Stale: NodeNotReady at once, AgentLost after a minute, HeartbeatOverdue after 15 minutes by our own clock."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given, strategies as st
from nodedevices_operator.desired.conditions import (
    LOST_AFTER_SECONDS,
    OVERDUE_AFTER_SECONDS,
    STOPPED_AFTER_SECONDS,
    Since,
    Staleness,
    judge,
)
from nodedevices_operator.records.objects import HeartbeatArrival, NodeDevicesRecord, NodeRecord
from support.opfacts import GPU, device, node, record, resource

ITEM = record(device(0), device(1))
BRIGHT = node({GPU: 2})
DARK = node({GPU: 2}, allocatable={GPU: 0})


def marked(reason: str, **more: Any) -> NodeDevicesRecord:
    return record(device(0), device(1), conditions={"Stale": ("True", reason)}, **more)


def follow(*looks: tuple[float, NodeDevicesRecord, NodeRecord | None]) -> list[Staleness]:
    """What is said at each look; every heartbeat came just then."""
    arrival, beat, since = HeartbeatArrival(looks[0][0]), looks[0][1].heartbeat, Since()
    said = []
    for now, item, here in looks:
        if item.heartbeat != beat:
            arrival, beat = HeartbeatArrival(now, first=False), item.heartbeat
        answer, since = judge(item, here, arrival=arrival, since=since, now=now)
        said.append(answer)
    return said


def test_a_node_that_is_not_ready_is_stale_at_once_and_rests_then() -> None:
    said = follow((0, ITEM, node({GPU: 2}, ready="Unknown")), (1, ITEM, BRIGHT), (2, ITEM, None))
    assert [it.reason for it in said] == ["NodeNotReady", "Fresh", "NodeNotReady"]
    said = follow((0, ITEM, node({GPU: 2}, ready="Unknown")), (7200, ITEM, node({GPU: 2}, ready="Unknown")))
    assert [it.wait for it in said] == [OVERDUE_AFTER_SECONDS, OVERDUE_AFTER_SECONDS]


def test_an_agent_is_lost_after_a_minute_without_anything_allocatable() -> None:
    said = follow((0, ITEM, DARK), (LOST_AFTER_SECONDS - 1, ITEM, DARK), (LOST_AFTER_SECONDS, ITEM, DARK))
    assert [it.reason for it in said] == ["Fresh", "Fresh", "AgentLost"]
    assert said[0].wait == LOST_AFTER_SECONDS
    assert follow((0, ITEM, DARK), (30, ITEM, BRIGHT), (70, ITEM, DARK))[-1].reason == "Fresh"


def test_nothing_allocatable_is_right_where_nothing_is_served_or_another_plugin_ended() -> None:
    ill = record(device(0, "Unhealthy", "Xid79"), resources=[resource(1, 0)])
    observed = record(device(0), resources=[])
    for item in (ill, observed):
        assert follow((0, item, DARK), (500, item, DARK))[-1].reason == "Fresh"
    # Its names are `managedBy: plugin`, too, and our agent says at its next look that none of them is healthy.
    before, withdrawn = record(device(0), resources=[resource(1, 1)]), record(device(0), resources=[resource(1, 0)])
    assert follow((0, before, DARK), (10, withdrawn, DARK), (500, withdrawn, DARK))[-1].reason == "Fresh"
    assert follow((0, before, DARK), (500, before, DARK))[-1].reason == "AgentLost"
    both = record(device(0), resources=[resource(1, 1), resource(1, 1, name="nvidia.com/mig-1g")])
    half = node({GPU: 1, "nvidia.com/mig-1g": 1}, allocatable={GPU: 0, "nvidia.com/mig-1g": 1})
    assert follow((0, both, half), (500, both, half))[-1].reason == "Fresh"


def test_what_dra_serves_is_never_allocatable_and_what_the_plugin_serves_beside_it_still_counts() -> None:
    by_dra = record(device(0), resources=[resource(1, 1, by="dra")])
    assert follow((0, by_dra, DARK), (500, by_dra, DARK))[-1].reason == "Fresh"
    both = record(device(0), resources=[resource(1, 1), resource(1, 1, name="nvidia.com/mig-1g", by="dra")])
    assert follow((0, both, DARK), (500, both, DARK))[-1].reason == "AgentLost"


def test_a_heartbeat_is_overdue_by_our_own_clock_whatever_the_nodes_says() -> None:
    late = record(device(0), heartbeat="1999-01-01T00:00:00Z")
    said = follow((0, late, BRIGHT), (OVERDUE_AFTER_SECONDS - 1, late, BRIGHT), (OVERDUE_AFTER_SECONDS, late, BRIGHT))
    assert [it.reason for it in said] == ["Fresh", "Fresh", "HeartbeatOverdue"]
    beat = record(device(0), heartbeat="1999-01-01T00:05:00Z")
    assert follow((0, late, BRIGHT), (800, beat, BRIGHT), (1000, beat, BRIGHT))[-1].reason == "Fresh"


def test_a_restarted_operator_keeps_a_verdict_until_there_is_evidence_against_it() -> None:
    overdue = marked("HeartbeatOverdue")
    assert follow((0, overdue, BRIGHT), (10, overdue, BRIGHT))[-1].reason == "HeartbeatOverdue"
    beat = marked("HeartbeatOverdue", heartbeat="2026-11-21T12:30:00Z")
    assert follow((0, overdue, BRIGHT), (10, beat, BRIGHT), (20, beat, BRIGHT))[-1].reason == "Fresh"
    lost = marked("AgentLost")
    assert [it.reason for it in follow((0, lost, DARK), (1, lost, BRIGHT))] == ["AgentLost", "Fresh"]


def stopped(**more: str) -> NodeDevicesRecord:
    said = {"Ready": ("False", "AgentStopped")} | {kind: ("True", reason) for kind, reason in more.items()}
    return record(device(0), device(1), conditions=said)


def test_an_agent_that_said_that_it_was_stopped_is_lost_after_15_seconds_unless_it_came_back() -> None:
    bye = stopped()
    said = follow((0, ITEM, BRIGHT), (1, bye, BRIGHT), (15, bye, DARK), (16, bye, DARK))
    assert [it.reason for it in said] == ["Fresh", "Fresh", "Fresh", "AgentLost"]
    assert said[1].wait == STOPPED_AFTER_SECONDS
    assert said[-1].message == (
        "the agent was stopped and has not come back; check the nodedevices-agent pod on this node"
    )
    said = follow((0, stopped(), BRIGHT), (14, ITEM, BRIGHT), (20, ITEM, BRIGHT), (30, stopped(), BRIGHT))
    assert [it.reason for it in said] == ["Fresh"] * 4
    lost = stopped(Stale="AgentLost")
    said = follow(
        (0, lost, BRIGHT), (OVERDUE_AFTER_SECONDS + 1, lost, BRIGHT), (OVERDUE_AFTER_SECONDS + 2, ITEM, BRIGHT)
    )
    assert [it.reason for it in said] == ["AgentLost", "AgentLost", "HeartbeatOverdue"]


STEPS = st.tuples(st.floats(0.1, 400), st.booleans(), st.booleans(), st.booleans(), st.booleans())


def silence(seconds: float) -> tuple[float, bool, bool, bool, bool]:
    return (seconds, False, True, False, False)


@given(st.lists(STEPS, max_size=20))
@example([silence(242), silence(345), silence(130.5), silence(182)])  # half a second before the heartbeat is overdue
def test_the_next_reconcile_is_in_time_for_the_answers_change(
    steps: list[tuple[float, bool, bool, bool, bool]],
) -> None:
    since = Since()
    arrival = HeartbeatArrival(0.0)
    now, beat = 0.0, 0
    for passed, dark, ready, beats, ends in steps:
        now += passed
        if beats:
            beat += 1
            arrival = HeartbeatArrival(now, first=False)
        ready_said = {"Ready": ("False", "AgentStopped") if ends else ("True", "AgentRunning")}
        item = record(device(0), heartbeat=f"2026-11-21T12:00:{beat % 60:02}Z", conditions=ready_said)
        here = node({GPU: 1}, allocatable={GPU: 0 if dark else 1}, ready="True" if ready else "False")
        said, since = judge(item, here, arrival=arrival, since=since, now=now)
        assert said.wait > 0
        assert (said.status == "True") == (said.reason != "Fresh")
        if ready:
            early, _ = judge(item, here, arrival=arrival, since=since, now=now + said.wait * 0.99)
            assert early.reason == said.reason
