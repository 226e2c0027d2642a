"""S31: an Event on a NodeDevices whose kubelet has given one device to two pods."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from nodedevices_common.times import rfc3339
from nodedevices_operator.manager import Manager
from nodedevices_operator.metrics import OperatorMetrics
from nodedevices_operator.records import names
from nodedevices_operator.records.kinds import Kind, read
from support.fakekube import FakeKube, settle
from support.opfacts import GPU, device, node_devices, raw_node

ITEM = f"{names.NODE_DEVICES}/n1"
TWICE = "the kubelet has given to more than one pod gpu-0 GPU-0: ml/a and ml/b; delete all of these pods but one"


def said(kube: FakeKube) -> list[tuple[str, str]]:
    return [(it["reason"], it["message"]) for it in kube.events]


async def shows(manager: Manager, kube: FakeKube, status: str, message: str = "", since: str = "") -> None:
    raw = kube.objects[ITEM]
    others = [each for each in raw["status"]["conditions"] if each["type"] != "AllocatedOnce"]
    one: dict[str, Any] = {"type": "AllocatedOnce", "status": status, "reason": "R", "message": message}
    one["lastTransitionTime"] = since or rfc3339(datetime.now(UTC))
    item = kube.put(ITEM, raw | {"status": raw["status"] | {"conditions": [*others, one]}})
    manager.arrived(Kind.NODE_DEVICES, False, read(Kind.NODE_DEVICES, item))
    await settle(manager)


@pytest.fixture
async def manager(kube: FakeKube) -> Manager:
    made = Manager(kube, OperatorMetrics())
    await made.relister.once()
    await settle(made)
    return made


@pytest.fixture
def kube() -> FakeKube:
    made = FakeKube()
    made.put(f"{names.NODES}/n1", raw_node({GPU: 2}))
    made.put(ITEM, node_devices(device(0), device(1)))
    return made


async def test_s31_a_double_allocation_is_one_event_that_names_device_and_pods(
    kube: FakeKube, manager: Manager
) -> None:
    await shows(manager, kube, "False", TWICE)
    await shows(manager, kube, "False", TWICE)
    assert said(kube) == [("DoubleAllocation", TWICE)]
    await shows(manager, kube, "True")
    assert len(kube.events) == 1


async def test_another_pair_of_pods_is_another_event(kube: FakeKube, manager: Manager) -> None:
    await shows(manager, kube, "False", TWICE)
    await shows(manager, kube, "False", TWICE.replace("ml/b", "ml/c"))
    assert [message for _, message in said(kube)] == [TWICE, TWICE.replace("ml/b", "ml/c")]


async def test_one_of_long_before_the_operators_start_is_no_news(kube: FakeKube, manager: Manager) -> None:
    await shows(manager, kube, "False", TWICE, since="2020-01-01T00:00:00Z")
    assert kube.events == []
