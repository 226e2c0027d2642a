"""Every alert has its test, its runbook and real metrics, and none of these is left over.

tests/alerts has a file for each alert with a case in which it fires and one in which it does not, for promtool. What
they are given as metrics is compared with what agent and operator really expose, so that neither a metric nor a label
can change its name without an alert noticing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace
from nodedevices_plugin.model import HealthState, Registration, RegistrationState
from nodedevices_plugin.pipeline.configuration import ConfigStatus
from nodedevices_plugin.status.facts import NodeFacts
from support import exposed, prometheus_server
from support.exposed import GPU, Samples, verdict
from support.prometheus import METRIC, ROOT, RULES, firing, program, promtool, rules, series
from support.reports import node_facts

TESTS = ROOT / "tests" / "alerts"
RUNBOOKS = ROOT / "docs" / "runbooks"
HEADINGS = ["Since when", "Who is hit", "What to do", "Silence it"]
SERIES = re.compile(r'(\w+)="')
RULES_OF = rules()
needs_promtool = pytest.mark.skipif(program("promtool") is None, reason="no promtool: `make cluster-tools` gets one")


def broken() -> NodeFacts:
    """A node of which everything is to be said that the agent alone can say."""
    made = exposed.facts()
    silent = replace(made.probes[0], inventory=replace(made.inventory, line_time=None))
    return replace(
        made,
        config=ConfigStatus(reason="ConfigInvalid"),
        registrations=(Registration(resource=GPU, state=RegistrationState.REJECTED),),
        probes=(silent,),
    )


def well() -> NodeFacts:
    """A node on which all is as it should be. Its probe's last line is ahead of the test's clock, which begins at 0."""
    made = exposed.facts()
    inventory = replace(made.inventory, devices=tuple(each for each in made.inventory.devices if each.present))
    healthy = {each.fact.id: verdict(HealthState.HEALTHY) for each in inventory.devices}
    probe = replace(made.probes[0], inventory=replace(inventory, line_time=datetime(2026, 11, 21, tzinfo=UTC)))
    return node_facts(made, inventory=inventory, verdicts=healthy, probes=(probe,))


@pytest.fixture(scope="module")
def shown() -> Samples:
    return exposed.agent(broken()) | exposed.operator()


@pytest.fixture(params=sorted(RULES_OF))
def alert(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def cases(alert: str) -> list[dict[str, Any]]:
    document = yaml.safe_load((TESTS / f"{alert}.yaml").read_text())
    assert (TESTS / document["rule_files"][0]).resolve() == RULES
    found: list[dict[str, Any]] = document["tests"]
    return found


def test_each_alert_has_a_test_and_a_runbook_and_none_is_left_over() -> None:
    assert {file.stem for file in TESTS.iterdir()} == set(RULES_OF)
    assert {page.stem for page in RUNBOOKS.iterdir()} == set(RULES_OF)
    page = (ROOT / "docs" / "alerts.md").read_text()
    listed = re.findall(r"^\| \[(\w+)\]\(runbooks/(\w+)\.md\) \| (\w+) \| (\w+) \|", page, re.MULTILINE)
    assert sorted(listed) == sorted(
        (name, name, rule["labels"]["severity"], rule["for"]) for name, rule in RULES_OF.items()
    )


def test_an_alert_says_how_bad_it_is_what_is_the_matter_and_where_to_read_on(alert: str) -> None:
    rule = RULES_OF[alert]
    assert alert.startswith("NodeDevices")
    assert rule["labels"] in ({"severity": "warning"}, {"severity": "critical"})
    assert re.fullmatch(r"\d+m", rule["for"])
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    assert rule["annotations"]["runbook_url"].endswith(f"/runbooks/{alert}.md")


def test_a_runbook_says_since_when_who_is_hit_what_to_do_and_how_to_silence_it(alert: str) -> None:
    page = (RUNBOOKS / f"{alert}.md").read_text()
    assert page.startswith(f"# {alert}\n")
    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == HEADINGS


def test_an_alert_is_tested_firing_and_silent(alert: str) -> None:
    ends = [
        [bool(check["exp_alerts"]) for check in case["alert_rule_test"] if check["alertname"] == alert]
        for case in cases(alert)
    ]
    assert any(any(each) for each in ends), "a case in which it fires"
    assert any(not any(each) for each in ends), "a case in which it does not"


def test_an_alert_reads_metrics_that_are_exposed(alert: str, shown: Samples) -> None:
    rule = RULES_OF[alert]
    read = set(METRIC.findall(rule["expr"]))
    assert read
    assert (read | set(METRIC.findall(rule["annotations"]["description"]))) <= set(shown)


def test_the_tests_of_an_alert_have_the_labels_that_are_exposed(alert: str, shown: Samples) -> None:
    for case in cases(alert):
        for text in (each["series"] for each in case["input_series"]):
            name, labels = text.partition("{")[0], set(SERIES.findall(text))
            of_the_scrape = [set(), {"pod"}] if name.startswith("nodedevices_operator_") else [{"node"}]
            [real] = {frozenset(key for key, _ in labels) for labels in shown[name]}
            assert labels in [real | each for each in of_the_scrape], text


@needs_promtool
@pytest.mark.parametrize("text", [exposed.agent_text, exposed.operator_text])
def test_metrics_are_named_and_explained_as_prometheus_requires(text: Callable[[], str]) -> None:
    assert promtool("check", "metrics", stdin=text()) == ""


@needs_promtool
def test_prometheus_takes_what_users_scrape_with(tmp_path: Path) -> None:
    """But for the discovery, which Debian's promtool does not know."""
    file = tmp_path / "prometheus.yml"
    jobs = [prometheus_server.service_job(tmp_path), *prometheus_server.pod_jobs(tmp_path)]
    file.write_text(yaml.safe_dump({"scrape_configs": jobs}))
    promtool("check", "config", str(file))


@needs_promtool
def test_every_alert_fires_when_it_should_and_else_is_silent(tmp_path: Path) -> None:
    """By its own rule alone: with all the others, what takes days takes long."""
    promtool("check", "rules", str(RULES))
    for file in TESTS.iterdir():
        text = file.read_text()
        rules_of = [RULES_OF[name] for name in sorted(set(re.findall(r"alertname: (\w+)", text)))]
        (own := tmp_path / f"{file.stem}.rules").write_text(
            yaml.safe_dump({"groups": [{"name": "own", "rules": rules_of}]})
        )
        (tmp_path / file.name).write_text(re.sub(r"(?<=^rule_files: ).*", f"[{own}]", text))
    promtool("test", "rules", *map(str, sorted(tmp_path.glob("*.yaml"))))


@needs_promtool
def test_what_a_broken_node_really_exposes_fires_its_alerts(tmp_path: Path) -> None:
    given = [*series(exposed.agent(broken()), node="n1"), *series(exposed.operator())]
    expected = {
        "NodeDevicesDeviceUnhealthy": 3,  # one of them by the operator alone
        "NodeDevicesUnhealthyDeviceHeld": 2,  # one of them by the operator alone
        "NodeDevicesDeviceLost": 3,
        "NodeDevicesHealthProbeStalled": 1,
        "NodeDevicesPluginNotRegistered": 1,
        "NodeDevicesConfigRejected": 1,
        "NodeDevicesCapacityNotSynced": 1,
        "NodeDevicesAgentStale": 1,
        "NodeDevicesOperatorDown": 1,
    }
    firing(tmp_path, given, expected)


@needs_promtool
def test_what_a_well_node_really_exposes_fires_nothing(tmp_path: Path) -> None:
    operator: Samples = {**exposed.operator({}), "nodedevices_operator_ready": {(): 1.0}}
    firing(tmp_path, [*series(exposed.agent(well()), node="n1"), *series(operator)], {})
