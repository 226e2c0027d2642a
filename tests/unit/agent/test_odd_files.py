"""A file that makes its reader stumble is a refused file: it stops neither the agent's start nor what is in effect."""

from __future__ import annotations

from pathlib import Path

import pytest
from nodedevices_common.options import Option
from nodedevices_plugin.inputs.config_file import ConfigFile, DeviceFileReader
from nodedevices_plugin.runtime.threads import Worker
from nodedevices_plugin.settings.file import FileOutcome
from nodedevices_plugin.vendors.files import DeviceFile, DeviceFileOutcome
from nodedevices_probe.files.check import CheckError
from nodedevices_probe.files.document import load
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
async def test_a_word_that_its_yaml_tag_does_not_take_is_a_refused_file(
    tmp_path: Path, word: str, complaint: str
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"version: v1\nflags: {{failOnInitError: {word}}}\n")
    outcomes: list[FileOutcome] = []
    worker = Worker("files")
    assert await ConfigFile(path, worker=worker, on_change=outcomes.append).first()
    worker.end()
    assert [(each.config, each.error) for each in outcomes] == [(None, complaint)]


@cases(("word", "complaint"), WORDS)
def test_in_a_probes_file_too(word: str, complaint: str) -> None:
    with pytest.raises(CheckError) as refused:
        load(f"devices:\n- {word}\n")
    assert str(refused.value) == complaint


async def test_a_reader_that_raises_what_nobody_expects_refuses_the_file(tmp_path: Path) -> None:
    def parse(_: bytes) -> object:
        raise KeyError("colour")

    path = tmp_path / "devices.yaml"
    path.write_text("{}")
    file = DeviceFile(
        option=Option(name="hub-file", variables=(), group="probe", metavar="FILE", help="a file"),
        type=object,
        parse=parse,
    )
    outcomes: list[DeviceFileOutcome] = []
    worker = Worker("files")
    reader = DeviceFileReader(
        file, path, node="n1", worker=worker, on_change=lambda _, outcome: outcomes.append(outcome)
    )
    assert await reader.first()
    worker.end()
    assert [each.error for each in outcomes] == ["it cannot be read: KeyError: 'colour'"]
