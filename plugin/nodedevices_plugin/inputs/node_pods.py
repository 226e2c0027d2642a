"""The pods of this node, from one watch at the API server; only while a configuration shares computing power.

No answer to the kubelet waits for it. Before the first LIST the pods are not known; afterwards the last known ones
stay, also while the API server is away. A pod is read once: later changes of its annotation are ignored (model.pods).
Odd values in a pod count as absent, except the annotation's text, which its reader judges.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable
from functools import partial

import structlog
from msgspec.structs import replace
from nodedevices_common.pod_requests import pod_containers
from nodedevices_common.raw import mapping, mappings
from nodedevices_kube.errors import ApiError

from nodedevices_plugin.model import NodePod, NodePods, PodContainer
from nodedevices_plugin.status.client import ChangedItem, ListedItems, NodePodStore, Object, keep_watching

REFUSED = (401, 403)
FINISHED = frozenset({"Succeeded", "Failed"})
NOT_LISTED = "the API server has not listed them yet"
STANDALONE = "a standalone agent has no API server that knows them"

log = structlog.get_logger(__name__)


class PodWatch:
    """`run` until cancelled. `pods` is replaced, never changed, and `on_change` called on the loop when it is."""

    def __init__(
        self,
        store: NodePodStore | None,
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
        hint = "; install the component gpu-cores" if forbidden else ""
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
