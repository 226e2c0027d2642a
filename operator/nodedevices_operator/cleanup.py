"""`nodedevices-operator cleanup`: take every key of ours back from Nodes, pods, NodeDevices and DevicePolicies.

Run it when the operator is gone (a running one would write them again). How each object is cleaned, and which pods keep
a condition, reconcile/leftovers.py says. Objects that cannot be cleaned are said, and counted in the result; the rest
goes on.

Agents whose account went with them could not say that they were stopped, and their reports would say Ready for ever.
With `agents_gone` it is said in their place, as their own field manager: an agent that comes back owns its status as
before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import structlog
from nodedevices_api.conditions import AGENT_STOPPED, READY

from nodedevices_operator.kube.apply import utc_now
from nodedevices_operator.kube.port import Kube, KubeError
from nodedevices_operator.reconcile.cluster_properties import properties
from nodedevices_operator.reconcile.device_classes import our_classes
from nodedevices_operator.reconcile.leftovers import PLACES, take_back
from nodedevices_operator.records import names
from nodedevices_operator.records.names import identified, named

AGENTS = "nodedevices-agent"  # the agents' field manager
GONE = (
    "NodeDevices was removed from the cluster; this status is from that time, and pods keep the devices that they hold"
)

log = structlog.get_logger()


async def clean_up(kube: Kube, *, dry_run: bool, cluster_properties: bool = False, agents_gone: bool = False) -> int:
    """Remove, or with `dry_run` only say, what is ours; ClusterProperty objects only where there is a right to look for
    them, as DeviceClasses. Returns how many objects could not be cleaned."""
    cleaned = failed = 0
    for place in PLACES:
        try:
            async for page in kube.pages(place.collection):
                for item in page:
                    try:
                        cleaned += await take_back(kube, place, item, dry_run=dry_run) is not None
                    except KubeError as error:
                        log.warning(
                            "failed to remove", kind=place.kind, name=item["metadata"]["name"], error=str(error)
                        )
                        failed += 1
                    if agents_gone and place.kind == "NodeDevices":
                        failed += await _say_stopped(kube, item, dry_run=dry_run)
        except KubeError as error:
            if error.status != 404:  # no CRD: nothing of ours there
                log.warning("failed to list", kind=place.kind, error=str(error))
                failed += 1
    if cluster_properties:
        done, not_done = await _properties(kube, dry_run=dry_run)
        cleaned, failed = cleaned + done, failed + not_done
    done, not_done = await _device_classes(kube, dry_run=dry_run)
    cleaned, failed = cleaned + done, failed + not_done
    log.info("cleanup done", removed=0 if dry_run else cleaned, would_remove=cleaned if dry_run else 0, failed=failed)
    return failed


async def _properties(kube: Kube, *, dry_run: bool) -> tuple[int, int]:
    """ClusterProperty objects, which are ours as a whole."""
    try:
        version, found = await properties(kube)
        await _remove(kube, "ClusterProperty", names.PROPERTIES % version, found, dry_run=dry_run)
    except KubeError as error:
        log.warning("failed to remove", kind="ClusterProperty", error=str(error))
        return 0, 1
    return len(found), 0


async def _device_classes(kube: Kube, *, dry_run: bool) -> tuple[int, int]:
    """DeviceClasses, which are ours as a whole."""
    try:
        found = await our_classes(kube) or []
        await _remove(kube, "DeviceClass", names.DEVICE_CLASSES, found, dry_run=dry_run)
    except KubeError as error:
        log.warning("failed to remove", kind="DeviceClass", error=str(error))
        return 0, 1
    return len(found), 0


async def _remove(kube: Kube, kind: str, collection: str, found: Iterable[Mapping[str, Any]], *, dry_run: bool) -> None:
    for item in found:
        metadata = item["metadata"]
        if not dry_run:
            path = named(collection, metadata["name"])
            await kube.delete(path, uid=metadata["uid"], resource_version=metadata["resourceVersion"])
        log.info("would remove" if dry_run else "removed", kind=kind, name=metadata["name"])


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
