"""Counters that rise too fast are a fault while they do; what they were before, or rose by unseen, never is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import given, settings, strategies as st
from nodedevices_api.sections import HealthRule
from nodedevices_plugin.health import levels
from nodedevices_plugin.health.rules import SILENCE_SECONDS, HealthRules
from nodedevices_plugin.model import HealthState
from nodedevices_plugin.vendors.faults import CounterLimit, FaultSource
from nodedevices_probe.protocol import DeviceFact, Driver, DriverState, Readings
from support.cases import cases
from support.facts import Story, gpu, gpu_id
from support.fuzzing import scaled

HOLD, WINDOW, LASTING, MOST = 300, 120, 60, 15
WELL, FAST, SLOW, TWO = ("Healthy", ""), ("Degraded", "Fast"), ("Degraded", "Slow"), ("Degraded", "Either")


def limit(reason: str, counter: str = "errors", *, over: int = 2, lasting: float = 0.0) -> CounterLimit:
    return CounterLimit(
        counter=counter,
        limit=over,
        window_seconds=WINDOW,
        for_seconds=lasting,
        most=MOST if counter == "short" else None,
        reason=reason,
        state=HealthState.DEGRADED,
        message=f"more than {over} {counter}",
    )


class Counting(FaultSource):
    reasons: Sequence[str] = ("Fast", "Slow", "Either", "Stops")
    counter_limits: Sequence[CounterLimit] = (
        limit("Fast"),
        limit("Slow", "pauses", lasting=LASTING),
        limit("Either", "drops"),
        limit("Either", "losses"),
        limit("Stops", "short"),
    )


def device(number: int = 0, /, **counters: int) -> DeviceFact:
    return gpu(number, vendor="example", readings=Readings(counters=counters))


def story(*rules: HealthRule) -> Story:
    return Story(HealthRules(rules=rules), {"example": Counting()})


def lasts(told: Story, seconds: float, **counters: int) -> Story:
    """The counters stand still, a line every five seconds."""
    end = told.clock + seconds
    while told.clock < end:
        told.line(device(**counters), at=min(told.clock + 5, end))
    return told


def condition(told: Story, reason: str = "Fast") -> bool | None:
    found = next(each for each in told.inventory.devices if each.fact.id == gpu_id(0))
    every = levels.counter_conditions(found, Counting(), told.counts, monotonic=told.clock)
    return next(each.evident for each in every if each.reason == reason)


# --- what is a fault -------------------------------------------------------------------------------------------------
def test_a_counter_counts_from_its_first_line_and_a_slow_rise_is_none() -> None:
    assert lasts(story(), 2 * WINDOW, errors=1_000_000).says() == WELL
    told = story()
    for errors in range(100):
        assert lasts(told, WINDOW / 2, errors=errors).says() == WELL
    assert lasts(lasts(story(), 10, errors=0), 5, errors=3).says() == FAST


def test_a_counter_that_rose_by_more_than_its_limit_within_the_window_is_one_until_it_has_not() -> None:
    told = lasts(story(), 10, errors=7)
    assert lasts(told, 10, errors=9).says() == WELL, "at the limit"
    verdict = lasts(told, 5, errors=10).verdict()
    assert (told.says(), verdict.offered, verdict.message) == (FAST, True, "more than 2 errors")
    lasts(told, WINDOW - 15, errors=10)
    assert condition(told) is True
    lasts(told, 15, errors=10)
    assert condition(told) is False
    assert "recovering from Fast" in told.verdict().message
    assert lasts(told, HOLD, errors=10).says() == WELL


def test_rises_that_are_counted_together_are_forgotten_no_sooner_than_a_twelfth_of_the_window() -> None:
    told = lasts(story(), 10, errors=0)
    for errors, seconds in enumerate((40, 55, 15), start=1):
        lasts(told, seconds, errors=errors)
    assert condition(told) is True
    lasts(told, 15, errors=3)
    assert condition(told) is False
    lasts(told, 5, errors=4)
    assert condition(told) is True, "it rose after 55, 110 and 140 s"


def test_a_device_has_its_own_counters_and_a_burst_is_forgotten_with_its_window() -> None:
    told = story().line(device(0, errors=0), device(1, errors=0))
    told.line(device(0, errors=9), device(1, errors=0))
    assert (told.says(0), told.says(1)) == (FAST, WELL)
    told = lasts(story(), 10, pauses=0)
    assert lasts(told, 5, pauses=500).says() == WELL
    for pauses in range(501, 501 + LASTING, 5):
        lasts(told, 5, pauses=pauses)
    assert told.says() == SLOW
    told = Story(HealthRules(), {"example": Counting()})
    lasts(told, 10, pauses=0)
    lasts(told, 5, pauses=3)
    assert lasts(told, LASTING / 2, pauses=3).says() == WELL
    assert condition(told, "Slow") is None, "neither evident nor over"


def test_rows_with_the_same_reason_are_one_condition_also_without_one_of_the_counters() -> None:
    told = lasts(story(), 10, drops=0, losses=0)
    assert lasts(told, 5, drops=0, losses=3).says() == TWO
    assert told.verdict().message == "more than 2 losses"
    told = lasts(story(), 10, drops=0)
    assert lasts(told, 5, drops=3).says() == TWO
    lasts(told, WINDOW + 5, drops=3)
    assert condition(told, "Either") is False


@cases(("state", "says"), ("Ignored", WELL), ("Unhealthy", ("Unhealthy", "Fast")))
def test_a_health_rule_may_make_nothing_or_more_of_it(state: str, says: tuple[str, str]) -> None:
    rule = HealthRule.model_validate({"reasons": ["Fast"], "state": state})
    assert lasts(lasts(story(rule), 5, errors=0), 5, errors=9).says() == says


# --- what is not known -----------------------------------------------------------------------------------------------
def test_a_counter_that_was_set_back_begins_anew_and_one_at_its_greatest_value_ends_nothing() -> None:
    told = lasts(lasts(story(), 10, errors=100), 5, errors=200)
    assert told.says() == FAST
    lasts(told, 5, errors=90)
    assert condition(told) is False
    assert lasts(told, 5, errors=92).verdict().message.startswith("recovering from Fast")
    assert lasts(told, 5, errors=93).verdict().message == "more than 2 errors"
    told = lasts(lasts(story(), 10, short=3), 5, short=MOST)
    assert told.says()[1] == "Stops"
    assert lasts(told, WINDOW + HOLD, short=MOST).says()[1] == "Stops"
    lasts(told, 5, short=0)
    assert lasts(told, HOLD, short=0).says() == WELL


@cases("away", "no counter", "no answer", "not listed", "silence", "not loaded", "restart")
def test_what_a_counter_rose_by_while_it_was_not_seen_is_no_fault(away: str) -> None:
    told = lasts(story(), 10, errors=0)
    match away:
        case "no counter":
            told.line(device())
        case "no answer":
            told.line(gpu(0, vendor="example", readings=Readings(counters={"errors": 0}, error="hangs")))
        case "not listed":
            told.line(device(1))
        case "silence":
            told.silence(until=told.clock + SILENCE_SECONDS)
        case "not loaded":
            told.line(driver=Driver(state=DriverState.NOT_LOADED))
        case _:
            told.restart()
    lasts(told, 5, errors=1000)
    assert "Fast" not in {each.reason for each in told.verdict().faults}
    assert lasts(told, 5, errors=1003).says()[1] in {"Fast", "Missing", "ProbeError"}
    assert condition(told) is True, "it is counted from there on"


@cases("away", "no counter", "restart")
def test_a_fault_lasts_until_a_whole_window_is_known_again(away: str) -> None:
    told = lasts(lasts(story(), 10, errors=0), 5, errors=9)
    told = told.restart() if away == "restart" else told.line(device())
    lasts(told, WINDOW - 5, errors=9)
    assert (told.says(), told.verdict().message) == (FAST, "more than 2 errors")
    lasts(told, 10, errors=9)
    assert "recovering" in told.verdict().message


# --- always ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Happening:
    seconds: float
    kind: str
    rise: int


happenings = st.lists(
    st.builds(
        Happening,
        seconds=st.sampled_from([1, 5, 5, 9.5, 14]),
        kind=st.sampled_from(["line"] * 12 + ["set back", "absent", "gone", "silent", "restart"]),
        rise=st.sampled_from([0, 0, 0, 0, 1, 1, 2, 3, 50]),
    ),
    max_size=60,
)


@settings(max_examples=scaled(300), deadline=None)
@given(happenings)
def test_evident_is_what_was_seen_to_rise_by_more_than_the_limit_within_the_window(history: list[Happening]) -> None:
    """`seen`: the rises between two lines that followed each other, which are all that may count."""
    told = story().line(device(errors=5))
    total, known, seen = 5, True, list[tuple[float, int]]()
    for each in history:
        at, before = told.clock + each.seconds, total
        total = each.rise if each.kind == "set back" else total + each.rise
        match each.kind:
            case "absent":
                told.line(device(), at=at)
            case "gone":
                told.line(device(1), at=at)
            case "silent":
                told.silence(until=at + SILENCE_SECONDS)
            case "restart":
                told.restart()
            case _:
                told.line(device(errors=total), at=at).silence(until=at)  # and a step without a line
                seen = [*seen, (at, total - before)] if known and total >= before else []
        known = each.kind in {"line", "set back"}
        if not known:
            continue
        within = sum(rise for when, rise in seen if when > at - WINDOW)
        surely = sum(rise for when, rise in seen if when > at - WINDOW * (1 - 1 / levels.PARTS))
        assert not (condition(told) is True and within <= 2), "a fault that was not seen"
        assert not (condition(told) is not True and surely > 2), "a fault that was missed"
        assert all(len(count.risen) <= levels.PARTS + 1 for count in told.counts.values())
