"""Quantities, versions and what is at work: small pure functions."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from nodedevices_api.bounds import dra_version
from nodedevices_common import quantity
from support.cases import cases


@cases(
    ("text", "count"),
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
)
def test_a_quantity_is_exact_bytes(text: str, count: int) -> None:
    assert quantity.to_bytes(text) == count


@cases("text", "", "Gi", "-1", "1 Gi", "1gi", "1m", "1e3", "0x10", "1Gi\n", "9" * 40, "1.Gi", "¹Gi")
def test_what_is_no_quantity_of_memory_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="80Gi"):
        quantity.to_bytes(text)


# Cases of TestQuantityParse in k8s.io/apimachinery v0.36.3, pkg/api/resource/quantity_test.go, as Quantity.Value() has
# them: whole units, rounded up.
APIMACHINERY = {
    **dict.fromkeys(["0", "0n", "0u", "0m", "0Ki", "0k", "0Mi", "0M", "0Gi", "0G", "0Ti", "0T"], 0),
    "1": 1,
    "1Ki": 1 << 10,
    "8Ki": 8 << 10,
    "7Mi": 7 << 20,
    "6Gi": 6 << 30,
    "5Ti": 5 << 40,
    "4Pi": 4 << 50,
    "3Ei": 3 << 60,
    "10Ti": 10 << 40,
    "100Ti": 100 << 40,
    "5n": 1,
    "4u": 1,
    "3m": 1,
    "9": 9,
    "8k": 8000,
    "50k": 50_000,
    "7M": 7 * 10**6,
    "6G": 6 * 10**9,
    "5T": 5 * 10**12,
    "40T": 4 * 10**13,
    "300T": 3 * 10**14,
    "2P": 2 * 10**15,
    "1E": 10**18,
    "1E-3": 1,
    "1e3": 1000,
    "1E6": 10**6,
    "1e9": 10**9,
    "1E12": 10**12,
    "1e15": 10**15,
    "1E18": 10**18,
    "1e14": 10**14,
    "1e13": 10**13,
    "100.035k": 100_035,
    **dict.fromkeys(["0.001", "0.0005k", "0.005", "0.05", "0.5", "0.00050k", "0.00500", "0.05000", "0.50000"], 1),
    **dict.fromkeys(["0.5e0", "0.5e-1", "0.5e-2"], 1),
    "10.035M": 10_035_000,
    "1.2e3": 1200,
    "1.3E+6": 1_300_000,
    "1.40e9": 14 * 10**8,
    "1.53E12": 153 * 10**10,
    "1.6e15": 16 * 10**14,
    "1.7E18": 17 * 10**17,
    "9.01": 10,
    "8.1k": 8100,
    "7.123456M": 7_123_456,
    "6.987654321G": 6_987_654_321,
    "5.444T": 5444 * 10**9,
    "40.1T": 401 * 10**11,
    "300.2T": 3002 * 10**11,
    "2.5P": 25 * 10**14,
    "1.01E": 101 * 10**16,
    **dict.fromkeys(["3.001n", "1.1E-9", "0.0000000001", "0.5e-9", "0.9n", "0.00000012345", "0.00000012354"], 1),
    **dict.fromkeys(["9Ei", "9223372036854775807Ki", "12E"], quantity.MAX_UNITS),  # 12E is more than an int64 has
    "100.035Ki": 102_436,
    "0.5Mi": 1 << 19,
    "0.05Gi": 53_687_092,
    "0.025Ti": 27_487_790_695,
    "0.000000000001Ki": 1,
    ".001": 1,
    ".0001k": 1,
    "1.": 1,
    "1.G": 10**9,
}


@cases(("text", "count"), *APIMACHINERY.items())
def test_an_amount_that_the_api_server_takes_counts_as_it_counts_it(text: str, count: int) -> None:
    assert quantity.whole_units(text) == quantity.whole_units(f"+{text}") == count
    assert quantity.whole_units(f"-{text}") == 0


@cases(
    ("value", "count"),
    ("10e3", 10_000),  # as the API server stores 1e4
    ("10E3", 10_000),
    ("10000000m", 10_000),
    (20, 20),
    (-20, 0),
    (1 << 70, quantity.MAX_UNITS),
    ("1e999999999", quantity.MAX_UNITS),
    ("1e-999999999", 1),
    ("0e999999999", 0),
)
def test_an_amount_may_be_written_in_any_way(value: object, count: int) -> None:
    assert quantity.whole_units(value) == count


@cases(
    "same", ("1024Mi", "1Gi", "1073741824"), ("1e4", "10e3", "10k", "10000000m"), ("0.5", ".5", "500m"), ("0", "-0Ki")
)
def test_one_amount_is_the_same_however_it_is_written(same: tuple[str, ...]) -> None:
    assert len({quantity.exact(text) for text in same}) == 1
    assert quantity.exact(same[0]) not in {None, quantity.exact("7"), quantity.exact(f"-{same[0]}1")}


# With the invalid cases of the same test.
@cases(
    "value",
    *(None, True, 1.5, {}, "", "Non-Numeric", "--1", "+-1", "1 Gi", "1gi", "1 ", "\n1", "0x10", "1e", "1ei", "1mi"),
    *("1e3k", "1.1.M", "1+1.0M", "0.1mi", "0.1am", "aoeu", ".5i", "1i", "-3.01i", "-3.01e-", " 1", "²"),
)
def test_what_is_no_amount_counts_as_none(value: object) -> None:
    assert quantity.whole_units(value) == 0
    assert quantity.exact(value) is None


@given(st.integers(min_value=0, max_value=(1 << 63) - 1))
def test_bytes_survive_being_written(count: int) -> None:
    assert quantity.to_bytes(quantity.from_bytes(count)) == count


def test_bytes_are_written_short_and_memory_is_not_negative() -> None:
    assert quantity.from_bytes(80 << 30) == "80Gi"
    assert quantity.from_bytes(81559 << 20) == "81559Mi"
    assert quantity.from_bytes(0) == "0"
    assert quantity.from_bytes(1001) == "1001"
    with pytest.raises(ValueError, match="not negative"):
        quantity.from_bytes(-1)


@cases(
    ("text", "version"),
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
)
def test_a_version_takes_dras_form(text: str, version: str | None) -> None:
    assert dra_version(text) == version
