"""Three small answers over HTTP, and nothing that a client does harms the loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest
from nodedevices_common.address import Address
from nodedevices_common.http import (
    MAX_CONNECTIONS,
    PEER_SHARE,
    PROBES_PER_SECOND,
    Connection,
    HttpServer,
    Response,
    makes_room,
    peer_of,
)
from support.cases import cases
from support.patience import PATIENCE_SECONDS


def broken() -> Response:
    raise ValueError("a bug")


@pytest.fixture
async def port() -> AsyncIterator[int]:
    server = HttpServer(
        "answers",
        Address("127.0.0.1", 0),
        {
            "/healthz": lambda: Response(200, b"ok\n"),
            "/readyz": lambda: Response(503, b"not yet\n"),
            "/large": lambda: Response(200, b"x" * (8 << 20)),
            "/broken": broken,
        },
        per_second=PROBES_PER_SECOND,
    )
    task = asyncio.create_task(server.run())
    while server.port is None:  # noqa: ASYNC110  a test's patience
        await asyncio.sleep(0.005)
    yield server.port
    task.cancel()
    await asyncio.wait([task])


async def send(port: int, request: bytes) -> bytes:
    """The answer; empty when the connection is closed without one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        await close(writer)


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


@pytest.mark.parametrize(
    ("request_line", "first", "body"),
    [
        (b"GET /healthz HTTP/1.1", b"HTTP/1.1 200 OK", b"ok\n"),
        (b"GET /healthz?verbose HTTP/1.1", b"HTTP/1.1 200 OK", b"ok\n"),
        (b"GET /readyz HTTP/1.1", b"HTTP/1.1 503 Service Unavailable", b"not yet\n"),
        (b"HEAD /healthz HTTP/1.1", b"HTTP/1.1 200 OK", b""),
        (b"POST /healthz HTTP/1.1", b"HTTP/1.1 405 Method Not Allowed", b"only GET\n"),
        (b"GET /secrets HTTP/1.1", b"HTTP/1.1 404 Not Found", b"there are /broken, /healthz, /large, /readyz\n"),
        (b"GET /broken HTTP/1.1", b"HTTP/1.1 500 Internal Server Error", b"failed; the log says more\n"),
        (b"hello", b"HTTP/1.1 400 Bad Request", b"not HTTP\n"),
    ],
)
async def test_each_request_has_its_answer(port: int, request_line: bytes, first: bytes, body: bytes) -> None:
    answer = await send(port, request_line + b"\r\nHost: x\r\n\r\n")
    head, _, text = answer.partition(b"\r\n\r\n")
    assert (head.split(b"\r\n")[0], text) == (first, body)


async def test_a_header_without_end_is_cut_off(port: int) -> None:
    assert await send(port, b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 20_000) == b""


async def connect(port: int, peer: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """From another address of the loopback network."""
    return await asyncio.open_connection("127.0.0.1", port, local_addr=(peer, 0))


@pytest.mark.parametrize("peers", [1, 3, 64], ids="from {} addresses".format)
async def test_silent_connections_never_keep_a_request_out(port: int, peers: int) -> None:
    silent = [await connect(port, f"127.0.1.{number % peers + 1}") for number in range(3 * MAX_CONNECTIONS)]
    for _ in range(3):
        assert b"200 OK" in await send(port, b"GET /healthz HTTP/1.1\r\n\r\n")
    for _, writer in silent:
        await close(writer)


async def test_a_slow_header_keeps_no_request_out(port: int) -> None:
    slow = [await connect(port, f"127.0.1.{number + 1}") for number in range(2 * MAX_CONNECTIONS)]
    for _, writer in slow:
        writer.write(b"GET /healthz HTTP/1.1\r\nX: ")
    assert b"200 OK" in await send(port, b"GET /healthz HTTP/1.1\r\n\r\n")
    for _, writer in slow:
        await close(writer)


async def test_answers_that_nobody_takes_keep_no_request_out(port: int) -> None:
    deaf = [await connect(port, f"127.0.1.{number + 1}") for number in range(2 * MAX_CONNECTIONS)]
    for _, writer in deaf:
        writer.write(b"GET /large HTTP/1.1\r\n\r\n")
    await asyncio.sleep(0.05)
    assert b"200 OK" in await send(port, b"GET /healthz HTTP/1.1\r\n\r\n")
    for _, writer in deaf:
        writer.transport.abort()


async def test_a_request_without_an_end_is_dropped(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /healthz")
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await reader.read() == b""
    await close(writer)


# --- who makes room ---------------------------------------------------------------------------------------------------
def opened(*peers: str, sent: tuple[int, ...] = ()) -> list[Connection]:
    return [Connection(peer, float(number), number in sent) for number, peer in enumerate(peers)]


def test_the_peer_with_most_makes_room_by_its_longest_silent_connection() -> None:
    assert makes_room(opened(*"abcd"), "e") is None
    connections = opened("b", *["a"] * PEER_SHARE, sent=(1,))
    assert makes_room(connections, "a") is connections[2]
    assert makes_room(connections, "b") is None
    connections = opened("a", "a", *(f"p{number}" for number in range(MAX_CONNECTIONS - 2)))
    assert makes_room(connections, "new") is connections[0]
    connections = opened(*(f"p{number}" for number in range(MAX_CONNECTIONS)), sent=(0, 1))
    assert makes_room(connections, "new") is connections[2]


@cases(
    ("host", "peer"),
    ("10.1.2.3", "10.1.2.3"),
    ("::ffff:10.1.2.3", "10.1.2.3"),
    ("fd00:1:2:3::7", "fd00:1:2:3::/64"),
    ("fd00:1:2:3:ffff::8", "fd00:1:2:3::/64"),
    ("fe80::1%eth0", "fe80::/64"),
)
def test_a_peer_is_an_address_or_the_network_that_one_machine_has(host: str, peer: str) -> None:
    assert peer_of(host) == peer


async def test_an_address_that_is_taken_is_no_reason_to_end(port: int) -> None:
    second = HttpServer("answers", Address("127.0.0.1", port), {})
    task = asyncio.create_task(second.run())
    await asyncio.sleep(0.05)
    assert not task.done()
    assert second.port is None
    task.cancel()
    await asyncio.wait([task])


async def test_every_address_of_the_machine_is_served() -> None:
    server = HttpServer("answers", Address("", 0), {"/healthz": lambda: Response(200, b"ok\n")})
    server.listen()
    task = asyncio.create_task(server.run())
    assert server.port is not None
    assert b"200 OK" in await send(server.port, b"GET /healthz HTTP/1.1\r\n\r\n")
    task.cancel()
    await asyncio.wait([task])


async def test_a_connection_that_comes_in_the_moment_of_the_end_is_no_error() -> None:
    """loop.sock_accept of Python 3.11 logs an InvalidStateError then, in this order of one turn of the loop."""
    loop, errors = asyncio.get_running_loop(), list[object]()
    loop.set_exception_handler(lambda _, context: errors.append(context))
    server = HttpServer("answers", Address("127.0.0.1", 0), {}, per_second=PROBES_PER_SECOND)
    task = asyncio.create_task(server.run())
    while server.port is None:  # noqa: ASYNC110  a test's patience
        await asyncio.sleep(0.005)
    with socket.create_connection(("127.0.0.1", server.port)):
        loop.call_soon(task.cancel)
        await asyncio.wait([task])
    assert errors == []
