"""Objects that the operator makes as a whole, for the cluster and for no node: a DeviceClass for each extended resource
that DRA serves, and ClusterProperty objects.

It writes what differs, removes what it made and is not wanted any more (a label says which are ours), and leaves alone
what another manager has. It fails by itself: nothing waits for it.

DeviceClass: pods which request `nvidia.com/gpu: 1` run on nodes of either API. `nvidia.com/gpu` is the class
`gpu.nvidia.com`. It selects the devices that agents publish for that name, and its extendedResourceName has the
scheduler make a claim on nodes where the device plugin API has none (KEP-5004: on by default from Kubernetes 1.36; 1.34
and 1.35 drop the field, which is said). Shares of memory have none: for an amount of them the scheduler would allocate
as many single shares, of several devices even. Ours goes when no node serves the name any more, also where that was
while no operator ran. Another's class is left alone.

ClusterProperty (about.k8s.io, KEP-2149; --cluster-properties): what a cluster has, by product, for whoever looks at
several, at most once a minute. One for each product, `<type>.<product>.nodedevices.io`, and what is too much for
that in `other.nodedevices.io`. A hub of clusters copies them (ClusterProfile's status.properties), so that no hub needs
credentials for this cluster. Where the API is not installed it looks again. No node or pod depends on it.
"""

from __future__ import annotations

import asyncio
import json
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import count
from typing import Any

import structlog
from nodedevices_api.conditions import STALE
from nodedevices_api.dra import DRA_DRIVER, RESOURCE_API, RESOURCE_ATTRIBUTE, class_name

from nodedevices_operator.cache.store import Cache
from nodedevices_operator.kube.apply import Writer
from nodedevices_operator.kube.port import JsonObject, Kube, KubeError, delete
from nodedevices_operator.records.names import (
    CLUSTER_PROPERTIES,
    CLUSTER_PROPERTY_VERSIONS,
    DEVICE_CLASS_MANAGER,
    DEVICE_CLASSES,
    OURS,
    PROPERTIES,
    named,
)
from nodedevices_operator.records.objects import NodeDevicesRecord

READ_SECONDS = 600.0  # what others changed meanwhile is put right then
OUR_LABEL = dict([OURS.split("=", 1)])

log = structlog.get_logger()


class WholeObjects(ABC):
    """Event loop only. `what`: for the log. `every_seconds`: from one look to the next."""

    what: str
    every_seconds: float

    def __init__(self, cache: Cache, writer: Writer) -> None:
        self._cache = cache
        self._writer = writer
        self._kept: Mapping[str, Any] | None = None  # as written; None: read it first
        self._said = ""

    async def run(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Never ends by itself."""
        while not self._cache.synced:
            await sleep(1.0)
        for number in count():
            if number % round(READ_SECONDS / self.every_seconds) == 0:
                self._kept = None
            try:
                said = await self.keep()
            except KubeError as error:
                self._kept, said = None, str(error)
            if said and said != self._said:
                log.warning(f"{self.what} are not kept", why=said)
            self._said = said
            await sleep(self.every_seconds)

    @abstractmethod
    async def keep(self) -> str:
        """Make the objects what they should be. Returns why they are not; raises KubeError to be tried again."""

    async def put_right(
        self,
        manager: str,
        collection: str,
        head: Mapping[str, str],
        found: Iterable[JsonObject],
        wanted: Mapping[str, JsonObject],
    ) -> list[str]:
        """Write and remove. `head`: apiVersion and kind; `found`: what is there of ours; `wanted`: specs by name.
        Returns what another has."""
        shown = {item["metadata"]["name"]: item for item in found}
        problems = []
        for name, spec in wanted.items():
            if name not in shown or shown[name].get("spec") != spec:
                body = {**head, "metadata": {"name": name, "labels": OUR_LABEL}, "spec": spec}
                try:
                    answer = await self._writer.apply(manager, named(collection, name), body, force=False)
                except KubeError as error:
                    if error.status != 409:
                        raise
                    problems.append(f"{name}: another manager owns it: {error}")
                else:
                    problems += self.dropped(name, spec, answer)
        for name in shown.keys() - wanted.keys():
            try:
                await delete(self._writer.kube, collection, shown[name])
            except KubeError as error:
                if not error.gone:
                    raise
        return problems

    def dropped(self, name: str, spec: JsonObject, answer: JsonObject) -> list[str]:
        """Return what the API server has not stored of an object."""
        return []


# --- DeviceClass -----------------------------------------------------------------------------------------------------
REVIEW_VERSION, REVIEW = "authorization.k8s.io/v1", "SelfSubjectAccessReview"
REVIEWS = f"/apis/{REVIEW_VERSION}/selfsubjectaccessreviews"

_NO_RIGHT = (
    f"no right to list deviceclasses of {RESOURCE_API}, or no such API: DRA needs Kubernetes 1.34 or later, and the "
    "component dra for the operator as well"
)


def device_classes(records: Iterable[NodeDevicesRecord]) -> Mapping[str, JsonObject]:
    """Return the specs of the classes, by name: one for each extended resource that DRA serves on some node."""
    every = [resource for record in records for resource in record.resources if resource.managed_by == "dra"]
    by_memory = {resource.name for resource in every if resource.sharing == "memory"}
    attribute = f'device.attributes["{DRA_DRIVER}"].{RESOURCE_ATTRIBUTE}'
    found = {}
    for name in sorted({resource.name for resource in every}):
        selects = f'device.driver == "{DRA_DRIVER}" && {attribute} == "{name}"'
        extended = {} if name in by_memory else {"extendedResourceName": name}
        found[class_name(name)] = {"selectors": [{"cel": {"expression": selects}}], **extended}
    return found


async def our_classes(kube: Kube) -> list[JsonObject] | None:
    """Return our classes; None: this cluster has none, or there is no right to them. It is asked for: without the
    component dra there is none, and a request that is refused would be in the audit log of every cluster."""
    attributes = {"group": "resource.k8s.io", "resource": "deviceclasses", "verb": "list"}
    review = {"apiVersion": REVIEW_VERSION, "kind": REVIEW, "spec": {"resourceAttributes": attributes}}
    try:
        if (await kube.create(REVIEWS, review)).get("status", {}).get("allowed") is not True:
            return None
        return [item async for page in kube.pages(DEVICE_CLASSES, {"labelSelector": OURS}) for item in page["items"]]
    except KubeError as error:
        if error.status not in (403, 404):
            raise
        return None


class DeviceClasses(WholeObjects):
    """The objects of `device_classes`."""

    what = "device classes"
    every_seconds = 5.0

    async def keep(self) -> str:
        wanted = device_classes(self._cache.node_devices.values())
        if wanted == self._kept:
            return ""
        found = await our_classes(self._writer.kube)
        if found is None:
            self._kept = None if wanted else wanted
            return _NO_RIGHT if wanted else ""
        head = {"apiVersion": RESOURCE_API, "kind": "DeviceClass"}
        problems = await self.put_right(DEVICE_CLASS_MANAGER, DEVICE_CLASSES, head, found, wanted)
        self._kept = wanted  # what another has, or the server drops, is tried again at the next reading
        return "; ".join(problems)

    def dropped(self, name: str, spec: JsonObject, answer: JsonObject) -> list[str]:
        resource = spec.get("extendedResourceName")
        if resource is None or answer.get("spec", {}).get("extendedResourceName"):
            return []
        why = f"{name}: this API server drops extendedResourceName (feature gate DRAExtendedResource)"
        return [f"{why}: pods that request {resource} are not placed on nodes with serving.api DRA"]


# --- ClusterProperty -------------------------------------------------------------------------------------------------
MOST = 20  # objects
DOMAIN = "nodedevices.io"
OTHER = f"other.{DOMAIN}"
LONGEST_LABEL = 63


def cluster_properties(records: Iterable[NodeDevicesRecord]) -> Mapping[str, str]:
    """Return the values by name: JSON, `{"total":64,"healthy":63,"held":40}`, in devices; partitions count with theirs.

    A device that its driver no longer lists is none. One whose node is not heard of is not healthy, whatever was
    last reported. Where there are more than `MOST` products, those with the fewest devices are one value.
    """
    found: dict[str, Counter[str]] = {}
    for record in records:
        heard = not record.is_true(STALE)
        for device in record.devices:
            if device.health.missing:
                continue
            labels = [label for label in (_label(device.type), _label(device.model.product)) if label]
            counts = found.setdefault(".".join((*labels, DOMAIN)) if labels else OTHER, Counter())
            counts["total"] += 1
            counts["healthy"] += heard and device.health.state == "Healthy"
            counts["held"] += any(part.holders for part in device.parts) or bool(device.unlisted)
    if len(found) > MOST:
        rest = found.pop(OTHER, Counter[str]())
        named = sorted(found, key=lambda name: (-found[name]["total"], name))
        found[OTHER] = sum((found.pop(name) for name in named[MOST - 1 :]), rest)
    return {
        name: json.dumps({key: counts[key] for key in ("total", "healthy", "held")}, separators=(",", ":"))
        for name, counts in sorted(found.items())
    }


def _label(text: str) -> str:
    """A label of a DNS name (RFC 1123): `NVIDIA H100 80GB HBM3` is `nvidia-h100-80gb-hbm3`."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:LONGEST_LABEL].strip("-")


async def properties(kube: Kube) -> tuple[str, list[dict[str, Any]]]:
    """Return the API's version here, with its objects that are ours; "": it is not installed. Raises KubeError."""
    for version in CLUSTER_PROPERTY_VERSIONS:
        try:
            pages = kube.pages(PROPERTIES % version, {"labelSelector": OURS})
            found = [item async for page in pages for item in page["items"]]
        except KubeError as error:
            if error.status != 404:
                raise
        else:
            return version, found
    return "", []


class ClusterProperties(WholeObjects):
    """The objects of `cluster_properties`."""

    what = "cluster properties"
    every_seconds = 60.0

    async def keep(self) -> str:
        wanted = cluster_properties(self._cache.node_devices.values())
        if wanted == self._kept:
            return ""
        version, found = await properties(self._writer.kube)
        if not version:
            return "ClusterProperty (about.k8s.io) is not installed: install its CRD, or leave --cluster-properties out"
        head = {"apiVersion": f"about.k8s.io/{version}", "kind": "ClusterProperty"}
        specs = {name: {"value": value} for name, value in wanted.items()}
        problems = await self.put_right(CLUSTER_PROPERTIES, PROPERTIES % version, head, found, specs)
        self._kept = None if problems else wanted
        return "; ".join(problems)
