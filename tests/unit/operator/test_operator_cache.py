"""The cache: what is worth a look, in whatever order news arrive; and records that never raise."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from hypothesis import given
from nodedevices_operator.cache.store import Cache
from nodedevices_operator.records.kinds import Kind, node_devices_record, node_record, policy_record, read
from nodedevices_operator.records.names import TAINT
from nodedevices_operator.records.objects import NodeDevicesRecord
from support.cases import cases
from support.odd_json import with_odd_value
from support.opfacts import GPU, MEMORY, SINCE, device, health, holder, node, node_devices, raw_node, raw_policy


def known(*objects: tuple[Kind, dict[str, Any]]) -> Cache:
    cache = Cache()
    for kind, raw in objects:
        cache.observe(kind, read(kind, raw))
    return cache


def test_a_heartbeat_is_no_reason_to_reconcile_unless_the_object_is_stale() -> None:
    cache = known((Kind.NODE_DEVICES, node_devices(device(0))))
    beat = node_devices(device(0), version=2, heartbeat="2026-11-21T13:00:00Z")
    assert not cache.observe(Kind.NODE_DEVICES, read(Kind.NODE_DEVICES, beat))
    stale = {"Stale": ("True", "HeartbeatOverdue")}
    cache = known((Kind.NODE_DEVICES, node_devices(device(0), conditions=stale)))
    beat = node_devices(device(0), conditions=stale, version=2, heartbeat="2026-11-21T13:00:00Z")
    assert cache.observe(Kind.NODE_DEVICES, read(Kind.NODE_DEVICES, beat)).nodes == {"n1"}


def test_what_changes_a_nodes_faults_is_urgent_and_nothing_else_is() -> None:
    def change(before: dict[str, Any], after: dict[str, Any]) -> frozenset[str]:
        found = known((Kind.NODE_DEVICES, before)).observe(Kind.NODE_DEVICES, read(Kind.NODE_DEVICES, after))
        assert found.nodes == {"n1"}
        return found.faults

    well, held = device(0), device(0, holders=[holder()])
    faulty = device(0, "Unhealthy", "Xid79")
    assert change(node_devices(well), node_devices(faulty, version=2)) == {"n1"}
    assert change(node_devices(faulty), node_devices(well, version=2)) == {"n1"}  # a mark is to be taken back
    assert change(node_devices(faulty), node_devices(device(0, "Unhealthy", "Xid94"), version=2)) == {"n1"}
    worse = device(0, "Unhealthy", "Xid79", holders=[holder()])
    assert change(node_devices(faulty), node_devices(worse, version=2)) == {"n1"}  # a pod that is to be marked
    assert change(node_devices(well), node_devices(held, version=2)) == frozenset()
    assert change(node_devices(well), node_devices(well, resources=[], version=2)) == frozenset()
    assert known().observe(Kind.NODE_DEVICES, read(Kind.NODE_DEVICES, node_devices(faulty))).faults == {"n1"}


def test_an_older_state_or_deletion_never_replaces_a_newer_one() -> None:
    cache = known((Kind.NODE_DEVICES, node_devices(device(0), version=9)))
    late = node_devices(device(0, "Unhealthy", "Xid79"), version=8)
    assert not cache.observe(Kind.NODE_DEVICES, read(Kind.NODE_DEVICES, late))
    assert cache.node_devices["n1"].devices[0].health.state == "Healthy"
    cache = known((Kind.NODE_DEVICES, node_devices(device(0))))
    assert not cache.remove(Kind.NODE_DEVICES, "n1", "earlier")
    assert cache.remove(Kind.NODE_DEVICES, "n1", "nd-uid").nodes == {"n1"}
    assert not cache.remove(Kind.NODE_DEVICES, "n1", "nd-uid")


def test_only_what_changes_for_a_node_with_devices_is_a_reason_to_reconcile_it() -> None:
    cache = known((Kind.NODE_DEVICES, node_devices(device(0))), (Kind.POLICY, raw_policy("p", health={})))
    cache.observe(Kind.NODE, node())
    updated = raw_policy("p", health={}, version=2) | {"status": {"observedGeneration": 1}}
    dirty = cache.observe(Kind.POLICY, read(Kind.POLICY, updated))
    assert (set(dirty.nodes), set(dirty.policies)) == (set(), {"p"})
    edited = raw_policy("p", health={"holdDownSeconds": 1}, generation=2, version=3)
    assert cache.observe(Kind.POLICY, read(Kind.POLICY, edited)).nodes == {"n1"}
    cache = known((Kind.NODE_DEVICES, node_devices(device(0))), (Kind.POLICY, raw_policy("p", health={})))
    cache.observe(Kind.NODE, node())
    away = raw_policy("p", selector={"matchLabels": {"pool": "b"}}, health={}, generation=2, version=2)
    assert cache.observe(Kind.POLICY, read(Kind.POLICY, away)).nodes == {"n1"}
    cache = Cache()
    cache.observe(Kind.NODE, node())
    assert cache.observe(Kind.POLICY, read(Kind.POLICY, raw_policy("p", health={}))).nodes == frozenset()


SPEC = {
    "config": {"labels": {"extra": {"a": "b"}}},
    "configName": "a",
    "policies": [{"name": "a", "generation": 1, "sections": ["labels"]}],
    "change": {"time": SINCE, "devices": 1, "policies": ["a"]},
    "unschedulable": [{"id": "GPU-0", "reason": "r"}],
}
FULL = node_devices(
    device(
        0,
        attributes={"vendor": "nvidia", "pcieRoot": "pci0", "extra": {"mig": {"bool": True}}},
        partitions=[{"id": "MIG-0", "profile": "1g.10gb", "health": health(xids=[13]), "holders": [holder()]}],
        holders=[holder(ids=["GPU-0"], health=health("Unhealthy"))],
        notices=[{"code": "Xid13", "count": 1}],
        shares={"total": 80, "resource": MEMORY},
        excluded={"by": "x"},
    ),
    spec=SPEC,
    summary={"offered": 1},
    configuration={"refusals": [{"section": "sharing"}], "unmatched": [{"section": "sharing"}]},
    drivers=[{"name": "nvidia", "version": "570"}],
    machine={"type": "x", "vgpuVersion": "1"},
    retiredResources=[{"name": GPU, "since": SINCE}],
    affectedPods=[{"namespace": "ml", "name": "a"}],
) | {
    "metadata": {
        "name": "n1",
        "labels": {"a": "b"},
        "annotations": {"nodedevices.io/confirm": "config=accepted@ab"},
        "ownerReferences": [{"kind": "Node", "uid": "u"}],
        "managedFields": [
            {
                "manager": "nodedevices-operator-object-labels",
                "operation": "Apply",
                "fieldsV1": {
                    "f:metadata": {"f:labels": {"f:a": {}}},
                    "f:spec": {"f:unschedulable": {'k:{"id":"GPU-0"}': {}}},
                },
            }
        ],
    }
}
A_NODE = raw_node({GPU: 1}, owned=(GPU,), labels={"a": "b"}, spec={"unschedulable": True, "taints": [{"key": TAINT}]})
A_POLICY = raw_policy("p", labels={"extra": {"a": "b"}})


@given(with_odd_value(FULL), with_odd_value(A_NODE), with_odd_value(A_POLICY))
def test_whatever_stands_at_any_place_of_an_object_reading_it_does_not_fail(
    one: dict[str, Any], other: dict[str, Any], third: dict[str, Any]
) -> None:
    node_devices_record(one)
    node_record(other)
    policy_record(third)


def test_an_odd_part_of_a_device_reads_as_absent_and_leaves_the_rest() -> None:
    odd = device(
        0,
        holders=[7, holder(ids=7), holder("other", health="x")],
        partitions=[{"id": "MIG-0", "health": "x", "holders": 7}],
    )
    raw = node_devices(odd)
    raw["status"]["devices"] += [None, {"id": "MIG-1", "parent": "gpu-9", "holders": [holder("of-no-device")]}]
    [found] = node_devices_record(raw).devices
    whole, part = found.parts
    assert [(each.pod, each.ids, each.health) for each in whole.holders] == [("trainer", (), None), ("other", (), None)]
    assert (part.id, part.health.state, part.holders) == ("MIG-0", "Unknown", ())


def test_a_report_of_an_agent_before_partitions_were_entries_is_one_of_whole_devices() -> None:
    """Until the agent is of this version, too: a fault of a device concerns all that hold a part of it."""
    nested = {"partitions": [{"id": "MIG-0", "health": health("Unhealthy")}], "partitionsTruncated": 1}
    raw = node_devices(device(0, "Unhealthy", "Xid79", holders=[holder() | {"partition": "MIG-0"}]))
    raw["status"]["devices"][0] |= nested
    [found] = node_devices_record(raw).devices
    [whole] = found.parts
    assert (whole.id, whole.health.reason, [each.pod for each in whole.holders]) == ("GPU-0", "Xid79", ["trainer"])


def test_devices_that_are_as_they_were_are_the_same_objects_and_no_others() -> None:
    before = node_devices_record(node_devices(device(0), device(1), device(2)))
    after = node_devices_record(node_devices(device(0), device(1, "Unhealthy", "Xid79"), device(2)), before)
    assert [now is was for now, was in zip(after.devices, before.devices, strict=True)] == [True, False, True]
    assert after == node_devices_record(node_devices(device(0), device(1, "Unhealthy", "Xid79"), device(2)))
    moved = node_devices_record(node_devices(device(2), device(0)), after)
    assert [now is was for now, was in zip(moved.devices, after.devices[2::-2], strict=True)] == [True, True]


def test_equal_configurations_of_nodes_are_kept_once() -> None:
    def configured(name: str, seconds: int) -> NodeDevicesRecord:
        """As a watch event has it: an object of its own."""
        raw = node_devices(device(0), spec={"config": {"health": {"holdDownSeconds": seconds}}, "configHash": "ab"})
        raw["metadata"] |= {"name": name}
        return node_devices_record(json.loads(json.dumps(raw)))

    one, other, different = configured("n1", 60), configured("n2", 60), configured("n3", 90)
    assert one.config is other.config
    assert (one.config, different.config) == ({"health": {"holdDownSeconds": 60}}, {"health": {"holdDownSeconds": 90}})


@cases("kind", Kind.NODE_DEVICES, Kind.NODE)
def test_where_nothing_has_changed_what_is_known_stays_and_what_nobody_compares_is_the_newest(kind: Kind) -> None:
    """Else each heartbeat's own copy of everything would be kept, and collected one day."""
    raw: dict[str, Any] = node_devices(device(0)) if kind is Kind.NODE_DEVICES else raw_node({GPU: 1})
    cache = known((kind, raw))
    first = cache.records(kind)["n1"]
    cache.revised.clear()
    beat = read(kind, node_devices(device(0), version=2, heartbeat="h2")) if kind is Kind.NODE_DEVICES else None
    newest = beat or read(kind, raw | {"metadata": raw["metadata"] | {"resourceVersion": "2"}})
    cache.observe(kind, newest)
    shown = cache.records(kind)["n1"]
    for each in fields(newest):
        expected = first if each.compare else newest
        assert getattr(shown, each.name) is getattr(expected, each.name)
    assert cache.revised == set()


def test_whatever_changes_of_a_node_it_is_surveyed_anew() -> None:
    cache = known((Kind.NODE_DEVICES, node_devices(device(0))))
    for change in (
        lambda: None,
        lambda: cache.observe(Kind.NODE, node()),
        lambda: cache.remove(Kind.NODE_DEVICES, "n1", "nd-uid"),
        lambda: cache.remove(Kind.NODE, "n1", "node-uid"),
        lambda: cache.observe(Kind.NODE, node()),
    ):
        change()
        assert cache.revised == {"n1"}
        cache.revised.clear()
