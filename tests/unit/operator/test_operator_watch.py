"""kopf's handlers, and what the watches' thread logs."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import kopf
import pytest
from nodedevices_operator.kube import watch as source
from nodedevices_operator.kube.watch import SPARSE_SECONDS, WATCHED, Sparse, Watch, make_registry, make_settings
from nodedevices_operator.records import kinds
from nodedevices_operator.records.kinds import Kind, Record
from support.opfacts import raw_node, raw_policy


def test_kopf_has_a_handler_of_events_for_each_kind_and_keeps_nothing_of_its_own() -> None:
    """Any other kind of handler would write to objects, or keep a copy of each."""
    registry = make_registry(lambda *_: None, None)
    assert {str(handler.id) for handler in registry._watching.get_all_handlers()} == {it.name.lower() for it in WATCHED}
    for others in (registry._changing, registry._spawning, registry._indexing, registry._webhooks):
        assert list(others.get_all_handlers()) == []
    settings = make_settings()
    storage = settings.persistence.diffbase_storage
    assert (storage.build(body=kopf.Body({})), storage.fetch(body=kopf.Body({}))) == ({}, {})
    assert not settings.posting.enabled
    assert settings.scanning.disabled
    assert settings.peering.standalone


async def delivered(*events: tuple[Kind, str | None, Any]) -> tuple[list[tuple[Kind, bool, str]], int]:
    """What arrives in the operator's loop, and how often it is told that kopf has listed."""
    arrived: list[tuple[Kind, bool, str]] = []
    listed: list[bool] = []

    def take(kind: Kind, deleted: bool, record: Record) -> None:
        arrived.append((kind, deleted, record.name))

    watch = Watch(None, take, lambda _: None, listed=lambda: listed.append(True))
    for event in events:
        watch._deliver(*event)
    await asyncio.sleep(2 * source.GATHER_SECONDS)
    return arrived, len(listed)


async def test_events_arrive_in_order_and_what_kopf_lists_is_told_apart() -> None:
    node, policy = raw_node(), raw_policy("p", health={})
    arrived, listed = await delivered(
        (Kind.NODE, None, node), (Kind.POLICY, "ADDED", policy), (Kind.POLICY, "DELETED", policy)
    )
    assert arrived == [(Kind.NODE, False, "n1"), (Kind.POLICY, False, "p"), (Kind.POLICY, True, "p")]
    assert listed == 1


async def test_an_object_that_cannot_be_read_costs_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def reads(kind: Kind, raw: Any, before: Record | None = None) -> Record:
        if kind is Kind.POLICY:
            raise ValueError("a bug")
        return kinds.read(kind, raw, before)

    monkeypatch.setattr(source, "read", reads)
    arrived, _ = await delivered((Kind.POLICY, "ADDED", raw_policy("p", health={})), (Kind.NODE, "ADDED", raw_node()))
    assert arrived == [(Kind.NODE, False, "n1")]


def test_a_watch_that_is_refused_at_every_try_says_so_once_a_minute() -> None:
    now = [0.0]
    sparse = Sparse(lambda: now[0])
    said = 0
    record = logging.LogRecord("kopf", logging.ERROR, "", 0, "Request attempt failed; will retry", (), None)
    for _ in range(120):
        said += sparse.filter(record)
        now[0] += 5.0
    assert said == 600 / SPARSE_SECONDS
