"""The line format: what a probe encodes the agent reads back, and nothing hostile passes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from crdgen import generate, probe_line
from hypothesis import given, settings, strategies as st
from nodedevices_plugin.inputs.reader import ProbeLineError, parse_line
from nodedevices_plugin.model import Inventory, InventoryDevice, device_names
from nodedevices_probe.loop import encode
from nodedevices_probe.protocol import (
    MAX_LINE_BYTES,
    PLAIN_TEXT,
    PROTOCOL,
    Attribute,
    DeviceFact,
    Driver,
    DriverState,
    Link,
    Machine,
    Partition,
    PcieNeighbour,
    PciePath,
    ProbeEvent,
    Problem,
    Readings,
    Snapshot,
    text,
)
from support.cases import cases
from support.facts import START, gpu, partition, snapshot
from support.fuzzing import scaled

NOW = datetime(2026, 11, 21, 10, 42, 0, 123456, tzinfo=UTC)
FULL = Snapshot(
    probe="nvml",
    probe_version="0.1.0",
    instance="4f2a",
    sequence=7,
    time=NOW,
    boot_id="b",
    driver=Driver(state=DriverState.LOADED, name="nvidia", version="570.148.08", cuda_version="12.8"),
    machine=Machine(type="DGXH100", mode="compute", clique="c.1"),
    accelerators_on_bus=1,
    problems=(Problem(code="Unmonitored", message="GPU 1: old"),),
    devices=(
        DeviceFact(
            id="GPU-a",
            index=0,
            minor=3,
            product_name="NVIDIA H100 80GB HBM3",
            numa_node=1,
            type="gpu",
            vendor="nvidia",
            extra={"migEnabled": Attribute(boolean=True), "slot": Attribute(integer=-3)},
            capacity={"memory": "81559Mi"},
            partitions=(
                Partition(
                    id="MIG-a",
                    profile="1g.10gb",
                    index=0,
                    gi=7,
                    ci=0,
                    capacity={"memory": "9856Mi"},
                    device_nodes=("/dev/nvidia-caps/nvidia-cap66",),
                ),
            ),
            links=(Link(kind="NVLink", to="switch", count=18),),
            pcie=(PcieNeighbour(to="GPU-b", path=PciePath.SYSTEM),),
            device_nodes=("/dev/nvidia3",),
            readings=Readings(recovery_action="None", remap_failure=False, temperature_celsius=-3),
        ),
    ),
    events=(ProbeEvent(sequence=1, time=NOW, kind="xid", device_id="GPU-a", xid=79, gi=7, ci=0, count=12),),
)


GENERIC = {"index": 0, "type": "generic", "vendor": "acme"}


def changed(path: str, value: object) -> bytes:
    """The full line with one value replaced; `devices.0.id` is its path."""
    line = json.loads(encode(FULL))
    *parents, last = path.split(".")
    place = line
    for part in parents:
        place = place[int(part)] if isinstance(place, list) else place[part]
    place[last] = value
    return json.dumps(line).encode()


def test_what_a_probe_encodes_is_read_back_in_camel_case_without_what_is_not_known() -> None:
    line = encode(FULL)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert parse_line(line) == FULL
    line = json.loads(encode(FULL))
    assert "eccUncorrectableVolatile" not in line["devices"][0]["readings"]
    assert line["devices"][0]["readings"]["remapFailure"] is False
    assert line["devices"][0]["productName"] == "NVIDIA H100 80GB HBM3"
    assert line["devices"][0]["extra"] == {"migEnabled": {"bool": True}, "slot": {"int": -3}}
    assert line["time"] == "2026-11-21T10:42:00.123456Z"


def test_newer_keys_change_nothing_and_another_protocol_is_refused_by_name() -> None:
    snapshot = parse_line(changed("time", NOW.astimezone(timezone(timedelta(hours=5))).isoformat()))
    assert snapshot.time == NOW
    assert parse_line(changed("devices.0.readings.fanSpeed", {"percent": 3})) == FULL
    with pytest.raises(
        ProbeLineError, match=re.escape(f"'nodedevices.io/probe/v2' is not supported by this agent; give '{PROTOCOL}'")
    ):
        parse_line(b'{"protocol": "nodedevices.io/probe/v2", "gadgets": []}')


@cases(
    ("path", "value", "complaint"),

        (
            *("devices.0.id", ""),
            "devices[0].id: '' is not allowed; give 1 to 96 of A-Z a-z 0-9 . _ - with single colons between them",
        ),
        ("devices.0.id", "card::3", "devices[0].id: 'card::3' is not allowed"),  # a share of a device `card`
        ("devices.0.id", "card:", "devices[0].id: 'card:' is not allowed"),  # its share 3 would be card:::3
        ("devices.0.partitions.0.id", "MIG-a::0", "devices[0].partitions[0].id: 'MIG-a::0' is not allowed"),
        ("devices.0.id", "a/../b", "devices[0].id: 'a/../b' is not allowed"),
        ("devices.0.id", "x" * 97, "devices[0].id: "),
        ("devices.0.id", "GPU-a\n", "devices[0].id: "),
        ("devices.0.index", 1024, "devices[0].index: 1024 is not allowed"),
        ("devices.0.index", True, "devices[0].index: True is not allowed"),
        ("devices.0.minor", "1", "devices[0].minor: '1' is not allowed"),
        ("devices.0.minor", 1.5, "devices[0].minor: 1.5 is not allowed"),
        ("devices.0.minor", -1, "devices[0].minor: -1 is not allowed"),
        ("events.0.sequence", 2**53, "events[0].sequence: 9007199254740992 is not allowed"),
        ("devices.0.capacity.memory", 81559, "devices[0].capacity.memory: 81559 is not allowed; give text"),
        ("devices.0.capacity.memory", "much", "'much' is not allowed; give a quantity such as 80Gi, or a number"),
        ("devices.0.capacity", {"v-fs": "1"}, "devices[0].capacity: 'v-fs' is not allowed; give a name of at most 32"),
        ("devices.0.capacity", {f"c{n}": "1" for n in range(33)}, "capacity: 33 entries are too many; give at most 32"),
        ("devices.0.capacity", {f"c{n}": "1" for n in range(17)}, "capacity: 19 entries with those of extra are too"),
        ("devices.0.partitions.0.capacity", {f"c{n}": "1" for n in range(17)}, "devices[0].partitions.capacity: 19"),
        ("devices.0.extra.speed", {"int": 1, "string": "1"}, "extra.speed: give exactly one of string, int, bool and"),
        ("devices.0.extra.speed", {}, "devices[0].extra.speed: give exactly one of string, int, bool and version"),
        ("devices.0.extra.speed", 3, "devices[0].extra.speed: 3 is not allowed; give keys and values"),
        ("devices.0.extra.shell", {"version": "1.2"}, "'1.2' is not allowed; give a semantic version such as 9.0.0"),
        ("devices.0.extra.vendor", {"string": "x"}, "devices[0].extra.vendor: has a field of its own"),
        ("devices.0.name", "GPU 3", "devices[0].name: 'GPU 3' is not allowed; give small letters, digits and hyphens"),
        ("devices.0.productName", "a\x1b[31mb", "give text without control or invisible characters"),
        ("devices.0.productName", "a\u202eb", "give text without control or invisible characters"),
        ("devices.0.productName", "x" * 65, "devices[0].productName: "),
        ("devices.0.deviceNodes", ["/dev/../etc/shadow"], "give a path such as /dev/nvidia0"),
        ("devices.0.deviceNodes", ["/etc/shadow"], "give a path such as /dev/nvidia0"),
        ("devices.0.deviceNodes", ["/dev/n"] * 17, "devices[0].deviceNodes: 17 entries are too many; give at most 16"),
        ("devices.0.pcie.0.path", "near", "devices[0].pcie[0].path: 'near' is not allowed"),
        ("devices.0.readings.lost", 1, "devices[0].readings.lost: 1 is not allowed"),
        ("devices.0.readings.recoveryAction", "", "devices[0].readings.recoveryAction: "),
        ("devices.0.partitions.0.gi", "7", "devices[0].partitions[0].gi: '7' is not allowed"),
        ("devices.0.partitions.0.id", "GPU-a", "devices[0].partitions[0].id: 'GPU-a' is already taken"),
        ("devices", [json.loads(encode(FULL))["devices"][0]] * 257, "devices: 257 entries are too many; give at most"),
        ("devices", [GENERIC | {"id": "a"}, GENERIC | {"id": "b"}], "devices[1].index: 0 is another device's"),
        ("devices", [GENERIC | {"id": "a"}, GENERIC | {"id": "a", "index": 1}], "devices[1].id: 'a' is already taken"),
        ("devices", [GENERIC], "devices[0].id: is missing"),
        ("devices", [{"id": "a", "index": 0, "type": "gpu"}], "devices[0].vendor: is missing; every line needs it"),
        ("devices", {}, "devices: an object is not allowed"),
        ("events", [{"sequence": 1, "time": "2026-01-01T00:00:00Z", "kind": "xid"}] * 257, "events: 257 entries"),
        ("events.0.xid", 2**32, "events[0].xid: 4294967296 is not allowed"),
        ("events.0.time", "2026-11-21T10:42:00", "events[0].time: '2026-11-21T10:42:00' is not allowed; it names no"),
        ("time", 1763721720, "time: 1763721720 is not allowed"),
        ("time", "0001-01-01T00:00:00+23:00", "time: '0001-01-01T00:00:00+23:00' is not allowed; it is not a valid"),
        ("driver.state", "loaded", "driver.state: 'loaded' is not allowed"),
        ("driver", None, "driver: None is not allowed"),

)  # fmt: skip
def test_a_bad_value_is_refused_by_place_and_value(path: Any, value: Any, complaint: str) -> None:
    with pytest.raises(ProbeLineError, match=re.escape(complaint)):
        parse_line(changed(path, value))


@cases(
    "raw",
    b"",
    b"{",
    b"null",
    b"[]",
    b'"x"',
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"protocol":' + b"[" * 5000,
    b'{"a":1}{"a":1}',
)
def test_what_is_no_line_at_all_is_refused(raw: bytes) -> None:
    with pytest.raises(ProbeLineError):
        parse_line(raw)


def test_a_line_beyond_the_cap_is_not_parsed_and_an_error_is_short_and_plain() -> None:
    with pytest.raises(ProbeLineError, match=f"at most {MAX_LINE_BYTES} are read"):
        parse_line(b" " * (MAX_LINE_BYTES + 1))
    with pytest.raises(ProbeLineError) as refused:
        parse_line(changed("devices.0.index", "\x1b[2J" + "é" * 100_000))
    assert len(str(refused.value)) < 300
    assert str(refused.value).isascii()
    assert str(refused.value).isprintable()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
PATHS = ["devices.0." + key for key in json.loads(encode(FULL))["devices"][0]]
PATHS += [*json.loads(encode(FULL)), "events.0.time", "events.0.count", "devices.0.readings.error", "machine.type"]


@settings(max_examples=scaled(300), deadline=None)
@given(st.sampled_from(PATHS), JSON)
def test_whatever_stands_in_a_field_the_line_parses_within_bounds_or_is_refused(path: Any, value: Any) -> None:
    try:
        snapshot = parse_line(changed(path, value))
    except ProbeLineError:
        return
    assert parse_line(encode(snapshot)) == snapshot


@settings(deadline=None)
@given(st.text(max_size=200), st.sampled_from([1, 64, 512]))
def test_text_is_always_fit_for_a_line(value: Any, limit: int) -> None:
    clean = text(value, limit)
    assert len(clean) <= limit
    assert re.fullmatch(PLAIN_TEXT, clean)
    clean.encode("utf-8")


def test_the_published_schema_says_what_the_reader_enforces() -> None:
    published = probe_line.line_schema()
    device = published["$defs"]["DeviceFact"]["properties"]
    assert device["id"] == {"maxLength": 96, "pattern": "^[A-Za-z0-9._-]+(:[A-Za-z0-9._-]+)*$", "type": "string"}
    assert device["index"] == {"maximum": 1023, "minimum": 0, "type": "integer"}
    assert published["properties"]["devices"]["maxItems"] == 256
    assert published["properties"]["events"]["maxItems"] == 256
    assert published["properties"]["protocol"] == {"const": PROTOCOL}
    assert "driver" in published["required"]


def test_schema_check_notices_a_file_that_is_not_up_to_date(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main([str(tmp_path)]) == 0
    assert generate.main([str(tmp_path), "--check"]) == 0
    (tmp_path / probe_line.FILE_NAME).write_text("{}\n")
    assert generate.main([str(tmp_path), "--check"]) == 1
    assert "make gen" in capsys.readouterr().out


def test_two_partitions_of_one_name_cost_the_name_and_not_the_line() -> None:
    parts = tuple(replace(partition(0, index), name="gpu-0-mig-1g24gbme-47-0") for index in range(2))
    line = parse_line(encode(snapshot(gpu(0, partitions=parts))))
    found = tuple(InventoryDevice(fact=each, present=True, last_seen=START) for each in line.devices)
    named = device_names(Inventory(devices=found))
    first, second = (named[each.id] for each in parts)
    assert first == "gpu-0-mig-1g24gbme-47-0"
    assert second.startswith(f"{first}-"), "with a hash of its id, so that both are told apart"
