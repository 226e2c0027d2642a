"""Links in the documentation lead somewhere: files that exist, headings that are there."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import get_args

import yaml
from msgspec.structs import replace
from nodedevices_api.fields import RecoveryAction
from nodedevices_api.sections import SECTION_NAMES
from nodedevices_kubectl.commands import COMMANDS
from nodedevices_plugin.health import levels
from nodedevices_plugin.model.plan import DraCounters, ProbeCounters
from nodedevices_plugin.pipeline.configuration import ConfigStatus
from nodedevices_plugin.runtime.supervise import Supervisor
from nodedevices_plugin.status import metrics
from nodedevices_plugin.status.samples import TELEMETRY_ROWS
from nodedevices_plugin.vendors.nvidia.faults import read
from nodedevices_probe.protocol import Readings
from prometheus_client import CollectorRegistry
from support.cases import cases
from support.exposed import by_memory, facts
from support.facts import gpu, inventory_of, well
from support.reports import node_facts

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def pages() -> list[Path]:
    files = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "manifests").rglob("*.md")]
    return sorted(files)


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = (re.sub(r"[`*]", "", one).lower() for one in HEADING.findall(prose(page)))
    return {re.sub(r"[^\w\- ]", "", one).strip().replace(" ", "-") for one in headings}


@cases("page", *pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    dead = []
    for link in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            dead.append(link)
    assert not dead


def test_every_page_is_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in seen:
            continue
        seen.add(page)
        for link in LINK.findall(prose(page)):
            name = link.partition("#")[0]
            target = (page.parent / name).resolve()
            if not name:
                continue  # a place on this page
            if target.is_dir():
                waiting += sorted(target.glob("*.md"))
            elif target.suffix == ".md" and target.exists():
                waiting.append(target)
    assert not set(pages()) - seen


def test_a_page_answers_one_question_and_names_only_make_targets_that_there_are() -> None:
    """Two screens; those that are generated of schemas, flags, rows are looked up and not read."""
    generated = {"nodedevices.md", "devicepolicy.md", "flags.md", "metrics.md", "reliability.md", "CHANGELOG.md"}
    words = {page.name: len(page.read_text().split()) for page in pages() if page.name not in generated}
    assert {name: count for name, count in words.items() if count > 2500} == {}
    makefiles = [ROOT / "Makefile", ROOT / "tests" / "cluster" / "cluster.mk"]
    targets = {one for file in makefiles for one in re.findall(r"^([a-z][a-z0-9-]*):", file.read_text(), re.MULTILINE)}
    for page in pages():
        named = set(re.findall(r"`make ([a-z0-9-]+)", page.read_text()))
        assert named <= targets, page


class Parts(Supervisor):
    """A background part that has failed, and a thread."""

    def failures(self) -> dict[str, int]:
        return {"loop": 1}

    def busy(self) -> dict[str, float]:
        return {"files": 0.0}


def exposed(registry: CollectorRegistry) -> set[str]:
    families = [(each.name, each.type) for each in registry.collect()]
    names = {f"{name}_total" if kind == "counter" else name for name, kind in families}
    return {name for name in names if name.startswith("nodedevices_")}


def test_every_metric_that_an_agent_shows_is_on_the_page_and_no_other() -> None:
    """On a node where all is as bad as can be, with every reading, and on one shared by memory. What is on the page is
    generated of these rows."""
    words = {"error", "recovery_action"}
    readings = well(
        **{each.name: 1 for each in fields(Readings) if each.default is None and each.name not in words},
        counters={"symbolError": 1},
    )
    shown = facts(config=ConfigStatus(generation=1))
    devices = (*shown.inventory.devices, *inventory_of(gpu(6, readings=readings)).devices)
    shown = node_facts(shown, inventory=replace(shown.inventory, devices=devices))
    agent = metrics.AgentMetrics(
        facts=lambda: shown, probes=lambda: {"nvml": ProbeCounters()}, parts=Parts(), telemetry=True
    )
    dra = DraCounters(driver="nodedevices.io", prepared=1, slice_writes=1)
    shared = metrics.AgentMetrics(facts=by_memory, probes=dict, dra=lambda: dra)
    names = exposed(agent.registry) | exposed(shared.registry)
    assert names == {row.name for row in (*metrics.ROWS, *TELEMETRY_ROWS)}


def test_every_recovery_action_has_its_advice_and_every_reason_of_a_reading_its_row() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    section = page.partition("## What a recovery action means")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == set(get_args(RecoveryAction))
    page = (ROOT / "docs" / "maintenance.md").read_text()
    rows = page.partition("## Reasons of a device")[2].partition("\n### ")[0]
    assert [
        each for each in (*(each.reason for each in read(Readings())), *levels.REASONS) if f"`{each}`" not in rows
    ] == []


NAMED_TEST = re.compile(r"\[`(test_\w+)`\]\((?:\.\./)+(tests/[\w/]+\.py)\)")


@cases(("page", "least"), ("docs/devices/index.md", 20), ("docs/releases.md", 25))
def test_every_test_that_a_page_names_is_there(page: str, least: int) -> None:
    text = (ROOT / page).read_text()
    named = NAMED_TEST.findall(text)
    assert len(named) == text.count("[`test_") >= least
    lacking = [f"{path}::{name}" for name, path in named if not re.search(rf"def {name}\(", (ROOT / path).read_text())]
    assert not lacking


def test_the_page_of_devices_leads_to_the_page_of_each_kind() -> None:
    folder = ROOT / "docs/devices"
    linked = {(folder / link.partition("#")[0]).resolve() for link in LINK.findall((folder / "index.md").read_text())}
    assert not set(folder.glob("*.md")) - {folder / "index.md"} - linked


def test_what_a_taint_costs_is_said_before_the_first_example_which_taints_for_no_single_device() -> None:
    before, _, example = (ROOT / "docs/faults.md").read_text().partition("    apiVersion:")
    assert "What a taint costs" in before
    faults = yaml.safe_load("    apiVersion:" + example.partition("\n\n")[0])["spec"]["faults"]
    assert "taintEffect" not in faults
    assert [rule.get("recoveryActions") for rule in faults["rules"] if "taintEffect" in rule] == [
        ["RebootNode", "RebootSystem"]
    ]


def test_what_holds_in_observe_is_on_the_readmes_first_screen_with_every_section_and_command() -> None:
    assert "docs/observe.md" in "".join((ROOT / "README.md").read_text().splitlines(keepends=True)[:25])
    page = (ROOT / "docs/observe.md").read_text()
    named = {*SECTION_NAMES, *COMMANDS} - {"nodes", "policy"}  # the first has no word, the second two
    assert {name for name in named if f"`{name}`" not in page} == set()
