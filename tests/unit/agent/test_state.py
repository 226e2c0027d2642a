"""The state file: what was saved comes back, and no file or disk can stop the agent."""

from __future__ import annotations

import dataclasses
import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from nodedevices_plugin.health.events import EPOCH, EventCursor
from nodedevices_plugin.model import (
    Cordon,
    Fault,
    Given,
    HealthState,
    Holder,
    HoldersState,
    Holdings,
    Inventory,
    InventoryDevice,
    Notice,
    Occurrences,
    Period,
    Shown,
    Usual,
    Verdict,
    tenure_key,
)
from nodedevices_plugin.pipeline.routing import WaitingEvent
from nodedevices_plugin.pipeline.state import (
    SeenSpec,
    State,
    StateError,
    StateFile,
    restored_devices,
    same_but_times,
    to_save,
)
from nodedevices_probe.protocol import Attribute, DeviceFact, Partition, ProbeEvent, Readings
from support.facts import gpu, gpu_id
from support.local import restored
from support.stepped_node import Node

RECORDED = Path(__file__).parent / "states" / "v1.json"  # as this version writes it: to be read by each later one
NOW = datetime(2026, 11, 21, 7, 2, 11, 123456, tzinfo=UTC)
PART = Partition(id="MIG-1", profile="1g.10gb", index=0, gi=1, ci=0, capacity={"memory": "1Gi"})
DEVICE = InventoryDevice(
    fact=DeviceFact(
        id="GPU-1",
        index=0,
        type="gpu",
        vendor="nvidia",
        extra={"migEnabled": Attribute(boolean=True)},
        capacity={"memory": "80Gi"},
        partitions=(PART,),
        readings=Readings(temperature_celsius=55),
    ),
    present=True,
    last_seen=NOW,
    departed_partitions=frozenset({"MIG-1"}),
)
FAULT = Fault(
    reason="Xid79",
    state=HealthState.UNHEALTHY,
    message="fallen off the bus (XID 79)",
    action="RebootNode",
    fault_domain="Device",
    since=NOW,
    last_seen=NOW,
    boot_id="boot-1",
    xid=79,
    neighbours=(45,),
    usual=Usual(state=HealthState.UNHEALTHY, action="RebootNode", domain="Device"),
)
BAD = Verdict(
    state=HealthState.UNHEALTHY, reason="Xid79", message="m", since=NOW, offered=False, xid=79, faults=(FAULT,)
)
GOOD = Verdict(state=HealthState.HEALTHY, reason="", message="", since=NOW, offered=True)
WAITING = WaitingEvent(
    event=ProbeEvent(
        sequence=1, time=NOW, kind="sxid-fatal", pci_bus_id="0000:c1:00.0", xid=12020, details={"link": "1"}
    ),
    boot_id="boot-1",
)
FULL = State(
    boot_id="boot-1",
    devices=(DEVICE,),
    verdicts={"GPU-1": BAD},
    applied={"resourcePrefix": "nvidia.com", "sections": {"sharing": {"strategy": "none"}}},
    applied_hash="abc",
    spec=SeenSpec(config={"health": {"holdDownSeconds": 5}}, config_hash="abc"),
    offered=("nvidia.com/gpu",),
    retired={"nvidia.com/gpu.shared": NOW},
    confirmed="GPU-2=removed",
    waiting=(WAITING,),
)


@pytest.fixture
def file(tmp_path: Path) -> StateFile:
    return StateFile(tmp_path / "nodedevices-state.json")


def test_what_was_saved_comes_back(file: StateFile) -> None:
    file.save(FULL)
    assert file.load() == FULL
    assert (file.path.stat().st_mode & 0o777) == 0o600


def test_no_file_is_an_empty_state(file: StateFile) -> None:
    assert file.load() == State()


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b"{}", b'{"version": "x"}', b"[" * 100_000])
def test_a_file_that_cannot_be_read_is_named_and_kept_aside(file: StateFile, content: bytes) -> None:
    file.path.write_bytes(content)
    with pytest.raises(StateError, match=r"not a state file .*kept as nodedevices-state.json.unreadable"):
        file.load()
    assert file.path.with_name("nodedevices-state.json.unreadable").read_bytes() == content
    assert file.load() == State()


def test_a_recorded_file_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "nodedevices-state.json"
    shutil.copyfile(RECORDED, path)
    file = StateFile(path)
    state = file.load()
    assert file.unread == ""
    assert (state.boot_id, state.applied_hash, state.offered) == ("boot-1", "abc", ("nvidia.com/gpu",))
    assert restored(state.applied or {}).sections.sharing.strategy == "timeSlicing"
    [device] = state.devices
    assert (device.fact.id, device.present) == ("GPU-1", True)
    assert (device.fact.extra, device.fact.capacity) == ({"migEnabled": Attribute(boolean=True)}, {"memory": "80Gi"})
    assert [(part.gi, part.capacity) for part in device.fact.partitions] == [(1, {"memory": "1Gi"})]
    [fault] = state.verdicts["GPU-1"].faults
    assert (fault.reason, fault.action) == ("Xid79", "ResetDevice")
    assert state.spec == SeenSpec(config={"health": {"holdDownSeconds": 5}}, config_hash="abc")
    assert (state.confirmed, list(state.retired)) == ("GPU-2=removed", ["nvidia.com/gpu.shared"])
    [notice] = state.notices["GPU-1"]
    assert (notice.code, notice.partition, notice.count, notice.repeats) == ("Xid31", "MIG-1", 3, 2)
    assert state.clients.clients["ml/train-0/main/nvidia.com/gpu"].reason == "MpsDaemonRestarted"
    assert (state.observed, state.probes) == ({"nvidia.com/gpu": ("GPU-1",)}, ("nvml",))


def test_a_verdict_that_cannot_be_read_takes_no_other_along(file: StateFile) -> None:
    file.save(dataclasses.replace(FULL, verdicts={"GPU-1": BAD, "GPU-2": BAD}))
    document = json.loads(file.path.read_bytes())
    document["verdicts"]["GPU-2"]["since"] = "2026-11-21T10:00:00"
    file.path.write_text(json.dumps(document))
    assert file.load() == FULL
    assert file.unread.startswith("verdicts.GPU-2.since: a time without a zone")


def test_a_history_that_cannot_be_read_takes_no_other_along(file: StateFile) -> None:
    shown = Shown(count=1, first=NOW, last=NOW, at=NOW)
    listed = (Occurrences(reason="Xid79", periods=(Period(number=1, first=NOW, count=1),), last=NOW, shown=shown),)
    file.save(dataclasses.replace(FULL, history={"GPU-1": listed, "GPU-2": listed}))
    document = json.loads(file.path.read_bytes())
    document["history"]["GPU-2"][0]["periods"][0]["count"] = "many"
    file.path.write_text(json.dumps(document))
    assert file.load() == dataclasses.replace(FULL, history={"GPU-1": listed})
    assert file.unread.startswith("history.GPU-2.0.periods.0.count: ")


def test_what_was_given_with_an_id_and_cannot_be_read_takes_no_other_along(file: StateFile) -> None:
    given = Given(device="GPU-1", partition="MIG-1", places={"node /dev/nvidia1": True, "node /dev/common": False})
    file.save(dataclasses.replace(FULL, given={"nvidia.com/gpu GPU-1": given, "nvidia.com/gpu GPU-2": given}))
    document = json.loads(file.path.read_bytes())
    document["given"]["nvidia.com/gpu GPU-1"]["later"] = "known to a newer version"
    document["given"]["nvidia.com/gpu GPU-2"]["places"] = "everywhere"
    file.path.write_text(json.dumps(document))
    assert file.load() == dataclasses.replace(FULL, given={"nvidia.com/gpu GPU-1": given})
    assert file.unread.startswith("given.nvidia.com/gpu GPU-2.places: ")


def test_a_history_without_a_period_stops_no_agent() -> None:
    shown = Shown(count=1, first=NOW, last=NOW, at=NOW)
    empty = Occurrences(reason="Xid79", periods=(), last=NOW, shown=shown)
    node = Node(gpu(0), state=State(history={gpu_id(0): (empty,)})).line()
    assert (node.states, node.world.state.history) == ({gpu_id(0): ("Healthy", "")}, {})


def test_a_device_that_cannot_be_read_takes_no_other_along(file: StateFile) -> None:
    other = dataclasses.replace(DEVICE, fact=dataclasses.replace(DEVICE.fact, id="GPU-2", index=1))
    file.save(dataclasses.replace(FULL, devices=(DEVICE, other)))
    document = json.loads(file.path.read_bytes())
    document["devices"][1]["fact"]["id"] = "card::3"
    file.path.write_text(json.dumps(document))
    assert file.load() == FULL
    assert file.unread.startswith("devices.1.fact.id: ")


def test_where_a_part_is_lost_a_probes_events_are_read_again(file: StateFile) -> None:
    file.save(dataclasses.replace(FULL, cursors={"nvml": EventCursor("first", 7)}))
    assert file.load().cursors == {"nvml": EventCursor("first", 7)}
    document = json.loads(file.path.read_bytes()) | {"verdicts": []}
    file.path.write_text(json.dumps(document))
    assert file.load().cursors == {}


def test_of_a_newer_versions_file_all_that_is_understood_is_used_and_the_rest_named(file: StateFile) -> None:
    file.save(FULL)
    newer = json.loads(file.path.read_bytes()) | {"version": 9, "ledger": [1], "verdicts": {"GPU-1": {"state": "Fine"}}}
    file.path.write_text(json.dumps(newer))
    assert file.load() == dataclasses.replace(FULL, verdicts={})
    assert file.unread.startswith("verdicts.GPU-1")
    assert file.unread.endswith("kept as nodedevices-state.json.unreadable")
    assert json.loads(file.path.with_name("nodedevices-state.json.unreadable").read_bytes()) == newer


@pytest.mark.parametrize(
    ("place", "where"),
    [
        (("verdicts", "GPU-1", "faults", 0, "last_seen"), "verdicts.GPU-1.faults.0.last_seen"),
        (("verdicts", "GPU-1", "since"), "verdicts.GPU-1.since"),
        (("devices", 0, "last_seen"), "devices.0.last_seen"),
        (("retired", "nvidia.com/gpu.shared"), "retired.nvidia.com/gpu.shared"),
    ],
)
def test_a_time_without_a_zone_is_refused_there(file: StateFile, place: tuple[str | int, ...], where: str) -> None:
    file.save(FULL)
    document: Any = json.loads(file.path.read_bytes())
    inner = document
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = "2026-11-21T10:00:00"
    file.path.write_text(json.dumps(document))
    state = file.load()
    assert file.unread.startswith(f"{where}: a time without a zone; write it as")
    assert state == dataclasses.replace(FULL, **{str(place[0]): getattr(State(), str(place[0]))})


def test_a_target_that_cannot_be_replaced_is_reported_and_leaves_no_temporary_file(file: StateFile) -> None:
    file.path.mkdir()
    with pytest.raises(StateError, match=f"write {file.path}"):
        file.save(FULL)
    assert [each.name for each in file.path.parent.iterdir()] == ["nodedevices-state.json"]


def test_neither_readings_nor_healthy_verdicts_are_kept() -> None:
    one = to_save(State(), Inventory(devices=(DEVICE,), boot_id="b"), {"GPU-1": BAD, "GPU-2": GOOD})
    hotter = dataclasses.replace(
        DEVICE, fact=dataclasses.replace(DEVICE.fact, readings=Readings(temperature_celsius=90))
    )
    later = dataclasses.replace(hotter, last_seen=NOW + timedelta(seconds=9))
    assert list(one.verdicts) == ["GPU-1"]
    assert one == to_save(State(), Inventory(devices=(later,), boot_id="b"), {"GPU-1": BAD})


def test_when_a_device_went_missing_is_kept_and_one_that_is_here_counts_as_seen_until_the_start() -> None:
    gone = dataclasses.replace(DEVICE, present=False)
    saved = to_save(
        State(),
        Inventory(
            devices=(gone, dataclasses.replace(DEVICE, fact=dataclasses.replace(DEVICE.fact, id="GPU-2", index=1)))
        ),
        {},
    )
    assert [each.last_seen for each in saved.devices] == [NOW, EPOCH]
    later = NOW + timedelta(days=1)
    assert [each.last_seen for each in restored_devices(saved, later)] == [NOW, later]


def test_of_what_is_saved_nothing_urgent_waits() -> None:
    again = dataclasses.replace(BAD, faults=(dataclasses.replace(FAULT, last_seen=NOW + timedelta(seconds=5)),))
    other = dataclasses.replace(BAD, faults=(FAULT, dataclasses.replace(FAULT, reason="Xid48", xid=48)))
    assert same_but_times(FULL, dataclasses.replace(FULL, verdicts={"GPU-1": again}))
    assert not same_but_times(FULL, dataclasses.replace(FULL, verdicts={"GPU-1": other}))
    assert not same_but_times(dataclasses.replace(FULL, waiting=()), FULL)
    repeated = dataclasses.replace(WAITING, event=dataclasses.replace(WAITING.event, count=2))
    assert same_but_times(FULL, dataclasses.replace(FULL, waiting=(repeated,)))


def test_what_is_out_of_service_is_saved_at_once(file: StateFile) -> None:
    state = dataclasses.replace(FULL, unschedulable=(Cordon(id="GPU-1", reason="RMA 4711", until=NOW),))
    assert not same_but_times(FULL, state)
    file.save(state)
    assert file.load() == state


def test_a_notice_is_saved_and_nothing_waits_for_it(file: StateFile) -> None:
    notice = Notice(code="Xid31", message="m", since=NOW, time=NOW, count=3, counted=NOW, newest=NOW, repeats=2)
    noticed = dataclasses.replace(FULL, notices={"GPU-1": (notice,)})
    assert same_but_times(FULL, noticed)
    file.save(noticed)
    assert file.load() == noticed


def test_since_when_devices_are_held_is_kept_until_the_kubelet_says_that_they_are_not(file: StateFile) -> None:
    holder = Holder(namespace="ml", pod="p", container="c", resource="x/y", ids=(gpu_id(0),), since=NOW, uid="u1")
    listed = Holdings(state=HoldersState.SYNCED, holders=(holder, replace(holder, container="d", uid="")), taken=1.0)
    node = Node(gpu(0)).given(holdings=listed).line()
    kept = {tenure_key("u1", "c", "x/y"): NOW}
    assert node.world.state.held_since == kept
    assert same_but_times(dataclasses.replace(node.world.state, held_since={}), node.world.state)
    file.save(node.world.state)
    assert file.load().held_since == kept
    for silent in (Holdings(state=HoldersState.UNAVAILABLE), replace(listed, holders=(), unread_because="torn")):
        node.restarts().given(holdings=silent).line()
        assert node.world.state.held_since == kept
    assert node.given(holdings=replace(listed, holders=())).line().world.state.held_since == {}
