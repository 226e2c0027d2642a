"""What a pytest of `make mutants` does beside running tests.

As a plugin (-p mutants.plugin) with MUTANTS_RECORD it writes which test ran which line (coverage.py's contexts) and how
much processor time each took. With MUTANT, a module's file, the text in the file MUTANT_TEXT is loaded in its place.
Programs that the tests start are neither recorded nor changed.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import coverage
import pytest


class _Changed(importlib.abc.Loader):
    def __init__(self, path: str, text: str) -> None:
        self._path, self._text = path, text

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._text, self._path, "exec"), module.__dict__)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, path: str, text: str) -> None:
        self._path, self._text = path, text

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.origin != self._path:
            return None
        spec.loader = _Changed(self._path, self._text)
        return spec


class _Recorder:
    def __init__(self, folder: Path, packages: list[str]) -> None:
        worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        self._took: dict[str, float] = {}
        self._passed: dict[str, bool] = {}
        self._durations = folder / f"durations.{worker}.json"
        self._coverage = coverage.Coverage(
            data_file=str(folder / f"lines.{worker}"), config_file=False, source_pkgs=packages, messages=False
        )
        # A package that these tests do not import is no error.
        self._coverage.set_option("run:disable_warnings", ["module-not-imported", "no-data-collected"])
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._coverage.switch_context(item.nodeid)
        before = sum(os.times()[:4])  # its own and its children's, whatever else the machine does
        try:
            return (yield)
        finally:
            self._took[item.nodeid] = sum(os.times()[:4]) - before
            self._coverage.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._passed[report.nodeid] = self._passed.get(report.nodeid, True) and report.outcome == "passed"

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        self._coverage.save()
        passed = {name: took for name, took in self._took.items() if self._passed.get(name)}
        self._durations.write_text(json.dumps(passed))


def pytest_configure(config: pytest.Config) -> None:
    if (folder := os.environ.get("MUTANTS_RECORD")) and (
        os.environ.get("PYTEST_XDIST_WORKER") or not config.getoption("numprocesses", None)
    ):
        config.pluginmanager.register(_Recorder(Path(folder), os.environ["MUTANTS_PACKAGES"].split(",")))


if changed := os.environ.get("MUTANT"):
    sys.meta_path.insert(0, _Finder(changed, Path(os.environ["MUTANT_TEXT"]).read_text()))
