"""What is read of the node's own NodeDevices: whatever is not of the right type counts as absent."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from nodedevices_plugin.inputs.cluster import MAX_UNSCHEDULABLE, seen_object
from nodedevices_plugin.model import Cordon
from support.cases import cases


def cordons(*entries: Any) -> tuple[Cordon, ...]:
    return seen_object({"metadata": {}, "spec": {"unschedulable": list(entries)}}).unschedulable


def test_what_people_took_out_of_service_has_its_reason_and_its_end() -> None:
    said = {"by": "me", "since": "2026-11-01T00:00:00Z"}
    assert cordons({"id": "GPU-1", "reason": "RMA"} | said) == (
        Cordon(id="GPU-1", reason="RMA", by="me", since=datetime(2026, 11, 1, tzinfo=UTC)),
    )
    assert cordons({"id": "GPU-1", "reason": "RMA 4711", "until": "2026-12-01T00:00:00Z"}) == (
        Cordon(id="GPU-1", reason="RMA 4711", until=datetime(2026, 12, 1, tzinfo=UTC)),
    )


@cases("until", None, "", "tomorrow", "2026-12-01T00:00:00", 7)
def test_an_end_that_is_no_time_leaves_the_device_out_of_service(until: object) -> None:
    assert cordons({"id": "GPU-1", "reason": "r", "until": until}) == (Cordon(id="GPU-1", reason="r"),)


def test_odd_entries_are_left_out_and_no_more_are_read_than_the_contract_has() -> None:
    assert cordons("GPU-1", {"reason": "r"}, None) == ()
    assert seen_object({"spec": {"unschedulable": "all"}}).unschedulable == ()
    assert len(cordons(*({"id": f"GPU-{number}"} for number in range(200)))) == MAX_UNSCHEDULABLE
