"""What NodeDevices says of shares: how many are held, free and not offered, of which memory, and who has how much."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from hypothesis import given, settings, strategies as st
from msgspec.structs import replace
from nodedevices_api.base import to_dict
from nodedevices_plugin.model import (
    CoresHeld,
    Holder,
    HoldersState,
    Holdings,
    MemoryShares,
    NodePods,
    OfferedResource,
    Plan,
    SchedulableId,
    SharingFacts,
)
from nodedevices_plugin.sharing.memory import Memory
from nodedevices_plugin.sharing.registry import ByNature
from nodedevices_plugin.status.devices import of_parts
from nodedevices_plugin.status.facts import NodeFacts, count, share_counts
from nodedevices_plugin.status.report import report
from nodedevices_probe.protocol import DeviceFact
from support.daemons import facts as ready
from support.facts import GIB, START, gpu, gpu_id, mig_id, old, partition
from support.fuzzing import scaled
from support.local import at_once
from support.plans import UNFIT
from support.reports import node_facts
from support.stepped_node import Node

GPU, MEMORY, ALIYUN = "nvidia.com/gpu", "nodedevices.io/gpu-memory", "aliyun.com/gpu-mem"
L4 = 23034 * GIB // 1024


def by_memory(unit: str = "1Gi", **rule: Any) -> dict[str, Any]:
    return {"sharing": {"strategy": "memory", "resources": [{"name": GPU, "memoryUnit": unit, **rule}]}}


def l4(number: int, **readings: Any) -> DeviceFact:
    return gpu(number, memory_bytes=L4, readings=old(**readings))


def holder(name: str, resource: str, *ids: str) -> Holder:
    return Holder(namespace="ml", pod=name, container="main", resource=resource, ids=ids, since=START)


def has(name: str, amount: int, *, of: int = 0, first: int = 0, unit: str = "1Gi", resource: str = MEMORY) -> Holder:
    """A pod with so many shares of memory of that GPU."""
    ids = (f"{gpu_id(of)}::{unit}.{number}" for number in range(first, first + amount))
    return holder(name, resource, *ids)


def facts(node: Node, **changes: Any) -> NodeFacts:
    world = node.world
    known: dict[str, Any] = {
        "inventory": world.known.inventory,
        "verdicts": world.known.verdicts,
        "plan": world.plan,
        "holdings": world.holdings,
        "started": START,
        "probes": (),
        "now": START + timedelta(seconds=node.clock),
    }
    return node_facts(**{**known, **changes})


def shares(node: Node, **changes: Any) -> list[dict[str, Any] | None]:
    """Of each device, in their order."""
    return [to_dict(each.shares) if each.shares else None for each in report(facts(node, **changes)).devices]


def resources(node: Node, **changes: Any) -> dict[str, dict[str, Any]]:
    said = report(facts(node, **changes)).resources
    return {each.name: {key: value for key, value in to_dict(each).items() if key != "name"} for each in said}


# --- by memory -------------------------------------------------------------------------------------------------------
def test_a_gpu_shared_by_memory_in_full() -> None:
    node = Node(l4(0)).now(by_memory(memoryReserve="512Mi"), has("a", 8), has("b", 4, first=8))
    assert shares(node) == [
        {
            "resource": MEMORY,
            "total": 21,
            "held": 12,
            "free": 9,
        }
    ]
    assert resources(node) == {
        MEMORY: {
            "capacity": 21,
            "healthy": 21,
            "allocated": 12,
            "sharing": "memory",
            "free": 9,
            "unit": "1Gi",
            "packing": "binpack",
            "managedBy": "plugin",
        }
    }


def test_what_enforces_limits_is_shown_where_something_does() -> None:
    node = Node(l4(0), local=at_once(["--node-name=n1", "--mps-root=/run/mps"], {}))
    node.given(mps=ready({(MEMORY, 100): ""}))
    said = [resources(node.now(by_memory(enforcement=each)))[MEMORY].get("enforcement") for each in ("none", "mps")]
    assert said == [None, "mps"]


def test_each_holder_says_how_much_it_has_and_lists_one_id_of_many() -> None:
    node = Node(l4(0)).now(by_memory("512Mi"), has("a", 10, unit="512Mi"), has("b", 3, first=10, unit="512Mi"))
    [device] = report(facts(node)).devices
    assert [(each.pod, each.shares, each.memory) for each in device.holders] == [("a", 10, "5Gi"), ("b", 3, "1536Mi")]
    node = Node(l4(0)).now(by_memory(), has("a", 9, first=8))
    [device] = report(facts(node)).devices
    assert [(each.shares, each.ids) for each in device.holders] == [(9, (f"{gpu_id(0)}::1Gi.8",))]


def test_where_computing_power_is_shared_it_says_who_has_how_much_of_it() -> None:
    node = Node(l4(0), l4(1))
    node.given(pods=NodePods(pods=()))
    node.now(by_memory(cores=True), has("a", 8), has("b", 3, first=10))
    known = CoresHeld(
        devices={gpu_id(0): 75, gpu_id(1): 0},
        holders={("ml", "a", "main", MEMORY): 60, ("ml", "b", "main", MEMORY): 15},
    )
    first, second = report(facts(node, cores=known)).devices
    assert [(each.pod, each.cores) for each in first.holders] == [("a", 60), ("b", 15)]
    assert [each.shares.cores_held for each in (first, second) if each.shares] == [75, 0]


def test_a_node_with_64_pods_by_memory_stays_a_small_object() -> None:
    node = Node(*(gpu(number, memory_bytes=80 * GIB, readings=old()) for number in range(8)))
    pods = [has(f"inference-{of}-{n}", 10, of=of, first=10 * n) for of in range(8) for n in range(8)]
    node.now(by_memory(), *pods)
    said = to_dict(report(facts(node)))
    assert sum(len(each["holders"]) for each in said["devices"]) == 64
    assert len(json.dumps(said, separators=(",", ":"))) < 28_000


def test_each_model_has_its_own_memory_and_some_are_whole() -> None:
    node = Node(l4(0), gpu(1, memory_bytes=80 * GIB, readings=old())).now(
        by_memory(packing="spread"), has("a", 30, of=1)
    )
    assert [(each["total"], each["held"], each["free"]) for each in shares(node) if each] == [(22, 0, 22), (80, 30, 50)]
    said = resources(node)[MEMORY]
    assert (said["capacity"], said["free"], said["unit"], said["packing"]) == (102, 72, "1Gi", "spread")
    node = Node(l4(0), l4(1)).now(by_memory(devices=["0"]), has("a", 2), holder("b", GPU, gpu_id(1)))
    assert [each["resource"] if each else None for each in shares(node)] == [MEMORY, None]
    said = resources(node)
    assert (said[GPU]["free"], said[MEMORY]["free"]) == (0, 20)
    assert "unit" not in said[GPU]


def test_of_a_gpu_that_failed_or_is_held_in_an_earlier_unit_nothing_is_free() -> None:
    node = Node(l4(0), l4(1)).now(by_memory(), has("a", 8))
    node.devices = (l4(0, lost=True), l4(1))
    node.now(by_memory(), has("a", 8))
    assert [(each["total"], each["held"], each["free"]) for each in shares(node) if each] == [(22, 8, 0), (22, 0, 22)]
    said = resources(node)[MEMORY]
    assert (said["free"], said["allocated"]) == (22, 8)
    node = Node(l4(0), l4(1)).now(by_memory(), has("a", 3))
    node.now(by_memory("2Gi"), has("a", 3))
    assert [(each["total"], each["held"], each["free"]) for each in shares(node) if each] == [(11, 2, 0), (11, 0, 11)]
    assert report(facts(node)).devices[0].holders[0].memory == "3Gi"
    assert (resources(node)[MEMORY]["unit"], resources(node)[MEMORY]["free"]) == ("2Gi", 11)


def test_of_what_is_held_whole_by_another_or_under_an_earlier_name_nothing_is_free() -> None:
    node = Node(l4(0)).now(by_memory(), has("a", 3))
    node.now(by_memory(rename=ALIYUN), has("a", 3))
    assert [(each["resource"], each["held"], each["free"]) for each in shares(node) if each] == [(ALIYUN, 3, 0)]
    node = Node(l4(0), l4(1)).now({})
    whole = holder("a", GPU, gpu_id(1))
    said = shares(node.now(by_memory(), whole))
    assert [(each["held"], each["free"]) for each in said if each] == [(0, 22), (0, 0)]


def test_shares_taken_out_of_service_by_hand_are_not_free() -> None:
    node = Node(l4(0)).now(by_memory(), has("a", 2))
    [resource] = node.plan.resources
    withdrawn = tuple(
        SchedulableId(id=each.id, device_id=each.device_id, replica=each.replica, blocked=UNFIT)
        for each in resource.ids
    )
    plan = Plan(resources=(replace(resource, ids=withdrawn),))
    [counts] = share_counts(facts(node, plan=plan))
    assert (counts.total, counts.held, counts.free, counts.not_offered) == (22, 2, 0, 20)


def test_mig_devices_shared_by_memory_have_shares_of_their_own() -> None:
    cut = gpu(0, mig_enabled=True, partitions=(partition(0, 0), partition(0, 1)), readings=old())
    name = "nvidia.com/mig-1g.10gb"
    rule = {"sharing": {"strategy": "memory", "resources": [{"name": name, "memoryUnit": "1Gi"}]}}
    policy = {"partitions": {"strategy": "mixed"}, **rule}
    pod = holder("a", MEMORY, f"{mig_id(0, 1)}::1Gi.0", f"{mig_id(0, 1)}::1Gi.1")
    device, *parts = report(facts(Node(cut).now(policy, pod))).devices
    assert device.shares is None
    shown = [to_dict(part.shares) if part.shares else {} for part in parts]
    assert [(each["resource"], each["held"], each["total"] - each["free"]) for each in shown] == [
        (MEMORY, 0, 0),
        (MEMORY, 2, 2),
    ]
    assert [(part.id, holder.memory) for part in (device, *parts) for holder in part.holders] == [(mig_id(0, 1), "2Gi")]


def test_before_it_is_known_who_holds_what_nothing_is_called_free() -> None:
    node = Node(l4(0)).now(by_memory())
    unknown = Holdings(state=HoldersState.UNAVAILABLE, message="no answer")
    [said] = shares(node, holdings=unknown)
    assert said is not None
    assert "free" not in said
    assert "free" not in resources(node, holdings=unknown)[MEMORY]
    [later] = shares(node, holdings=Holdings(state=HoldersState.UNAVAILABLE, taken=5.0))
    assert later is not None
    assert later["free"] == 22


@settings(max_examples=scaled(60))
@given(data=st.data())
def test_whatever_is_held_in_whatever_unit_the_parts_add_up_to_the_memory_of_the_device(data: st.DataObject) -> None:
    units = {"256Mi": GIB // 4, "1Gi": GIB, "2Gi": 2 * GIB, "3Gi": 3 * GIB}
    unit = data.draw(st.sampled_from(sorted(units)))
    total = data.draw(st.integers(4 * GIB, 40 * GIB))
    number = total // units[unit]
    ids = tuple(
        SchedulableId(
            id=f"GPU-0::{unit}.{n}", device_id="GPU-0", replica=n, blocked=None if data.draw(st.booleans()) else UNFIT
        )
        for n in range(number)
    )
    of_now = data.draw(st.sets(st.sampled_from([each.id for each in ids])))
    left = total - len(of_now) * units[unit]
    earlier = data.draw(st.sampled_from(sorted(units)))
    more = data.draw(st.integers(0, left // units[earlier]))
    before = {f"GPU-0::{earlier}.{1000 + n}" for n in range(more)}
    memory = MemoryShares(unit=unit, unit_bytes=units[unit], devices={"GPU-0": total})
    if before:  # then nothing of the device is offered (offering.occupancy)
        ids = tuple(replace(each, blocked=UNFIT) for each in ids)
    offered = OfferedResource(name=MEMORY, ids=ids, sharing=SharingFacts(mode=Memory(), memory=memory))
    [said] = count((offered,), {MEMORY: of_now, "an.earlier/name": before})
    assert min(said.held, said.free, said.not_offered) >= 0
    assert said.held + said.free + said.not_offered == said.total == number
    assert said.unallocatable_bytes is not None
    assert said.total * units[unit] + said.unallocatable_bytes == total
    held = len(of_now) * units[unit] + more * units[earlier]
    assert said.held == number or held <= said.held * units[unit] < held + units[unit]


# --- other shares ----------------------------------------------------------------------------------------------------
def test_replicas_say_their_resource_and_what_is_free() -> None:
    rule = {"name": GPU, "rename": f"{GPU}.shared", "replicas": 4}
    shared = {"sharing": {"strategy": "timeSlicing", "resources": [rule]}}
    node = Node(l4(0), l4(1)).now(shared, holder("a", f"{GPU}.shared", f"{gpu_id(1)}::0"))
    assert shares(node) == [
        {"resource": f"{GPU}.shared", "total": 4, "held": 0, "free": 4},
        {"resource": f"{GPU}.shared", "total": 4, "held": 1, "free": 3},
    ]
    [device, other] = report(facts(node)).devices
    assert [each.memory for each in (*device.holders, *other.holders)] == [None]


def test_a_share_of_all_devices_is_held_at_the_device_of_its_id() -> None:
    ids = tuple(SchedulableId(id=f"HUB-{n % 2}::{n // 2}", device_id=f"HUB-{n % 2}", replica=n) for n in range(4))
    resource = OfferedResource(name="example.com/hub", ids=ids, sharing=SharingFacts(mode=ByNature()), together=True)
    said = of_parts(count((resource,), {"example.com/hub": {"HUB-1::0"}}), holders_known=True)
    assert {part: (each.total, each.held, each.free) for part, each in said.items()} == {
        "HUB-0": (2, 0, 2),
        "HUB-1": (2, 1, 1),
    }


def test_shares_of_two_resources_are_added_up() -> None:
    pools = [
        OfferedResource(
            name=f"rdma/{pool}",
            ids=tuple(SchedulableId(id=f"NIC-0::{n}", device_id="NIC-0", replica=n) for n in range(2)),
            sharing=SharingFacts(mode=ByNature()),
        )
        for pool in ("a", "b")
    ]
    said = of_parts(count(pools, {"rdma/b": {"NIC-0::1"}}), holders_known=True)["NIC-0"]
    assert to_dict(said) == {"total": 4, "held": 1, "free": 3}


def test_of_what_another_plugin_serves_nothing_is_free() -> None:
    ids = tuple(SchedulableId(id=f"HUB-0::{n}", device_id="HUB-0", replica=n) for n in range(2))
    [said] = count((OfferedResource(name="example.com/hub", ids=ids),), {}, not_free={"example.com/hub"})
    assert (said.total, said.held, said.free) == (2, 0, 0)


# --- computing power -------------------------------------------------------------------------------------------------
def test_a_gpu_that_is_given_whole_for_its_cores_has_a_holder_and_no_shares() -> None:
    cores, vcuda = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"
    rule = {"name": GPU, "rename": vcuda, "devices": ["0"]}
    node = Node(l4(0), l4(1)).now(
        {"sharing": {"strategy": "memory", "resources": [rule]}},
        holder("whole", cores, *(f"{gpu_id(1)}::core.{number}" for number in range(100))),
        holder("part", cores, *(f"shared::core.{number}" for number in range(30))),
        has("part", 8, unit="256Mi", resource=vcuda),
    )
    shared, whole = report(facts(node)).devices
    assert (shared.shares.held if shared.shares else None, whole.shares) == (8, None)
    assert [(each.pod, each.resource) for each in shared.holders] == [("part", vcuda)]
    assert [(each.pod, each.resource, each.shares, each.memory) for each in whole.holders] == [
        ("whole", cores, None, None)
    ]
    said = resources(node)[cores]
    assert (said["capacity"], said["healthy"], said["allocated"], said["free"]) == (200, 200, 130, 70)
    assert said["sharing"] == "none"
