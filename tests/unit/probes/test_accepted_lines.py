"""A line that the reader accepts never fails what follows: step, state file, the kubelet's answer, report."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings, strategies as st
from nodedevices_api.base import to_dict
from nodedevices_api.nodedevices import NodeDevicesStatus
from nodedevices_plugin.claims.slices import Json, writes
from nodedevices_plugin.inputs.reader import MAX_VALUES, ProbeLineError, parse_line
from nodedevices_plugin.kubelet.server import snapshot as encoded
from nodedevices_plugin.model import DRA_DRIVER as DRIVER, Holder, HoldersState, Holdings, Inventory
from nodedevices_plugin.pipeline.state import State, StateFile
from nodedevices_plugin.pipeline.world import Inputs, begin
from nodedevices_plugin.settings.flags import parse
from nodedevices_probe import protocol
from nodedevices_probe.loop import encode
from nodedevices_probe.protocol import MAX_LINE_PARTITIONS, DeviceFact, Snapshot
from support import resourceslice
from support.accepted_lines import LINES, published
from support.cases import cases
from support.facts import START, gpu, partition, snapshot, well, xid
from support.fuzzing import scaled
from support.stepped_node import report_of
from support.steps import step

LOCAL = parse(["--standalone", "--mig-strategy=mixed"], {})


def follow(*lines: Snapshot) -> tuple[Inventory, NodeDevicesStatus]:
    """The lines taken one after the other, by an agent on whose node everything is held; its inventory and report."""
    world = begin(State(), LOCAL, now=START, monotonic=0.0)
    status = NodeDevicesStatus()
    for number, line in enumerate(lines, start=1):
        held = [part.id for each in lines for device in each.devices for part in device.partitions]
        holder = Holder(namespace="n", pod="p", container="c", resource="nvidia.com/gpu", ids=tuple(held), since=START)
        holdings = Holdings(state=HoldersState.SYNCED, taken=1.0, holders=(holder,))
        now = START + timedelta(seconds=number)
        inputs = Inputs(snapshot=line, arrived=float(number), holdings=holdings)
        world = step(world, inputs, LOCAL, now=now, monotonic=float(number)).world
        assert world.plan is not None
        for resource in world.plan.resources:
            encoded(resource)
        status = report_of(world, now)
        to_dict(status)
    return world.known.inventory, status


def slices(inventory: Inventory) -> list[Json]:
    """The specs of the node's slices."""
    return list(writes("n1", DRIVER, published(inventory).devices, ()).creates.values())


@settings(
    max_examples=scaled(60, share=6),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(st.lists(LINES, min_size=1, max_size=2))
def test_whatever_the_reader_accepts_can_be_reported_and_is_legal_in_a_resource_slice(said: list[Snapshot]) -> None:
    lines = []
    for each in said:
        try:
            lines.append(parse_line(encode(each)))
        except ProbeLineError as error:
            assume("already taken" not in error.problem and "another device's" not in error.problem)
            raise
    inventory, status = follow(*lines)
    specs = slices(inventory)
    assert resourceslice.problems(specs) == []
    listed = [device["name"] for spec in specs for device in spec["devices"]]
    cut = {device.parent for device in status.devices}
    assert len(listed) == sum(device.name not in cut for device in status.devices)


def test_a_partition_in_a_resource_slice_has_its_devices_attributes_and_its_own_capacity() -> None:
    cut = gpu(0, compute_capability="9.0", mig_enabled=True, pci_bus_id="0000:1b:00.0", partitions=(partition(0, 0),))
    [spec] = slices(follow(snapshot(cut))[0])
    assert spec["devices"] == [
        {
            "name": "gpu-0-1g10gb-0",
            "attributes": {
                "resource": {"string": "nvidia.com/gpu"},
                "type": {"string": "gpu"},
                "uuid": {"string": partition(0, 0).id},
                "parent": {"string": "gpu-0"},
                "profile": {"string": "1g.10gb"},
                "vendor": {"string": "nvidia"},
                "productName": {"string": "NVIDIA H100 80GB HBM3"},
                "resource.kubernetes.io/pciBusID": {"string": "0000:1b:00.0"},
                "resource.kubernetes.io/numaNode": {"int": 0},
                "minor": {"int": 0},
                "cudaComputeCapability": {"version": "9.0.0"},
                "migEnabled": {"bool": True},
            },
            "capacity": {"memory": {"value": "10Gi"}},
        }
    ]


def test_devices_that_would_be_called_the_same_have_names_of_their_own() -> None:
    amd = gpu(1, id="amd-1", minor=0, vendor="amd", partitions=(partition(1, 0, id="xcp-0", gi=None, ci=None),))
    same = gpu(0, partitions=(partition(0, 0, name="gpu-0"),))
    inventory, status = follow(snapshot(same, amd))
    names = [device.name for device in status.devices]
    assert len(set(names)) == 4
    assert names[0] == "gpu-0"
    assert resourceslice.problems(slices(inventory)) == []


@cases(
    ("fact", "complaint"),
    (gpu(0, type="gpu-x"), "devices[0].type: 'gpu-x' is not allowed; give 1 to 32 letters and digits"),
    (gpu(0, type="g" * 33), "devices[0].type: "),
    (gpu(0, numa_node=1024), "devices[0].numaNode: 1024 is not allowed; give 1023 or less"),
    (gpu(0, readings=well(recovery_action="reset-gpu")), "devices[0].readings.recoveryAction: 'reset-gpu' is not"),
    (gpu(0, partitions=(partition(0, 0, profile="1g 10gb/x"),)), "devices[0].partitions[0].profile: '1g 10gb/x'"),
    (gpu(0, partitions=(partition(0, 0, profile=""),)), "devices[0].partitions[0].profile: '' is not allowed"),
    (gpu(0, links=(protocol.Link(kind="NV-Link", to="switch", count=1),)), "devices[0].links[0].kind: 'NV-Link'"),
)
def test_what_the_report_could_not_say_is_refused_by_its_place(fact: DeviceFact, complaint: str) -> None:
    with pytest.raises(ProbeLineError) as refused:
        parse_line(encode(snapshot(fact)))
    assert str(refused.value).startswith(f"probe line: {complaint}")


def test_a_line_beyond_the_reports_range_or_with_too_many_values_is_refused() -> None:
    with pytest.raises(ProbeLineError, match="4294967295 is not allowed"):
        parse_line(encode(snapshot(gpu(0), events=(xid(2**32 - 1, sequence=1),))))
    with pytest.raises(ProbeLineError, match=f"values are too many; at most {MAX_VALUES} are read"):
        parse_line(b'{"events":[' + b"{}," * MAX_VALUES + b"{}]}")


def test_a_line_with_more_partitions_than_a_pass_can_take_is_refused() -> None:
    def cut(devices: int, parts: int) -> bytes:
        many = [
            gpu(one, partitions=tuple(partition(one, part, id=f"MIG-{one}-{part}") for part in range(parts)))
            for one in range(devices)
        ]
        return encode(snapshot(*many))

    assert len(parse_line(cut(8, 64)).devices) * 64 == MAX_LINE_PARTITIONS
    with pytest.raises(ProbeLineError, match="devices: 513 partitions in all are too many; give at most 512"):
        parse_line(cut(27, 19))


def test_a_held_mig_device_that_moved_or_has_gone_is_there_once_and_leaves_room() -> None:
    moved = partition(0, 0, id="MIG-x")
    for first in (gpu(0), gpu(0, readings=well(lost=True)), None):
        lines = [snapshot(gpu(0, partitions=(moved,)), gpu(1))]
        lines += [snapshot(*filter(None, (first, gpu(1, partitions=(moved,)))))]
        status = follow(*lines)[1]
        assert [(each.id, each.parent) for each in status.devices if each.parent] == [("MIG-x", "gpu-1")]

    def cut(generation: int) -> Snapshot:
        parts = tuple(partition(0, part, id=f"MIG-{generation}-{part}") for part in range(64))
        return snapshot(gpu(0, partitions=parts))

    _, *parts = follow(cut(1), cut(2))[1].devices
    assert [part.id for part in parts] == [f"MIG-2-{part}" for part in range(64)]


def test_times_of_the_year_one_are_times_of_long_ago() -> None:
    may_have_expired = datetime(1000, 1, 1, tzinfo=UTC)
    events = (
        dataclasses.replace(xid(48, sequence=1), time=may_have_expired),
        replace(xid(79, sequence=2), time=may_have_expired),
    )
    raw = encode(snapshot(gpu(0), events=events)).replace(b"1000-01-01", b"0001-01-01")
    [device] = follow(parse_line(raw))[1].devices
    assert device.health.reason == "Xid79"


def test_what_is_accepted_comes_back_from_the_state_file(tmp_path: Any) -> None:
    world = begin(State(), LOCAL, now=START, monotonic=0.0)
    line = parse_line(encode(snapshot(gpu(0), events=(xid(2**31 - 1, sequence=1),))))
    inputs = Inputs(snapshot=line, arrived=1.0, holdings=Holdings(state=HoldersState.SYNCED, taken=1.0))
    world = step(world, inputs, LOCAL, now=START, monotonic=1.0).world
    file = StateFile(tmp_path / "state.json")
    file.save(world.state)
    assert file.load() == world.state
