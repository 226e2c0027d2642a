"""The limits of `make bench`: what is above one is named, and a limit of what is not measured too."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks import limits  # noqa: E402 - of the repository's root, which a plain pytest does not search
from benchmarks.table import Row  # noqa: E402

PARTS = [path.stem for path in sorted((ROOT / "benchmarks").glob("*.py"))]  # each part is a module
ROWS = [
    Row(what="Allocate, p50", measured=2.0, unit="ms", floor=1.0),
    Row(what="a list's size", measured=7.0, unit="KiB"),
]


def test_a_row_above_its_limit_is_named_with_its_part_and_limits_are_of_parts_that_there_are() -> None:
    assert limits.over(ROWS, {"Allocate, p50": 1.5}) == {"Allocate, p50": "2.0 times its floor, and 1.5 are allowed"}
    assert not limits.over(ROWS, {"Allocate, p50": 2})
    # `CPU` is in many places of a table.
    starts = [
        Row(what=f"{each} starts", measured=1.0, unit="s", floor=1.0) for each in ("one container", "two containers")
    ]
    rows = [starts[0], Row(what="  CPU", measured=2.0, unit="s", floor=1.0), starts[1]]
    rows.append(Row(what="  CPU", measured=9.0, unit="s", floor=1.0))
    allowed = {"one container starts; CPU": 3, "two containers starts; CPU": 3}
    assert limits.over(rows, allowed).keys() == {"two containers starts; CPU"}
    assert {"allocate", "listing"} <= limits.read(PARTS).keys()


@pytest.mark.parametrize("what", ["Allocate, p50, as it was called before", "a list's size"])
def test_a_limit_of_what_has_no_ratio_is_named(what: str) -> None:
    assert limits.over(ROWS, {what: 3}) == {what: "was not measured, or has no floor"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("alocate: {Allocate: 3}", "no part 'alocate'; there are __main__, allocate"),
        ("allocate: {Allocate: fast}", "allocate: Allocate: 'fast' is not allowed; give a number above 0"),
        ("allocate: {Allocate: 0}", "allocate: Allocate: 0 is not allowed"),
    ],
)
def test_a_file_that_limits_nothing_is_refused(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "thresholds.yaml"
    path.write_text(text)
    with pytest.raises(limits.LimitsError, match=said):
        limits.read(PARTS, path)
