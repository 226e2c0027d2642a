"""The rows of docs/reliability.md, from tests/scenarios.yaml: each scenario, its promise and the tests that show it.

On what a test runs follows from its folder, and whether `make test` runs it from its mark, so that no entry can claim
more than its tests do.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import yaml

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "tests" / "scenarios.yaml"
RIGS = {  # by folder, the most real first
    "tests/e2e/": "cluster",
    "tests/integration/": "API server",
    "tests/agent/": "stand-in kubelet",
    "tests/nvml/": "stand-in driver",
    "tests/programs/": "process",
    "tests/unit/": "pure",
}
REAL = ("cluster", "API server")
LONG = "pytest.mark.long"


@dataclass(frozen=True)
class NamedTest:
    path: str
    name: str

    @property
    def rig(self) -> str:
        return next(rig for folder, rig in RIGS.items() if self.path.startswith(folder))

    @property
    def long(self) -> bool:
        """True when `make test` leaves it out."""
        marked = marked_long(self.path)
        return "" in marked or self.name.partition("::")[0] in marked

    @property
    def link(self) -> str:
        suite = "†" if self.long else ""  # only in `make test-all`
        return f"[`{self.name}`](../{self.path}){suite}"


@cache
def marked_long(path: str) -> frozenset[str]:
    """The tests of a file that bear the mark `long`; an empty name: all of them."""
    found = set()
    for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="pytestmark")], value=value) if LONG in ast.unparse(value):
                found.add("")
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                if LONG in map(ast.unparse, node.decorator_list):
                    found.add(node.name)
    return frozenset(found)


@dataclass(frozen=True, kw_only=True)
class Scenario:
    HEAD: ClassVar[tuple[str, ...]] = ("scenario", "promise", "tests")

    id: str
    scenario: str
    promise: str
    bound: str = ""
    seconds: int = 0  # that its tests take where all of them are left out of `make test`, and why
    only_all: str = ""
    stand_in: str = ""
    tests: tuple[NamedTest, ...] = ()
    lacks: bool = False

    @property
    def rigs(self) -> list[str]:
        used = {each.rig for each in self.tests}
        return [rig for rig in RIGS.values() if rig in used]

    @property
    def cells(self) -> tuple[str, ...]:
        promise = f"{self.promise} (aim: {self.bound})" if self.bound else self.promise
        shown = [", ".join(self.rigs) + ":", *(each.link for each in self.tests)] if self.tests else []
        if self.lacks:
            shown.append("[not all of it](#not-shown-yet)" if self.tests else "[none yet](#not-shown-yet)")
        return f"**{self.id}** {self.scenario}", promise, "<br>".join(shown)


@dataclass(frozen=True)
class OnlyInAll:
    """A scenario that `make test-all` shows and `make test` does not."""

    HEAD: ClassVar[tuple[str, ...]] = ("scenario", "seconds", "why")

    scenario: Scenario

    @property
    def cells(self) -> tuple[str, ...]:
        title = f"**{self.scenario.id}** {self.scenario.scenario}"
        return title, str(self.scenario.seconds), self.scenario.only_all


@dataclass(frozen=True, kw_only=True)
class Lack:
    HEAD: ClassVar[tuple[str, ...]] = ("", "what no test shows", "what that needs")

    ids: tuple[str, ...]
    lacks: str
    needs: str

    @property
    def cells(self) -> tuple[str, ...]:
        return ", ".join(self.ids), self.lacks, self.needs


def named(node_id: str) -> NamedTest:
    path, _, name = node_id.partition("::")
    return NamedTest(path, name)


def _scenarios(entries: Sequence[dict[str, Any]], lacking: set[str]) -> tuple[Scenario, ...]:
    made = [
        {**each, "tests": tuple(map(named, each.get("tests", ()))), "lacks": each["id"] in lacking} for each in entries
    ]
    return tuple(Scenario(**each) for each in made)


_read = yaml.safe_load(SOURCE.read_text(encoding="utf-8"))
MISSING = tuple(Lack(**{**each, "ids": tuple(each["ids"])}) for each in _read["missing"])
_lacking = {each for lack in MISSING for each in lack.ids}
SCENARIOS = _scenarios(_read["scenarios"], _lacking)
UPSTREAM = _scenarios(_read["upstream"], _lacking)
ONLY_IN_ALL = tuple(OnlyInAll(each) for each in (*SCENARIOS, *UPSTREAM) if each.only_all)
