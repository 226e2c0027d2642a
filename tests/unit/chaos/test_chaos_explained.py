"""A warning in a log needs a reason that was there before it."""

from __future__ import annotations

import json

import pytest
from chaos.explained import SECONDS, Done, Line, Row, unexplained
from support.cases import cases

ROWS = (Row("it failed", ("StopApiServer",), ("agent",), more="no answer"),)


def line(
    event: str = "it failed", *, part: str = "agent", at: float = 10, level: str = "warning", error: str = "no answer"
) -> Line:
    return Line(part, "n1", json.dumps({"event": event, "level": level, "error": error}), at)


def loud(one: Line, *done: Done) -> bool:
    return bool(unexplained([one], done, ROWS))


def test_only_what_was_done_before_explains_a_warning_and_a_line_that_is_none_of_ours_is_loud() -> None:
    assert not loud(line(), Done("StopApiServer", 9))
    assert not loud(line(level="info"))
    assert not loud(line(level="debug"))
    assert loud(Line("agent", "n1", "Traceback (most recent call last):", 1))


@cases(
    ("one", "done"),
    pytest.param(line(), [], id="nothing was done"),
    pytest.param(line(), [Done("StopApiServer", 11)], id="done after it"),
    pytest.param(line(at=SECONDS + 10), [Done("StopApiServer", 9)], id="done long before it"),
    pytest.param(line(), [Done("Kill", 9)], id="something else was done"),
    pytest.param(line("it ended"), [Done("StopApiServer", 9)], id="another message"),
    pytest.param(line(part="operator"), [Done("StopApiServer", 9)], id="another part"),
    pytest.param(line(error="forbidden"), [Done("StopApiServer", 9)], id="another error"),
)
def test_otherwise_it_is_not(one: Line, done: list[Done]) -> None:
    assert loud(one, *done)


@cases("why", "Freeze", "StopApiServer", "StartApiServer")
def test_an_operator_whose_lease_ran_out_may_say_that_it_did_not_write(why: str) -> None:
    for event in ("write failed", "event not written"):
        said = line(event, part="operator", error="PATCH /x: not sent, this replica is not the leader")
        assert not unexplained([said], [Done(why, 1)])
        assert unexplained([said], [Done("Kill", 1)])
