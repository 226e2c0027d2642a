"""Metrics from rows: the page's Markdown and the plain HELP are one text, and each program counts for itself."""

from __future__ import annotations

import pytest
from nodedevices_common.metrics import Exposition, counter, families, gauge, rows

CALLS = counter("nodedevices_calls_total", "Total [calls](calls.md#all), by result: `granted`, `refused`.", "result")
AGE = gauge("nodedevices_age_seconds", "Time since then.", "kind")


class Metrics(Exposition):
    calls = CALLS
    ready = gauge("nodedevices_ready", "1 while `/readyz` answers ok.")


def test_objects_count_for_themselves_from_the_start_and_their_rows_are_a_table() -> None:
    one, other = Metrics(), Metrics()
    one.calls.labels("granted").inc()
    assert 'nodedevices_calls_total{result="granted"} 1.0' in one.render().decode()
    assert "nodedevices_calls_total{" not in other.render().decode()
    assert "nodedevices_ready 0.0" in Metrics().render().decode()
    assert [row.name for row in rows(vars(Metrics).values())] == ["nodedevices_calls_total", "nodedevices_ready"]


def test_samples_of_one_metric_are_one_family_with_a_value_for_each_label() -> None:
    found = list(families([(AGE, ["pods"], 1), (CALLS, ["granted"], 2), (AGE, ["nodes"], 3)]))
    assert [(each.name, each.type, len(each.samples)) for each in found] == [
        ("nodedevices_age_seconds", "gauge", 2),
        ("nodedevices_calls", "counter", 1),
    ]
    with pytest.raises(ValueError, match="shorter"):
        list(families([(AGE, [], 1)]))
