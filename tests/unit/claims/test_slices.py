"""What a node publishes in ResourceSlices, and the writes that make the API server's copy so."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

from hypothesis import given, strategies as st
from nodedevices_api.withheld import CORDONED, MEANINGS, TOLERABLE, UNHEALTHY
from nodedevices_plugin.claims.slices import (
    MAX_DEVICES,
    TAINT_KEYS,
    Json,
    Published,
    Stored,
    Writes,
    dropped,
    publish,
    slice_name,
    writes,
)
from nodedevices_plugin.model import DRA_DRIVER as DRIVER, Blocked, OfferedResource, SchedulableId
from nodedevices_plugin.offering.shape import not_by_dra
from nodedevices_probe.protocol import Attribute, DeviceFact
from support import resourceslice
from support.cases import cases
from support.facts import gpu, healthy, inventory_of

NODE = "n1"


def offered(*facts: DeviceFact, blocked: Blocked | None = None) -> OfferedResource:
    ids = tuple(SchedulableId(id=fact.id, device_id=fact.id, blocked=blocked) for fact in facts)
    return OfferedResource(name="nvidia.com/gpu", ids=ids)


def published(*facts: DeviceFact, blocked: Blocked | None = None) -> Published:
    inventory = inventory_of(*facts)
    resource = offered(*facts, blocked=blocked)
    return publish([resource], inventory, healthy(*facts), driver=DRIVER)


def devices(count: int) -> list[Json]:
    return [{"name": f"gpu-{number}", "attributes": {"type": {"string": "gpu"}}} for number in range(count)]


def tainted(device: Json, value: str = "Xid79") -> Json:
    return device | {"taints": [{"key": "nodedevices.io/unhealthy", "value": value, "effect": "NoSchedule"}]}


class Server:
    """As the API server stores slices: with times of taints, its own quantities, and without what is empty."""

    def __init__(self) -> None:
        self.slices: dict[str, Stored] = {}
        self.clock = 0

    def store(self, name: str, spec: Json) -> None:
        self.clock += 1
        spec = deepcopy(spec)
        for device in spec["devices"]:
            for amount in device.get("capacity", {}).values():
                amount["value"] = {"81920Mi": "80Gi"}.get(amount["value"], amount["value"])
            for taint in device.get("taints", ()):
                taint.setdefault("timeAdded", f"2026-11-29T00:00:{self.clock:02}Z")
                if not taint["value"]:
                    del taint["value"]
        self.slices[name] = Stored(name=name, resource_version=str(self.clock), spec=spec)

    def apply(self, wanted: Writes) -> None:
        for name in wanted.deletes:
            del self.slices[name]
        for (name, version), spec in wanted.updates.items():
            assert self.slices[name].resource_version == version
            self.store(name, spec)
        for name, spec in wanted.creates.items():
            assert name not in self.slices
            self.store(name, spec)

    def follow(self, listed: Sequence[Json]) -> Writes:
        wanted = writes(NODE, DRIVER, listed, tuple(self.slices.values()))
        self.apply(wanted)
        assert writes(NODE, DRIVER, listed, tuple(self.slices.values())) == Writes()
        return wanted

    def generations(self) -> set[int]:
        return {piece.spec["pool"]["generation"] for piece in self.slices.values()}


def test_an_empty_pool_is_one_slice_with_a_name_that_is_one_however_long_the_nodes() -> None:
    server = Server()
    wanted = server.follow([])
    [(name, spec)] = wanted.creates.items()
    assert name == "00000-nodedevices.io-n1"
    assert spec["devices"] == []
    assert spec["pool"] == {"name": NODE, "generation": 1, "resourceSliceCount": 1}
    names = {slice_name(0, DRIVER, f"{'n' * 252}{end}") for end in "ab"} | {slice_name(1, DRIVER, "n" * 253)}
    assert len(names) == 3
    assert max(map(len, names)) <= 253


def test_nothing_is_written_where_nothing_changed_although_the_server_spells_it_otherwise() -> None:
    server = Server()
    big = devices(1)[0] | {"capacity": {"memory": {"value": "81920Mi"}}}
    server.follow([tainted(big, ""), *devices(70)[1:]])
    assert len(server.slices) == 2


def test_a_taint_changes_one_slice_in_place_and_keeps_its_time_while_it_stays() -> None:
    server = Server()
    many = devices(200)
    server.follow(many)
    many[100] = tainted(many[100])
    assert [name for name, _ in server.follow(many).updates] == ["00001-nodedevices.io-n1"]
    assert server.generations() == {1}
    then = server.slices["00001-nodedevices.io-n1"].spec["devices"][36]["taints"][0]["timeAdded"]
    many[101] = tainted(many[101], "Xid48")
    server.follow(many)
    now = [
        device["taints"][0]["timeAdded"] for device in server.slices["00001-nodedevices.io-n1"].spec["devices"][36:38]
    ]
    assert now[0] == then != now[1]


def test_a_change_of_several_slices_or_of_their_number_is_a_new_generation_of_all() -> None:
    server = Server()
    server.follow(devices(130))
    both = devices(130)
    both[0], both[64] = tainted(both[0]), tainted(both[64])
    server.follow(both)
    assert server.generations() == {2}
    fewer = server.follow(both[:64])
    assert fewer.deletes == ("00001-nodedevices.io-n1", "00002-nodedevices.io-n1")
    assert server.generations() == {3}


def test_what_others_delete_or_edit_is_as_it_should_be_again() -> None:
    server = Server()
    server.follow(devices(130))
    del server.slices["00001-nodedevices.io-n1"]
    wanted = server.follow(devices(130))
    assert list(wanted.creates) == ["00001-nodedevices.io-n1"]
    assert server.generations() == {2}
    server.slices.clear()
    server.follow(devices(130))
    assert server.generations() == {1}
    server = Server()
    server.follow(devices(3))
    [stored] = server.slices.values()
    edits: list[Any] = [{"generation": "x"}, None, {"name": "n1", "generation": 9, "resourceSliceCount": 4}]
    for pool in edits:
        server.slices[stored.name] = Stored(name=stored.name, resource_version="9", spec=stored.spec | {"pool": pool})
        server.follow(devices(3))
    server.slices[stored.name] = Stored(name=stored.name, resource_version="9", spec={"devices": "?"})
    server.follow(devices(3))


@given(
    st.lists(
        st.tuples(st.integers(0, 3 * MAX_DEVICES), st.sets(st.integers(0, 3 * MAX_DEVICES), max_size=3)), max_size=6
    )
)
def test_whatever_comes_and_goes_the_pool_is_whole_and_legal(steps: list[tuple[int, set[int]]]) -> None:
    server = Server()
    for count, unhealthy in steps:
        listed = [tainted(device) if number in unhealthy else device for number, device in enumerate(devices(count))]
        server.follow(listed)
        assert len(server.generations()) == 1
        specs = [server.slices[name].spec for name in sorted(server.slices)]
        assert [device["name"] for spec in specs for device in spec["devices"]] == [it["name"] for it in listed]
        assert resourceslice.problems(specs) == []


@cases("reason", *sorted(MEANINGS))
def test_what_protects_other_pods_leaves_a_device_out_and_nothing_else_does(reason: str) -> None:
    found = published(gpu(0), blocked=Blocked(reason=reason, message="why"))
    advice = reason in {UNHEALTHY, CORDONED}
    assert [device["name"] for device in found.devices] == (["gpu-0"] if advice else [])


def test_a_reason_that_may_be_tolerated_has_a_taint_and_an_unknown_one_leaves_the_device_out() -> None:
    assert set(TAINT_KEYS) == TOLERABLE
    assert published(gpu(0), blocked=Blocked(reason="OfALaterVersion", message="")).devices == ()


def test_an_unhealthy_device_has_a_taint_that_says_why_and_never_evicts() -> None:
    fact, verdicts = gpu(0), healthy(gpu(0))
    verdicts[fact.id] = replace(verdicts[fact.id], reason="Xid79")
    inventory = inventory_of(fact)
    blocked = offered(fact, blocked=Blocked(reason=UNHEALTHY, message="Xid79"))
    found = publish([blocked], inventory, verdicts, driver=DRIVER)
    assert found.devices[0]["taints"] == [{"key": "nodedevices.io/unhealthy", "value": "Xid79", "effect": "NoSchedule"}]
    cordoned = published(fact, blocked=Blocked(reason=CORDONED, message="repair"))
    assert cordoned.devices[0]["taints"] == [
        {"key": "nodedevices.io/unschedulable", "value": "", "effect": "NoSchedule"}
    ]


def test_a_bad_attribute_costs_only_itself_and_is_named() -> None:
    fact = gpu(
        0,
        product_name="é" * 40,
        extra={
            "uuid": Attribute(string="ours wins"),
            "nodedevices.io/slot": Attribute(integer=0),
            "not-a-name": Attribute(boolean=True),
            "aFits": Attribute(string="é" * 32),
            **{f"extra{number:02}": Attribute(boolean=True) for number in range(30)},
        },
    )
    described = published(fact)
    [device], [problems] = described.devices, described.unsaid.values()
    assert len(device["attributes"]) + len(device["capacity"]) == 32
    assert device["attributes"]["uuid"] == {"string": fact.id}
    assert "productName" not in device["attributes"]
    assert device["attributes"]["aFits"] == {"string": "é" * 32}, "64 bytes"
    named = " ".join(problems)
    for part in ("productName: 80 bytes", "not-a-name: not a C identifier", "slot: a device has at most 32"):
        assert part in named
    assert len(problems) == 3 + sum(f"extra{number:02}" in named for number in range(30))


def test_what_is_known_of_a_device_is_called_in_a_slice_as_in_nodedevices() -> None:
    words = ("brand", "architecture", "firmware", "pci_bus_id", "pcie_root")
    fact = gpu(
        0,
        minor=7,
        numa_node=1,
        brand="brand-1",
        architecture="architecture-1",
        firmware="firmware-1",
        pci_bus_id="pci_bus_id-1",
        pcie_root="pcie_root-1",
    )
    [device] = published(fact).devices
    said = {key: value for key, value in device["attributes"].items() if f"{value.get('string')}"[:-2] in words}
    assert said == {
        "brand": {"string": "brand-1"},
        "architecture": {"string": "architecture-1"},
        "firmware": {"string": "firmware-1"},
        "resource.kubernetes.io/pciBusID": {"string": "pci_bus_id-1"},
        "resource.kubernetes.io/pcieRoot": {"string": "pcie_root-1"},
    }
    assert (device["attributes"]["minor"], device["attributes"]["resource.kubernetes.io/numaNode"]) == (
        {"int": 7},
        {"int": 1},
    )


def test_devices_stored_without_their_taint_are_named_and_those_in_no_list_are_in_no_slice() -> None:
    sent = {"devices": [tainted(devices(1)[0]), *devices(3)[1:]]}
    kept = {"devices": [{**sent["devices"][0], "taints": []}, *sent["devices"][1:]]}
    assert dropped(sent, kept) == {"taints"}
    assert dropped(sent, sent) == frozenset()
    assert dropped(sent, {"devices": None}) == frozenset()
    inventory = inventory_of(gpu(0))
    found = publish([offered(gpu(0), gpu(1))], inventory, {}, driver=DRIVER)
    assert [device["name"] for device in found.devices] == ["gpu-0"]


@cases(
    ("resource", "why"),
    (offered(gpu(0)), ""),
    (OfferedResource(name="a/b", ids=(), together=True), "a container gets all of its devices"),
    (OfferedResource(name="a/b", ids=(), counts=("x",)), "it shares computing power"),
    (OfferedResource(name=f"a/{'b' * 63}", ids=()), "its name has 65 bytes; an attribute has at most 64"),
)
def test_what_dra_cannot_carry_stays_with_the_device_plugin_and_says_why(resource: OfferedResource, why: str) -> None:
    assert not_by_dra(resource) == why
