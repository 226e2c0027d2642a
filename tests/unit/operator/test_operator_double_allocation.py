"""S31: an Event on a NodeDevices whose kubelet has given one device to two pods."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from nodedevices_common.times import rfc3339
from nodedevices_operator.manager import Manager
from support.fakekube import FakeKube, settle
from support.opfacts import device
from support.whole_operator import ITEM, arrive, one_node, said, started, with_status

TWICE = (
    "the kubelet has given a device to more than one pod: gpu-0 GPU-0: ml/a and ml/b; "
    "delete all of these pods except one"
)


async def shows(manager: Manager, kube: FakeKube, status: str, message: str = "", since: str = "") -> None:
    others = [entry for entry in kube.objects[ITEM]["status"]["conditions"] if entry["type"] != "AllocatedOnce"]
    shown: dict[str, Any] = {"type": "AllocatedOnce", "status": status, "reason": "R", "message": message}
    shown["lastTransitionTime"] = since or rfc3339(datetime.now(UTC))
    arrive(manager, kube, ITEM, with_status(kube, conditions=[*others, shown]))
    await settle(manager)


@pytest.fixture
async def manager(kube: FakeKube) -> Manager:
    return await started(kube)


@pytest.fixture
def kube() -> FakeKube:
    return one_node(device(0), device(1), gpus=2)


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
