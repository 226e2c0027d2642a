"""The writes of the operator, one method each: server-side apply with one field manager for each concern.

Bodies carry `metadata.uid`, so that a write never creates an object and never lands on a namesake (409). What a body
leaves out is taken back by the API server, and only that: no delete logic, no read-modify-write. Who calls has made
sure that the write changes something.

An Event is a courtesy: the conditions say the same, and nothing waits for it (`EventOutbox`). One that the API server
refuses, or does not answer, is counted by the writer and dropped: it would be news of yesterday, and where Events
cannot be written (a store of their own that is away, a limit that others use up, a namespace that ends) all else goes
on. A kill loses those that wait. No more than MOST wait; what is beyond that is dropped and counted, too.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import structlog
from nodedevices_common.times import rfc3339

from nodedevices_operator.desired.configuration import Configuration
from nodedevices_operator.desired.consequences import taint_patch
from nodedevices_operator.desired.events import Event
from nodedevices_operator.desired.idle import IdlePod
from nodedevices_operator.kube.port import JsonObject, Kube, KubeError
from nodedevices_operator.metrics import OperatorMetrics
from nodedevices_operator.records import names
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
from nodedevices_operator.records.pods import RejectedPod

MOST = 4096  # Events that wait; a fault of 500 nodes with 8 pods each
SENDERS = 2  # calls at once, of the client's 32
SENDER = "event-sender"  # the name of their tasks

log = structlog.get_logger()


class EventOutbox:
    """`send` writes one Event; `dropped` is called for each that found no room."""

    def __init__(self, send: Callable[[JsonObject], Awaitable[object]], dropped: Callable[[], None]) -> None:
        self._send = send
        self._dropped = dropped
        self._waiting: deque[JsonObject] = deque()
        self._senders: set[asyncio.Task[Any] | None] = set()

    def put(self, body: JsonObject) -> None:
        """Have the Event written, soon or never. Inside a running loop."""
        if len(self._waiting) >= MOST:
            self._dropped()
            return
        self._waiting.append(body)
        if len(self._senders) < SENDERS:
            self._senders.add(asyncio.create_task(self._run(), name=SENDER))

    async def _run(self) -> None:
        """Send until none waits."""
        try:
            while self._waiting:
                await self._try(self._waiting.popleft())
        finally:  # at once: the next Event needs another sender
            self._senders.discard(asyncio.current_task())

    async def _try(self, body: JsonObject) -> None:
        try:
            await self._send(body)
        except KubeError as error:
            if error.status != 409:  # one of that name that is there already is as good
                log.warning("event not written", error=str(error))
                await asyncio.sleep(error.retry_after or 0.0)


def utc_now() -> str:
    """Return the time as conditions and Events write it."""
    return rfc3339(datetime.now(UTC))


class Writer:
    """The operator's writes, counted. Every method may raise KubeError; objects are returned as they are afterwards."""

    def __init__(self, kube: Kube, metrics: OperatorMetrics, now: Callable[[], str] = utc_now) -> None:
        self.kube = kube
        self.now = now
        self._metrics = metrics
        self._outbox = EventOutbox(self._event, metrics.suppressed_events.inc)

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
        body = identified("NodeDevices", record.name, record.uid) | {"spec": spec}
        return await self.apply(names.CONFIG, named(names.NODE_DEVICES, record.name), body)

    async def status(
        self,
        record: NodeDevicesRecord,
        conditions: Sequence[Mapping[str, Any]],
        actions: Sequence[ActionRecord],
        affected: Sequence[Affected],
    ) -> JsonObject:
        """Our conditions, actions and affectedPods on NodeDevices.status."""
        entries = [
            {
                "namespace": it.namespace,
                "name": it.name,
                "uid": it.uid,
                "device": it.device,
                "reason": it.reason,
                "since": it.since,
            }
            for it in affected
        ]
        status: dict[str, Any] = {"conditions": list(conditions), "affectedPods": entries}
        if actions:
            status["actions"] = [
                {"name": it.name, "reason": it.reason, "message": it.message}
                | ({} if it.generation is None else {"observedGeneration": it.generation})
                for it in actions
            ]
        body = identified("NodeDevices", record.name, record.uid) | {"status": status}
        return await self.apply(names.STATUS, f"{named(names.NODE_DEVICES, record.name)}/status", body)

    async def capacity(self, node: NodeRecord, values: Mapping[str, int]) -> JsonObject:
        """Exactly these capacity keys are ours on the Node; those of before that are missing here are removed."""
        body = identified("Node", node.name, node.uid)
        if values:
            body["status"] = {"capacity": {name: str(value) for name, value in sorted(values.items())}}
        return await self.apply(names.CAPACITY, f"{named(names.NODES, node.name)}/status", body)

    async def remove_zeros(self, node: NodeRecord, resources: Sequence[str]) -> JsonObject:
        """Take these names off the Node, if each of them is still 0 (else 422, and nothing is changed)."""
        operations: list[dict[str, Any]] = []
        for name in resources:
            for place in ("capacity", "allocatable"):
                if name in (node.capacity if place == "capacity" else node.allocatable):
                    path = f"/status/{place}/{name.replace('~', '~0').replace('/', '~1')}"
                    operations += [{"op": "test", "path": path, "value": "0"}, {"op": "remove", "path": path}]
        operations.append({"op": "test", "path": "/metadata/uid", "value": node.uid})
        path = f"{named(names.NODES, node.name)}/status"
        return await self._counted("retired-zeros", lambda: self.kube.json_patch(path, operations))

    async def labels(self, node: NodeRecord, values: Mapping[str, str]) -> JsonObject:
        """Exactly these labels are ours on the Node. 409 when another manager has one of them with another value."""
        body = identified("Node", node.name, node.uid)
        if values:
            body["metadata"]["labels"] = dict(sorted(values.items()))
        return await self.apply(names.LABELS, named(names.NODES, node.name), body, force=False)

    async def object_labels(self, record: NodeDevicesRecord, values: Mapping[str, str]) -> JsonObject:
        """Exactly these labels are ours on the NodeDevices. 409 when another manager has one with another value."""
        body = identified("NodeDevices", record.name, record.uid)
        if values:
            body["metadata"]["labels"] = dict(sorted(values.items()))
        return await self.apply(names.OBJECT_LABELS, named(names.NODE_DEVICES, record.name), body, force=False)

    async def node_conditions(self, node: NodeRecord, conditions: Sequence[Mapping[str, Any]]) -> JsonObject:
        """Exactly these are our conditions on the Node, XidCriticalError aside."""
        body = identified("Node", node.name, node.uid)
        if conditions:
            body["status"] = {"conditions": [dict(condition) for condition in conditions]}
        return await self.apply(names.NODE_CONDITION, f"{named(names.NODES, node.name)}/status", body)

    async def xid_condition(self, node: NodeRecord, condition: Mapping[str, Any] | None) -> JsonObject:
        """The condition XidCriticalError on the Node, or none of ours. 409 when another manager has it otherwise."""
        body = identified("Node", node.name, node.uid)
        if condition is not None:
            body["status"] = {"conditions": [dict(condition)]}
        return await self.apply(names.XID_CONDITION, f"{named(names.NODES, node.name)}/status", body, force=False)

    async def pod_condition(self, pod: Affected, condition: Mapping[str, Any] | None) -> JsonObject:
        """Write our condition on the pod of that uid, or take it back."""
        body = identified("Pod", pod.name, pod.uid, namespace=pod.namespace)
        if condition is not None:
            body["status"] = {"conditions": [dict(condition)]}
        return await self.apply(names.POD_CONDITION, f"{names.pod_path(pod.namespace, pod.name)}/status", body)

    async def pod_idle(self, pod: IdlePod, condition: Mapping[str, Any] | None) -> JsonObject:
        """Write the condition DeviceIdle on the pod of that uid, or take it back."""
        body = identified("Pod", pod.name, pod.uid, namespace=pod.namespace)
        if condition is not None:
            body["status"] = {"conditions": [dict(condition)]}
        return await self.apply(names.POD_IDLE, f"{names.pod_path(pod.namespace, pod.name)}/status", body)

    async def taint(self, node: NodeRecord, wanted: TaintRecord | None) -> JsonObject:
        """Exactly this taint of our key on the Node, or none; the Node is read for it. 409 or 422 when it changed in
        between, or is another one."""
        path = named(names.NODES, node.name)
        raw = await self.kube.get(path)
        if raw["metadata"]["uid"] != node.uid:
            raise KubeError(f"GET {path}: it is another Node by now", status=409)
        operations = taint_patch(raw, names.TAINT, wanted)
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
        await self._counted("eviction", lambda: self.kube.create(names.eviction_path(namespace, name), body))

    async def delete_rejected(self, pod: RejectedPod) -> None:
        """Delete the pod if it is still what it was when it was found rejected; else 409, or 404."""
        path = names.pod_path(pod.namespace, pod.name)

        async def delete() -> JsonObject:
            await self.kube.delete(path, uid=pod.uid, resource_version=pod.resource_version)
            return {}

        await self._counted("rejected-pod", delete)

    async def policy_status(self, policy: PolicyRecord, status: Mapping[str, Any]) -> JsonObject:
        """Write DevicePolicy.status, which is all ours."""
        body = identified("DevicePolicy", policy.name, policy.uid) | {"status": dict(status)}
        return await self.apply(names.POLICY_STATUS, f"{named(names.POLICIES, policy.name)}/status", body)

    def event(self, event: Event) -> None:
        """Have an Event written. It never fails, and nobody waits for it."""
        self._outbox.put(event.body(self.now()))

    async def _event(self, body: JsonObject) -> None:
        path = names.events_path(body["metadata"]["namespace"])
        await self._counted("event", lambda: self.kube.create(path, body))

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
