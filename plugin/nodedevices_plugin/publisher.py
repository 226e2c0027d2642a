"""Keeps this node's NodeDevices in the API server equal to what the agent knows, and brings its `spec` back.

Level-based: the agent hands over the status it wants (`want`), any number of times; only the latest counts. The object
is watched; one that is deleted comes back within seconds, fields of ours that somebody changed are set again, and an
owner that is not this Node (re-created under its name) is replaced. When the API server is away nothing on the node
changes and nothing piles up: one write catches up when it is back. Errors are logged and counted when they change, not
each time. `pacing.decide` says what to do next; this module only does it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

import structlog

from nodedevices_plugin import pacing
from nodedevices_plugin.kubeapi import Object, Store, StoreError
from nodedevices_plugin.pacing import Cause, Need, Situation, TokenBucket

log = structlog.get_logger(__name__)

WATCH_BACK_OFF_MOST_SECONDS = 15.0
OPERATOR_FIELDS = frozenset({"affectedPods"})
AGENT_CONDITIONS = frozenset({"Ready", "DevicesHealthy", "ConfigApplied", "HoldersKnown"})


class PublisherMetrics(Protocol):
    def published(self, cause: str, seconds: float) -> None: ...
    def publish_failed(self, status: int) -> None: ...
    def api_reachable(self, *, reachable: bool) -> None: ...


def owned(status: Mapping[str, Any] | None) -> dict[str, Any]:
    """The part of a status that the agent writes, in a form that compares equal whatever the operator adds."""
    mine = {key: value for key, value in (status or {}).items() if key not in OPERATOR_FIELDS}
    conditions = [each for each in mine.get("conditions", ()) if each.get("type") in AGENT_CONDITIONS]
    return mine | {"conditions": sorted(conditions, key=lambda each: str(each["type"]))}


class Publisher:
    """`run()` until cancelled; `want()` from the same loop at any time."""

    def __init__(
        self,
        *,
        store: Store,
        name: str,
        on_object: Callable[[Object | None], None],
        metrics: PublisherMetrics,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._store = store
        self._name = name
        self._on_object = on_object
        self._metrics = metrics
        self._clock = clock
        self._chance = chance
        self._bucket = TokenBucket(now=clock())
        self._wake = asyncio.Event()
        self._wanted: Mapping[str, Any] | None = None
        self._may_create = True
        self._listed = False
        self._object: Object | None = None
        self._own_version = 0  # resourceVersion of our newest write
        self._own_status: dict[str, Any] | None = None  # our part of the object after that write
        self._written: Mapping[str, Any] | None = None
        self._written_at: float | None = None
        self._heartbeat = pacing.HEARTBEAT_SECONDS
        self._repaired_at: float | None = None
        self._created_at: float | None = None
        self._recreations = 0
        self._owner_asked = False
        self._owner: str | None = None
        self._failures = 0
        self._not_before = 0.0
        self._trouble: str | None = None

    def want(self, status: Mapping[str, Any], *, may_create: bool) -> None:
        """The status this node should show, without `agent.heartbeatTime`. Never blocks."""
        self._may_create = may_create
        if status != self._wanted:
            self._wanted = status
        self._wake.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch(), name="publisher-watch")
            tasks.create_task(self._write(), name="publisher-write")

    # --- the object as the API server has it -------------------------------------------------------------------------
    async def _watch(self) -> None:
        failures = 0
        while True:
            try:
                async for item in self._store.watch(self._name):
                    failures = 0
                    self._reached()
                    self._see(item)
            except StoreError as error:
                self._failed(error)
            await asyncio.sleep(pacing.back_off(failures, self._chance(), most=WATCH_BACK_OFF_MOST_SECONDS))
            failures += 1

    def _see(self, item: Object | None) -> None:
        if item is not None and _version(item) < self._own_version and _uid(item) == _uid(self._object):
            return  # an event from before our newest write
        if item is None and self._object is not None:
            log.warning("the NodeDevices object was deleted; it will be created again", name=self._name)
            self._vanished()
        first = not self._listed
        self._listed = True
        self._object = item
        self._on_object(item)
        if first or self._not_before:
            self._not_before = 0.0  # the server answers: what waits behind a back-off may try now
        self._wake.set()

    def _vanished(self) -> None:
        now = self._clock()
        young = self._created_at is not None and now - self._created_at < pacing.RECREATE_MOST_SECONDS
        self._recreations = self._recreations + 1 if young else 0
        self._object = None
        self._own_version = 0
        self._own_status = None
        self._written = None

    # --- writing -----------------------------------------------------------------------------------------------------
    async def _write(self) -> None:
        while True:
            step = pacing.decide(self._situation(), self._bucket, self._clock())
            wait = step.wait
            if wait is not None:
                wait = max(wait, self._not_before - self._clock())
            if wait is None or wait > 0:
                await self._sleep(wait)
                continue
            self._bucket.take(self._clock())
            try:
                await (self._create() if step.need is Need.CREATE else self._apply(step.cause or Cause.CHANGE))
            except StoreError as error:
                self._hold_back(error)
            else:
                self._failures = 0
                self._not_before = 0.0
                self._reached()

    def _situation(self) -> Situation:
        owners = ((self._object or {}).get("metadata") or {}).get("ownerReferences") or ()
        return Situation(
            wanted=self._wanted,
            may_create=self._may_create,
            listed=self._listed,
            exists=self._object is not None,
            owner_wrong=self._owner is not None and self._owner not in {each.get("uid") for each in owners},
            written=self._written,
            written_at=self._written_at,
            heartbeat_seconds=self._heartbeat,
            drifted=self._own_status is not None
            and self._object is not None
            and owned(self._object.get("status")) != self._own_status,
            repaired_at=self._repaired_at,
            created_at=self._created_at,
            recreations=self._recreations,
        )

    async def _create(self) -> None:
        if not self._owner_asked:
            await self._ask_owner()
        self._created_at = self._clock()
        self._object = await self._store.apply_object(self._name, self._owner)
        self._own_version = _version(self._object)
        log.info("NodeDevices object applied", name=self._name, owner_uid=self._owner)

    async def _ask_owner(self) -> None:
        try:
            self._owner = await self._store.node_uid()
        except StoreError as error:
            if error.status not in (403, 404):
                raise
        self._owner_asked = True
        if self._owner is None:
            log.warning(
                "the token names no Node, so the NodeDevices object gets no owner: delete it by hand with the node",
                name=self._name,
            )

    async def _apply(self, cause: Cause) -> None:
        wanted = self._wanted
        if wanted is None:
            return
        if not self._owner_asked:
            await self._ask_owner()
            return  # the owner decides whether the object is right: decide again
        began = self._clock()
        heartbeat = {"heartbeatTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
        body = dict(wanted) | {"agent": dict(wanted.get("agent") or {}) | heartbeat}
        if self._owner is not None:
            body["nodeUID"] = self._owner
        try:
            answer = await self._store.apply_status(self._name, body)
        except StoreError as error:
            if error.status == 404 and self._object is not None:
                self._vanished()
            raise
        now = self._clock()
        self._written, self._written_at = wanted, now
        self._object = answer
        self._own_version = _version(answer)
        self._own_status = owned(answer.get("status"))
        self._heartbeat = pacing.HEARTBEAT_SECONDS * (1 + pacing.HEARTBEAT_JITTER * (2 * self._chance() - 1))
        if cause is Cause.REPAIR:
            self._repaired_at = now
            log.warning("fields of the agent's status were changed by somebody else; set again", name=self._name)
        self._metrics.published(cause.value, now - began)

    def _hold_back(self, error: StoreError) -> None:
        self._failed(error)
        first = error.status in (401, 409) and self._failures == 0  # a new token, or a newer version: try at once
        wait = 0.0 if first else pacing.back_off(self._failures, self._chance())
        self._failures += 1
        self._not_before = self._clock() + max(wait, error.retry_after or 0.0)

    def _failed(self, error: StoreError) -> None:
        self._metrics.publish_failed(error.status)
        kind = f"{error.status} {error}"
        if kind != self._trouble:
            hint = " (is the NodeDevices CRD installed?)" if error.status == 404 else ""
            log.warning("the API server did not take or give our object; trying on", error=f"{error}{hint}")
        self._trouble = kind
        self._metrics.api_reachable(reachable=error.status != 0)

    def _reached(self) -> None:
        if self._trouble is not None:
            log.info("the API server takes our object again", name=self._name)
        self._trouble = None
        self._metrics.api_reachable(reachable=True)

    async def _sleep(self, seconds: float | None) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return
        self._wake.clear()


def _version(item: Object | None) -> int:
    """resourceVersion as a number (comparable by contract since Kubernetes 1.35, in fact before); 0 if it is none."""
    text = str(((item or {}).get("metadata") or {}).get("resourceVersion", ""))
    return int(text) if text.isdecimal() else 0


def _uid(item: Object | None) -> str:
    return str(((item or {}).get("metadata") or {}).get("uid", ""))
