"""Taking back what is ours on an object: every key, whoever asks for it, found on the object itself.

From managedFields, so that nothing that another owns is touched, and doing it again finds nothing. Removing is what
server-side apply does with keys that the next apply leaves out. A condition of our type that another client wrote last
is removed by JSON patch, and so is our taint.

Two kinds of pods keep the condition: those that end or have ended (it is evidence, and they are not written), and those
whose readinessGates name it: they would never be ready again without it, and keep it as True/NotMonitored.

An agent makes a NodeDevices that was deleted by hand again within seconds, and what is on the Node stays for it. Where
no object has come back after five minutes (the agent no longer runs there, the CRD was removed), it cannot be said any
more what is so, and all of it is taken back (`Leftovers`), also from the Node's pods, which are listed once by each
operator that starts: a Node need not show that they are marked. The pods come first: killed in between, what is left
still shows that there is more to do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import structlog
from msgspec import Struct
from nodedevices_api.conditions import NODE_DEVICES_HEALTHY, NODE_READY, POD_DEVICE_HEALTHY, POD_DEVICE_IDLE
from nodedevices_common.conditions import same

from nodedevices_operator.cache.store import Cache, Dirty
from nodedevices_operator.desired import pods
from nodedevices_operator.desired.consequences import taint_patch
from nodedevices_operator.kube.apply import utc_now
from nodedevices_operator.kube.port import JsonObject, Kube, KubeError, node_pods
from nodedevices_operator.records import names
from nodedevices_operator.records.kinds import Kind, read
from nodedevices_operator.records.names import identified, named, pod_path

OURS = f"{names.MANAGER}-"  # every field manager of the operator begins so
RETURN_SECONDS = 300.0  # for the object to come back: a crash-looping agent is started again within five minutes
TAINT_TRIES = 5

log = structlog.get_logger()


class Place(Struct, frozen=True):
    """A place where keys of ours may be."""

    kind: str
    collection: str
    conditions: tuple[str, ...] = ()  # our conditions on an object that is not ours


NODE = Place("Node", names.NODES, (NODE_READY, NODE_DEVICES_HEALTHY))
POD = Place("Pod", names.PODS, (POD_DEVICE_HEALTHY, POD_DEVICE_IDLE))
PLACES = (NODE, POD, Place("NodeDevices", names.NODE_DEVICES), Place("DevicePolicy", names.POLICIES))


async def take_back(kube: Kube, place: Place, item: JsonObject, *, dry_run: bool = False) -> JsonObject | None:
    """Remove, or with `dry_run` only say, what is ours on the object. Returns it as it is afterwards; None: nothing was
    there, or it has gone meanwhile. May raise KubeError."""
    metadata, conditions, released = item["metadata"], place.conditions, None
    name, namespace = metadata["name"], metadata.get("namespace")
    path = pod_path(namespace, name) if namespace else named(place.collection, name)
    what = {"kind": place.kind, "name": f"{namespace}/{name}" if namespace else name}
    body = identified(place.kind, name, metadata["uid"], namespace=namespace)
    found = [
        entry
        for entry in metadata.get("managedFields") or ()
        if str(entry.get("manager")).startswith(OURS) and entry.get("operation") == "Apply"
    ]
    if place is POD and (pods.finished(item) or pods.leaving(item)):
        return None
    try:
        if place is POD and pods.gated(item):  # the condition that the gate needs stays, and all else goes
            released = await _release(kube, item, path, body, what, dry_run=dry_run)
            found = [entry for entry in found if entry["manager"] != names.POD_CONDITION]
            conditions = (POD_DEVICE_IDLE,)
        tainted = place is NODE and bool(taint_patch(item, None))
        if not found and not tainted and not _places(item, conditions):
            return released
        keys = [key for entry in found for key in _keys(entry)] + ([f"spec.taints: {names.TAINT}"] if tainted else [])
        keys = keys or [f"status.conditions: {', '.join(conditions)}"]
        if dry_run:
            log.info("would remove", **what, keys=keys)
            return item
        for entry in found:
            target = f"{path}/{entry['subresource']}" if entry.get("subresource") else path
            item = await kube.apply(target, body, entry["manager"])
        operations: list[dict[str, Any]] = []
        for index, kind in reversed(_places(item, conditions)):  # the last first: those before keep their places
            at = f"/status/conditions/{index}"
            operations += [{"op": "test", "path": f"{at}/type", "value": kind}, {"op": "remove", "path": at}]
        if operations:
            item = await kube.json_patch(f"{path}/status", operations)
        if tainted:
            item = await _untaint(kube, path, metadata["uid"])
    except KubeError as error:
        if error.gone:  # the object went meanwhile, and our keys with it
            return None
        raise
    log.info("removed", **what, keys=keys)
    return item


async def _untaint(kube: Kube, path: str, uid: str) -> JsonObject:
    """A Node changes often, and its list of taints is changed as it was read: try it some times."""
    for left in reversed(range(TAINT_TRIES)):
        node = await kube.get(path)
        operations = taint_patch(node, None) if node["metadata"]["uid"] == uid else []
        if not operations:
            break
        try:
            return await kube.json_patch(path, operations)
        except KubeError as error:
            if error.status not in {409, 422} or not left:
                raise KubeError(str(error)) from error  # whatever its status, the Node is there
    return node


async def _release(
    kube: Kube, pod: JsonObject, path: str, body: dict[str, Any], what: Mapping[str, Any], *, dry_run: bool
) -> JsonObject | None:
    """The condition of a pod whose readinessGates name it becomes True/NotMonitored."""
    condition = pods.released_condition(pod, utc_now())
    if condition is None or same(pods.own_condition(pod), condition):
        return None
    said = "would set" if dry_run else "set"
    if not dry_run:
        pod = await kube.apply(f"{path}/status", body | {"status": {"conditions": [condition]}}, names.POD_CONDITION)
    log.info(f"{said} the condition that a readinessGate needs", **what, status="True")
    return pod


def _places(item: JsonObject, kinds: Collection[str]) -> list[tuple[int, str]]:
    """Return the places of our conditions in the list, and their types."""
    conditions = (item.get("status") or {}).get("conditions") or ()
    return [(place, it["type"]) for place, it in enumerate(conditions) if it.get("type") in kinds]


def _keys(entry: Mapping[str, Any]) -> list[str]:
    """Return what the entry owns, for people: `capacity: nodedevices.io/gpu-memory-mib`."""
    found = []
    for part, fields in (entry.get("fieldsV1") or {}).items():
        for section, content in fields.items() if isinstance(fields, Mapping) else ():
            inner = [key.removeprefix("f:") for key in content] if isinstance(content, Mapping) else []
            found.append(f"{part.removeprefix('f:')}.{section.removeprefix('f:')}: {', '.join(inner) or 'all'}")
    return found


class Leftovers:
    """All nodes; one node at a time by the key queue. What it remembers only delays: lost, the time counts anew."""

    def __init__(
        self, cache: Cache, kube: Kube, dirty: Callable[[Dirty], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cache = cache
        self._kube = kube
        self._dirty = dirty
        self._clock = clock
        self._done: set[str] = set()  # nodes without a NodeDevices that this process has looked through
        self._gone: dict[str, float] = {}  # node -> since when it has none

    def forget(self, name: str) -> None:
        """Forget what is remembered of a node: it has its NodeDevices, or is gone."""
        self._done.discard(name)
        self._gone.pop(name, None)

    async def reconcile(self, name: str) -> float | None:
        """Take back what is left on a node without NodeDevices. Returns the seconds after which to look again; may
        raise KubeError."""
        node = self._cache.nodes.get(name)
        if node is None:
            self.forget(name)
            return None
        if name in self._done and not node.marked:
            return None
        now = self._clock()
        wait = self._gone.setdefault(name, now) + RETURN_SECONDS - now
        if wait > 0:
            return wait
        async for pod in node_pods(self._kube, name):
            try:
                await take_back(self._kube, POD, pod)
            except KubeError as error:
                if not error.forbidden:
                    raise
                log.warning("failed to remove the pod's condition", pod=pod["metadata"]["name"], error=str(error))
        if node.marked and (left := await take_back(self._kube, NODE, await self._kube.get(named(names.NODES, name)))):
            self._dirty(self._cache.observe(Kind.NODE, read(Kind.NODE, left)))
        self._done.add(name)
        self._gone.pop(name, None)
        return None
