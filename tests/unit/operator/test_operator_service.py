"""Devices that people take out of service: an Event when one goes, and when it comes back."""

from __future__ import annotations

from typing import Any

import pytest
from nodedevices_operator.desired.device_news import out_of_service
from nodedevices_operator.manager import Manager
from nodedevices_operator.records.kinds import Kind, read
from support.fakekube import FakeKube, settle
from support.opfacts import device, record
from support.whole_operator import ITEM, arrive, one_node, said, started

RMA = {"id": "GPU-0", "reason": "RMA 4711"}


async def write(manager: Manager, kube: FakeKube, *entries: dict[str, Any], by: str = "kubectl-patch") -> None:
    raw = kube.objects[ITEM]
    fields: dict[str, Any] = {f'k:{{"id":"{it["id"]}"}}': {} for it in entries}
    managed = [
        {"manager": by, "operation": "Update", "fieldsV1": {"f:spec": {"f:unschedulable": fields}}},
        {"manager": "kubectl-label", "operation": "Update", "fieldsV1": {"f:metadata": {"f:labels": {"f:x": {}}}}},
    ]
    spec = {**raw["spec"], "unschedulable": list(entries)}
    arrive(manager, kube, ITEM, raw | {"spec": spec, "metadata": raw["metadata"] | {"managedFields": managed}})
    await settle(manager)


@pytest.fixture
def kube() -> FakeKube:
    return one_node(device(0), device(1))


async def test_a_device_taken_out_of_service_is_an_event_that_says_who_and_why(kube: FakeKube) -> None:
    manager = await started(kube)
    await write(manager, kube, RMA | {"by": "me"})
    assert said(kube) == [("DeviceOutOfService", "gpu-0 GPU-0: out of service: RMA 4711, by me")]
    await write(manager, kube)
    assert said(kube)[1:] == [
        ("DeviceInService", "gpu-0 GPU-0: in service again; was out of service for RMA 4711, by me")
    ]


async def test_where_nobody_says_who_it_is_the_field_manager(kube: FakeKube) -> None:
    manager = await started(kube)
    await write(manager, kube, RMA)
    assert said(kube) == [("DeviceOutOfService", "gpu-0 GPU-0: out of service: RMA 4711, written by kubectl-patch")]


async def test_what_was_out_of_service_before_the_operators_start_is_no_news(kube: FakeKube) -> None:
    kube.objects[ITEM]["spec"]["unschedulable"] = [RMA, {**RMA, "id": "GPU-1", "since": "2020-01-01T00:00:00Z"}]
    manager = await started(kube)
    assert said(kube) == []
    await write(manager, kube)
    assert [reason for reason, _ in said(kube)] == ["DeviceInService"] * 2


async def test_what_the_agent_wrote_back_or_names_no_device_of_the_node_is_no_event(kube: FakeKube) -> None:
    manager = await started(kube)
    manager.arrived(Kind.NODE_DEVICES, True, read(Kind.NODE_DEVICES, kube.objects[ITEM]))
    await settle(manager)
    await write(manager, kube, RMA | {"since": "2999-01-01T00:00:00Z"}, by="nodedevices-agent-restore")
    assert said(kube) == []
    await write(manager, kube)
    kube.events.clear()
    await write(manager, kube, RMA | {"id": "gpu-0"})
    await write(manager, kube)
    assert said(kube) == []


async def test_an_entry_is_over_at_its_time(kube: FakeKube) -> None:
    manager = await started(kube)
    await write(manager, kube, RMA | {"until": "2999-01-01T00:00:00Z"})
    await write(manager, kube, RMA | {"until": "2020-01-01T00:00:00Z"})
    assert [reason for reason, _ in said(kube)] == ["DeviceOutOfService", "DeviceInService"]
    ends = record(device(0), spec={"unschedulable": [RMA | {"until": "2026-11-21T12:00:00Z"}]})
    assert out_of_service(ends, "2026-11-21T12:00:00Z") == ({}, None)
    found, seconds = out_of_service(ends, "2026-11-21T11:59:59Z")
    assert (list(found), seconds) == (["GPU-0"], 1.0)
