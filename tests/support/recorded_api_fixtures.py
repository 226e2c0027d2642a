"""A recorded API server, and the command line beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.command_line import NOW, CommandLine
from support.recorded_api import NODE_DEVICES, NODES, POLICIES, RecordedApi, recorded_api


@pytest.fixture(scope="package")
def _server() -> Iterator[RecordedApi]:
    with recorded_api() as api:
        yield api


@pytest.fixture
def api(_server: RecordedApi) -> RecordedApi:
    """Empty: the CRDs are there, and no object."""
    _server.reset()
    _server.date = NOW
    for collection in (NODE_DEVICES, POLICIES, NODES):
        _server.add(collection)
    return _server


@pytest.fixture
def kubectl(api: RecordedApi, tmp_path: Path) -> CommandLine:
    """`kubectl nodedevices` for that API server, in the namespace ml; nothing of this machine's own environment."""
    return CommandLine({"KUBECONFIG": str(api.kubeconfig(tmp_path / "config")), "HOME": str(tmp_path)})
