"""The pictures of docs/dashboards.md, and what draws them."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from dashboards import svg
from dashboards.answers import Answer
from dashboards.description import Board, Colour, Panel, State, Unit, lines, stat, table, timeline
from dashboards.files import BOARDS
from support.repository import ROOT

MOST_BYTES = 100 * 1024  # of a picture in the repository
PERIOD = (0.0, 60.0)


def words(picture: str) -> list[str]:
    return [each.text or "" for each in ElementTree.fromstring(picture).iter() if each.tag.endswith("text")]


def board(*panels: Panel) -> Board:
    return Board(name="x", title="X", about="About.", rows={"Row": panels})


@pytest.mark.parametrize("name", [each.name for each in BOARDS])
def test_a_board_has_a_picture_that_is_small_and_says_what_drew_it(name: str) -> None:
    text = (ROOT / "docs" / "dashboards" / f"{name}.svg").read_text()
    assert len(text.encode()) < MOST_BYTES
    assert any("not by Grafana" in each for each in words(text))


def test_a_picture_has_the_numbers_and_the_colours_of_the_answers() -> None:
    panel = stat("At fault", ".", "x", above={1.0: Colour.RED})
    drawn = svg.drawn(board(panel), [Answer(panel, panel.queries[0], {(): ((60.0, 3.0),)})], PERIOD)
    assert words(drawn)[-2:] == ["At fault", "3"]
    assert svg.COLOURS[Colour.RED] in drawn


def test_a_panel_without_an_answer_says_why() -> None:
    panel = lines("XIDs", ".", {"": "x"}, empty="the driver reported none")
    assert "the driver reported none" in words(svg.drawn(board(panel), [], PERIOD))


def test_rows_of_several_queries_are_one_where_their_labels_agree() -> None:
    panel = table("Devices", ".", "index model", {"Holders": "y"}, rows=["x"])
    info, holders = panel.queries
    answers = [
        Answer(
            panel, info, {(("index", "10"), ("model", "L4")): ((60.0, 1.0),), (("index", "9"), ("model", "T4")): ()}
        ),
        Answer(panel, holders, {(("index", "9"),): ((60.0, 2.0),)}),
    ]
    shown = words(svg.drawn(board(panel), answers, PERIOD))
    assert shown[shown.index("Index") :] == ["Index", "Model", "Holders", "9", "T4", "2", "10", "L4", ""]


def test_a_timeline_has_a_bar_for_each_time_in_a_state() -> None:
    states = (State(0, "well", Colour.GREEN), State(3, "bad", Colour.RED))
    panel = timeline("Health", ".", "device {{index}}", "x", states)
    points = ((0.0, 0.0), (20.0, 0.0), (40.0, 3.0), (60.0, 3.0))
    drawn = svg.drawn(board(panel), [Answer(panel, panel.queries[0], {(("index", "0"),): points})], PERIOD)
    assert "device 0" in words(drawn)
    bars = [each for each in drawn.splitlines() if each.startswith("<rect") and 'height="3"' not in each]
    assert [svg.COLOURS[Colour.GREEN] in bars[-2], svg.COLOURS[Colour.RED] in bars[-1]] == [True, True]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.5, Unit.SHARE, "50%"),
        (0.0042, Unit.SECONDS, "4.2 ms"),
        (600.0, Unit.SECONDS, "10 min"),
        (3 * 2**30, Unit.BYTES, "3 GiB"),
        (1.98e9, Unit.HERTZ, "1.98 GHz"),
        (0.0, Unit.BYTES, "0"),
    ],
)
def test_a_value_has_its_unit(value: float, unit: Unit, text: str) -> None:
    assert svg.shown(value, unit) == text
