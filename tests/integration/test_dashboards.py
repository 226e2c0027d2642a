"""The dashboards on a real Prometheus that scrapes real agents and a real operator: no panel is empty.

Each of our two ways to scrape is a cluster of its own there, so that the choice of a cluster is made, too.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest
from dashboards.answers import ALL, Answer, Asker
from dashboards.description import Board, Kind
from dashboards.files import BOARDS
from dashboards.grafana import HIDDEN
from support import dashboard_scene
from support.dashboard_scene import JOBS, NAMESPACE, OTHERS, SERVING, TRAINING, WAYS
from support.direct import reach
from support.kubectl import Kubectl
from support.operatorprocess import OperatorProcess
from support.prometheus import program
from support.prometheus_server import Server

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(program("prometheus") is None, reason="no prometheus: `make cluster-tools` gets one"),
]

# Queries that need no answer here, by panel and name: no policy has a node that waits, a device that is not used is
# shown after a minute at the earliest, and nothing failed, but what a busy machine made late.
NOTHING = {
    ("Held, and not used", "{{namespace}}"),
    ("Held, and not used", "{{pod}} {{node}}/{{index}} {{idle}}"),
    ("Policies", "Waiting"),
    ("Errors of agents", "API server {{status}}"),
    ("Errors of agents", "probe server {{request}}"),
    ("Errors of agents", "configuration of {{source}}"),
    ("Errors of the operator", "refused {{concern}} {{code}}"),
    ("Errors of the operator", "{{concern}} {{result}}"),
    ("Errors of the operator", "missed {{kind}}"),
}


@pytest.fixture(scope="module")
def scene(
    admin: Kubectl, _operator: OperatorProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, float, float]]:
    """Prometheus, since when, until when."""
    try:
        with dashboard_scene.played(admin, _operator, tmp_path_factory.mktemp("scene")) as (prometheus, began):
            yield prometheus, began, time.time()
    finally:
        direct = reach(admin.kubeconfig, "node")
        assert direct is not None
        direct.clear()


@pytest.fixture(params=[*WAYS, ALL], ids=[*WAYS, "all"])
def askers(scene: tuple[Server, float, float], request: pytest.FixtureRequest) -> list[Asker]:
    """One for each node and the namespace whose pods are there."""
    prometheus, began, ended = scene
    return [
        Asker(prometheus, {"cluster": request.param, "node": node, "namespace": namespace, "pod": ALL}, began, ended)
        for node, namespace in ((TRAINING, NAMESPACE), (SERVING, OTHERS))
    ]


@pytest.fixture(params=BOARDS, ids=lambda board: board.name)
def board(request: pytest.FixtureRequest) -> Board:
    found: Board = request.param
    return found


@pytest.fixture
def answers(askers: list[Asker], board: Board) -> list[Answer]:
    return [answer for asker in askers for answer in asker.board(board)]


def test_every_query_has_an_answer_but_those_for_what_did_not_happen(board: Board, answers: list[Answer]) -> None:
    asked = {place(each) for each in answers}
    answered = {place(each) for each in answers if any(each.series.values())}
    assert asked - answered <= NOTHING
    assert {title for title, _ in asked - answered} <= {panel.title for panel in board.panels if panel.empty}


def test_what_needs_no_answer_is_a_query_of_ours() -> None:
    there = {
        (panel.title, each.name or each.expr) for board in BOARDS for panel in board.panels for each in panel.queries
    }
    assert there >= NOTHING


def place(answer: Answer) -> tuple[str, str]:
    return answer.panel.title, answer.query.name or answer.query.expr


def test_a_table_has_a_value_in_each_of_its_columns_and_no_other_column(board: Board, answers: list[Answer]) -> None:
    for panel in (each for each in board.panels if each.kind is Kind.TABLE):
        series = [labels for each in answers if each.panel is panel for labels in each.series]
        found = {label for labels in series for label, _ in labels}
        assert found >= set(panel.labels), panel.title
        assert found <= {*panel.labels, *HIDDEN}, panel.title


def test_a_series_has_the_labels_that_its_name_is_made_of(answers: list[Answer]) -> None:
    for each in answers:
        for labels in each.series if each.panel.kind in {Kind.LINES, Kind.TIMELINE} else ():
            assert set(re.findall(r"{{(\w+)}}", each.query.name)) <= {label for label, _ in labels}, each.panel.title


def test_what_can_be_chosen_is_what_there_is(askers: list[Asker], board: Board) -> None:
    there = {
        "cluster": set(WAYS),
        "node": {TRAINING, SERVING},
        "namespace": {NAMESPACE, OTHERS},
        "pod": {*JOBS, "small-0", "small-1"},
    }
    for variable in board.variables:
        found = {choice for asker in askers for choice in asker.choices(board, variable)}
        assert found == there[variable.name], variable.name
