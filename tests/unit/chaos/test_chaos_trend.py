"""A soak finds a leak however slow, and calls neither warm-up nor a peak one."""

from __future__ import annotations

import pytest
from chaos.trend import FEWEST, Bound, leaks, trend
from support.cases import cases

BOUNDS = {"mib": Bound(2, 0.1)}


def leaking(samples: list[float]) -> bool:
    return bool(leaks({"agent n1 mib": samples}, BOUNDS))


def test_too_few_samples_show_nothing_and_a_slow_leak_is_found() -> None:
    assert leaking([50 + number * 0.1 for number in range(200)])
    assert leaks({"agent n1 mib": [50 + number * 0.1 for number in range(200)]}, BOUNDS) == [
        "agent n1 mib grew from 57.45 to 67.45 in 200 samples"
    ]
    assert trend([1.0] * (FEWEST - 1)) is None
    assert leaks({"agent n1 mib": [float(2**each) for each in range(FEWEST - 1)]}, BOUNDS) == []


@cases(
    "samples",
    pytest.param([50.0] * 200, id="flat"),
    pytest.param([number * 2.0 for number in range(25)] + [50.0] * 175, id="a warm-up"),
    pytest.param([50.0] * 100 + [90.0] * 20 + [50.0] * 80, id="a peak"),
    pytest.param([50.0 + number % 7 for number in range(200)], id="up and down"),
    pytest.param([50.0] * 100 + [54.0] * 100, id="less than its share"),
)
def test_what_is_no_leak_is_not_found(samples: list[float]) -> None:
    assert not leaking(samples)
