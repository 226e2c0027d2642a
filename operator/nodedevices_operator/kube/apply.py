"""The writes of the operator, one method each: server-side apply with one field manager for each concern.

Bodies carry `metadata.uid`, so that a write never creates an object and never lands on a namesake (409). What a body
leaves out is taken back by the API server, and only that: no delete logic, no read-modify-write. Who calls has made
sure that the write changes something.

An Event is a courtesy: the conditions say the same, and nothing waits for it (`Writer.event`). One that the API server
refuses, or does not answer, is counted by the writer and dropped: it would be news of yesterday, and where Events
cannot be written (a store of their own that is away, a limit that others use up, a namespace that ends) all else goes
on. A kill loses those that wait. No more than MOST wait; what is beyond that is dropped and counted, too.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import Any

import structlog
from nodedevices_common.times import rfc3339

from nodedevices_operator.desired.configuration import Configuration
from nodedevices_operator.desired.consequences import taint_patch
from nodedevices_operator.desired.events import Event, ObjectRef
from nodedevices_operator.kube.port import JsonObject, Kube, KubeError
from nodedevices_operator.metrics import OperatorMetrics
from nodedevices_operator.records import names
from nodedevices_operator.records.kinds import Record
from nodedevices_operator.records.names import identified, named
from nodedevices_operator.records.objects import (
    ActionRecord,
    Affected,
    ChangeRecord,
    NodeDevicesRecord,
    NodeRecord,
    PolicyRecord,
    TaintRecord,
)

MOST = 4096  # Events that wait; a fault of 500 nodes with 8 pods each
SENDERS = 2  # calls at once, of the client's 32
SENDER = "event-sender"  # the name of their tasks
_KINDS: Mapping[type[Record], tuple[str, str]] = {  # of records: the kind, the collection
    NodeRecord: ("Node", names.NODES),
    NodeDevicesRecord: ("NodeDevices", names.NODE_DEVICES),
    PolicyRecord: ("DevicePolicy", names.POLICIES),
}

log = structlog.get_logger()


def utc_now() -> str:
    """Return the time as conditions and Events write it."""
    return rfc3339(datetime.now(UTC))


class Writer:
    """The operator's writes, counted. Every method may raise KubeError; objects are returned as they are afterwards."""

    def __init__(self, kube: Kube, metrics: OperatorMetrics, now: Callable[[], str] = utc_now) -> None:
        self.kube = kube
        self.now = now
        self._metrics = metrics
        self._events: deque[JsonObject] = deque()  # that wait
        self._senders: set[asyncio.Task[Any] | None] = set()

    async def config(
        self, record: NodeDevicesRecord, configuration: Configuration, change: ChangeRecord | None = None
    ) -> JsonObject:
        """Write NodeDevices.spec, as far as it is ours."""
        spec: dict[str, Any] = {
            "config": dict(configuration.config),
            "configHash": configuration.config_hash,
            "policies": [
                {"name": ref.name, "generation": ref.generation, "priority": ref.priority}
                | ({"sections": list(ref.sections)} if ref.sections else {})
                for ref in configuration.policies
            ],
        }
        if configuration.config_name:
            spec["configName"] = configuration.config_name
        if change is not None:
            spec["change"] = {"time": change.time, "devices": change.devices, "policies": list(change.policies)}
        return await self.apply(names.CONFIG, _path(record), _identified(record) | {"spec": spec})

    async def status(
        self,
        record: NodeDevicesRecord,
        conditions: Sequence[Mapping[str, Any]],
        actions: Sequence[ActionRecord],
        affected: Sequence[Affected],
    ) -> JsonObject:
        """Our conditions, actions and affectedPods on NodeDevices.status."""
        status: dict[str, Any] = {"conditions": list(conditions), "affectedPods": [asdict(it) for it in affected]}
        if actions:
            status["actions"] = [
                {"name": it.name, "reason": it.reason, "message": it.message}
                | ({} if it.generation is None else {"observedGeneration": it.generation})
                for it in actions
            ]
        return await self._apply_status(names.STATUS, record, status)

    async def capacity(self, node: NodeRecord, values: Mapping[str, int]) -> JsonObject:
        """Exactly these capacity keys are ours on the Node; those of before that are missing here are removed."""
        capacity = {name: str(value) for name, value in sorted(values.items())}
        return await self._apply_status(names.CAPACITY, node, {"capacity": capacity} if values else {})

    async def remove_zeros(self, node: NodeRecord, resources: Sequence[str]) -> JsonObject:
        """Take these names off the Node, if each of them is still 0 (else 422, and nothing is changed)."""
        operations: list[dict[str, Any]] = []
        for name in resources:
            for place in ("capacity", "allocatable"):
                if name in (node.capacity if place == "capacity" else node.allocatable):
                    path = f"/status/{place}/{name.replace('~', '~0').replace('/', '~1')}"
                    operations += [{"op": "test", "path": path, "value": "0"}, {"op": "remove", "path": path}]
        operations.append({"op": "test", "path": "/metadata/uid", "value": node.uid})
        path = f"{_path(node)}/status"
        return await self._counted("retired-zeros", lambda: self.kube.json_patch(path, operations))

    async def labels(self, record: NodeRecord | NodeDevicesRecord, values: Mapping[str, str]) -> JsonObject:
        """Exactly these labels are ours on the object. 409 when another manager has one of them with another value."""
        body = _identified(record)
        if values:
            body["metadata"]["labels"] = dict(sorted(values.items()))
        manager = names.LABELS if isinstance(record, NodeRecord) else names.OBJECT_LABELS
        return await self.apply(manager, _path(record), body, force=False)

    async def node_conditions(self, node: NodeRecord, conditions: Sequence[Mapping[str, Any]]) -> JsonObject:
        """Exactly these are our conditions on the Node, XidCriticalError aside."""
        return await self._apply_status(names.NODE_CONDITION, node, _conditions(*conditions))

    async def xid_condition(self, node: NodeRecord, condition: Mapping[str, Any] | None) -> JsonObject:
        """The condition XidCriticalError on the Node, or none of ours. 409 when another manager has it otherwise."""
        return await self._apply_status(names.XID_CONDITION, node, _conditions(condition), force=False)

    async def pod_condition(self, pod: Affected | ObjectRef, condition: Mapping[str, Any] | None) -> JsonObject:
        """Write our condition on the pod of that uid, or take it back: DeviceHealthy of one in affectedPods, else
        DeviceIdle."""
        body = identified("Pod", pod.name, pod.uid, namespace=pod.namespace) | _with_status(_conditions(condition))
        manager = names.POD_IDLE if isinstance(pod, ObjectRef) else names.POD_CONDITION
        return await self.apply(manager, f"{names.pod_path(pod.namespace, pod.name)}/status", body)

    async def taint(self, node: NodeRecord, wanted: TaintRecord | None) -> JsonObject:
        """Exactly this taint of our key on the Node, or none; the Node is read for it. 409 or 422 when it changed in
        between, or is another one."""
        path = _path(node)
        raw = await self.kube.get(path)
        if raw["metadata"]["uid"] != node.uid:
            raise KubeError(f"GET {path}: it is another Node by now", status=409)
        operations = taint_patch(raw, wanted)
        if not operations:
            return raw
        return await self._counted("taint", lambda: self.kube.json_patch(path, operations))

    async def evict(self, namespace: str, name: str, uid: str) -> None:
        """Evict the pod by the Eviction API; it is the pod of that uid, or none (409)."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        await self._counted("eviction", lambda: self.kube.create(f"{names.pod_path(namespace, name)}/eviction", body))

    async def policy_status(self, policy: PolicyRecord, status: Mapping[str, Any]) -> JsonObject:
        """Write DevicePolicy.status, which is all ours."""
        return await self._apply_status(names.POLICY_STATUS, policy, status)

    def event(self, event: Event) -> None:
        """Have an Event written, soon or never. It never fails, and nobody waits for it. Inside a running loop."""
        if len(self._events) >= MOST:
            self._metrics.suppressed_events.inc()
            return
        self._events.append(event.body(self.now()))
        if len(self._senders) < SENDERS:
            self._senders.add(asyncio.create_task(self._send_events(), name=SENDER))

    async def _send_events(self) -> None:
        """Send until none waits."""
        try:
            while self._events:
                body = self._events.popleft()
                path = names.namespaced(body["metadata"]["namespace"], "events")
                try:
                    await self._counted("event", partial(self.kube.create, path, body))
                except KubeError as error:
                    if error.status != 409:  # one of that name that is there already is as good
                        log.warning("event not written", error=str(error))
                        await asyncio.sleep(error.retry_after or 0.0)
        finally:  # at once: the next Event needs another sender
            self._senders.discard(asyncio.current_task())

    async def _apply_status(
        self, manager: str, record: Record, status: Mapping[str, Any], *, force: bool = True
    ) -> JsonObject:
        """What of the object's status is to be ours; empty: nothing."""
        body = _identified(record) | _with_status(status)
        return await self.apply(manager, f"{_path(record)}/status", body, force=force)

    async def apply(self, manager: str, path: str, body: JsonObject, *, force: bool = True) -> JsonObject:
        """Server-side apply by a field manager `nodedevices-operator-NAME`, counted by that name; `cleanup` finds what
        such a manager has written."""
        return await self._counted(
            manager.removeprefix(f"{names.MANAGER}-"), lambda: self.kube.apply(path, body, manager, force=force)
        )

    async def _counted(self, concern: str, call: Callable[[], Awaitable[JsonObject]]) -> JsonObject:
        try:
            answer = await call()
        except KubeError as error:
            self._metrics.refused.labels(concern, str(error.status)).inc()
            raise
        self._metrics.writes.labels(concern).inc()
        return answer


def _path(record: Record) -> str:
    return named(_KINDS[type(record)][1], record.name)


def _identified(record: Record) -> dict[str, Any]:
    return identified(_KINDS[type(record)][0], record.name, record.uid)


def _with_status(status: Mapping[str, Any]) -> dict[str, Any]:
    return {"status": dict(status)} if status else {}


def _conditions(*conditions: Mapping[str, Any] | None) -> dict[str, Any]:
    found = [dict(condition) for condition in conditions if condition is not None]
    return {"conditions": found} if found else {}
