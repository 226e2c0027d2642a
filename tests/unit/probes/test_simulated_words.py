"""Conditions and counters in the simulated file: a typo is an error, and each word that is allowed means something."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from nodedevices_plugin.vendors.faults import source_of
from nodedevices_plugin.vendors.nic import faults
from nodedevices_probe.files import CheckError
from nodedevices_probe.protocol import Readings
from nodedevices_probe.simulated.probe import parse
from nodedevices_probe.simulated.rules import KNOWN
from support.cases import cases
from support.facts import REGISTERED, gpu

PAGE = Path(__file__).parents[3] / "docs" / "simulated-devices.md"


@cases(
    ("profile", "said", "complaint"),
    ("connectx-7", "conditions: [linkDwn]", "conditions[0]: 'linkDwn' is not allowed; did you mean linkDown? "),
    ("connectx-7", "conditions: [linkDown, foo]", "conditions[1]: 'foo' is not allowed; conditions of a nic of "),
    ("connectx-7", "counters: {linkDownd: 1}", "counters.linkDownd: no such counter; did you mean linkDowned?"),
    ("u250", "conditions: [linkDown]", "conditions of a fpga of xilinx: firewallTripped, noShell, "),
    ("mi300x", "counters: {linkDowned: 1}", "counters.linkDowned: no such counter; a gpu of amd has no counters"),
    ("h100", "conditions: [hot]", "conditions[0]: 'hot' is not allowed; a gpu of nvidia has no conditions: give"),
)
def test_a_word_that_its_probe_does_not_report_is_refused_with_those_it_does(
    profile: str, said: str, complaint: str
) -> None:
    with pytest.raises(CheckError, match="devices.0.*" + re.escape(complaint)):
        parse(f"{{profile: {profile}, devices: [{{index: 0, {said}}}]}}".encode(), node="n")


@cases("device", "vendor: acme, type: nic", "vendor: nvidia, type: dpu")
def test_a_device_that_no_built_in_probe_reports_may_have_any_word(device: str) -> None:
    text = f"devices: [{{{device}, conditions: [cableBent], counters: {{bends: 3}}}}]"
    [found] = parse(text.encode(), node="n").facts.devices
    assert (found.readings.conditions, found.readings.counters) == (("cableBent",), {"bends": 3})


@cases(
    ("vendor", "kind", "word"),
    *[(vendor, kind, word) for (vendor, kind), words in KNOWN.items() for word in words.conditions],
)
def test_each_condition_that_is_allowed_is_one_that_the_agent_knows(vendor: str, kind: str, word: str) -> None:
    source = source_of(REGISTERED, gpu(0, vendor=vendor, type=kind))
    assert source.read(Readings(conditions=(word,))) != source.read(Readings())


def test_each_counter_with_a_limit_is_allowed_and_the_page_has_all_conditions() -> None:
    allowed = {word for words in KNOWN.values() for word in words.counters}
    assert {each.counter for each in faults.LIMITS} <= allowed
    page = PAGE.read_text()
    assert [word for words in KNOWN.values() for word in words.conditions if f"`{word}`" not in page] == []
