"""A node remembers how many devices of a product it has had, and says so where fewer come back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nodedevices_api.base import to_dict
from nodedevices_plugin.inputs.cluster import seen_object
from nodedevices_plugin.model import MostSeen
from nodedevices_plugin.pipeline.configuration import SeenObject
from nodedevices_plugin.pipeline.expected import GRACE_SECONDS, MAX_KEPT
from nodedevices_plugin.pipeline.state import State, StateFile
from nodedevices_plugin.settings.flags import parse
from nodedevices_probe.protocol import DeviceFact
from support.cases import cases
from support.facts import CONFIRMED, gpu
from support.probed_node import BOTH, Node, nic, said
from support.stepped_node import Node as OneProbe, report_of

H100 = "NVIDIA H100 80GB HBM3"
ALL_REMOVED = f"*=removed@{CONFIRMED}"


def h100(index: int) -> DeviceFact:
    return replace(gpu(index), product_name=H100, pci_bus_id=f"0000:{index + 16:02x}:00.0")


GPUS = tuple(map(h100, range(8)))
FORGETS = {"health": {"forgetMissingSeconds": 60}}


def node(config: dict[str, Any] | None = None, **more: Any) -> Node:
    return Node(said("nvml"), **more).given(seen=SeenObject(exists=True, config=config or {}))


def says(of: Node, kind: str = "ExpectedDevices") -> tuple[str, str] | None:
    shown = {each.type: each for each in report_of(of.world, of.time).conditions}
    return (shown[kind].status, shown[kind].reason) if kind in shown else None


def forgotten(config: dict[str, Any] | None = None) -> Node:
    """One of eight was missing for so long that it is no longer listed."""
    found = node(FORGETS | (config or {})).line("nvml", *GPUS).wait(70.0, nvml=GPUS[:7])
    assert len(found.devices) == 7
    return found


def reimaged(before: Node) -> Node:
    """Another agent on the node, whose state file is gone; the node's object is as it was."""
    shown = to_dict(report_of(before.world, before.time))
    again = before.restart(state=State())
    return again.given(seen=seen_object({"metadata": {}, "spec": {"config": {}}, "status": shown}))


def test_a_device_that_is_back_says_nothing_and_a_forgotten_one_is_remembered_as_a_number() -> None:
    assert says(node().line("nvml", *GPUS)) is None
    assert says(node().line("nvml", *GPUS[:7]).line("nvml", *GPUS)) is None
    found = node().line("nvml", *GPUS).line("nvml", *GPUS[:7])
    assert found.states[GPUS[7].id] == ("Unhealthy", "Missing")
    assert says(found) is None
    found = forgotten()
    assert says(found) == ("False", "Expected8Found7")
    assert says(found, "Ready") == ("True", "AgentRunning")
    assert says(found.restart().line("nvml", *GPUS[:7])) == ("False", "Expected8Found7")
    assert says(found.line("nvml", *GPUS)) is None


def test_a_node_knows_from_its_object_what_it_had_also_where_it_has_no_device_at_all() -> None:
    again = reimaged(node().line("nvml", *GPUS))
    assert says(again.line("nvml", *GPUS[:7])) == ("False", "Expected8Found7")
    assert len(again.offered) == 7
    again = reimaged(node().line("nvml", *GPUS)).line("nvml")
    assert says(again) == ("False", "Expected8Found0")
    assert says(again, "Ready") == ("True", "AgentRunning")


def test_an_object_that_is_read_late_counts_when_it_comes() -> None:
    again = reimaged(node().line("nvml", *GPUS))
    seen = again.inputs.seen
    again.given(seen=None).line("nvml", *GPUS[:7])
    assert again.world.state.most_seen is None  # so that a restart now forgets nothing either
    assert says(again.given(seen=seen).line("nvml", *GPUS[:7])) == ("False", "Expected8Found7")


def test_the_state_file_counts_before_the_object(tmp_path: Any) -> None:
    found = forgotten().sees(confirm=ALL_REMOVED).step()
    file = StateFile(tmp_path / "state.json")
    file.save(found.world.state)
    older = SeenObject(exists=True, config={}, most_seen=(seven(8),))
    again = found.restart(state=file.load()).given(seen=older).line("nvml", *GPUS[:7])
    assert again.world.state.most_seen == (seven(7),)
    assert says(again) is None


def seven(count: int) -> MostSeen:
    return MostSeen(probe="nvml", vendor="nvidia", product_name=H100, count=count)


def test_a_persons_word_ends_it_once() -> None:
    found = forgotten().sees(confirm=ALL_REMOVED).step()
    assert found.last.confirmed == (ALL_REMOVED,)
    assert says(found.line("nvml", *GPUS[:7])) is None
    found = forgotten().sees(confirm=ALL_REMOVED).step().line("nvml", *GPUS).wait(70.0, nvml=GPUS[:7])
    assert says(found) == ("False", "Expected8Found7")
    again = found.sees(confirm=f"{ALL_REMOVED},*=removed@2026-11-24T12:00:00Z").step()
    assert says(again.line("nvml", *GPUS[:7])) is None


def test_all_that_is_not_here_can_be_removed_but_not_by_a_probe_that_sees_nothing() -> None:
    found = node().line("nvml", *GPUS).line("nvml", *GPUS[:6]).sees(confirm=ALL_REMOVED).step()
    assert len(found.devices) == 6
    assert found.world.state.most_seen == (seven(6),)
    found = node().line("nvml", *GPUS).line("nvml").sees(confirm=ALL_REMOVED).step()
    assert len(found.devices) == 8
    (problem,) = found.world.confirm_problems
    assert problem.endswith("give <device id>=removed@<RFC 3339 time with a zone>")


def test_a_removal_that_a_person_confirmed_is_no_longer_expected_and_one_in_its_place_is() -> None:
    found = node().line("nvml", *GPUS).line("nvml", *GPUS[:7]).sees(confirm=f"{GPUS[7].id}=removed@{CONFIRMED}").step()
    assert len(found.devices) == 7
    assert says(found.line("nvml", *GPUS[:7])) is None
    assert found.world.state.most_seen == (seven(7),)
    new = h100(9)
    removed = f"{GPUS[7].id}=removed@{CONFIRMED}"
    found = node().line("nvml", *GPUS).line("nvml", *GPUS[:7], new).sees(confirm=removed).step()
    assert found.world.state.most_seen == (seven(8),)


def test_a_policy_decides_what_is_expected_and_another_spelling_of_a_product_is_no_loss() -> None:
    expects = {"expect": [{"type": "gpu", "count": 7}]}
    assert says(forgotten(expects)) == ("True", "AllFound")
    renamed = [replace(each, product_name="NVIDIA H100 80GB") for each in GPUS]
    found = node(FORGETS).line("nvml", *GPUS).wait(70.0, nvml=tuple(renamed))
    assert says(found) is None
    assert [each.product_name for each in found.world.state.most_seen or ()] == ["NVIDIA H100 80GB"]


def test_a_probe_taken_away_on_purpose_and_devices_without_an_address_leave_no_expectation() -> None:
    gpus = [replace(each, vendor="amd", pci_bus_id=f"0000:c{number}:00.0") for number, each in enumerate(GPUS)]
    found = Node(BOTH).given(seen=SeenObject(exists=True, config=FORGETS))
    found.line("nvml", *GPUS[:1]).line("nics", *gpus[1:]).uses(said("nvml")).wait(300.0, nvml=GPUS[:1])
    assert says(found) is None
    found = Node(BOTH).given(seen=SeenObject(exists=True, config=FORGETS))
    plain = replace(GPUS[0], pci_bus_id="")
    found.line("nics", nic(), nic(1)).line("nvml", plain)
    assert found.world.state.most_seen == ()


def test_nothing_is_said_before_every_probe_has_reported() -> None:
    found = Node(BOTH).given(seen=SeenObject(exists=True, config=FORGETS))
    found.line("nvml", *GPUS).line("nics", nic())
    again = reimaged(found).line("nvml", *GPUS[:7])
    assert says(again) is None
    again.clock += GRACE_SECONDS
    assert says(again.line("nvml", *GPUS[:7])) == ("False", "Expected8Found7")


def test_what_is_remembered_begins_with_the_agent_and_is_bounded() -> None:
    local = parse(["--node-name=n1", "--standalone"], {})
    found = OneProbe(*GPUS, local=local).line()
    assert [each.count for each in found.world.state.most_seen or ()] == [8]
    many = [replace(each, product_name=f"GPU {number}") for number, each in enumerate(map(h100, range(40)))]
    assert len(node().line("nvml", *many).world.state.most_seen or ()) == MAX_KEPT


@cases("wrong", None, "x", [1], [{"probe": "nvml"}], [{"count": -1}], {"count": 8})
def test_an_object_with_something_else_there_is_read_without_it(wrong: object) -> None:
    assert seen_object({"status": {"mostSeen": wrong}}).most_seen == ()
