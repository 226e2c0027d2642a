"""The extender over HTTP: what it answers, what it refuses, and that nobody who reaches it holds up others."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from nodedevices_common.address import Address
from nodedevices_operator.extender.cache import SharesCache
from nodedevices_operator.extender.server import Server, ServerLimits
from nodedevices_operator.extender.verbs import MAX_NODES, Verbs
from nodedevices_operator.metrics import ExtenderMetrics
from support.nodeshares import cache, gpu, holder, node_devices, pod
from support.patience import PATIENCE_SECONDS

Client = Callable[..., Awaitable[tuple[int, Any]]]

KNOWN = (
    node_devices("n1", gpu(0, 24, holder("a", 9)), gpu(1, 24, holder("b", 20, container="train"))),
    node_devices("n2", gpu(0, 24)),
    pod("a", 9, node="n1"),
    pod("b", 20, node="n1"),
    pod("coming", 4, node="n2"),
)
ARGUMENTS = {"Pod": pod("p", 20), "Nodes": None, "NodeNames": ["n1", "n2"]}


@contextlib.asynccontextmanager
async def serving(
    known: SharesCache,
    *,
    problem: str = "",
    limits: ServerLimits = ServerLimits(),  # noqa: B008
) -> AsyncIterator[tuple[Server, ExtenderMetrics]]:
    metrics = ExtenderMetrics()
    made = Server(
        Address("127.0.0.1", 0),
        verbs=Verbs(known, problem=lambda: problem, clock=lambda: 1.0),
        metrics=metrics,
        scrape=metrics.render,
        limits=limits,
        clock=lambda: 1.0,
    )
    await made.start()
    running = asyncio.create_task(made.run())
    await asyncio.sleep(0)
    try:
        yield made, metrics
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def call(port: int, method: str, path: str, body: Any = None, **options: Any) -> tuple[int, Any]:
    """Status, and the body: decoded where it is JSON."""
    data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    scheme = "https" if options.get("ssl") is not None else "http"
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"{scheme}://127.0.0.1:{port}{path}", data=data, **options) as answer,
    ):
        return answer.status, await (answer.json() if answer.content_type == "application/json" else answer.text())


def answer(method: str, path: str, body: Any = None, *, problem: str = "", known: SharesCache | None = None) -> Any:
    async def once() -> tuple[int, Any]:
        async with serving(known or cache(*KNOWN), problem=problem) as (made, _):
            return await call(made.port, method, path, body)

    return asyncio.run(once())


def test_filter_and_prioritize_answer_the_scheduler() -> None:
    status, found = answer("POST", "/scheduler/filter", ARGUMENTS)
    assert (status, found["NodeNames"], list(found["FailedNodes"])) == (200, ["n2"], ["n1"])
    assert answer("POST", "/scheduler/prioritize", ARGUMENTS)[1][1] == {"Host": "n2", "Score": 10}


@pytest.mark.parametrize("prefix", ["scheduler", "gpushare-scheduler"])
def test_inspect_is_in_aliyuns_json_with_fields_of_ours(prefix: str) -> None:
    status, found = answer("GET", f"/{prefix}/inspect")
    assert (status, found["error"]) == (200, "")
    one, two = found["nodes"]
    assert (one["name"], one["totalGPU"], one["usedGPU"]) == ("n1", 48, 29)
    assert [(each["id"], each["totalGPU"], each["usedGPU"]) for each in one["devs"]] == [(0, 24, 9), (1, 24, 20)]
    [held] = one["devs"][1]["pods"]
    assert held == {"name": "b", "namespace": "default", "usedGPU": 20, "container": "train"}
    assert (one["devs"][0]["device"], one["devs"][0]["unit"], one["devs"][0]["freeGPU"]) == ("GPU-0", "1Gi", 15)
    assert [each["name"] for each in two["bound"]] == ["coming"]
    assert two["devs"][0]["freeGPU"] == 20


def test_inspect_counts_of_a_gpu_that_is_gone_what_pods_still_have() -> None:
    gone = gpu(1, 24, held=6, free=0) | {"health": {"state": "Unhealthy", "reason": "Missing"}}
    known = cache(node_devices("n1", gpu(0, 24), gone))
    [node] = answer("GET", "/scheduler/inspect", known=known)[1]["nodes"]
    assert (node["totalGPU"], node["usedGPU"]) == (30, 6)


def test_inspect_counts_of_a_partition_that_is_gone_what_pods_still_have() -> None:
    gone = gpu(0, 20, held=6, free=0) | {"id": "MIG-2", "health": {"state": "Unhealthy", "reason": "Missing"}}
    parts = [gpu(0, 10) | {"id": "MIG-1"}, gone]
    device = {"id": "GPU-0", "name": "gpu-0", "index": 0, "health": {"state": "Healthy"}, "partitions": parts}
    [node] = answer("GET", "/scheduler/inspect", known=cache(node_devices("n1", device)))[1]["nodes"]
    assert (node["totalGPU"], node["usedGPU"]) == (16, 6)


def test_inspect_of_one_node() -> None:
    status, found = answer("GET", "/scheduler/inspect/n2")
    assert (status, [each["name"] for each in found["nodes"]]) == (200, ["n2"])
    status, found = answer("GET", "/scheduler/inspect/n9")
    assert (status, found["nodes"]) == (404, [])
    assert "n9" in found["error"]


def test_health_is_the_process_and_readiness_is_what_it_sees() -> None:
    assert answer("GET", "/healthz", problem="listing pods") == (200, "ok")
    assert answer("GET", "/readyz", problem="listing pods") == (503, "listing pods")
    assert answer("GET", "/readyz") == (200, "ok")
    assert set(answer("GET", "/version")[1]) == {"version"}
    assert "nodedevices_extender_build_info" in answer("GET", "/metrics")[1]


@pytest.mark.parametrize("body", [b"{", b"\xff\xfe", b"[]", b'{"Pod": {}}', b""])
@pytest.mark.parametrize("verb", ["filter", "prioritize"])
def test_a_body_that_cannot_be_read_is_a_400_with_words(verb: str, body: bytes) -> None:
    status, words = answer("POST", f"/scheduler/{verb}", body)
    assert status == 400
    assert "send" in words


def test_nodes_that_are_nested_more_deeply_than_can_be_answered_are_a_400() -> None:
    deep: dict[str, Any] = {}
    for _ in range(300):
        deep = {"a": deep}
    nodes = {"items": [{"metadata": {"name": "n2", "labels": deep}}]}
    status, words = answer("POST", "/scheduler/filter", {**ARGUMENTS, "NodeNames": None, "Nodes": nodes})
    assert status == 400
    assert "send NodeNames" in words


def test_a_wrong_method_or_path_is_said_so() -> None:
    assert answer("GET", "/scheduler/filter")[0] == 405
    assert answer("POST", "/scheduler/bind", b"{}")[0] == 404


def test_a_body_too_large_is_refused() -> None:
    async def once() -> int:
        async with serving(cache(*KNOWN), limits=ServerLimits(body_bytes=1000)) as (made, _):
            return (await call(made.port, "POST", "/scheduler/filter", b" " * 2000))[0]

    assert asyncio.run(once()) == 413


def test_requests_and_nodes_are_counted() -> None:
    async def once() -> str:
        async with serving(cache(*KNOWN)) as (made, metrics):
            await call(made.port, "POST", "/scheduler/filter", ARGUMENTS | {"NodeNames": ["n1", "n2", "n9"]})
            await call(made.port, "POST", "/scheduler/filter", b"{")
            return metrics.render().decode()

    text = asyncio.run(once())
    for line in (
        'nodedevices_extender_requests_total{code="200",verb="filter"} 1.0',
        'nodedevices_extender_requests_total{code="400",verb="filter"} 1.0',
        'nodedevices_extender_filtered_nodes_total{result="passed"} 1.0',
        'nodedevices_extender_filtered_nodes_total{result="unknown"} 1.0',
        'nodedevices_extender_filtered_nodes_total{result="failed"} 1.0',
        'nodedevices_extender_request_seconds_count{verb="filter"} 1.0',
    ):
        assert line in text.splitlines()


def test_a_client_that_sends_slowly_or_nothing_holds_nobody_up() -> None:
    async def beside() -> tuple[int, bytes, bytes]:
        async with serving(cache(*KNOWN), limits=ServerLimits(body_seconds=2.0, idle_seconds=2.0)) as (made, _):
            silent, idle = await asyncio.open_connection("127.0.0.1", made.port)
            slow, writer = await asyncio.open_connection("127.0.0.1", made.port)
            writer.write(b"POST /scheduler/filter HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
            status, _found = await call(made.port, "POST", "/scheduler/filter", ARGUMENTS)
            async with asyncio.timeout(PATIENCE_SECONDS):
                head = await slow.readline()
                nothing = await silent.read()
            for each in (writer, idle):
                each.close()
                with contextlib.suppress(OSError):
                    await each.wait_closed()
            return status, head, nothing

    status, head, nothing = asyncio.run(beside())
    assert status == 200
    assert b"408" in head
    assert nothing == b""


@pytest.mark.parametrize("verb", ["filter", "prioritize"])
def test_more_nodes_than_a_scheduler_asks_about_are_a_400(verb: str) -> None:
    status, words = answer("POST", f"/scheduler/{verb}", ARGUMENTS | {"NodeNames": ["n"] * (MAX_NODES + 1)})
    assert status == 400
    assert f"send at most {MAX_NODES}" in words


def test_many_slow_clients_make_room_for_one_that_is_not() -> None:
    """However many bodies are on their way, few are remembered, and the scheduler's is read."""

    async def beside() -> tuple[int, list[bytes]]:
        async with serving(cache(*KNOWN), limits=ServerLimits(reading=2)) as (made, _):
            slow = [await asyncio.open_connection("127.0.0.1", made.port) for _ in range(3)]
            for _, writer in slow:
                writer.write(b"POST /scheduler/filter HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
                await writer.drain()
            async with asyncio.timeout(PATIENCE_SECONDS):
                status, _found = await call(made.port, "POST", "/scheduler/filter", ARGUMENTS)
                heads = [await slow[0][0].readline(), await slow[1][0].readline()]
            for _, writer in slow:
                writer.close()
            return status, heads

    status, heads = asyncio.run(beside())
    assert status == 200
    assert all(b"408" in head for head in heads)
