"""`make mutants`: do the tests notice a mistake? A random sample of small changes, and for each the tests of its line.

    make mutants                                   # 60 of the pure modules, of a seed that is printed first
    make mutants N=20 MODULES=nodedevices_plugin.offering.occupancy SEED=7
    make mutants RECORD=0                          # with what was recorded last of which test runs which line
    make mutants TESTS="tests/unit/offering"       # do these notice it? recorded in a minute

First the unit tests run once, recorded. Then, for each change, a pytest that loads the changed module (plugin.py) runs
the tests that run its line, the narrowest first; the tree is not touched. A change that no test notices is shown.
What changes nothing that anybody could see is listed in equivalent.txt with its reason, and not drawn.

Why a tool of our own: mutmut 3.8 changes functions only, not tables, defaults and classes' bodies, where much of our
vocabulary is, and expects one source root; cosmic-ray 8.7 changes the files of the work tree in place, runs one
command for all, and brings SQLAlchemy and GitPython. Both would run the whole suite for a mutant of a table.
"""

from __future__ import annotations

import ast
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import accumulate
from pathlib import Path

from coverage import CoverageData
from mutants.sources import Mutant, mutants

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / ".cache" / "mutants"
EQUIVALENT = Path(__file__).with_name("equivalent.txt")
ROOTS = {"nodedevices_api": "crds", "nodedevices_common": "crds", "nodedevices_operator": "operator"}
PURE = [
    *(f"nodedevices_plugin.{name}" for name in ("claims", "cores", "gates", "granting", "health", "model", "offering")),
    *(f"nodedevices_plugin.{name}" for name in ("pipeline", "settings", "sharing", "vendors", "kubelet.checkpoint")),
    *(f"nodedevices_operator.{name}" for name in ("desired", "records", "cache.rollouts")),
    *(f"nodedevices_operator.extender.{name}" for name in ("shares", "table", "verbs")),
    *(f"nodedevices_common.{name}" for name in ("devices", "pod_requests", "quantity")),
    "nodedevices_api",
]
TESTS = os.environ.get("TESTS", "").split() or [
    *("tests/unit", "tests/programs"),
    *("tests/conformance/nvidia_device_plugin", "tests/conformance/amd_device_plugin"),
]
SLOW = (
    "tests/unit/agent/test_no_device_twice.py",  # a minute of kubelet models
    *(f"tests/{folder}/{name}" for folder in ("unit", "programs") for name in ("mps", "rig")),
)
WITHOUT = [
    *SLOW,
    *[f"tests/programs/test_{name}.py" for name in ("alerts", "manifests", "docs_yaml", "take_along")],
    "tests/unit/test_docs.py",
]
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "mutants.plugin"]
IGNORED = [f"--ignore={ROOT / path}" for path in WITHOUT]
NARROW = 40  # as many of the narrowest tests run first: nearly always one of them notices
# In seconds of processor time, so that a busy machine judges as an idle one does.
MOST_SECONDS = 60  # of what else runs, by what it took when it was recorded
PATIENCE = 30  # more than four times that: the tests of a change that never ends are ended


@dataclass(frozen=True, slots=True)
class Tests:
    """Which test runs which line, and how much processor time each takes."""

    took: dict[str, float]
    recorded: list[CoverageData]
    breadth: Counter[str]  # lines that a test runs in all

    @classmethod
    def read(cls) -> Tests:
        took: dict[str, float] = {}
        for path in RECORDED.glob("durations.*.json"):
            took |= json.loads(path.read_text())
        recorded = [CoverageData(str(path)) for path in RECORDED.glob("lines.*")]
        breadth: Counter[str] = Counter()
        for data in recorded:
            data.read()
            for file in data.measured_files():
                for contexts in data.contexts_by_lineno(file).values():
                    breadth.update(contexts)
        return cls(took, recorded, breadth)

    def of(self, mutant: Mutant) -> list[str]:
        """Those that could notice it: the narrowest first, and before these, where it runs when modules are loaded,
        those that run lines with what is defined there, and those in files that name the module."""
        loading = mutant.at_import or self.at_collection(mutant)
        found: set[str] = set()
        for data in self.recorded:
            data.set_query_contexts(None)
            lines = data.contexts_by_lineno(str(mutant.path))
            for line, contexts in lines.items():
                if loading or mutant.line <= line <= mutant.last:
                    found.update(contexts)
        naming = self._of_files_that_name(mutant.path) if loading else set()
        using = self._of_lines_with(defined(mutant)) if loading else set()
        found = (found | naming | using) & self.took.keys()
        return sorted(found, key=lambda test: (test not in using, test not in naming, self.breadth[test], test))

    def at_collection(self, mutant: Mutant) -> bool:
        """True when its line runs before any test, such as for a table of cases."""
        return any(
            "" in contexts and mutant.line <= line <= mutant.last
            for data in self.recorded
            for line, contexts in data.contexts_by_lineno(str(mutant.path)).items()
        )

    def _of_lines_with(self, names: set[str]) -> set[str]:
        word = re.compile(rf"\b(?:{'|'.join(sorted(names))})\b")
        found: set[str] = set()
        for data in self.recorded if names else ():
            for file in data.measured_files():
                lines = text_of(file).splitlines()
                if having := {at for at, line in enumerate(lines, 1) if word.search(line)}:
                    for at, contexts in data.contexts_by_lineno(file).items():
                        found.update(contexts if at in having else ())
        return found

    def _of_files_that_name(self, path: Path) -> set[str]:
        module = module_of(path).rpartition(".")
        names = (f"{module[0]}.{module[2]}", f"from {module[0]} import")
        files = {test.partition("::")[0] for test in self.took}
        texts = {file: (ROOT / file).read_text() for file in files}
        naming = {file for file, text in texts.items() if any(name in text for name in names)}
        return {test for test in self.took if test.partition("::")[0] in naming}


@cache
def text_of(file: str) -> str:
    return Path(file).read_text()


def defined(mutant: Mutant) -> set[str]:
    """What is defined where it is: a table, a default, a function."""
    names: set[str] = set()
    for each in ast.walk(ast.parse(mutant.path.read_bytes())):
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if each.lineno <= mutant.line <= (each.end_lineno or 0):
                names.add(each.name)
        elif isinstance(each, (ast.Assign, ast.AnnAssign)) and each.lineno == mutant.line:
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            names |= {name.id for one in targets for name in ast.walk(one) if isinstance(name, ast.Name)}
    return names


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts[1:]).removesuffix(".__init__")


def files_of(module: str) -> list[Path]:
    package = module.partition(".")[0]
    place = ROOT / ROOTS.get(package, "plugin") / module.replace(".", "/")
    files = sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
    if not all(file.is_file() for file in files):
        raise SystemExit(f"MODULES={module}: there is no such module; give some such as nodedevices_plugin.claims")
    return [file for file in files if file.stat().st_size]


def record(jobs: int) -> None:
    RECORDED.mkdir(parents=True, exist_ok=True)
    for old in RECORDED.iterdir():
        old.unlink()
    packages = ",".join([*ROOTS, "nodedevices_plugin", "nodedevices_probe"])
    environment = {**os.environ, "MUTANTS_RECORD": str(RECORDED), "MUTANTS_PACKAGES": packages}
    subprocess.run(
        [*PYTEST, "-n", str(jobs), "--timeout=900", *TESTS, *IGNORED], cwd=ROOT, env=environment, check=False
    )
    if not list(RECORDED.glob("durations.*.json")):
        raise SystemExit("nothing was recorded: do the unit tests run?")


def passes(mutant: Mutant, tests: list[str], seconds: int) -> bool:
    """Whether these tests pass with the changed module. Those that run on are ended by their processor time, as a busy
    machine is no reason; those that wait for what does not come by the pytest-timeout of each."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as changed:
        changed.write(mutant.text())
        changed.flush()
        process = subprocess.Popen(
            [*PYTEST, "-x", "--timeout=900", *tests],
            cwd=ROOT,
            env={**os.environ, "MUTANT": str(mutant.path), "MUTANT_TEXT": changed.name},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        resource.prlimit(process.pid, resource.RLIMIT_CPU, (seconds, seconds))
        try:
            return process.wait() == 0
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what its tests have started


def noticed(mutant: Mutant, tests: Tests) -> bool:
    known = tests.of(mutant)
    took = list(accumulate(tests.took[test] for test in known[NARROW:]))
    rest = known[NARROW : NARROW + sum(each < MOST_SECONDS for each in took)]
    return not all(
        passes(mutant, some, PATIENCE + int(4 * sum(tests.took[test] for test in some)))
        for some in filter(None, (known[:NARROW], rest))
    )


def control(sample: list[Mutant], tests: Tests) -> None:
    """A module without a change fails no test: else every change would count as noticed."""
    mutant = next((each for each in sample if tests.of(each)), None)
    if mutant is not None:
        before = mutant.path.read_bytes()[mutant.start : mutant.end].decode()
        if noticed(replace(mutant, instead=before), tests):
            raise SystemExit(f"{mutant.path}: tests fail without a change; do they pass with make unit?")


def equivalent() -> set[str]:
    """Changes that nobody could see, named as below."""
    lines = EQUIVALENT.read_text().splitlines()
    return {line for line in lines if line and not line.startswith("#")}


def named(mutant: Mutant) -> str:
    """By the file, the text of the line, and the change: a line's number would not last."""
    source = mutant.path.read_bytes()
    line = source[source.rfind(b"\n", 0, mutant.start) + 1 :].partition(b"\n")[0]
    parts = (line.decode(), source[mutant.start : mutant.end].decode(), mutant.instead)
    return f"{mutant.path.relative_to(ROOT)} | {' | '.join(' '.join(part.split()) for part in parts)}"


def main() -> int:
    os.environ["FUZZ_EXAMPLES"] = "full"
    seed = int(os.environ.get("SEED") or random.randrange(10**6))
    modules = os.environ.get("MODULES", "").replace(",", " ").split() or PURE
    jobs = int(os.environ.get("JOBS") or os.cpu_count() or 1)
    known = equivalent()
    drawn_from = [(named(each), each) for module in modules for file in files_of(module) for each in mutants(file)]
    if modules == PURE and (stale := known - {name for name, _ in drawn_from}):
        raise SystemExit("\n".join([f"{EQUIVALENT.name}: no such change any more; correct or remove", *sorted(stale)]))
    every = [each for name, each in drawn_from if name not in known]
    sample = random.Random(seed).sample(every, min(int(os.environ.get("N") or 60), len(every)))
    print(f"SEED={seed}: {len(sample)} of {len(every)} changes of {' '.join(modules)}", flush=True)
    if os.environ.get("RECORD") != "0":
        print("recording which test runs which line", flush=True)
        record(jobs)
    tests = Tests.read()
    survived: Counter[str] = Counter()
    drawn = Counter(module_of(each.path) for each in sample)
    began = time.monotonic()
    control(sample, tests)
    with ThreadPoolExecutor(jobs) as pool:
        judged = pool.map(partial(noticed, tests=tests), sample)
        for at, (mutant, killed) in enumerate(zip(sample, judged, strict=True), 1):
            if not killed:
                survived[module_of(mutant.path)] += 1
                print(f"\nSURVIVED {named(mutant)}\n{mutant.diff(ROOT)}\n", flush=True)
            if at % 10 == 0:
                print(
                    f"{at} of {len(sample)}, {survived.total()} survived, {time.monotonic() - began:.0f} s", flush=True
                )
    for module, count in sorted(survived.items()):
        print(f"{module}: {count} of {drawn[module]} survived")
    found = len(sample) - survived.total()
    print(f"SEED={seed}: {found} of {len(sample)} killed, {100 * found / max(1, len(sample)):.1f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
