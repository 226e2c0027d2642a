"""An operator's lives, in this process: its manager against a real API server, able to die at any call, without kopf.

A life begins with an empty memory and one authoritative LIST, as after kill -9, and goes on until nothing is left to
do. `CrashingKube` ends it at a chosen call, after the API server has done what was requested: the worst moment, because
the operator never learns of it. Dying before a call is dying after the one before.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Hashable, Iterable, Mapping
from typing import Any

from nodedevices_operator.kube.port import JsonObject, Kube
from nodedevices_operator.manager import Manager
from nodedevices_operator.metrics import OperatorMetrics
from support.marking import events_sent, next_node

MOST_RECONCILES = 200


class Killed(BaseException):
    """kill -9: nothing in the operator catches it."""


class CrashingKube:
    """A Kube whose caller dies at the `dies_at`-th call; 0: never. Pages count once, when they end. Nothing is called
    by the dead: whichever task of theirs goes on dies, too."""

    def __init__(self, kube: Kube, dies_at: int = 0) -> None:
        self._kube = kube
        self._dies_at = dies_at
        self.calls: list[str] = []
        self.writes: list[str] = []

    @property
    def dead(self) -> bool:
        return 0 < self._dies_at <= len(self.calls)

    def _alive(self) -> None:
        if self.dead:
            raise Killed

    def _count(self, what: str, *, write: bool) -> None:
        self.calls.append(what)
        if write:
            self.writes.append(what)
        if self.dead:
            raise Killed(what)

    async def get(self, path: str) -> JsonObject:
        self._alive()
        found = await self._kube.get(path)
        self._count(f"get {path}", write=False)
        return found

    async def pages(
        self, path: str, query: Mapping[str, str] | None = None, *, metadata_only: bool = False
    ) -> AsyncIterator[JsonObject]:
        self._alive()
        async for page in self._kube.pages(path, query, metadata_only=metadata_only):
            yield page
        self._count(f"list {path}", write=False)

    def watch(self, path: str, query: Mapping[str, str]) -> AsyncIterator[bytes]:
        return self._kube.watch(path, query)

    async def apply(self, path: str, body: JsonObject, manager: str, *, force: bool = True) -> JsonObject:
        self._alive()
        done = await self._kube.apply(path, body, manager, force=force)
        self._count(f"apply {manager} {path}", write=True)
        return done

    async def create(self, path: str, body: JsonObject) -> JsonObject:
        self._alive()
        done = await self._kube.create(path, body)
        self._count(f"create {path} {body.get('reason', '')}", write=True)
        return done

    async def json_patch(self, path: str, operations: list[dict[str, Any]]) -> JsonObject:
        self._alive()
        done = await self._kube.json_patch(path, operations)
        self._count(f"patch {path}", write=True)
        return done

    async def delete(self, path: str, *, uid: str, resource_version: str) -> None:
        self._alive()
        await self._kube.delete(path, uid=uid, resource_version=resource_version)
        self._count(f"delete {path}", write=True)


async def live(kube: Kube) -> Manager:
    """One life: LIST, then reconcile every key until none is left. Raises what ends it."""
    manager = Manager(kube, OperatorMetrics())
    await manager.relister.once()
    count = 0
    while True:
        if (name := await next_node(manager)) is not None:
            await manager.reconcile_node(name)
            manager.nodes.done(name)
        elif (name := manager.fleet.take()) is not None:
            await manager.reconcile_fleet(name)
            manager.fleet.done(name)
        else:
            break
        await events_sent()
        count += 1
        assert count < MOST_RECONCILES, f"it never comes to rest; it goes on reconciling {name}"
    for policy in sorted(manager.cache.policies):
        await manager.reconcile_policy(policy)
    await events_sent()
    return manager


def at_most(written: Iterable[Hashable], unbroken: Iterable[Hashable]) -> bool:
    """True when these Events are some of those that an unbroken life has written, each once: nothing waits for an
    Event, so that a kill may lose one."""
    return Counter(written) <= Counter(unbroken)


async def lives(kube: Kube, dies_at: int) -> int:
    """Lives until one ends by itself; the first dies at that call, if it gets so far. Returns its number of calls."""
    first = CrashingKube(kube, dies_at)
    with contextlib.suppress(Killed):
        await live(first)
    if first.dead:
        await live(kube)
    return len(first.calls)
