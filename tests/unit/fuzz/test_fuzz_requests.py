"""Whatever bytes come to a port, and whatever a Lease says: there is an answer that the other side understands."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
from hypothesis import HealthCheck, given, settings, strategies as st
from nodedevices_common.address import Address
from nodedevices_common.errors import InputError
from nodedevices_common.http import METRICS_TEXT, PROBES_PER_SECOND, HttpServer, Response
from nodedevices_operator.extender.verbs import Verbs, read_arguments
from nodedevices_operator.kube.election import Election
from structlog.testing import capture_logs
from support.corpus import changed, changed_json, recorded, sentence
from support.fuzzing import scaled
from support.leases import LeaseServer
from support.nodeshares import cache, gpu, holder, node_devices, pod

SLOW = [HealthCheck.too_slow]
KNOWN = (
    node_devices("n1", gpu(0, 24, holder("a", 9)), gpu(1, 24, holder("b", 20, container="train"))),
    node_devices("n2", gpu(0, 24)),
    pod("coming", 4, node="n2"),
)
INT32 = (1 << 31) - 1


# --- the scheduler's extender ----------------------------------------------------------------------------------------
async def check_body(body: bytes) -> None:
    try:
        arguments = read_arguments(body)
    except InputError as error:
        sentence(error)
        return
    verbs = Verbs(cache(*KNOWN), problem=lambda: "", clock=lambda: 1.0)
    found = await verbs.filter(arguments)
    assert {*found.passed, *found.failed, *found.never} == set(arguments.names), "each node has an answer"
    try:
        answer = orjson.loads(found.answer(arguments))
    except InputError:
        return
    if arguments.nodes is not None:
        assert len(answer["Nodes"]["items"]) <= len(arguments.nodes["items"])
    scores = orjson.loads(verbs.prioritize(arguments))
    assert [each["Host"] for each in scores] == list(arguments.names)
    assert all(0 <= each["Score"] <= 10 for each in scores)


@recorded("extender-body")
def test_a_recorded_call_of_the_scheduler_is_answered_or_refused(path: Path) -> None:
    asyncio.run(check_body(path.read_bytes()))


@settings(max_examples=scaled(60), suppress_health_check=SLOW)
@given(changed_json("extender-body") | changed("extender-body"))
def test_a_changed_call_of_the_scheduler_is_answered_or_refused(body: bytes) -> None:
    asyncio.run(check_body(body))


# --- metrics and health ----------------------------------------------------------------------------------------------
async def check_requests(requests: list[bytes]) -> None:
    answers = {"/healthz": lambda: Response(200, b"ok\n"), "/metrics": lambda: Response(200, b"a 1\n", METRICS_TEXT)}
    server = HttpServer("answers", Address("127.0.0.1", 0), answers, per_second=PROBES_PER_SECOND)
    server.listen()
    assert server.port is not None
    serving = asyncio.create_task(server.run())
    for request in [*requests, b"GET /healthz HTTP/1.1\r\n\r\n"]:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        try:
            writer.write(request)
            writer.write_eof()
            answer = await reader.read()
        except ConnectionError:  # it was closed with some of the request unread
            answer = b""
        writer.close()
        assert answer == b"" or answer.startswith(
            (b"HTTP/1.1 200 ", b"HTTP/1.1 400 ", b"HTTP/1.1 404 ", b"HTTP/1.1 405 ")
        )
    assert answer.endswith(b"\r\n\r\nok\n"), "the next one is answered"
    serving.cancel()
    await asyncio.wait([serving])


def check_quietly(requests: list[bytes]) -> None:
    with capture_logs() as said:
        asyncio.run(check_requests(requests))
    assert [each for each in said if each["log_level"] in ("error", "warning")] == []


@recorded("http-request")
def test_a_recorded_request_is_answered(path: Path) -> None:
    check_quietly([path.read_bytes()])


@settings(max_examples=scaled(15), suppress_health_check=SLOW)
@given(st.lists(changed("http-request") | st.binary(max_size=100), min_size=1, max_size=4))
def test_a_changed_request_is_answered_or_closed_and_the_next_one_is_answered(requests: list[bytes]) -> None:
    check_quietly(requests)


# --- the election's Lease --------------------------------------------------------------------------------------------
TIMES = st.sampled_from([None, "2026-11-23T09:00:00.000000Z", "0001-01-01T00:00:00.000000Z"])
LEASES = st.fixed_dictionaries(
    {},
    optional={  # as the API server takes them, from whoever writes a Lease
        "holderIdentity": st.sampled_from(["", "a", "b", "another", "é" * 300]),
        "leaseDurationSeconds": st.sampled_from([1, 12, 3600, INT32]),
        "leaseTransitions": st.sampled_from([0, 4, INT32 - 1, INT32]),
        "renewTime": TIMES,
        "acquireTime": TIMES,
        "strategy": st.just("OldestEmulationVersion"),
        "preferredHolder": st.just("x"),
    },
)
MOVES = st.lists(st.sampled_from(["a", "b", "gone", "released"]) | st.floats(0, 30) | LEASES, max_size=20)


@settings(max_examples=scaled(60))
@given(MOVES)
def test_whatever_a_lease_says_candidates_go_on_and_write_what_the_api_server_takes(moves: list[Any]) -> None:
    async def live() -> None:
        server, seconds = LeaseServer(), [1000.0]
        candidates = {
            each: Election(server, namespace="ns", identity=each, clock=lambda: seconds[0]) for each in ("a", "b")
        }
        for move in moves:
            match move:
                case float():
                    seconds[0] += move
                case dict():
                    server.stands(**move)
                case "gone":
                    server.lease = None
                case "released":
                    for each in candidates.values():
                        await each.release()
                case name:
                    await candidates[name].attempt()
                    written = server.spec() if server.lease else {}
                    if written.get("holderIdentity") == name and candidates[name].may_write():
                        assert 0 <= written.get("leaseTransitions", 0) <= INT32
        seconds[0] += 3601
        for _ in range(2):  # the first sees it as it is, and counts its time from then
            won = [await each.attempt() for each in candidates.values()]
            seconds[0] += 3601
        assert any(won), "somebody leads when the longest time has passed"

    with capture_logs():
        asyncio.run(live())
