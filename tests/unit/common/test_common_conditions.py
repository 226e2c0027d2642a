"""How a condition moves on, and when it need not be written."""

from __future__ import annotations

from dataclasses import replace

from nodedevices_common.conditions import MESSAGE_LIMIT, ConditionRecord, build, read, same
from support.cases import cases

EARLIER, NOW = "2026-11-21T10:00:00Z", "2026-11-21T11:00:00Z"
SHOWN = ConditionRecord(type="Ready", status="True", reason="Fine", message="all is well", since=EARLIER, generation=3)


def test_the_transition_time_moves_only_with_the_status() -> None:
    assert build("Ready", "True", "Other", "else", shown=SHOWN, now=NOW)["lastTransitionTime"] == EARLIER
    assert build("Ready", "False", "Fine", "all is well", shown=SHOWN, now=NOW)["lastTransitionTime"] == NOW
    assert build("Ready", "True", "Fine", "", shown=None, now=NOW)["lastTransitionTime"] == NOW
    other = replace(SHOWN, type="Stale")
    assert build("Ready", "True", "Fine", "", shown=other, now=NOW)["lastTransitionTime"] == NOW
    timeless = replace(SHOWN, since="")
    assert build("Ready", "True", "Fine", "", shown=timeless, now=NOW)["lastTransitionTime"] == NOW


def test_a_message_is_cut_to_what_the_server_takes_and_what_is_written_is_read_as_the_same() -> None:
    message = build("Ready", "True", "Fine", "x" * 5000, shown=None, now=NOW)["message"]
    assert len(message) == MESSAGE_LIMIT
    assert message.endswith("…")
    written = build("Ready", "True", "Fine", "all is well", shown=SHOWN, now=NOW, generation=3)
    assert read(written) == SHOWN
    assert same(read(written), written)
    assert "observedGeneration" not in build("Ready", "True", "Fine", "", shown=None, now=NOW)


@cases("key", "status", "reason", "message", "observedGeneration")
def test_a_difference_in_anything_but_time_is_worth_a_write(key: str) -> None:
    wanted = build("Ready", "True", "Fine", "all is well", shown=None, now=NOW, generation=3)
    assert same(SHOWN, wanted)
    assert not same(SHOWN, wanted | {key: 4 if key == "observedGeneration" else "Unknown"})


def test_none_is_the_same_as_none_alone_and_somebody_elses_is_read_as_it_is() -> None:
    assert same(None, None)
    assert not same(SHOWN, None)
    assert not same(None, build("Ready", "True", "Fine", "", shown=None, now=NOW))
    assert read({"type": "Ready", "status": None, "observedGeneration": "three"}) == ConditionRecord("Ready", "")
