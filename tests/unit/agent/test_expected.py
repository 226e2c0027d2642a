"""A node that has fewer devices than its policy expects says so, and only says so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from nodedevices_api.errors import parse
from nodedevices_api.meta import find
from nodedevices_api.sections import Sections
from nodedevices_common.errors import InputError
from nodedevices_plugin.model import Registration, RegistrationState
from nodedevices_plugin.pipeline.configuration import SeenObject
from nodedevices_plugin.pipeline.expected import GRACE_SECONDS
from nodedevices_plugin.runtime.supervise import Supervisor
from nodedevices_plugin.status.metrics import readyz
from nodedevices_probe.protocol import Readings
from support.cases import cases
from support.facts import gpu
from support.probed_node import BOTH, GPU, Node, nic, said
from support.stepped_node import report_of
from support.there import there

EIGHT = {"expect": [{"type": "gpu", "count": 8}]}
GPUS = tuple(gpu(index) for index in range(8))


def expecting(config: dict[str, Any] = EIGHT, probes: Any = None) -> Node:
    return Node(probes or said("nvml")).given(seen=SeenObject(exists=True, config=config))


def found(node: Node) -> list[int] | None:
    counts = node.world.expected
    return None if counts is None else [each.found for each in counts]


def says(node: Node, kind: str = "ExpectedDevices") -> tuple[str, str] | None:
    """What the node's object shows."""
    shown = find(report_of(node.world, node.time).conditions, kind)
    return None if shown is None else (shown.status, shown.reason)


def test_the_nodes_object_follows_the_devices_and_the_section() -> None:
    node = expecting().line("nvml")
    assert says(node) == ("False", "Expected8Found0")
    assert says(node, "Ready") == ("True", "AgentRunning")
    node.line("nvml", *GPUS[:7])
    assert says(node) == ("False", "Expected8Found7")
    assert says(node, "Ready") == ("True", "AgentRunning")
    assert says(node.line("nvml", *GPUS)) == ("True", "AllFound")
    node.line("nvml")
    assert says(node) == ("False", "Expected8Found0")
    assert says(node, "Ready") == ("False", "DevicesLost")  # it had them: that says more
    node.line("nvml", *GPUS[:7])
    assert says(node.sees(config={}).step()) is None
    assert says(node, "Ready") == ("True", "AgentRunning")


def test_what_is_offered_is_the_same_whatever_is_expected() -> None:
    without, wrong = expecting({}), expecting({"expect": [{"type": "nic", "count": 4096}]})
    for node in (without, wrong):
        node.line("nvml", *GPUS[:7])
    assert says(wrong) == ("False", "Expected4096Found0")
    assert says(wrong, "Ready") == says(without, "Ready") == ("True", "AgentRunning")
    assert wrong.offers == without.offers
    assert wrong.states == without.states
    registered = (Registration(resource=GPU, state=RegistrationState.REGISTERED),)
    assert readyz(Supervisor(), wrong.world, registered).status == 200  # no roll-out of agents stops by it


def test_what_has_left_does_not_count_more_is_enough_and_an_entry_is_named_by_all_that_must_match() -> None:
    assert found(expecting().line("nvml", *GPUS, gpu(8))) == [9]
    node = expecting().line("nvml", *GPUS)
    assert found(node.line("nvml", *GPUS[:7])) == [7]
    off = replace(GPUS[7], readings=Readings(lost=True))
    assert found(node.line("nvml", *GPUS[:7], off)) == [7]
    assert found(node.line("nvml", *GPUS)) == [8]
    entries = [({}, 8), ({"type": "gpu", "productName": "NVIDIA *"}, 9), ({"productName": "NVIDIA H1*"}, 2)]
    config = {"expect": [{**match, "count": count} for match, count in entries]}
    node = expecting(config).line("nvml", *GPUS)
    said = node.world.expected or ()
    assert [each.what for each in said] == ["any device", "productName NVIDIA *, type gpu", "productName NVIDIA H1*"]
    assert [(each.found, each.lacking, each.lost) for each in said] == [(8, 0, ()), (8, 1, ()), (8, 0, ())]


def test_what_is_missing_is_in_the_tables_and_in_the_nodes_sentence() -> None:
    node = expecting().line("nvml", *GPUS[:7])
    shown = there(report_of(node.world, node.time).summary)
    assert (shown.reason, shown.message) == ("Expected8Found7", "type gpu: 7 of 8 expected.")
    away = replace(GPUS[7], pci_bus_id="0000:b3:00.0")
    node.line("nvml", *GPUS[:7], away).line("nvml", *GPUS[:7])
    shown = there(report_of(node.world, node.time).summary)
    assert shown.reason == "Missing"  # the device's own fault says more
    assert shown.message.startswith("type gpu: 7 of 8 expected: gpu at 0000:b3:00.0 is missing. ")


def test_a_silent_probes_devices_count_as_listed_last_and_one_that_has_not_reported_is_waited_for() -> None:
    node = expecting().line("nvml", *GPUS)
    node.clock += 600
    assert found(node.step()) == [8]
    config = {"expect": [{"type": "nic", "count": 1}]}
    node = expecting(config, BOTH).line("nvml", *GPUS).line("nics", nic()).restart().line("nvml", *GPUS)
    assert found(node) is None
    node.clock += GRACE_SECONDS
    assert found(node.step()) is not None
    assert found(node.line("nics")) == [0]
    assert found(node.line("nics", nic())) == [1]


@cases(
    ("entry", "says"),
    ({"count": 0}, "count"),
    ({"count": 4097}, "count"),
    ({"type": "gpu"}, "count"),
    ({"count": 8, "most": 9}, "most"),
    ({"match": {"type": "gpu"}, "count": 8}, r"\[0\]\.match: unknown key; write productName and type in the entry"),
)
def test_a_wrong_entry_is_refused_with_its_field(entry: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says) as raised:
        parse(Sections, {"expect": [entry]})
    assert "expect[0]" in str(raised.value)
