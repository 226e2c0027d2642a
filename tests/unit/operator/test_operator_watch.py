"""What is taken from the stream of a watch before kopf has it, and what the watches' thread logs."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from aiohttp import StreamReader
from nodedevices_operator.kube.handlers import EventStream
from nodedevices_operator.kube.source import SPARSE_SECONDS, Sparse


def line(kind: str, version: str, **more: Any) -> bytes:
    return json.dumps({"type": kind, "object": {"metadata": {"resourceVersion": version, **more}}}).encode() + b"\n"


ADDED, DELETED = line("ADDED", "11", name="a"), line("DELETED", "12", name="a")
BOOKMARK, EXPIRED = line("BOOKMARK", "15"), b'{"type":"ERROR","object":{"code":410}}\n'


async def taken(*chunks: bytes) -> tuple[list[str], list[Any]]:
    """The types of events that are delivered, and what is left for kopf."""

    class Content:
        async def iter_any(self) -> AsyncIterator[bytes]:
            for chunk in chunks:
                yield chunk

    delivered: list[str] = []
    stream = EventStream(cast(StreamReader, Content()), lambda kind, _: delivered.append(kind))
    left = b"".join([each async for each in stream.iter_chunked(1 << 20)])
    return delivered, [json.loads(each) for each in left.splitlines()]


async def test_events_are_delivered_and_kopf_gets_the_version_to_go_on_from() -> None:
    delivered, left = await taken(ADDED + DELETED)
    assert delivered == ["ADDED", "DELETED"]
    assert left == [{"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "12"}}}]


async def test_what_is_no_event_stays_and_comes_after_the_events_before_it() -> None:
    delivered, left = await taken(ADDED + BOOKMARK + DELETED + EXPIRED)
    assert delivered == ["ADDED", "DELETED"]
    assert [it["object"].get("metadata", {}).get("resourceVersion") for it in left] == ["11", "15", "12", None]
    assert left[-1] == json.loads(EXPIRED)


@pytest.mark.parametrize("at", [1, 40, len(ADDED) - 1, len(ADDED), len(ADDED) + 1])
async def test_a_line_may_come_in_parts(at: int) -> None:
    both = ADDED + DELETED
    delivered, left = await taken(both[:at], both[at:])
    assert delivered == ["ADDED", "DELETED"]
    assert left[-1]["object"]["metadata"]["resourceVersion"] == "12"


async def test_an_event_that_is_cut_off_is_left_to_the_next_watch() -> None:
    delivered, left = await taken(ADDED, DELETED[:-10])
    assert delivered == ["ADDED"]
    assert [it["object"]["metadata"]["resourceVersion"] for it in left] == ["11"]


def test_a_watch_that_is_refused_at_every_try_says_so_once_a_minute() -> None:
    now = [0.0]
    sparse = Sparse(lambda: now[0])
    said = 0
    record = logging.LogRecord("kopf", logging.ERROR, "", 0, "Request attempt failed; will retry", (), None)
    for _ in range(120):
        said += sparse.filter(record)
        now[0] += 5.0
    assert said == 600 / SPARSE_SECONDS
