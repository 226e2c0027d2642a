"""Links in the documentation lead somewhere: files that exist, headings that are there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from nodedevices_api.fields import RecoveryAction
from nodedevices_api.supported import FIELDS_NOT_IMPLEMENTED

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def pages() -> list[Path]:
    files = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted(files)


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = (re.sub(r"[`*]", "", one).lower() for one in HEADING.findall(prose(page)))
    return {re.sub(r"[^\w\- ]", "", one).strip().replace(" ", "-") for one in headings}


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
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


def test_no_page_advises_a_field_that_is_not_at_work() -> None:
    """A policy that sets one is refused. The reference marks them; a page may name one with that word."""
    advised = [
        f"{page.relative_to(ROOT)}: `{span}`"
        for page in pages()
        if page.parent.name != "reference"
        for paragraph in prose(page).split("\n\n")
        for line in (paragraph.splitlines() if paragraph.lstrip().startswith("|") else [" ".join(paragraph.split())])
        for span in re.findall(r"`([^`]+)`", line)
        if any(re.match(rf"(?:spec\.)?{re.escape(field)}\b", span) for field in FIELDS_NOT_IMPLEMENTED)
        and "not implemented" not in line
    ]
    assert advised == []


def test_no_page_names_a_make_target_that_is_not_there() -> None:
    makefiles = [ROOT / "Makefile", ROOT / "tests" / "cluster" / "cluster.mk"]
    targets = {one for file in makefiles for one in re.findall(r"^([a-z][a-z-]*):", file.read_text(), re.MULTILINE)}
    for page in pages():
        named = set(re.findall(r"`make ([a-z-]+)", page.read_text()))
        assert named <= targets, page


def test_the_help_of_every_command_in_the_docs_is_real() -> None:
    """The three commands that the pages speak of start and explain themselves."""
    for command in ("nodedevices-agent", "nodedevices-probe", "nodedevices-operator"):
        done = subprocess.run(
            [Path(sys.executable).with_name(command), "--help"], capture_output=True, text=True, timeout=30, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "usage" in done.stdout.lower()


def test_every_metric_of_the_operator_is_documented_and_no_other() -> None:
    from nodedevices_operator.metrics import Metrics

    exposed = set(re.findall(r"^# HELP (nodedevices_operator_\w+)", Metrics().render().decode(), re.MULTILINE))
    exposed = {name for name in exposed if not name.endswith("_created")}
    documented = re.findall(
        r"^\| `(nodedevices_operator_\w+)`", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE
    )
    assert exposed == set(documented)


def test_every_documented_metric_of_the_agent_stands_in_its_code() -> None:
    code = (ROOT / "plugin" / "nodedevices_plugin" / "status" / "metrics.py").read_text()
    page = (ROOT / "docs" / "metrics.md").read_text()
    documented = set(re.findall(r"^\| `(nodedevices_(?!operator)\w+)`", page, re.MULTILINE))
    written = set(re.findall(r'"(nodedevices_\w+)"', code))
    assert written <= documented
    unexplained = {name for name in documented - written if not name.startswith("nodedevices_probe_")}
    assert not unexplained


def test_every_recovery_action_has_its_advice_on_one_page() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    section = page.partition("## What a recovery action means")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == set(get_args(RecoveryAction))
