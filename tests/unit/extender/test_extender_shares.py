"""What the extender reads of a NodeDevices, field by field: a device that it misreads gets a pod that has no room."""

from __future__ import annotations

from typing import Any

from nodedevices_operator.extender.shares import (
    HeldShares,
    MemoryResource,
    NodeShares,
    SharedDevice,
    WithheldShares,
    read,
)
from support.cases import cases
from support.nodeshares import EPOCH, MEMORY, gpu, holder, node_devices


def shared(*devices: dict[str, Any], **node: Any) -> tuple[SharedDevice, ...]:
    found = read(node_devices("n1", *devices, **node)).resources
    return found[MEMORY].devices if MEMORY in found else ()


def device(**more: Any) -> SharedDevice:
    """One of 24 shares, of which none is held."""
    [found] = shared(gpu(3, 24) | more)
    return found


def test_a_report_is_read_with_every_field() -> None:
    held = holder("train", 10, container="main", cores=40)
    one = gpu(0, 24, held, cores_held=40, truncated=2)
    part = gpu(7, 10, holder("serve", 4)) | {"id": "MIG-1"}
    whole = {"id": "GPU-1", "name": "gpu-1", "index": 1, "health": {"state": "Healthy"}, "partitions": [part]}
    raw = node_devices("n1", {"id": "GPU-9", "index": 9}, one, whole, stale=True)
    raw["status"]["resources"] = [
        {
            "name": MEMORY,
            "unit": "1Gi",
            "packing": "spread",
            "capacity": 34,
            "withheld": [{"reason": "SamePlace", "count": 1}, {"reason": "Cordoned", "count": 2}],
        }
    ]
    assert read(raw) == NodeShares(
        name="n1",
        heartbeat=EPOCH,
        stale=True,
        resources={
            MEMORY: MemoryResource(
                name=MEMORY,
                spread=True,
                unit="1Gi",
                capacity=34,
                withheld=(WithheldShares("Cordoned", 2), WithheldShares("SamePlace", 1)),
                devices=(
                    SharedDevice(
                        id="GPU-0",
                        index=0,
                        total=24,
                        held=10,
                        free=14,
                        offered=True,
                        holders=(HeldShares("default/train", "main", 10, 40),),
                        truncated=True,
                        missing=False,
                        cores_held=40,
                    ),
                    SharedDevice(
                        id="MIG-1",
                        index=1,
                        total=10,
                        held=4,
                        free=6,
                        offered=True,
                        holders=(HeldShares("default/serve", "main", 4, 0),),
                    ),
                ),
            )
        },
    )


def test_what_a_report_does_not_say_is_nothing() -> None:
    bare = {"id": "GPU-0", "shares": {"resource": MEMORY, "free": 2}, "holders": [{}]}
    by_memory = [{"name": MEMORY, "unit": "1Gi"}]
    raw = {"metadata": {"name": "n1"}, "status": {"devices": [bare], "resources": by_memory}}
    [found] = read(raw).resources[MEMORY].devices
    assert found == SharedDevice(id="GPU-0", index=0, total=0, held=0, free=2, offered=True)
    assert (found.truncated, found.missing, found.unlisted) == (False, False, 0)
    assert read(raw) == NodeShares(
        name="n1", resources={MEMORY: MemoryResource(name=MEMORY, spread=False, unit="1Gi", devices=(found,))}
    )
    assert read({"status": {}}) == NodeShares(name="")
    assert (read(raw).stale, read(raw).resources[MEMORY].capacity) == (False, 0)
    nameless = {"shares": {"resource": MEMORY, "free": 2}}
    assert read({"status": {"devices": [nameless], "resources": by_memory}}).resources[MEMORY].devices[0].id == ""


def test_what_dra_serves_has_no_shares_here() -> None:
    raw = node_devices("n1", gpu(0, 24))
    assert read(raw).resources
    raw["status"]["resources"][0]["managedBy"] = "dra"
    assert not read(raw).resources


@cases("lacks", "resource", "free")
def test_a_device_that_is_not_shared_by_memory_hides_none_after_it(lacks: str) -> None:
    raw = node_devices("n1", gpu(0, 24), gpu(1, 24))
    del raw["status"]["devices"][0]["shares"][lacks]
    assert [each.id for each in read(raw).resources[MEMORY].devices] == ["GPU-1"]


@cases(
    ("more", "offered"),
    ({}, True),
    ({"health": {"state": "Degraded"}}, True),
    ({"health": {}}, True),
    ({"health": {"state": "Unhealthy"}}, False),
    ({"excluded": "index 3"}, False),
    ({"unschedulable": "RMA 4711"}, False),
)
def test_shares_given_back_are_free_again_where_the_device_is_in_service(more: dict[str, Any], offered: bool) -> None:
    assert device(**more).offered is offered


@cases(("free", "held", "offered"), (14, 10, True), (15, 10, True), (13, 10, False), (-1, 24, True))
def test_shares_of_which_some_are_withheld_are_not_free_again(free: int, held: int, offered: bool) -> None:
    [found] = shared(gpu(0, 24, free=free, held=held))
    assert (found.offered, found.free) == (offered, max(0, free))


@cases("broken", "device", "part")
def test_a_partition_is_in_service_and_present_as_itself_and_its_device_are(broken: str) -> None:
    part = gpu(0, 10) | {"id": "MIG-1"}
    whole: dict[str, Any] = {
        "id": "GPU-0",
        "name": "gpu-0",
        "index": 0,
        "health": {"state": "Healthy"},
        "partitions": [part],
    }
    (whole if broken == "device" else part)["health"] = {"state": "Unknown", "reason": "Missing"}
    [found] = shared(whole)
    assert (found.offered, found.missing) == (False, True)


def test_holders_of_other_resources_hold_none() -> None:
    other, none = holder("other", 3, resource="example.com/other"), holder("none", 0)
    [found] = shared(gpu(0, 24, other, none, holder("mine", 4)))
    assert [(each.pod, each.shares, each.cores) for each in found.holders] == [("default/mine", 4, 0)]


def test_unlisted_holders_are_counted_where_the_list_is_cut_and_a_reason_without_count_withholds_nothing() -> None:
    cut = gpu(0, 24, holder("a", 4), held=10, truncated=1)
    assert [each.unlisted for each in shared(cut)] == [6]
    assert [each.unlisted for each in shared(gpu(0, 24, holder("a", 4), held=10))] == [0]
    assert [each.unlisted for each in shared(gpu(0, 24, holder("a", 12), held=10, truncated=1))] == [0]
    raw = node_devices("n1", gpu(0, 24))
    entries = [{"reason": "Cordoned"}, {"count": 4}, {"reason": "SamePlace", "count": 4}]
    raw["status"]["resources"] = [{"name": MEMORY, "unit": "1Gi", "capacity": 24, "withheld": entries}]
    assert read(raw).resources[MEMORY].withheld == (WithheldShares("SamePlace", 4),)


def test_a_node_with_partitions_that_are_not_listed_is_not_judged() -> None:
    raw = node_devices("n1", gpu(0, 24))
    raw["status"]["partitionsTruncated"] = 1
    assert read(raw).resources == {}


@cases(
    ("conditions", "stale"),
    ([{"type": "Ready", "status": "True"}, {"type": "Stale", "status": "True"}], True),
    ([{"type": "Ready", "status": "True"}, {"type": "Stale", "status": "False"}], False),
    ([{"type": "Stale"}], False),
)
def test_a_report_is_stale_only_where_the_operator_says_so(conditions: list[dict[str, str]], stale: bool) -> None:
    raw = node_devices("n1", gpu(0, 24))
    raw["status"]["conditions"] = conditions
    assert read(raw).stale is stale


@cases("amount", "7", None, -1, 0, {"a": 1})
def test_an_odd_count_is_none(amount: Any) -> None:
    made = gpu(0, 24, free=24) | {"index": amount}
    made["shares"] |= {"held": amount, "coresHeld": amount}
    [found] = shared(made)
    assert (found.index, found.held, found.cores_held) == (0, 0, 0)
