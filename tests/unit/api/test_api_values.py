"""Quantities, versions and what is at work: small pure functions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nodedevices_api import quantity
from nodedevices_api.versions import dra_version


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("1024", 1024),
        ("80Gi", 80 << 30),
        ("81559Mi", 81559 << 20),
        ("1.5Gi", 3 << 29),
        ("1k", 1000),
        ("2M", 2_000_000),
        ("1Ei", 1 << 60),
        ("1E", 10**18),
        ("0.0001k", 1),  # Kubernetes rounds up
        ("999999999999999999Ei", 999999999999999999 << 60),
    ],
)
def test_a_quantity_is_exact_bytes(text: str, count: int) -> None:
    assert quantity.to_bytes(text) == count


@pytest.mark.parametrize("text", ["", "Gi", "-1", "1 Gi", "1gi", "1m", "1e3", "0x10", "1Gi\n", "9" * 40, "1.Gi", "¹Gi"])
def test_what_is_no_quantity_of_memory_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="80Gi"):
        quantity.to_bytes(text)


@given(st.integers(min_value=0, max_value=(1 << 63) - 1))
def test_bytes_survive_being_written(count: int) -> None:
    assert quantity.to_bytes(quantity.from_bytes(count)) == count


def test_bytes_are_written_short() -> None:
    assert quantity.from_bytes(80 << 30) == "80Gi"
    assert quantity.from_bytes(81559 << 20) == "81559Mi"
    assert quantity.from_bytes(0) == "0"
    assert quantity.from_bytes(1001) == "1001"


def test_memory_is_not_negative() -> None:
    with pytest.raises(ValueError, match="not negative"):
        quantity.from_bytes(-1)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("570.148.08", "570.148.8"),
        ("12.8", "12.8.0"),
        ("9", "9.0.0"),
        ("0.0.0", "0.0.0"),
        (" 9.0 ", "9.0.0"),
        ("", None),
        ("1.2.3.4", None),
        ("1..2", None),
        ("570.148.08-open", None),
        ("v1", None),
    ],
)
def test_a_version_takes_dras_form(text: str, version: str | None) -> None:
    assert dra_version(text) == version
