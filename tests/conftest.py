"""How the tests share a machine: which of them run side by side, and in what order.

Most of them wait: for a kubelet's period, a hold-down, an API server. So `make test` runs several workers
(pytest-xdist), and what shares an expensive fixture stays on one worker: all end-to-end tests (one cluster), and each
other file by itself. The longest starts first and the rest goes on beside it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

HERE = Path(__file__).parent
ONE_WORKER = "e2e"  # the folder whose tests share the real cluster
# Tests do not assert times: a busy machine is not a counterexample.
settings.register_profile("nodedevices", deadline=None)
settings.load_profile("nodedevices")

LONGEST_FIRST = ("slow", ONE_WORKER, "integration", "conformance", "agent", "nvml", "unit")


def _folder(item: pytest.Item) -> str:
    return item.path.relative_to(HERE).parts[0]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONGEST_FIRST.index(_folder(item)))
    for item in items:
        folder = _folder(item)
        group = folder if folder == ONE_WORKER else str(item.path.relative_to(HERE))
        item.add_marker(pytest.mark.xdist_group(group))
