"""`nodedevices-operator cleanup`: take every key of ours back from Nodes, pods, NodeDevices and DevicePolicies.

Run it when the operator is gone (a running one would write them again). How each object is cleaned, and which pods keep
a condition, reconcile/leftovers.py says. Objects that cannot be cleaned are said, and counted in the result; the rest
goes on.

Agents whose account went with them could not say that they were stopped, and their reports would say Ready for ever.
With `agents_gone` it is said in their place, as their own field manager: an agent that comes back owns its status as
before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import structlog
from nodedevices_api.conditions import AGENT_STOPPED, READY

from nodedevices_operator.kube.apply import utc_now
from nodedevices_operator.kube.port import JsonObject, Kube, KubeError, delete
from nodedevices_operator.reconcile.leftovers import PLACES, take_back
from nodedevices_operator.reconcile.whole_objects import our_classes, properties
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
    counts = Counter[str]()
    for place in PLACES:
        with _counting(counts, "failed to list", kind=place.kind):  # no CRD: nothing of ours there
            async for page in kube.pages(place.collection):
                for item in page["items"]:
                    name = item["metadata"]["name"]
                    with _counting(counts, "failed to remove", kind=place.kind, name=name):
                        counts["cleaned"] += await take_back(kube, place, item, dry_run=dry_run) is not None
                    if agents_gone and place.kind == "NodeDevices" and _says_ready(item):
                        with _counting(counts, "failed to say that the agent is gone", kind=place.kind, name=name):
                            await _say_stopped(kube, item, dry_run=dry_run)
    with _counting(counts, "failed to remove", kind="DeviceClass"):
        found: Iterable[JsonObject] = await our_classes(kube) or ()
        await _remove(kube, counts, "DeviceClass", names.DEVICE_CLASSES, found, dry_run=dry_run)
    if cluster_properties:
        with _counting(counts, "failed to remove", kind="ClusterProperty"):
            version, found = await properties(kube)
            await _remove(kube, counts, "ClusterProperty", names.PROPERTIES % version, found, dry_run=dry_run)
    done, would = (0, counts["cleaned"]) if dry_run else (counts["cleaned"], 0)
    log.info("cleanup done", removed=done, would_remove=would, failed=counts["failed"])
    return counts["failed"]


@contextmanager
def _counting(counts: Counter[str], failed: str, **about: str) -> Iterator[None]:
    """What fails in the block is said and counted, unless nothing is there."""
    try:
        yield
    except KubeError as error:
        if error.status != 404:
            log.warning(failed, **about, error=str(error))
            counts["failed"] += 1


async def _remove(
    kube: Kube, counts: Counter[str], kind: str, collection: str, found: Iterable[JsonObject], *, dry_run: bool
) -> None:
    """Objects which are ours as a whole."""
    for item in found:
        name = item["metadata"]["name"]
        with _counting(counts, "failed to remove", kind=kind, name=name):
            if not dry_run:
                await delete(kube, collection, item)
            log.info("would remove" if dry_run else "removed", kind=kind, name=name)
            counts["cleaned"] += 1


async def _say_stopped(kube: Kube, item: Mapping[str, Any], *, dry_run: bool) -> None:
    """Have a NodeDevices say that its agent is gone. The object is read again: what is left of its status once the
    operator's part is taken back, is the agent's."""
    name, uid = item["metadata"]["name"], item["metadata"]["uid"]
    if dry_run:
        log.info("would say that the agent is gone", kind="NodeDevices", name=name)
        return
    path = named(names.NODE_DEVICES, name)
    try:
        item = await kube.get(path)
        if item["metadata"]["uid"] != uid or not _says_ready(item):
            return
        status = item["status"]
        said = {"status": "False", "reason": AGENT_STOPPED, "message": GONE, "lastTransitionTime": utc_now()}
        conditions = [
            {**condition, **said} if condition["type"] == READY else condition for condition in status["conditions"]
        ]
        summary = {**(status.get("summary") or {}), "reason": AGENT_STOPPED}
        body = {"status": {**status, "conditions": conditions, "summary": summary}}
        await kube.apply(f"{path}/status", identified("NodeDevices", name, uid) | body, AGENTS)
    except KubeError as error:
        if not error.gone:
            raise
    else:
        log.info("said that the agent is gone", kind="NodeDevices", name=name)


def _says_ready(item: Mapping[str, Any]) -> bool:
    conditions = (item.get("status") or {}).get("conditions") or ()
    return any(condition.get("type") == READY and condition.get("status") == "True" for condition in conditions)
