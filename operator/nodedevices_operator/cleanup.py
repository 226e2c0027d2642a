"""`nodedevices-operator cleanup`: take every key of ours back from Nodes, pods, NodeDevices and DevicePolicies.

Run it when the operator is gone (a running one would write them again). Everything is found from the objects'
managedFields, so nothing that another owns is touched, and running it again finds nothing. Removing is what
server-side apply does with keys that the next apply leaves out. A condition of our type that another client wrote last
is removed by JSON patch, and so is our taint. Objects that cannot be cleaned are said, and counted in the result; the
rest goes on.

Agents whose account went with them could not say that they were stopped, and their reports would say Ready for ever.
With `agents_gone` it is said in their place, as their own field manager: an agent that comes back owns its status as
before.

Two kinds of pods keep the condition: those that end or have ended (it is evidence, and they are not written), and those
whose readinessGates name it: they would never be ready again without it, and keep it as True/NotMonitored.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any

import structlog
from msgspec import Struct
from msgspec.structs import replace
from nodedevices_api.conditions import (
    AGENT_STOPPED,
    NODE_DEVICES_HEALTHY,
    NODE_READY,
    POD_DEVICE_HEALTHY,
    POD_DEVICE_IDLE,
    READY,
)
from nodedevices_common.conditions import same

from nodedevices_operator.desired import pods
from nodedevices_operator.desired.consequences import taint_patch
from nodedevices_operator.kube.apply import utc_now
from nodedevices_operator.kube.port import Kube, KubeError
from nodedevices_operator.reconcile.cluster_properties import properties
from nodedevices_operator.records import names
from nodedevices_operator.records.names import identified, named, pod_path

log = structlog.get_logger()


TAINT_TRIES = 5
OURS = f"{names.MANAGER}-"  # every field manager of the operator begins so
AGENTS = "nodedevices-agent"  # the agents' field manager
GONE = (
    "NodeDevices was removed from the cluster; this status is from that time, and pods keep the devices that they hold"
)


class _Place(Struct, frozen=True):
    """A place where keys of ours may be."""

    kind: str
    collection: str
    conditions: tuple[str, ...] = ()  # our conditions on an object that is not ours


PLACES = (
    _Place("Node", names.NODES, (NODE_READY, NODE_DEVICES_HEALTHY)),
    _Place("Pod", names.PODS, (POD_DEVICE_HEALTHY, POD_DEVICE_IDLE)),
    _Place("NodeDevices", names.NODE_DEVICES),
    _Place("DevicePolicy", names.POLICIES),
)


async def clean_up(kube: Kube, *, dry_run: bool, cluster_properties: bool = False, agents_gone: bool = False) -> int:
    """Remove, or with `dry_run` only say, what is ours; ClusterProperty objects only where there is a right to look for
    them. Returns how many objects could not be cleaned."""
    cleaned = failed = 0
    for place in PLACES:
        try:
            async for item in _objects(kube, place):
                done, not_done = await _clean(kube, place, item, dry_run=dry_run)
                cleaned += done
                failed += not_done
                if agents_gone and place.kind == "NodeDevices":
                    failed += await _say_stopped(kube, item, dry_run=dry_run)
        except KubeError as error:
            if error.status != 404:  # no CRD: nothing of ours there
                log.warning("failed to list", kind=place.kind, error=str(error))
                failed += 1
    if cluster_properties:
        done, not_done = await _properties(kube, dry_run=dry_run)
        cleaned, failed = cleaned + done, failed + not_done
    log.info("cleanup done", removed=0 if dry_run else cleaned, would_remove=cleaned if dry_run else 0, failed=failed)
    return failed


async def _properties(kube: Kube, *, dry_run: bool) -> tuple[int, int]:
    """ClusterProperty objects, which are ours as a whole."""
    try:
        version, found = await properties(kube)
        for item in found:
            metadata = item["metadata"]
            if not dry_run:
                path = named(names.PROPERTIES % version, metadata["name"])
                await kube.delete(path, uid=metadata["uid"], resource_version=metadata["resourceVersion"])
            log.info("would remove" if dry_run else "removed", kind="ClusterProperty", name=metadata["name"])
    except KubeError as error:
        log.warning("failed to remove", kind="ClusterProperty", error=str(error))
        return 0, 1
    return len(found), 0


async def _objects(kube: Kube, place: _Place) -> AsyncIterator[dict[str, Any]]:
    async for page in kube.pages(place.collection):
        for item in page:
            yield item


async def _clean(kube: Kube, place: _Place, item: Mapping[str, Any], *, dry_run: bool) -> tuple[int, int]:
    metadata = item["metadata"]
    name, uid, namespace = metadata["name"], metadata["uid"], metadata.get("namespace")
    path = pod_path(namespace, name) if namespace else named(place.collection, name)
    shown = f"{namespace}/{name}" if namespace else name
    found = [
        entry
        for entry in metadata.get("managedFields") or ()
        if str(entry.get("manager")).startswith(OURS) and entry.get("operation") == "Apply"
    ]
    tainted = place.kind == "Node" and bool(taint_patch(item, names.TAINT, None))
    if not found and not tainted and not _places(item, place.conditions):
        return 0, 0
    not_released = 0
    if place.kind == "Pod":
        if pods.finished(item) or pods.leaving(item):
            return 0, 0
        if pods.gated(item):  # the condition that the gate needs stays, and all else goes
            released, not_released = await _release(kube, item, path, shown, dry_run=dry_run)
            found = [entry for entry in found if entry["manager"] != names.POD_CONDITION]
            place = replace(place, conditions=(POD_DEVICE_IDLE,))
            if not found and not _places(item, place.conditions):
                return released, not_released
    keys = _described(found, place, tainted=tainted)
    if dry_run:
        log.info("would remove", kind=place.kind, name=shown, keys=keys)
        return 1, 0
    try:
        for entry in found:
            target = f"{path}/{entry['subresource']}" if entry.get("subresource") else path
            item = await kube.apply(target, identified(place.kind, name, uid, namespace=namespace), entry["manager"])
        operations: list[dict[str, Any]] = []
        for index, kind in reversed(_places(item, place.conditions)):  # the last first: those before keep their places
            at = f"/status/conditions/{index}"
            operations += [{"op": "test", "path": f"{at}/type", "value": kind}, {"op": "remove", "path": at}]
        if operations:
            await kube.json_patch(f"{path}/status", operations)
        if tainted:
            await _untaint(kube, path, uid)
    except KubeError as error:
        if error.gone:  # the object went meanwhile, and our keys with it
            return 0, 0
        log.warning("failed to remove", kind=place.kind, name=shown, error=str(error))
        return 0, 1
    log.info("removed", kind=place.kind, name=shown, keys=keys)
    return 1, not_released


async def _say_stopped(kube: Kube, item: Mapping[str, Any], *, dry_run: bool) -> int:
    """Have a NodeDevices say that its agent is gone; returns 1 where that failed. The object is read again: what is
    left of its status once the operator's part is taken back, is the agent's."""
    name, uid = item["metadata"]["name"], item["metadata"]["uid"]
    if not _says_ready(item):
        return 0
    if dry_run:
        log.info("would say that the agent is gone", kind="NodeDevices", name=name)
        return 0
    path = named(names.NODE_DEVICES, name)
    try:
        item = await kube.get(path)
        if item["metadata"]["uid"] != uid or not _says_ready(item):
            return 0
        status = item["status"]
        said = {"status": "False", "reason": AGENT_STOPPED, "message": GONE, "lastTransitionTime": utc_now()}
        conditions = [
            {**condition, **said} if condition["type"] == READY else condition for condition in status["conditions"]
        ]
        summary = {**(status.get("summary") or {}), "reason": AGENT_STOPPED}
        body = {"status": {**status, "conditions": conditions, "summary": summary}}
        await kube.apply(f"{path}/status", identified("NodeDevices", name, uid) | body, AGENTS)
    except KubeError as error:
        if error.gone:
            return 0
        log.warning("failed to say that the agent is gone", kind="NodeDevices", name=name, error=str(error))
        return 1
    log.info("said that the agent is gone", kind="NodeDevices", name=name)
    return 0


def _says_ready(item: Mapping[str, Any]) -> bool:
    conditions = (item.get("status") or {}).get("conditions") or ()
    return any(condition.get("type") == READY and condition.get("status") == "True" for condition in conditions)


async def _untaint(kube: Kube, path: str, uid: str) -> None:
    """A Node changes often, and its list of taints is changed as it was read: try it some times."""
    for left in reversed(range(TAINT_TRIES)):
        node = await kube.get(path)
        operations = taint_patch(node, names.TAINT, None) if node["metadata"]["uid"] == uid else []
        if not operations:
            return
        try:
            await kube.json_patch(path, operations)
        except KubeError as error:
            if error.status not in {409, 422} or not left:
                raise KubeError(str(error)) from error  # whatever its status, the Node is there
        else:
            return


async def _release(kube: Kube, pod: Mapping[str, Any], path: str, shown: str, *, dry_run: bool) -> tuple[int, int]:
    """The condition of a pod whose readinessGates name it becomes True/NotMonitored."""
    condition = pods.released_condition(pod, utc_now())
    if condition is None or same(pods.own_condition(pod), condition):
        return 0, 0
    if dry_run:
        log.info("would set the condition that a readinessGate needs", kind="Pod", name=shown, status="True")
        return 1, 0
    metadata = pod["metadata"]
    body = identified("Pod", metadata["name"], metadata["uid"], namespace=metadata["namespace"])
    try:
        await kube.apply(f"{path}/status", body | {"status": {"conditions": [condition]}}, names.POD_CONDITION)
    except KubeError as error:
        if error.gone:
            return 0, 0
        log.warning("failed to set the condition that a readinessGate needs", name=shown, error=str(error))
        return 0, 1
    log.info("set the condition that a readinessGate needs", kind="Pod", name=shown, status="True")
    return 1, 0


def _places(item: Mapping[str, Any], kinds: Collection[str]) -> list[tuple[int, str]]:
    """Return the places of our conditions in the list, and their types."""
    conditions = (item.get("status") or {}).get("conditions") or ()
    return [(place, it["type"]) for place, it in enumerate(conditions) if it.get("type") in kinds]


def _described(found: list[Mapping[str, Any]], place: _Place, *, tainted: bool) -> list[str]:
    keys = [key for entry in found for key in _keys(entry)] + ([f"spec.taints: {names.TAINT}"] if tainted else [])
    return keys or [f"status.conditions: {', '.join(place.conditions)}"]


def _keys(entry: Mapping[str, Any]) -> list[str]:
    """Return what the entry owns, for people: `capacity: nodedevices.io/gpu-memory-mib`."""
    found = []
    for part, fields in (entry.get("fieldsV1") or {}).items():
        for section, content in fields.items() if isinstance(fields, Mapping) else ():
            inner = [key.removeprefix("f:") for key in content] if isinstance(content, Mapping) else []
            found.append(f"{part.removeprefix('f:')}.{section.removeprefix('f:')}: {', '.join(inner) or 'all'}")
    return found
