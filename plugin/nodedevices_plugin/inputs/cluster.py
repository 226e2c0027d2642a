"""Inputs from the API server: the node's own NodeDevices, and the node's pods.

Of NodeDevices: its spec, and of its status what the agent takes up after a start: the conditions, and the most devices
that the node has had.

The pods come from one watch, only while a configuration shares computing power. No answer to the kubelet waits for it.
Before the first LIST the pods are not known; afterwards the last known ones stay, also while the API server is away. A
pod is read once: later changes of its annotation are ignored (model.pods). Odd values in a pod count as absent, except
the annotation's text, which its reader judges.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Callable
from functools import partial

import structlog
from msgspec.structs import replace
from nodedevices_api.meta import Condition
from nodedevices_common.confirming import CONFIRM
from nodedevices_common.pod_requests import pod_containers
from nodedevices_common.raw import mapping, mappings, text
from nodedevices_common.times import zoned_time
from nodedevices_kube.errors import ApiError

from nodedevices_plugin.model import Cordon, MostSeen, NodePod, NodePods, PodContainer
from nodedevices_plugin.pipeline.configuration import SeenObject
from nodedevices_plugin.status.client import ChangedItem, KubeStore, ListedItems, Object, keep_watching
from nodedevices_plugin.status.publisher import AGENT_CONDITIONS

MAX_MOST_SEEN = 16  # maxItems of status.mostSeen
MAX_UNSCHEDULABLE = 128  # maxItems of spec.unschedulable
REFUSED = (401, 403)
REMEDY = "apply the ClusterRole of docs/sharing-memory.md#shares-of-computing-power"
FINISHED = frozenset({"Succeeded", "Failed"})
NOT_LISTED = "the API server has not listed them yet"
STANDALONE = "a standalone agent has no API server that knows them"

log = structlog.get_logger(__name__)


def seen_object(item: Object | None) -> SeenObject:
    """Return the parts of the node's NodeDevices that the agent uses; a value of a wrong type counts as absent."""
    if item is None:
        return SeenObject()
    metadata, spec = mapping(item.get("metadata")), mapping(item.get("spec"))
    config = spec.get("config")
    generation = metadata.get("generation")
    return SeenObject(
        exists=True,
        generation=generation if isinstance(generation, int) else None,
        config=config if isinstance(config, dict) else None,
        config_hash=text(spec.get("configHash")) or None,
        config_name=text(spec.get("configName")) or None,
        unschedulable=tuple(
            Cordon(
                id=str(cordon["id"]),
                reason=text(cordon.get("reason")),
                until=zoned_time(cordon.get("until")),  # None also for what is no time: it stays out of service
                by=text(cordon.get("by")),
                since=zoned_time(cordon.get("since")),
            )
            for cordon in mappings(spec.get("unschedulable"))[:MAX_UNSCHEDULABLE]
            if "id" in cordon
        ),
        confirm=text(mapping(metadata.get("annotations")).get(CONFIRM)),
        most_seen=tuple(
            MostSeen(probe=probe, vendor=vendor, product_name=product, count=count)
            for seen in mappings(mapping(item.get("status")).get("mostSeen"))[:MAX_MOST_SEEN]
            if (probe := text(seen.get("probe")))
            and (vendor := text(seen.get("vendor")))
            and (product := text(seen.get("productName")))
            and isinstance(count := seen.get("count"), int)
            and count > 0
        ),
    )


def older_conditions(item: Object | None, own: tuple[Condition, ...]) -> tuple[Condition, ...]:
    """Our conditions as the object had them before this start: their transition times go on."""
    listed = mappings(mapping((item or {}).get("status")).get("conditions"))
    found = {condition.type: condition for condition in own}
    for raw in listed:
        if raw.get("type") in AGENT_CONDITIONS:
            with contextlib.suppress(ValueError):
                found[str(raw["type"])] = Condition.model_validate(raw)
    return tuple(found.values())


class PodWatch:
    """`run` until cancelled. `pods` is replaced, never changed, and `on_change` called on the loop when it is."""

    def __init__(
        self,
        store: KubeStore | None,
        node: str,
        *,
        on_change: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._node = node
        self._on_change = on_change
        self._clock = clock
        self._wanted = asyncio.Event()
        self._following: asyncio.Task[None] | None = None
        self._known: dict[str, NodePod] = {}
        self.pods = NodePods(problem=NOT_LISTED if store is not None else STANDALONE)

    def want(self, *, wanted: bool) -> None:
        """Follow the pods from now on, or no longer: then they are not known."""
        if wanted:
            self._wanted.set()
        elif self._wanted.is_set():
            self._wanted.clear()
            self._known = {}
            self.pods = NodePods(problem=self.pods.problem if self._store is None else NOT_LISTED)
            if self._following is not None:
                self._following.cancel()
            self._on_change()

    async def run(self) -> None:
        while True:
            await self._wanted.wait()
            if self._store is None:
                await asyncio.Event().wait()
                return
            watch = partial(self._store.watch_pods, self._node, node_pod)
            self._following = asyncio.create_task(keep_watching(watch, self._see, self._failed), name="pods")
            try:
                await asyncio.wait([self._following])
            finally:
                self._following.cancel()
            if not self._following.cancelled():
                self._following.result()  # raises what was no ApiError

    def _see(self, event: ListedItems[NodePod | None] | ChangedItem[NodePod | None]) -> None:
        now = self._clock()
        if isinstance(event, ListedItems):
            listed = [item for item in event.items if item is not None]
            self._known = {pod.uid: seen(pod, self._known.get(pod.uid), now) for pod in listed}
        elif event.item is not None and event.gone:
            self._known.pop(event.item.uid, None)
        elif event.item is not None:
            self._known[event.item.uid] = seen(event.item, self._known.get(event.item.uid), now)
        self._set(NodePods(pods=tuple(self._known.values())))

    def _failed(self, error: ApiError) -> None:
        forbidden = error.status in REFUSED
        hint = f"; {REMEDY}" if forbidden else ""
        self._set(replace(self.pods, problem=f"{error}{hint}", forbidden=forbidden))

    def _set(self, pods: NodePods) -> None:
        if pods == self.pods:
            return
        if pods.problem != self.pods.problem:
            level = log.warning if pods.problem else log.info
            level("watch of this node's pods", why=pods.problem, known=pods.pods is not None)
        self.pods = pods
        self._on_change()


def seen(now: NodePod, before: NodePod | None, at: float) -> NodePod:
    """Return a pod with the requests that it had when it was first seen."""
    if before is None:
        return replace(now, seen=at)
    kept = {container.name: container for container in before.containers}
    containers = tuple(
        dataclasses.replace(kept[container.name], started=container.started or kept[container.name].started)
        if container.name in kept
        else container
        for container in now.containers
    )
    return replace(now, seen=before.seen, containers=containers, strays=before.strays)


def node_pod(item: Object) -> NodePod | None:
    """None: it has no uid or name."""
    metadata, status = mapping(item.get("metadata")), mapping(item.get("status"))
    uid, name, namespace = (metadata.get(key) for key in ("uid", "name", "namespace"))
    if not (isinstance(uid, str) and isinstance(name, str) and isinstance(namespace, str)):
        return None
    started = {
        container.get("name")
        for key in ("initContainerStatuses", "containerStatuses")
        for container in mappings(status.get(key))
        if isinstance(container.get("name"), str) and (container.get("containerID") or container.get("restartCount"))
    }
    containers, strays = pod_containers(item)
    return NodePod(
        uid=uid,
        namespace=namespace,
        name=name,
        containers=tuple(
            PodContainer(
                name=container.name,
                kind=container.kind,
                requests=container.requests,
                cores=container.cores,
                started=container.name in started,
            )
            for container in containers
        ),
        finished=str(status.get("phase")) in FINISHED,
        acknowledged=bool(status.get("startTime")),
        strays=strays,
    )
