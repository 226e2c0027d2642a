"""The rows of docs/reliability.md, from tests/scenarios.yaml: each scenario, its promise and the tests that show it.

On what a test runs follows from its folder, so that no entry can claim more than its tests do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import yaml

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "tests" / "scenarios.yaml"
RIGS = {  # by folder, the most real first
    "tests/e2e/": "real cluster",
    "tests/long/": "real cluster by `make e2e-long`",
    "tests/integration/": "real API server",
    "tests/agent/": "stand-in kubelet",
    "tests/nvml/": "stand-in driver",
    "tests/programs/": "its own process",
    "tests/unit/": "pure",
}
REAL = ("real cluster", "real cluster by `make e2e-long`", "real API server")


@dataclass(frozen=True)
class NamedTest:
    path: str
    name: str

    @property
    def rig(self) -> str:
        return next(rig for folder, rig in RIGS.items() if self.path.startswith(folder))

    @property
    def link(self) -> str:
        return f"[`{self.name}`](../{self.path})"


@dataclass(frozen=True, kw_only=True)
class Scenario:
    HEAD: ClassVar[tuple[str, ...]] = ("", "scenario", "promise", "runs on", "tests")

    id: str
    scenario: str
    promise: str
    bound: str = ""
    checked: str = ""
    stand_in: str = ""
    tests: tuple[NamedTest, ...] = ()
    lacks: bool = False

    @property
    def rigs(self) -> list[str]:
        used = {each.rig for each in self.tests}
        return [rig for rig in RIGS.values() if rig in used]

    @property
    def cells(self) -> tuple[str, ...]:
        times = [f"aim: {self.bound}"] if self.bound else []
        times += [f"the tests allow {self.checked}"] if self.checked else []
        promise = f"{self.promise} ({'; '.join(times)})" if times else self.promise
        rigs = ", ".join(self.rigs)
        shown = [each.link for each in self.tests]
        if self.lacks:
            shown.append("[not all of it](#not-shown-yet)" if self.tests else "[none yet](#not-shown-yet)")
        return (
            self.id,
            self.scenario,
            promise,
            f"{rigs}: {self.stand_in}" if self.stand_in else rigs,
            "<br>".join(shown),
        )


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
