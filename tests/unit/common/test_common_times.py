"""Times as Kubernetes writes them."""

from __future__ import annotations

from datetime import UTC, datetime

from nodedevices_common.times import seconds_between, zoned_time
from support.cases import cases

NOON = "2026-11-21T12:00:00Z"


@cases("value", NOON, "2026-11-21T12:00:00.000000Z", "2026-11-21T13:00:00+01:00")
def test_a_time_with_a_zone_is_read(value: str) -> None:
    assert zoned_time(value) == datetime(2026, 11, 21, 12, tzinfo=UTC)


@cases("value", "", "soon", "2026-11-21", "2026-11-21T12:00:00", None, 1763726400, {})
def test_what_is_no_time_with_a_zone_reads_as_none(value: object) -> None:
    assert zoned_time(value) is None
    assert seconds_between(value, NOON) is None
    assert seconds_between(NOON, value) is None


def test_the_seconds_between_two_times_are_negative_where_the_end_comes_first() -> None:
    assert seconds_between(NOON, "2026-11-21T12:01:00Z") == 60
    assert seconds_between("2026-11-21T12:01:00Z", NOON) == -60
