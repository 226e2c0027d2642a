"""Device files as they are read: which file, and what a change of it does."""

from __future__ import annotations

from pathlib import Path

import pytest
from nodedevices_plugin.inputs.config_file import DeviceFileReader
from nodedevices_plugin.runtime.threads import Worker
from nodedevices_plugin.vendors.files import DeviceFileOutcome
from nodedevices_plugin.vendors.nic.flags import FILES
from nodedevices_plugin.vendors.nic.sriov_config import SriovConfig

OPTION = "sriov-config-file"


def of(name: str) -> str:
    return f'{{"resourceList": [{{"resourceName": "{name}"}}]}}'


@pytest.mark.parametrize(
    ("files", "resource"),
    [
        ({"config.json": of("all"), "n1": of("own"), "n2": of("other")}, "own"),
        ({"config.json": of("all"), "n2": of("other")}, "all"),
        ({"n1": of("own")}, "own"),
        ({"n2": of("other")}, ""),
    ],
)
async def test_a_file_with_the_nodes_name_comes_before_the_one_for_all(
    files: dict[str, str], resource: str, tmp_path: Path
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    seen: list[DeviceFileOutcome] = []
    [file] = [each for each in FILES if each.option.name == OPTION]
    reader = DeviceFileReader(
        file,
        tmp_path / "config.json",
        node="n1",
        worker=Worker("files"),
        on_change=lambda _, outcome: seen.append(outcome),
    )
    await reader.first()
    [outcome] = seen
    config = outcome.content if isinstance(outcome.content, SriovConfig) else SriovConfig()
    assert [each.name for each in config.resources] == [resource] * bool(resource)
    assert outcome.error == ("" if resource else "No such file or directory")
