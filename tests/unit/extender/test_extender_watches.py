"""The extender's list and watch against an API server that is slow, away, forgetful or odd."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from nodedevices_operator.extender.main import UNHEARD_SECONDS, Extender
from nodedevices_operator.extender.verbs import read_arguments
from nodedevices_operator.kube.port import KubeError
from nodedevices_operator.records.names import NODE_DEVICES, PODS
from support.cases import cases
from support.nodeshares import MEMORY, gpu, holder, node_devices, pod
from support.patience import PATIENCE_SECONDS

OTHER = "example.com/other"


class ApiServer:
    """Objects by collection; a watch gets what is sent to it, and ends when it is told to."""

    def __init__(self, *objects: Mapping[str, Any]) -> None:
        self.objects: dict[str, list[Mapping[str, Any]]] = {NODE_DEVICES: [], PODS: []}
        for each in objects:
            self.objects[NODE_DEVICES if each["kind"] == "NodeDevices" else PODS].append(each)
        self.lists: list[str] = []
        self.versions: list[str] = []  # from which watches began
        self.failures: dict[str, KubeError] = {}  # by collection, until they are taken out
        self.page_size = 1
        self._streams: dict[str, asyncio.Queue[bytes | None]] = {}

    async def pages(self, path: str, query: object = None, **_: Any) -> AsyncIterator[Mapping[str, Any]]:
        await asyncio.sleep(0)
        if path in self.failures:
            raise self.failures[path]
        self.lists.append(path)
        for at in range(0, len(self.objects[path]) or 1, self.page_size):
            await asyncio.sleep(0)
            yield {"items": self.objects[path][at : at + self.page_size], "metadata": {"resourceVersion": "10"}}

    async def watch(self, path: str, query: Mapping[str, str]) -> AsyncIterator[bytes]:
        if path in self.failures:
            raise self.failures[path]
        self.versions.append(query["resourceVersion"])
        queue = self._streams[path] = asyncio.Queue()
        while (line := await queue.get()) is not None:
            yield line

    async def stream(self, path: str) -> asyncio.Queue[bytes | None]:
        await until(lambda: path in self._streams)
        return self._streams[path]

    async def send(self, path: str, kind: str, thing: Mapping[str, Any]) -> None:
        (await self.stream(path)).put_nowait(json.dumps({"type": kind, "object": thing}).encode())

    async def end(self, path: str) -> None:
        (await self.stream(path)).put_nowait(None)
        del self._streams[path]


async def until(look: Any) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not look():  # noqa: ASYNC110  a state, not an event
            await asyncio.sleep(0.005)


class Running:
    """An extender beside such an API server."""

    def __init__(self, api: ApiServer) -> None:
        self.api = api
        self.now = 1000.0

    async def __aenter__(self) -> Running:
        self.extender = Extender(self.api, clock=lambda: self.now)
        self._tasks = self.extender.tasks()
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def ready(self) -> None:
        await until(lambda: not self.extender.problem())

    async def refused(self, size: int, resource: str = MEMORY) -> set[str]:
        body = json.dumps({"Pod": pod("wanted", size, resource=resource), "NodeNames": ["n1", "n2"]}).encode()
        found = await self.extender.verbs.filter(read_arguments(body))
        return {*found.failed, *found.never}


async def test_until_everything_is_listed_every_node_passes_and_the_reason_is_said() -> None:
    api = ApiServer(node_devices("n1", gpu(0, 24)))
    api.failures[PODS] = KubeError("GET /api/v1/pods: 403 pods is forbidden", status=403)
    async with Running(api) as it:
        await until(lambda: "forbidden" in it.extender.problem())
        assert await it.refused(100) == set()
        del api.failures[PODS]
        await it.ready()
        assert await it.refused(100) == {"n1"}


async def test_pods_are_listed_only_where_somebody_shares_memory() -> None:
    api = ApiServer(node_devices("n1"), pod("p", 4, node="n1"))
    async with Running(api) as it:
        await it.ready()
        assert api.lists == [NODE_DEVICES]
        await api.send(NODE_DEVICES, "MODIFIED", node_devices("n1", gpu(0, 24)))
        await until(lambda: PODS in api.lists)
        await it.ready()
        assert await it.refused(21) == {"n1"}


async def test_pods_are_listed_again_for_a_resource_that_is_shared_from_now_on() -> None:
    api = ApiServer(node_devices("n1", gpu(0, 24)), pod("p", 20, node="n2", resource=OTHER))
    async with Running(api) as it:
        await it.ready()
        await api.send(NODE_DEVICES, "ADDED", node_devices("n2", gpu(0, 24, resource=OTHER)))
        await until(lambda: api.lists.count(PODS) == 2)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await it.refused(10, OTHER) != {"n2"}:  # noqa: ASYNC110  as above
                await asyncio.sleep(0.005)


async def test_a_watch_that_ends_goes_on_from_where_it_was_without_a_list() -> None:
    api = ApiServer(node_devices("n1", gpu(0, 24)))
    async with Running(api) as it:
        await it.ready()
        await api.send(PODS, "ADDED", pod("p", 20, node="n1") | {"metadata": {"uid": "u", "resourceVersion": "17"}})
        await until(lambda: it.extender.cache.sizes()[1] == 1)
        await api.end(PODS)
        await until(lambda: "17" in api.versions)
        assert api.lists.count(PODS) == 1


@cases(
    "line",
    {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old resource version"}},
    {"type": "MODIFIED"},
    {"type": "MODIFIED", "object": 7},
    [],
)
async def test_what_was_missed_is_listed_and_what_is_gone_is_forgotten(line: Any) -> None:
    api = ApiServer(node_devices("n1", gpu(0, 24)), node_devices("n2", gpu(0, 24)), pod("p", 20, node="n1"))
    async with Running(api) as it:
        await it.ready()
        assert await it.refused(10) == {"n1"}
        api.objects[NODE_DEVICES].pop()
        api.objects[PODS].clear()
        for path in (NODE_DEVICES, PODS):
            (await api.stream(path)).put_nowait(json.dumps(line).encode())
        await until(lambda: it.extender.cache.sizes() == (1, 0))
        assert await it.refused(100) == {"n1"}


async def test_a_bookmark_moves_the_version_and_nothing_else() -> None:
    api = ApiServer(node_devices("n1", gpu(0, 24)))
    async with Running(api) as it:
        await it.ready()
        await api.send(NODE_DEVICES, "BOOKMARK", {"metadata": {"resourceVersion": "99"}})
        await api.end(NODE_DEVICES)
        await until(lambda: "99" in api.versions)
        assert it.extender.cache.sizes() == (1, 0)


async def test_while_the_api_server_is_away_the_last_state_counts_for_a_while_and_then_every_node_passes() -> None:
    api = ApiServer(node_devices("n1", gpu(0, 24, holder("p", 20))), pod("p", 20, node="n1"))
    async with Running(api) as it:
        await it.ready()
        await asyncio.gather(api.stream(NODE_DEVICES), api.stream(PODS))  # else a watch fails before it begins
        api.failures |= {NODE_DEVICES: KubeError("no answer"), PODS: KubeError("no answer")}
        await api.end(NODE_DEVICES)
        await api.end(PODS)
        assert await it.refused(10) == {"n1"}
        it.now += UNHEARD_SECONDS + 1
        assert "not heard" in it.extender.problem()
        assert await it.refused(10) == set()
        api.failures.clear()
        await it.ready()
        assert await it.refused(10) == {"n1"}


async def test_the_age_of_what_is_known_is_measured() -> None:
    async with Running(ApiServer(node_devices("n1", gpu(0, 24)))) as it:
        await it.ready()
        it.now += 7
        text = it.extender.scrape().decode()
        assert 'nodedevices_extender_cache_age_seconds{kind="nodedevices"} 7.0' in text
        assert 'nodedevices_extender_cache_objects{kind="nodedevices"} 1.0' in text
        assert "nodedevices_extender_ready 1.0" in text
