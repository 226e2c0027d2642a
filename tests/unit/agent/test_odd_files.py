"""A file that makes its reader stumble is a refused file: it stops neither the agent's start nor what is in effect."""

from __future__ import annotations

from pathlib import Path

import pytest
from nodedevices_plugin.inputs.config_file import ConfigFile, DeviceFolder
from nodedevices_plugin.runtime.threads import Worker
from nodedevices_plugin.settings.file import FileOutcome
from nodedevices_plugin.vendors.base import DeviceFile, DeviceFiles, Vendor
from nodedevices_plugin.vendors.registry import VENDORS, Vendors
from nodedevices_probe.files import CheckError, load
from support.cases import cases

HUGE = "0x" + "F" * 4000  # no message can show it: Python turns no int of that length into text
WORDS = [
    ("!!bool maybe", "line 2: not YAML: 'maybe' is not a valid bool"),
    ("!!timestamp x", "line 2: not YAML: 'x' is not a valid timestamp"),
    ("!!float a", "line 2: not YAML: 'a' is not a valid float"),
    (HUGE, "line 2: not YAML: a number of more than 64 bits"),
    ("9" * 5000, f"line 2: not YAML: {'9' * 40!r} is not a valid int"),
]


@pytest.mark.parametrize(("word", "complaint"), WORDS)
async def test_a_word_that_its_yaml_tag_refuses_is_a_refused_file(tmp_path: Path, word: str, complaint: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"version: v1\nflags: {{failOnInitError: {word}}}\n")
    outcomes: list[FileOutcome] = []
    worker = Worker("files")
    assert await ConfigFile(path, worker=worker, on_change=outcomes.append).first()
    worker.end()
    assert [(each.config, each.error) for each in outcomes] == [(None, complaint)]


@cases(("word", "complaint"), *WORDS)
def test_in_a_probes_file_too(word: str, complaint: str) -> None:
    with pytest.raises(CheckError) as refused:
        load(f"devices:\n- {word}\n".encode())
    assert str(refused.value) == complaint


async def test_a_reader_that_raises_what_nobody_expects_refuses_the_file(tmp_path: Path) -> None:
    def parse(_: bytes) -> object:
        raise KeyError("colour")

    class Odd(Vendor):
        name = "odd"
        files = (DeviceFile(name="devices.yaml", type=object, parse=parse),)

    (tmp_path / "devices.yaml").write_text("{}")
    outcomes: list[DeviceFiles] = []
    worker = Worker("files")
    vendors = Vendors((*VENDORS.every, Odd()))
    assert await DeviceFolder(tmp_path, node="n1", worker=worker, on_change=outcomes.append, vendors=vendors).first()
    worker.end()
    assert [{name: it.error for name, it in each.items()} for each in outcomes] == [
        {"devices.yaml": "it cannot be read: KeyError: 'colour'"}
    ]
