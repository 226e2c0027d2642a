"""Retired zeros: only what the agent retired, what is 0, what nobody has, and only after six minutes by our clock."""

from __future__ import annotations

from typing import Any

from nodedevices_operator.concerns.capacity import RetiredZerosConcern, removable
from nodedevices_operator.concerns.port import SETTLED_SECONDS
from nodedevices_operator.kube.port import JsonObject, KubeError
from nodedevices_operator.records.objects import NodeDevicesRecord, NodeRecord
from support.cases import cases
from support.concerns import run, tools
from support.opfacts import GPU, MEMORY, device, node, record, resource

SHARED = "nvidia.com/gpu.shared"


def item(*names: str) -> Any:
    return record(device(0), retiredResources=[{"name": name, "since": "2026-11-21T11:00:00Z"} for name in names])


def test_only_a_zero_that_nobody_has_is_removable() -> None:
    assert removable(item(SHARED), node({SHARED: 0})) == [SHARED]
    assert removable(item(SHARED), node({SHARED: 3})) == []
    assert removable(item(SHARED), node({})) == []
    assert removable(item(), node({SHARED: 0})) == []
    assert removable(item(MEMORY), node({MEMORY: 0}, owned=(MEMORY,))) == []
    served = record(device(0), resources=[resource(1, 0)], retiredResources=[{"name": GPU}])
    assert removable(served, node({GPU: 0})) == []


class Patched:
    """A Kube of which only json_patch is used."""

    def __init__(self, fails: int = 0) -> None:
        self.operations: list[dict[str, Any]] = []
        self.fails = fails
        self.get = self.pages = self.apply = self.create = None

    async def json_patch(self, path: str, operations: list[dict[str, Any]]) -> JsonObject:
        if self.fails:
            raise KubeError("refused", status=self.fails)
        self.operations += operations
        return {}


class Bench:
    """The concern with its own clock."""

    def __init__(self, fails: int = 0) -> None:
        self.kube = Patched(fails)
        self.now = 0.0
        self.zeros = RetiredZerosConcern(tools(self.kube, lambda: self.now))

    async def sync(self, item: NodeDevicesRecord, shown: NodeRecord) -> tuple[bool, float | None]:
        """Whether something was removed, and when to reconcile again."""
        before = len(self.kube.operations)
        again = (await run(self.zeros, item, shown)).again
        return len(self.kube.operations) > before, again


async def test_a_zero_goes_after_six_minutes_and_only_if_it_is_still_zero() -> None:
    bench = Bench()
    here = node({SHARED: 0, GPU: 8})
    assert await bench.sync(item(SHARED), here) == (False, SETTLED_SECONDS)
    bench.now = SETTLED_SECONDS - 1
    assert await bench.sync(item(SHARED), here) == (False, 1.0)
    bench.now = SETTLED_SECONDS
    assert await bench.sync(item(SHARED), here) == (True, None)
    path = "/status/capacity/nvidia.com~1gpu.shared"
    operations = bench.kube.operations
    assert operations[:2] == [{"op": "test", "path": path, "value": "0"}, {"op": "remove", "path": path}]
    assert not any('nvidia.com~1gpu"' in str(operation) for operation in operations)


async def test_the_six_minutes_count_from_the_last_retirement_of_a_name() -> None:
    bench = Bench()
    assert await bench.sync(item(SHARED), node({SHARED: 8})) == (False, None), "the zero's coming is news of the Node"
    bench.now = 310.0
    assert await bench.sync(item(SHARED), node({SHARED: 0})) == (False, SETTLED_SECONDS - 310)
    bench.now = SETTLED_SECONDS
    assert await bench.sync(item(SHARED), node({SHARED: 0})) == (True, None)
    bench = Bench()
    await bench.sync(item(SHARED), node({SHARED: 0}))
    bench.now = SETTLED_SECONDS
    again = record(device(0), retiredResources=[{"name": SHARED, "since": "2026-11-21T11:30:00Z"}])
    assert await bench.sync(again, node({SHARED: 0})) == (False, SETTLED_SECONDS)
    bench = Bench()
    await bench.sync(item(SHARED), node({SHARED: 0}))
    bench.now = 300.0
    await bench.sync(item(), node({SHARED: 8}))
    bench.now = 400.0
    assert await bench.sync(item(SHARED), node({SHARED: 0})) == (False, SETTLED_SECONDS)


@cases(("status", "again", "retried"), (422, SETTLED_SECONDS, False), (503, None, True))
async def test_somebody_faster_is_no_failure(status: int, again: float | None, retried: bool) -> None:
    bench = Bench(status)
    await bench.sync(item(SHARED), node({SHARED: 0}))
    bench.now = SETTLED_SECONDS
    found = await run(bench.zeros, item(SHARED), node({SHARED: 0}))
    assert (found.again, found.retried) == (again, retried)
