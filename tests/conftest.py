"""How the tests share a machine: which of them run side by side, and in what order.

Most of them wait: for a kubelet's period, a hold-down, an API server. So `make test` runs several workers
(pytest-xdist), and what shares an expensive fixture stays on one worker: each half of the end-to-end tests (a cluster
each), and each other file by itself. The end-to-end tests start first, and the rest goes on beside them and after them.
"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import structlog
import yaml
from cluster.rig import versions
from hypothesis import Phase, settings
from support.fuzzing import scaled
from support.owned_run import pytest_sessionfinish, pytest_sessionstart  # noqa: F401 - pytest finds them here
from xdist.scheduler import LoadScopeScheduling

HERE = Path(__file__).parent
E2E = "e2e"  # the folder whose tests share real clusters
INTEGRATION = "integration"  # the one whose tests share real API servers
INTEGRATION_FILES = sorted(path.name for path in (HERE / INTEGRATION).rglob("test_*.py"))
API_SERVERS = 2
# Which files of it have which cluster; all others have the first, the only one of `make test`. In `make test-all` each
# takes about as long: what runs on the longest of them is as long as the whole run.
CLUSTERS = {
    "second": ("changes", "devices", "idle", "injection", "kmsg", "memory_peers", "scheduler", "sharing"),
    "third": ("chart", "gpushare_migration", "memory_page", "swap", "topology"),
    "fourth": ("absences", "cpus", "migration", "node_deleted", "stuck_probe", "upgrade", "upstream"),
    # Clusters that their tests start.
    "own": ("chaos", "demo"),
}
# By default structlog draws a logged exception with rich, and every frame's variables: a second of CPU each.
_plain = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
structlog.configure(processors=[*structlog.get_config()["processors"][:-1], _plain])
# The tests start hundreds of processes, and half of an agent's start would be to compile what nobody has changed:
# they keep what was compiled, beside the packages and not among the sources.
sys.dont_write_bytecode = False
sys.pycache_prefix = os.environ.setdefault("PYTHONPYCACHEPREFIX", str(Path(sys.prefix) / "bytecode"))
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Kubernetes' programs on two cores: memory is plenty, and an API server collects garbage for a seventh of its time, a
# kubectl for a third.
os.environ.setdefault("GOGC", "400")
# The same documents, a tenth of the time.
yaml.SafeLoader = yaml.CSafeLoader  # type: ignore[assignment,misc]
# What is collected stays to the end: no garbage is looked for in it, neither now nor while the tests run.
gc.disable()
# Tests do not assert times: a busy machine is not a counterexample. The examples of a property are the same at each
# run, so that it fails for the change that broke it (support/fuzzing.py says how many); `make fuzz` draws others.
PHASES = tuple(each for each in Phase if each is not Phase.explain)  # which costs more than it explains
settings.register_profile("nodedevices", deadline=None, derandomize=True, phases=PHASES, max_examples=scaled(100))
settings.register_profile("fuzz", deadline=None, phases=PHASES, max_examples=scaled(100), print_blob=True)
settings.load_profile("nodedevices")

MOST_OF_A_TEXT = 40
LONGEST_FIRST = (E2E, INTEGRATION, "conformance", "programs", "agent", "nvml", "unit")


def pytest_report_header() -> str:
    return f"Kubernetes of our rig: {versions.chosen().release}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: (LONGEST_FIRST.index(item.nodeid.split("/", 2)[1]), place(item)))


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_make_parametrize_id(val: object) -> str | None:
    """Show a long text by its beginning, in one line of ASCII; pytest itself escapes what is short."""
    if not isinstance(val, str) or len(val) <= MOST_OF_A_TEXT:
        return None
    return f"{ascii(' '.join(val.split()))[1:-1][:MOST_OF_A_TEXT]}..."


def place(item: pytest.Item) -> str:
    """The cluster of an end-to-end test."""
    folder, _, file = item.nodeid.partition("::")[0].rpartition("/")
    return cluster_of(file) if folder == f"tests/{E2E}" else ""


def cluster_of(file: str) -> str:
    """Which cluster the end-to-end tests of a file have."""
    name = Path(file).stem.removeprefix("test_e2e_")
    return next((cluster for cluster, files in CLUSTERS.items() if name in files), "first")


class SharedClusters(LoadScopeScheduling):  # type: ignore[misc]
    """By what tests share: a cluster, an API server, a file.

    Not by xdist's groups: xdist 3.8 writes them where pytest 9.2 no longer reads them.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = Path(nodeid.partition("::")[0])
        if E2E in file.parent.parts:
            return f"{E2E} {cluster_of(file.name)}"
        if INTEGRATION in file.parent.parts:
            return f"{INTEGRATION} {INTEGRATION_FILES.index(file.name) % API_SERVERS}"
        return str(file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return SharedClusters(config, log)
