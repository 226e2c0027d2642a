"""The dashboards are of metrics and labels that there are, and kubectl and Grafana's sidecar can take them.

That their files are what their description makes is `make gen-check`; that their queries have answers is
tests/integration/test_dashboards.py.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from dashboards import grafana, promql
from dashboards.description import CLUSTER, Board, Kind, Variable, lines
from dashboards.files import BOARDS, path
from support.cases import cases
from support.prometheus import rules
from support.repository import ROOT

COMPONENT = ROOT / "manifests" / "components" / "prometheus"
OF_APPLY = 262144  # bytes of an object's annotations; kubectl apply writes the whole object there
BY = re.compile(r"\b(?:by|on|group_left|group_right) \(([^)]*)\)")
OF_SCRAPE = {"cluster", "node", "job", "instance", "le"}
OF_ALERTS = {"alertname", "severity", "index", "namespace", "pod"}
NODE = Variable("node", "Node", "")


@pytest.fixture(params=BOARDS, ids=lambda board: board.name)
def board(request: pytest.FixtureRequest) -> Board:
    found: Board = request.param
    return found


@pytest.fixture
def made(board: Board) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / path(board)).read_text())
    return found


def panels(made: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in made["panels"] if panel["type"] != "row"]


def test_every_file_is_a_config_map_of_the_component_that_kubectl_can_apply() -> None:
    component = yaml.safe_load((COMPONENT / "kustomization.yaml").read_text())
    listed = {each["name"]: each["files"] for each in component["configMapGenerator"]}
    assert listed == {f"nodedevices-dashboard-{one.name}": [path(one).name] for one in BOARDS}
    assert {file.name for file in COMPONENT.glob("*.json")} == {path(one).name for one in BOARDS}
    for one in BOARDS:
        text = (ROOT / path(one)).read_text()
        assert len(json.dumps(text)) < OF_APPLY / 2, one.name


def test_every_panel_has_a_title_a_description_a_unit_and_the_chosen_data_source(made: dict[str, Any]) -> None:
    titles = [panel["title"] for panel in panels(made)]
    assert len({*titles}) == len(titles)
    for panel in panels(made):
        assert panel["type"] in set(Kind)
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        for user in (panel, *panel["targets"]):
            assert user["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, panel["title"]
        letters = [target["refId"] for target in panel["targets"]]
        assert len({*letters}) == len(letters)


def test_a_board_is_found_by_others_and_changed_in_its_description_alone(made: dict[str, Any], board: Board) -> None:
    assert (made["uid"], made["tags"], made["editable"]) == (board.uid, ["nodedevices"], False)
    assert [link["tags"] for link in made["links"]] == [["nodedevices"]]
    assert [each["name"] for each in made["templating"]["list"]] == [
        "datasource",
        *(one.name for one in board.variables),
    ]
    assert "id" not in made, "Grafana gives it"


def test_a_link_leads_to_a_board_and_its_variable_or_an_alerts_runbook() -> None:
    known = {one.uid: {variable.name for variable in one.variables} for one in BOARDS}
    for url in grafana.LINKED.values():
        uid, variable = re.search(r"/d/([\w-]+)\?", url), re.search(r"&var-(\w+)=", url)
        assert uid is not None
        assert variable is not None
        assert variable[1] in known[uid[1]]
    linked = {alert for board in BOARDS for panel in board.panels for alert in panel.alerts}
    assert linked <= set(rules())


def test_queries_take_labels_that_their_metrics_have(board: Board) -> None:
    for panel in board.panels:
        for query in panel.queries:
            names = promql.metrics(query.expr)
            known = set().union(*map(promql.labels, names), OF_SCRAPE, OF_ALERTS if "ALERTS" in query.expr else ())
            used = {label.strip() for found in BY.findall(query.expr) for label in found.split(",") if label.strip()}
            assert used <= known, panel.title


def test_a_metric_that_no_row_describes_is_an_error() -> None:
    board = Board(name="x", title="", about="", rows={"": (lines("", "", {"": "sum(nodedevices_device)"}),)})
    with pytest.raises(KeyError, match="nodedevices_device"):
        promql.queries(board)


@cases(
    ("query", "scoped"),
    ("nodedevices_holders_known", 'nodedevices_holders_known{cluster=~"$cluster", node="$node"}'),
    ("nodedevices_operator_leader", 'nodedevices_operator_leader{cluster=~"$cluster"}'),
    (
        'sum(nodedevices_operator_node_problem{reason="AgentLost"})',
        'sum(nodedevices_operator_node_problem{cluster=~"$cluster", node="$node", reason="AgentLost"})',
    ),
    (
        "rate(nodedevices_step_seconds_bucket[5m])",
        'rate(nodedevices_step_seconds_bucket{cluster=~"$cluster", node="$node"}[5m])',
    ),
    ids=["of an agent", "of the operator", "of the operator about a node", "a histogram"],
)
def test_a_query_is_narrowed_by_what_its_metrics_have_labels_for(query: str, scoped: str) -> None:
    assert promql.scoped(query, (CLUSTER, NODE)) == scoped


def test_the_first_columns_of_a_table_are_its_labels_and_then_its_values() -> None:
    columns = {
        panel["title"]: panel["transformations"][-1]["options"]
        for panel in panels(json.loads(grafana.text(BOARDS[0])))
        if panel["type"] == "table"
    }
    found = columns["Devices by model"]
    assert [
        found["renameByName"][name] for name in sorted(found["indexByName"], key=found["indexByName"].__getitem__)
    ] == [*("Vendor", "Model", "Devices", "Healthy", "Held", "Free")]
    assert "Value" in columns["Node problems"]["excludeByName"]
