"""Owned capacity: what a node has of it, what is refused, and that pods never lose what they request."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st
from nodedevices_api.errors import parse
from nodedevices_api.sections import CapacityEntry
from nodedevices_operator.desired.capacity import CapacityPlan, offered, plan_capacity, requests
from nodedevices_operator.records.objects import shows
from support.cases import cases
from support.opfacts import GPU, MEMORY, device, node, record, resource

ONE = 81920
SUM = CapacityEntry(name=MEMORY, sum_of="memoryMiB")
TWO = (device(0), device(1))
BY_MEMORY = "nodedevices.io/gpu-memory"


def plan(entry: CapacityEntry, item: Any, shown: Any, **more: Any) -> CapacityPlan:
    given_ours = more.pop("ours", shown.owned)
    return plan_capacity([entry], item, shown, ours=given_ours, **more)


def said(of: CapacityPlan) -> tuple[str, str, str]:
    return of.verdict or ("", "", "")


def test_memory_is_summed_and_devices_counted_per_device_and_node_where_they_match() -> None:
    item = record(device(0), device(1, "Unhealthy", "Xid79"), device(2, "Degraded", "NvlinkDown"))
    assert plan(SUM, item, node()).values == {MEMORY: 2 * ONE}
    item = record(device(0), device(1, "Unhealthy", "Xid79"))
    assert plan(CapacityEntry(name="example.com/slots", per_device=4), item, node()).values == {"example.com/slots": 4}
    assert plan(CapacityEntry(name="example.com/seats", per_node=7), item, node()).values == {"example.com/seats": 7}
    assert plan(CapacityEntry(name="example.com/slots", per_device=4), record(*MIXED), node()).values == {
        "example.com/slots": 8
    }
    assert plan(SUM, record(*MIXED), node()).values == {MEMORY: 2 * ONE}


def test_a_device_that_new_pods_cannot_get_does_not_count() -> None:
    item = record(device(0), device(1, unschedulable="RMA 4711"))
    assert plan(SUM, item, node()).values == {MEMORY: ONE}
    cut = device(2, partitions=[{"id": "MIG-1", "excluded": "gpu-2"}, {"id": "MIG-2", "excluded": "gpu-2"}])
    item = record(device(0), device(1, excluded="gpu-1"), cut)
    assert plan(SUM, item, node()).values == {MEMORY: ONE}
    item = record(device(0), device(1, "Unhealthy", "Missing"), device(2, "Unhealthy", "Xid79"))
    entry = CapacityEntry(name="aliyun.com/gpu-count", per_device=1)
    assert plan(entry, item, node()).values == {"aliyun.com/gpu-count": 1}


@cases("served", "aliyun.com/gpu-mem", "tencent.com/vcuda-memory", BY_MEMORY)
@cases("name", "aliyun.com/gpu-count", "tencent.com/gpu-count")
def test_where_gpus_are_shared_by_memory_their_number_is_a_resource_of_its_own(served: str, name: str) -> None:
    """What peers' extenders and dashboards read beside the memory."""
    by_memory = resource(44, 44, name=served, sharing="memory")
    count = CapacityEntry(name=name, per_device=1)
    assert plan(count, record(*TWO, resources=[by_memory]), node()).values == {name: 2}
    taken = plan(CapacityEntry(name=served, per_device=22), record(*TWO, resources=[by_memory]), node())
    assert (taken.values, said(taken)[1]) == ({}, "Conflict")


H100: dict[str, Any] = {"attributes": {"vendor": "nvidia", "productName": "NVIDIA H100 80GB HBM3"}}
NIC: dict[str, Any] = {"type": "nic", "capacity": {}, "attributes": {"vendor": "mellanox", "productName": "ConnectX-7"}}
MIXED = (device(0, **H100), device(1, "Unhealthy", "Xid79", **H100), device(2), device(3, **NIC))


@cases(
    ("given", "count"),
    ({}, 2),
    ({"type": "nic"}, 1),
    ({"type": "fpga"}, 0),
    ({"productName": "NVIDIA H100*"}, 1),
    ({"productName": "*"}, 3),
    ({"productName": "NVIDIA *", "type": "nic"}, 0),
)
def test_product_name_and_type_say_which_devices_count(given: dict[str, Any], count: int) -> None:
    entry = parse(CapacityEntry, {"name": "example.com/slots", "perDevice": 1, **given})
    assert plan(entry, record(*MIXED), node()).values == {"example.com/slots": count}


def test_silent_unseen_and_unserved_devices_count_until_they_are_withdrawn() -> None:
    silent = (device(0, "Unknown", "ProbeSilent"), device(1, "Unknown", "ProbeSilent"))
    assert plan(SUM, record(*silent, resources=[resource(2, 2)]), node()).values == {MEMORY: 2 * ONE}
    assert plan(SUM, record(*silent, resources=[resource(2, 0)]), node()).values == {MEMORY: 0}
    assert plan(SUM, record(device(0), device(1, "Unhealthy", "Missing")), node()).values == {MEMORY: ONE}
    item = record(device(0, "Unknown", "ProbeSilent"), device(1, "Unknown", "DriverNotLoaded"), resources=[])
    assert [it.id for it in offered(item.devices, item.resources)] == ["GPU-0"]


def shared(index: int, total: int, *state: str) -> dict[str, Any]:
    return device(index, *state, shares={"resource": BY_MEMORY, "total": total, "held": 0, "free": total})


@cases(
    ("healthy", "counted"),
    pytest.param((22, 2), ["GPU-0", "GPU-2", "GPU-3"], id="the large one is withdrawn"),
    pytest.param((101, 2), ["GPU-0", "GPU-1", "GPU-2", "GPU-3"], id="and the large one is still offered"),
    pytest.param((101, 1), ["GPU-0", "GPU-1", "GPU-2"], id="or the whole one is withdrawn"),
)
def test_silent_devices_are_told_apart_whatever_their_shares(healthy: tuple[int, int], counted: list[str]) -> None:
    """Two that are shared by memory, and two whole ones."""
    silent = ("Unknown", "ProbeSilent")
    devices = (shared(0, 22), shared(1, 79, *silent), device(2), device(3, *silent))
    served = [resource(101, healthy[0], name=BY_MEMORY, sharing="memory"), resource(2, healthy[1])]
    item = record(*devices, resources=served)
    assert [it.id for it in offered(item.devices, item.resources)] == counted


def test_a_name_that_is_somebody_elses_is_refused_and_without_entries_ours_is_to_go() -> None:
    found = plan(CapacityEntry(name=GPU, per_node=9), record(*TWO), node({GPU: 2}))
    assert (dict(found.values), *said(found)[:2]) == ({}, "False", "Conflict")
    by_dra = record(*TWO, resources=[resource(2, 2, by="dra")])
    found = plan(CapacityEntry(name=GPU, per_node=9), by_dra, node({}))
    assert not found.values, "or pods would take it from DRA"
    assert f"{GPU} is served by DRA on this node" in said(found)[2]
    served = record(*TWO, resources=[resource(2, 2)])
    found = plan_capacity([CapacityEntry(name=GPU, per_node=9), SUM], served, node(), ours=frozenset(), requested={})
    assert (dict(found.values), said(found)[0]) == ({MEMORY: 2 * ONE}, "False"), "the others are there"
    assert said(plan(SUM, record(*TWO), node({MEMORY: 5})))[1] == "Conflict"
    assert plan(SUM, record(*TWO), node({MEMORY: 0})).values == {MEMORY: 2 * ONE}
    found = plan(SUM, record(*TWO), node({MEMORY: 5}), ours=frozenset({MEMORY}))
    assert (found.values, said(found)[1]) == ({MEMORY: 2 * ONE}, "InSync")
    found = plan_capacity([], record(*TWO), node({MEMORY: 5}, owned=(MEMORY,)), ours=frozenset({MEMORY}))
    assert (dict(found.values), found.verdict) == ({}, None)
    for shown, right in ((node({MEMORY: 5}, owned=(MEMORY,)), False), (node({GPU: 2}), True)):
        assert shows(shown.capacity, shown.owned, found.values) is right


def test_lowering_needs_to_know_what_pods_request_and_goes_no_lower() -> None:
    shown = node({MEMORY: 2 * ONE}, owned=(MEMORY,))
    item = record(device(0), device(1, "Unhealthy", "Xid79"))
    assert plan(SUM, item, shown).needs_requests
    assert not plan(SUM, record(*TWO), shown).needs_requests  # it stands there already
    held = plan(SUM, item, shown, requested={MEMORY: ONE + 5})
    assert (held.values, said(held)[1], held.held_back) == ({MEMORY: ONE + 5}, "Pending", {MEMORY: ONE})
    assert plan(SUM, item, shown, requested={MEMORY: 5}).values == {MEMORY: ONE}
    assert plan(SUM, record(*TWO), node()).needs_requests
    held = plan(SUM, record(*TWO), node(), requested={MEMORY: 3 * ONE})
    assert (held.values, said(held)[1]) == ({MEMORY: 3 * ONE}, "Pending")


@given(
    healthy=st.lists(st.booleans(), max_size=6),
    shown=st.none() | st.integers(0, 10 * ONE),
    requested=st.integers(0, 10 * ONE),
)
def test_it_stays_above_what_pods_request(healthy: list[bool], shown: int | None, requested: int) -> None:
    item = record(*(device(index, "Healthy" if well else "Unhealthy") for index, well in enumerate(healthy)))
    here = node({} if shown is None else {MEMORY: shown}, owned=() if shown is None else (MEMORY,))
    first = plan(SUM, item, here)
    value = first.values[MEMORY]
    assert first.needs_requests == (value != shown)
    if first.needs_requests:
        value = plan(SUM, item, here, requested={MEMORY: requested}).values[MEMORY]
        assert value >= requested


def container(amount: int, **more: Any) -> dict[str, Any]:
    return {"resources": {"limits": {MEMORY: str(amount)}}, **more}


def test_requests_are_the_most_that_a_pod_needs_at_one_time() -> None:
    pod = {
        "spec": {
            "containers": [container(3), container(4), {"name": "none"}],
            "initContainers": [container(5), container(2, restartPolicy="Always"), container(6)],
        }
    }
    assert requests([pod], [MEMORY]) == {MEMORY: 9}  # 3 + 4 and the sidecar's 2; the init containers need 8 at most
    big = {"spec": {"initContainers": [container(50)], "containers": [container(1)]}}
    assert requests([big], [MEMORY]) == {MEMORY: 50}


def test_finished_pods_request_nothing_and_an_exponent_is_a_number() -> None:
    done = {"spec": {"containers": [container(3)]}, "status": {"phase": "Succeeded"}}
    other = {"spec": {"containers": [{"resources": {"requests": {GPU: "1"}}}]}}
    thousand = {"spec": {"containers": [{"resources": {"requests": {MEMORY: "1k"}}}]}}
    assert requests([done, other, thousand], [MEMORY]) == {MEMORY: 1000}
    pods = [{"spec": {"containers": [{"resources": {"requests": {MEMORY: amount}}}]}} for amount in ("10e3", "5000m")]
    assert requests(pods, [MEMORY]) == {MEMORY: 10_005}
