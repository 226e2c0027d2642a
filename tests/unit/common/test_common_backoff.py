"""Waits between attempts: they grow, they differ between nodes, they have a bound."""

from __future__ import annotations

from hypothesis import given, strategies as st
from nodedevices_common.backoff import Backoff
from support.cases import cases


def longest(low: float, high: float) -> float:
    return high


def shortest(low: float, high: float) -> float:
    return low


@cases(("failures", "seconds"), (1, 0.5), (2, 1.0), (3, 2.0), (6, 16.0), (7, 30.0), (10_000, 30.0))
def test_a_wait_doubles_with_every_failure_up_to_its_bound(failures: int, seconds: float) -> None:
    assert Backoff(initial_seconds=0.5, max_seconds=30.0).after(failures, longest) == seconds


def test_jitter_takes_away_at_most_its_part_and_two_nodes_do_not_wait_alike() -> None:
    backoff = Backoff(initial_seconds=10.0, max_seconds=60.0, jitter=0.2)
    assert backoff.after(1, shortest) == 8.0
    assert backoff.after(9, shortest) == 48.0
    assert Backoff(initial_seconds=10.0, max_seconds=60.0, jitter=0.0).after(3, shortest) == 40.0
    backoff = Backoff(initial_seconds=1.0, max_seconds=30.0)
    assert len({backoff.after(3) for _ in range(10)}) > 1


def test_what_a_server_asks_for_is_waited_for_and_a_little_longer() -> None:
    backoff = Backoff(initial_seconds=1.0, max_seconds=30.0)
    assert backoff.after(1, shortest, at_least=10.0) == 10.0
    assert backoff.after(1, longest, at_least=10.0) == 12.0
    assert backoff.after(9, longest, at_least=10.0) == 30.0
    assert backoff.after(1, longest, at_least=None) == 1.0


@given(
    st.floats(min_value=0.01, max_value=100),
    st.floats(min_value=1, max_value=4),
    st.floats(min_value=0, max_value=1),
    st.integers(min_value=0, max_value=100_000),
)
def test_no_wait_is_beyond_its_bound_or_the_one_before(
    initial: float, factor: float, jitter: float, failures: int
) -> None:
    backoff = Backoff(initial_seconds=initial, max_seconds=100.0, factor=factor, jitter=jitter)
    assert 0.0 <= backoff.after(failures) <= 100.0
    assert backoff.after(failures, shortest) <= backoff.after(failures + 1, shortest)
