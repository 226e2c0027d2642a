"""Keeps this node's NodeDevices in the API server equal to what the agent knows, and brings its `spec` back.

Level-based: the agent hands over the status it wants (`want`), any number of times; only the latest counts. The object
is watched: when it is deleted it comes back within seconds, fields of ours that another writer changed are set again,
and an owner that is not this Node (re-created under its name) is replaced.

The token names our Node by its uid, and a Node that was created again has another one. So the uid is read again
whenever the object vanished, whenever a write was refused (403, 422), and with every new token. Until the kubelet has
refreshed the token, minutes at most, an object with the old owner is deleted as soon as it is created, and one with the
new owner is refused by admission; `problem` says so meanwhile.

When the API server is away nothing on the node changes and nothing piles up: one write catches up when it is back.
Errors are logged and counted when they change, not each time. `pacing.next_write` says what to do next; this module
only does it.

A status that the API server refuses for a field that its CRD does not know is written without such fields
(fitting), and tried whole again every five minutes.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

import structlog
from msgspec import Struct
from nodedevices_common.backoff import Draw
from nodedevices_common.periodic import within
from nodedevices_common.text import listing
from nodedevices_common.times import rfc3339
from nodedevices_kube.errors import ApiError

from nodedevices_plugin.status.client import WRITE_BACKOFF, KubeStore, Object, keep_watching
from nodedevices_plugin.status.fitting import without_unknown
from nodedevices_plugin.status.metrics import AgentMetrics
from nodedevices_plugin.status.pacing import (
    HEARTBEAT_JITTER,
    HEARTBEAT_SECONDS,
    OWNER_SECONDS,
    RECREATE_BACKOFF,
    RECREATE_FREELY,
    Situation,
    Write,
    WriteBucket,
    next_write,
)

log = structlog.get_logger(__name__)

REFUSED_SECONDS = 10.0  # until /readyz says that the API server refuses: one refusal may be a token or a version
CREDENTIALS_SECONDS = 10.0  # between two checks whether the kubelet has refreshed the token
STOP_SECONDS = 4.0  # for the last write: less than the pod's termination grace, 10 s
SILENT_SECONDS = 60.0  # until it says that the API server does not answer
UNKNOWN_FIELD = frozenset({400, 422, 500})  # 500 by Kubernetes 1.32 to 1.37: "field not declared in schema"
OPERATOR_FIELDS = frozenset({"actions", "affectedPods"})
AGENT_CONDITIONS = frozenset(
    {"Ready", "DevicesHealthy", "ConfigApplied", "HoldersKnown", "AllocatedOnce", "ExpectedDevices", "SlicesPublished"}
)


class ConnectionState(Struct):
    """One of the two connections to the API server, and its error. Times are monotonic seconds."""

    what: str
    error: ApiError | None = None
    since: float = 0.0

    def ended(self, error: ApiError | None, now: float) -> bool:
        """A request has ended so. True when it is news."""
        before, self.error = self.error, error
        if before is None or error is None:
            self.since = now
            return before is not error
        return (before.status, str(before)) != (error.status, str(error))

    def problem(self, now: float) -> str:
        """Return the error, once it has lasted long enough to be reported."""
        error = self.error
        if error is None or now - self.since < (SILENT_SECONDS if error.status == 0 else REFUSED_SECONDS):
            return ""
        return f"{self.what} for {now - self.since:.0f} s: {error}{_hint(error)}"


def _hint(error: ApiError) -> str:
    return " (is the NodeDevices CRD installed?)" if error.status == 404 else ""


def owned(status: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the agent's part of a status, in a form that does not change with the operator's part."""
    mine = {key: value for key, value in (status or {}).items() if key not in OPERATOR_FIELDS}
    conditions = [condition for condition in mine.get("conditions", ()) if condition.get("type") in AGENT_CONDITIONS]
    return mine | {"conditions": sorted(conditions, key=lambda condition: str(condition["type"]))}


class Publisher:
    """`run()` until cancelled; `want()` from the same loop at any time."""

    def __init__(
        self,
        *,
        store: KubeStore,
        name: str,
        on_object: Callable[[Object | None], None],
        metrics: AgentMetrics,
        clock: Callable[[], float] = time.monotonic,
        draw: Draw = random.uniform,
        owner_seconds: float = OWNER_SECONDS,
        credentials_seconds: float = CREDENTIALS_SECONDS,
        stop_seconds: float = STOP_SECONDS,
    ) -> None:
        self._store = store
        self._name = name
        self._on_object = on_object
        self._metrics = metrics
        self._clock = clock
        self._draw = draw
        self._bucket = WriteBucket(now=clock())
        self._wake = asyncio.Event()
        self._known = Situation(owner_seconds=owner_seconds)
        self._unschedulable: Sequence[Mapping[str, Any]] = ()
        self._object: Object | None = None
        self._gone = ""  # uid of the object that was deleted last
        self._own_version = 0  # resourceVersion of our newest write
        self._seen_version = 0  # of what came last from the watch
        self._own_status: dict[str, Any] | None = None  # our part of the object after that write
        self._schema: Mapping[str, Any] | None = None  # of the status, while the CRD lacks fields of it
        self._schema_read_at = 0.0
        self._left_out: tuple[str, ...] = ()  # these
        self._credentials_seconds = credentials_seconds
        self._stop_seconds = stop_seconds
        self._read_with: object = None  # the credentials of that time
        self._owner: str | None = None
        self._failures = 0
        self._not_before = 0.0
        self._retry_not_before = 0.0  # the server's Retry-After: no write before it, not even with news
        self._watching = ConnectionState("failed to watch NodeDevices")
        self._writing = ConnectionState("failed to write NodeDevices")
        self._reading_owner = ConnectionState("failed to read which Node the agent's token names")

    def want(
        self, status: Mapping[str, Any], *, may_create: bool, unschedulable: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        """The status this node should show, without `agent.heartbeatTime`. `unschedulable`: of spec, people's words,
        with which an object that was deleted is made again. Never blocks."""
        self._known.may_create = may_create
        self._unschedulable = unschedulable
        self._known.wanted = status
        self._wake.set()

    def problem(self) -> str:
        """Return why this node's NodeDevices cannot be kept up to date; empty while it can."""
        now = self._clock()
        found = [connection.problem(now) for connection in (self._watching, self._reading_owner, self._writing)]
        if self._keeps_vanishing:
            found.append(
                f"NodeDevices was deleted {self._known.recreations} times in a row soon after it was created: the Node "
                f"of uid {self._owner}, which the agent's token names, may no longer exist"
            )
        return "; ".join(filter(None, found))

    @property
    def _keeps_vanishing(self) -> bool:
        return self._object is None and self._known.recreations > RECREATE_FREELY

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch(), name="publisher-watch")
            tasks.create_task(self._write(), name="publisher-write")

    async def stop(self, status: Mapping[str, Any]) -> None:
        """One last write, after `run` has ended; it takes 4 s at most. Nothing is written where nothing of this agent
        is shown: it has not reported yet, or another agent of this node has since."""
        agent = ((self._object or {}).get("status") or {}).get("agent") or {}
        if self._own_status is None or agent.get("startTime") != (status.get("agent") or {}).get("startTime"):
            return
        self._known.wanted = status
        try:
            async with asyncio.timeout(self._stop_seconds):
                await self._apply(Write.STOP)
        except (ApiError, TimeoutError) as error:
            log.warning("failed to write that the agent stopped", name=self._name, error=str(error) or "no answer")

    # --- the object as the API server has it -------------------------------------------------------------------------
    async def _watch(self) -> None:
        watch, failed = partial(self._store.watch, self._name), partial(self._failed, self._watching)
        await keep_watching(watch, self._see, failed, draw=self._draw)

    def _see(self, item: Object | None) -> None:
        self._answered(self._watching)
        seen, self._seen_version = self._seen_version, _version(item)
        if item is not None and _version(item) < self._own_version and _uid(item) == _uid(self._object):
            if _version(item) >= seen:
                return  # an event from before our newest write
            self._own_version = 0  # older than what was seen before it: etcd was restored, and counts from there on
        if item is None and self._object is not None:
            log.warning("the NodeDevices object was deleted; it will be created again", name=self._name)
            self._vanished()
        self._known.listed = True
        if self._gone and _uid(item) == self._gone:
            self._gone = ""  # it is back, from a backup of etcd
        self._object = item
        self._on_object(item)
        self._not_before = self._retry_not_before  # the server answers: what waits behind a back-off may try now
        self._wake.set()

    def _vanished(self) -> None:
        known, now = self._known, self._clock()
        young = known.created_at is not None and now - known.created_at < RECREATE_BACKOFF.max_seconds
        known.recreations = known.recreations + 1 if young else 0
        known.written = None
        known.owner_known = False
        self._gone = _uid(self._object)
        self._object = None
        self._own_version = 0
        self._own_status = None
        if self._keeps_vanishing:
            self._metrics.publishing(works=False)

    # --- writing -----------------------------------------------------------------------------------------------------
    async def _write(self) -> None:
        while True:
            if self._known.owner_known and self._store.credentials() != self._read_with:
                self._known.owner_known = False
            write, wait = next_write(self._situation(), self._bucket, self._clock())
            most = self._credentials_seconds
            wait = most if wait is None else min(most, max(wait, self._not_before - self._clock()))
            if wait > 0:
                if await within(wait, self._wake.wait()):
                    self._wake.clear()
            elif write is Write.OWNER:
                await self._try(self._reading_owner, self._fetch_owner())
            else:
                self._bucket.take(self._clock())
                if await self._try(self._writing, self._create() if write is Write.CREATE else self._apply(write)):
                    self._failures, self._not_before = 0, 0.0

    async def _try(self, connection: ConnectionState, call: Coroutine[Any, Any, None]) -> bool:
        try:
            await call
        except ApiError as error:
            self._failed(connection, error)
            self._hold_back(error)
            return False
        self._answered(connection)
        return True

    def _situation(self) -> Situation:
        owners = ((self._object or {}).get("metadata") or {}).get("ownerReferences") or ()
        known, item = self._known, self._object
        known.exists = item is not None
        known.owner_wrong = self._owner is not None and self._owner not in {owner.get("uid") for owner in owners}
        known.drifted = item is not None and self._own_status not in (None, owned(item.get("status")))
        return known

    async def _create(self) -> None:
        self._known.created_at = self._clock()
        self._wrote(await self._restore() or await self._store.apply_object(self._name, self._owner))
        log.info("NodeDevices object applied", name=self._name, owner_uid=self._owner)

    def _wrote(self, answer: Object) -> bool:
        """Remember the object as our write left it, unless an event that came before the answer shows a later one.
        False: it shows that the object was deleted since, and must be created again."""
        if self._gone and _uid(answer) == self._gone:
            return False
        self._own_version = _version(answer)
        if _uid(self._object) != _uid(answer) or _version(self._object) < self._own_version:
            self._object = answer
        return True

    async def _restore(self) -> Object | None:
        """The object, made again with what people had taken out of service; None: nothing had been, or it is there.
        Only a creation says it: in an object that exists these are people's fields."""
        entries = self._unschedulable
        if self._object is not None or not entries:
            return None
        try:
            made = await self._store.create_object(self._name, self._owner, {"unschedulable": list(entries)})
        except ApiError as error:
            if error.status != 409:
                raise
            return None
        log.warning("devices stay out of service, as before the deletion", devices=[entry["id"] for entry in entries])
        return made

    async def _fetch_owner(self) -> None:
        owner: str | None = None
        read_with = self._store.credentials()
        try:
            owner = await self._store.node_uid()
        except ApiError as error:
            if error.status not in (403, 404):
                raise
        before, first = self._owner, self._known.owner_read_at is None
        self._owner, self._known.owner_known, self._known.owner_read_at = owner, True, self._clock()
        self._read_with = read_with
        if first and owner is None:
            log.warning(
                "the token names no Node, so the NodeDevices object gets no owner: delete it by hand with the node",
                name=self._name,
            )
        elif not first and owner != before:
            log.info("the Node was recreated: the token names another one", name=self._name, uid=owner, before=before)
            self._known.recreations, self._known.created_at, self._not_before = 0, None, 0.0

    async def _apply(self, cause: Write) -> None:
        wanted = self._known.wanted
        if wanted is None:
            return
        began = self._clock()
        agent = {**(wanted.get("agent") or {}), "heartbeatTime": rfc3339(datetime.now(UTC))}
        body = {**wanted, "agent": agent, **({"nodeUID": self._owner} if self._owner is not None else {})}
        if began - self._schema_read_at >= HEARTBEAT_SECONDS:
            self._schema = None
        try:
            answer = await self._apply_known(body)
        except ApiError as error:
            if error.status == 404 and self._object is not None:
                self._vanished()
            raise
        now = self._clock()
        if not self._wrote(answer):
            return
        self._known.written, self._known.written_at = wanted, now
        self._own_status = owned(answer.get("status"))
        self._known.heartbeat_seconds = HEARTBEAT_SECONDS * self._draw(1 - HEARTBEAT_JITTER, 1 + HEARTBEAT_JITTER)
        if cause is Write.REPAIR:
            self._known.repaired_at = now
            log.warning("fields of the agent's status were changed by another writer, reapplied", name=self._name)
        if self._owner is None and cause is Write.HEARTBEAT:
            self._known.owner_known = False  # a token of a moment without a Node names none; the next one may
        self._metrics.published(cause.value, now - began)

    async def _apply_known(self, body: Mapping[str, Any]) -> Object:
        """Apply the status; where it is refused, what the API server's CRD has fields for."""
        left_out: tuple[str, ...] = ()
        known = body
        if self._schema is not None:
            known, left_out = without_unknown(body, self._schema)
        try:
            answer = await self._store.apply_status(self._name, known)
        except ApiError as error:
            if self._schema is not None or error.status not in UNKNOWN_FIELD:
                raise
            with suppress(ApiError):
                self._schema, self._schema_read_at = await self._store.status_schema(), self._clock()
            if self._schema is None or not without_unknown(body, self._schema)[1]:
                self._schema = None
                raise
            return await self._apply_known(body)
        if left_out and left_out != self._left_out:
            log.warning(
                "the NodeDevices CRD is older than this agent: apply the CRDs of its version",
                left_out=listing(left_out),
            )
        elif self._left_out and not left_out:
            log.info("the NodeDevices CRD has every field of this agent again", name=self._name)
        self._left_out = left_out
        return answer

    def _hold_back(self, error: ApiError) -> None:
        if error.status in (403, 422):
            self._known.owner_known = False
        self._failures += 1
        wait = WRITE_BACKOFF.after(self._failures, self._draw, at_least=error.retry_after)
        if error.status in (401, 409) and self._failures == 1 and not error.retry_after:
            wait = 0.0  # a new token, or a newer version: try at once
        self._not_before = self._clock() + wait
        self._retry_not_before = self._not_before if error.retry_after else self._clock()

    def _failed(self, connection: ConnectionState, error: ApiError) -> None:
        self._metrics.publish_failed(error.status)
        if connection.ended(error, self._clock()):
            log.warning(connection.what, name=self._name, error=f"{error}{_hint(error)}")

    def _answered(self, connection: ConnectionState) -> None:
        if connection.ended(None, self._clock()):
            log.info("requests to the API server succeed again", name=self._name)
        problems = (self._watching.error, self._reading_owner.error, self._writing.error)
        self._metrics.publishing(works=not any(problems) and not self._keeps_vanishing)


def _version(item: Object | None) -> int:
    """resourceVersion as a number (comparable by contract since Kubernetes 1.35, in fact before); 0 if it is none."""
    text = str(((item or {}).get("metadata") or {}).get("resourceVersion", ""))
    return int(text) if text.isdecimal() else 0


def _uid(item: Object | None) -> str:
    return str(((item or {}).get("metadata") or {}).get("uid", ""))
