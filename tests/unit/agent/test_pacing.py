"""When the status is written: never without a change, faults before everything else, no more than the bucket has."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace
from nodedevices_plugin.status.pacing import Situation, Write, WriteBucket, next_write
from support.cases import cases


def status(state: str = "Healthy", reason: str = "", **more: Any) -> dict[str, Any]:
    return {"devices": [{"id": "GPU-1", "health": {"state": state, "reason": reason}}], **more}


SETTLED = Situation(wanted=status(), listed=True, exists=True, owner_known=True, written=status(), written_at=100.0)


def empty_bucket(now: float, *, left: int = 0) -> WriteBucket:
    bucket = WriteBucket(now=now)
    for _ in range(5 - left):
        bucket.take(now)
    return bucket


def test_before_the_heartbeat_nothing_is_due_unless_the_object_is_not_there() -> None:
    step = next_write(SETTLED, WriteBucket(now=100.0), 130.0)
    assert step == (Write.HEARTBEAT, 270.0)
    assert next_write(replace(SETTLED, listed=False), WriteBucket(now=0.0), 0.0)[0] is Write.NOTHING
    step = next_write(replace(SETTLED, exists=False), WriteBucket(now=0.0), 0.0)
    assert step == (Write.CREATE, 0.0)


def test_who_owns_an_object_is_asked_before_it_is_written_and_every_ten_seconds_while_it_vanishes() -> None:
    situation = replace(SETTLED, exists=False, may_create=False)
    assert next_write(situation, WriteBucket(now=0.0), 0.0)[0] is Write.NOTHING
    assert next_write(replace(SETTLED, owner_wrong=True), WriteBucket(now=0.0), 0.0)[0] is Write.CREATE
    assert next_write(replace(SETTLED, owner_known=False), WriteBucket(now=0.0), 0.0)[0] is Write.OWNER
    nothing_to_create = replace(SETTLED, exists=False, may_create=False, owner_known=False)
    assert next_write(nothing_to_create, WriteBucket(now=0.0), 0.0)[0] is Write.NOTHING
    vanished = replace(SETTLED, exists=False, recreations=4, created_at=100.0, owner_read_at=100.0)
    step = next_write(vanished, WriteBucket(now=100.0), 103.0)
    assert step == (Write.OWNER, 7.0)
    step = next_write(replace(vanished, owner_read_at=215.0), WriteBucket(now=100.0), 218.0)
    assert step == (Write.CREATE, 2.0)


@cases(
    ("wanted", "cause"),
    (status("Unhealthy", "Xid79"), Write.DEVICE),
    (status("Unhealthy", "Missing"), Write.DEVICE),
    ({"devices": []}, Write.DEVICE),
    (status(resources=[{"name": "nvidia.com/gpu", "allocated": 1}]), Write.CHANGE),
)
def test_a_change_is_written_now_and_says_why(wanted: dict[str, Any], cause: Write) -> None:
    step = next_write(replace(SETTLED, wanted=wanted), WriteBucket(now=100.0), 101.0)
    assert step == (cause, 0.0)


def test_the_last_token_is_for_a_devices_change_of_state() -> None:
    bucket = empty_bucket(100.0, left=1)
    holders = next_write(replace(SETTLED, wanted=status(other=1)), bucket, 100.0)
    fault = next_write(replace(SETTLED, wanted=status("Unhealthy", "Xid79", other=1)), bucket, 100.0)
    assert holders[1] == pytest.approx(5.0)
    assert fault[1] == 0.0


def test_a_partitions_state_is_a_devices_change() -> None:
    part = {"id": "MIG-1", "parent": "gpu-1", "health": {"state": "Unhealthy", "reason": "Xid94"}}
    wanted = {"devices": [*status()["devices"], part]}
    assert next_write(replace(SETTLED, wanted=wanted), WriteBucket(now=0.0), 101.0)[0] is Write.DEVICE


def test_fields_changed_by_somebody_else_are_set_again_but_not_in_a_fight() -> None:
    first = next_write(replace(SETTLED, drifted=True), WriteBucket(now=100.0), 101.0)
    again = next_write(replace(SETTLED, drifted=True, repaired_at=100.0), WriteBucket(now=100.0), 101.0)
    assert first == (Write.REPAIR, 0.0)
    assert again == (Write.REPAIR, 9.0)


def test_an_object_that_vanishes_again_and_again_is_created_ever_more_rarely() -> None:
    waits = [
        next_write(
            replace(SETTLED, exists=False, created_at=100.0, recreations=recreations), WriteBucket(now=0.0), 100.0
        )[1]
        for recreations in (0, 2, 3, 4, 5, 9)
    ]
    assert waits == [0.0, 0.0, 60.0, 120.0, 240.0, 300.0]


@given(st.lists(st.floats(min_value=0, max_value=20), min_size=1, max_size=200))
def test_no_schedule_gets_more_than_a_burst_and_one_per_five_seconds(gaps: list[float]) -> None:
    now, taken = 0.0, []
    bucket = WriteBucket(now=now)
    for gap in gaps:
        now += gap
        if bucket.wait(now) == 0.0:
            bucket.take(now)
            taken.append(now)
    for first, start in enumerate(taken):
        for last in range(first, len(taken)):
            assert last - first + 1 <= 5 + (taken[last] - start) / 5.0 + 1e-6
