"""Three small answers over HTTP, and nothing that a client does harms the loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from nodedevices_plugin.http import MAX_CONNECTIONS, Answer, HttpServer
from nodedevices_plugin.settings.flags import Address


@pytest.fixture
async def port() -> AsyncIterator[int]:
    server = HttpServer(
        Address(host="127.0.0.1", port=0),
        {"/healthz": lambda: Answer(200, b"ok\n"), "/readyz": lambda: Answer(503, b"not yet\n")},
    )
    task = asyncio.create_task(server.run())
    while server.port is None:  # noqa: ASYNC110  a test's patience
        await asyncio.sleep(0.005)
    yield server.port
    task.cancel()
    await asyncio.wait([task])


async def ask(port: int, request: bytes) -> bytes:
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
        (b"GET /secrets HTTP/1.1", b"HTTP/1.1 404 Not Found", b"there are /healthz, /readyz\n"),
        (b"hello", b"HTTP/1.1 400 Bad Request", b"not HTTP\n"),
    ],
)
async def test_each_request_has_its_answer(port: int, request_line: bytes, first: bytes, body: bytes) -> None:
    answer = await ask(port, request_line + b"\r\nHost: x\r\n\r\n")
    head, _, text = answer.partition(b"\r\n\r\n")
    assert (head.split(b"\r\n")[0], text) == (first, body)


async def test_a_header_without_end_is_cut_off(port: int) -> None:
    assert await ask(port, b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 20_000) == b""


async def test_idle_connections_do_not_keep_others_out_for_ever(port: int) -> None:
    idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MAX_CONNECTIONS)]
    await asyncio.sleep(0.05)
    assert await ask(port, b"GET /healthz HTTP/1.1\r\n\r\n") == b""
    for _, writer in idle:
        await close(writer)
    async with asyncio.timeout(10):
        while b"200 OK" not in await ask(port, b"GET /healthz HTTP/1.1\r\n\r\n"):  # noqa: ASYNC110  a test's patience
            await asyncio.sleep(0.02)


async def test_an_address_that_is_taken_is_no_reason_to_end(port: int) -> None:
    second = HttpServer(Address(host="127.0.0.1", port=port), {})
    task = asyncio.create_task(second.run())
    await asyncio.sleep(0.05)
    assert not task.done()
    assert second.port is None
    task.cancel()
    await asyncio.wait([task])
