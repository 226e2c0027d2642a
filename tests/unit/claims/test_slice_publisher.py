"""The writer of ResourceSlices beside an API server in memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from nodedevices_kube.errors import ApiError
from nodedevices_plugin.model import DRA_DRIVER
from nodedevices_plugin.status.slices import SETTLING_SECONDS, SlicePublisher
from support.dra import FakeDraStore
from support.running_agent import NODE

TAINT = {"key": "nodedevices.io/unhealthy", "value": "Xid79", "effect": "NoSchedule"}


def device(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "attributes": {"vendor": {"string": "acme"}}, **fields}


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@contextlib.asynccontextmanager
async def publishing(
    api: FakeDraStore, clock: Clock | None = None, *, may_add: Callable[[], bool] = lambda: True
) -> AsyncIterator[SlicePublisher]:
    publisher = SlicePublisher(
        api, node=NODE, driver=DRA_DRIVER, on_change=lambda: None, may_add=may_add, clock=clock or Clock()
    )
    task = asyncio.create_task(publisher.run())
    try:
        yield publisher
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def settled() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


async def test_devices_are_added_only_while_the_kubelet_has_the_driver_and_taken_away_at_any_time() -> None:
    api, registered = FakeDraStore(), [False]
    async with publishing(api, may_add=lambda: registered[0]) as publisher:
        publisher.want([device("gpu-0")])
        await settled()
        assert api.writes == []
        registered[0] = True
        publisher.want([device("gpu-0"), device("gpu-1")])
        await settled()
        assert set(api.devices) == {"gpu-0", "gpu-1"}
        registered[0] = False  # the kubelet went, and nobody has said so yet
        publisher.want([device("gpu-1"), device("gpu-2")])
        await settled()
        assert set(api.devices) == {"gpu-1"}
        api.wipe()
        await settled()
        assert not api.slices


async def test_a_device_counts_as_offered_until_schedulers_have_seen_that_it_left() -> None:
    api, clock = FakeDraStore(), Clock()
    async with publishing(api, clock) as publisher:
        publisher.want([device("gpu-0")])
        await settled()
        publisher.want(None)
        await settled()
        assert not api.slices
        assert publisher.devices == {"gpu-0"}
        assert publisher.settles_at == clock.now + SETTLING_SECONDS
        clock.now += SETTLING_SECONDS
        assert publisher.devices == frozenset()


async def test_a_device_whose_taint_the_server_drops_is_left_out_and_the_others_stay() -> None:
    api = FakeDraStore()
    api.drops = frozenset({"taints"})
    async with publishing(api) as publisher:
        publisher.want([device("gpu-0"), device("gpu-1", taints=[TAINT])])
        await settled()
        assert set(api.devices) == {"gpu-0"}
        assert publisher.left_out == {"gpu-1"}
        assert len(api.writes) == 1, "it never was in a slice without its taint"
        publisher.want([device("gpu-0"), device("gpu-1")])
        await settled()
        assert set(api.devices) == {"gpu-0", "gpu-1"}, "it has recovered"
        assert publisher.left_out == frozenset()


async def test_a_refusal_is_a_problem_that_ends_by_itself() -> None:
    api = FakeDraStore()
    async with publishing(api) as publisher:
        await settled()
        api.problem = ApiError("500 etcd is away", status=500)
        publisher.want([device("gpu-0")])
        await settled()
        assert "etcd is away" in publisher.problem
        api.problem = None
        publisher.want([device("gpu-0"), device("gpu-1")])
        await settled()
        assert (publisher.problem, set(api.devices)) == ("", {"gpu-0", "gpu-1"})


@pytest.mark.parametrize(("status", "said"), [(410, ""), (500, "the watch ended")])
async def test_a_watch_that_is_too_old_to_go_on_from_is_begun_anew_and_is_no_problem(status: int, said: str) -> None:
    api = FakeDraStore()
    api.problem = ApiError("the watch ended", status=status)
    async with publishing(api) as publisher:
        await settled()
        assert (publisher.problem, publisher.listed) == (said, False)


async def test_another_writers_change_is_set_right_and_a_conflict_is_tried_again_with_what_is_there() -> None:
    api = FakeDraStore()
    async with publishing(api) as publisher:
        publisher.want([device("gpu-0")])
        await settled()
        [piece] = api.slices.values()
        foreign = {**piece, "spec": {**piece["spec"], "devices": [device("gpu-9")]}}
        await api.update_slice(foreign)
        await settled()
        assert set(api.devices) == {"gpu-0"}


async def test_a_restarted_agent_keeps_the_slices_owner() -> None:
    api = FakeDraStore()
    for taints in ([], [TAINT]):
        async with publishing(api) as publisher:
            publisher.want([device("gpu-0", **({"taints": taints} if taints else {}))])
            await settled()
        [piece] = api.slices.values()
        assert [owner["uid"] for owner in piece["metadata"]["ownerReferences"]] == ["node-uid"]
    assert [write.split()[0] for write in api.writes] == ["create", "update"]
