"""Metrics from rows: the page's Markdown and the plain HELP are one text, and each program counts for itself."""

from __future__ import annotations

import pytest
from nodedevices_common.metrics import Exposition, counter, families, gauge, rows

CALLS = counter("nodedevices_calls_total", "Total [calls](calls.md#all), by result: `granted`, `refused`.", "result")
AGE = gauge("nodedevices_age_seconds", "Time since then.", "kind")


class Metrics(Exposition):
    calls = CALLS
    ready = gauge("nodedevices_ready", "1 while `/readyz` answers ok.")


def test_each_object_counts_for_itself() -> None:
    one, other = Metrics(), Metrics()
    one.calls.labels("granted").inc()
    assert 'nodedevices_calls_total{result="granted"} 1.0' in one.render().decode()
    assert "nodedevices_calls_total{" not in other.render().decode()


def test_a_metric_is_shown_before_anything_has_happened() -> None:
    assert "nodedevices_ready 0.0" in Metrics().render().decode()


def test_the_rows_of_a_class_are_a_table_by_name() -> None:
    assert [row.name for row in rows(vars(Metrics).values())] == ["nodedevices_calls_total", "nodedevices_ready"]


def test_samples_of_one_metric_are_one_family_in_whatever_order_they_come() -> None:
    found = list(families([(AGE, ["pods"], 1), (CALLS, ["granted"], 2), (AGE, ["nodes"], 3)]))
    assert [(each.name, each.type, len(each.samples)) for each in found] == [
        ("nodedevices_age_seconds", "gauge", 2),
        ("nodedevices_calls", "counter", 1),
    ]


def test_a_sample_without_a_value_for_each_label_is_a_bug_that_shows() -> None:
    with pytest.raises(ValueError, match="shorter"):
        list(families([(AGE, [], 1)]))
