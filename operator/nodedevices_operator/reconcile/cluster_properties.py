"""What a cluster has, by product, for whoever looks at several: ClusterProperty objects (about.k8s.io, KEP-2149), kept
at most once a minute; --cluster-properties.

One for each product, `<type>.<product>.nodedevices.io`, and what is too much for that in `other.nodedevices.io`. A hub
of clusters copies them (ClusterProfile's status.properties), so that no hub needs credentials for this cluster.

It writes what differs, removes what it made and is not so any more, and leaves alone what another manager has. Where
the API is not installed it looks again. It fails by itself: nothing waits for it, and no node or pod depends on it.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import count
from typing import Any

import structlog
from nodedevices_api.conditions import STALE

from nodedevices_operator.cache.store import Cache
from nodedevices_operator.kube.apply import Writer
from nodedevices_operator.kube.port import Kube, KubeError
from nodedevices_operator.records.names import CLUSTER_PROPERTIES, CLUSTER_PROPERTY_VERSIONS, OURS, PROPERTIES, named
from nodedevices_operator.records.objects import DeviceRecord, NodeDevicesRecord

MOST = 20  # objects
DOMAIN = "nodedevices.io"
OTHER = f"other.{DOMAIN}"
LONGEST_LABEL = 63
_COUNTS = ("total", "healthy", "held")


def cluster_properties(records: Iterable[NodeDevicesRecord]) -> Mapping[str, str]:
    """Return the values by name: JSON, `{"total":64,"healthy":63,"held":40}`, in devices; partitions count with theirs.

    A device that its driver no longer lists is none. One whose node is not heard of is not healthy, whatever was
    last reported. Where there are more than `MOST` products, those with the fewest devices are one value.
    """
    found: dict[str, Counter[str]] = {}
    for record in records:
        heard = not record.is_true(STALE)
        for device in record.devices:
            if device.missing:
                continue
            counts = found.setdefault(_name(device), Counter())
            counts["total"] += 1
            counts["healthy"] += heard and device.health.state == "Healthy"
            counts["held"] += any(part.holders for part in device.parts) or bool(device.unlisted)
    if len(found) > MOST:
        rest = found.pop(OTHER, Counter[str]())
        named = sorted(found, key=lambda name: (-found[name]["total"], name))
        found[OTHER] = sum((found.pop(name) for name in named[MOST - 1 :]), rest)
    return {name: _value(counts) for name, counts in sorted(found.items())}


def _value(counts: Counter[str]) -> str:
    return json.dumps({key: counts[key] for key in _COUNTS}, separators=(",", ":"))


def _name(device: DeviceRecord) -> str:
    labels = (_label(device.type), _label(device.model.product))
    return ".".join((*filter(None, labels), DOMAIN)) if any(labels) else OTHER


def _label(text: str) -> str:
    """A label of a DNS name (RFC 1123): `NVIDIA H100 80GB HBM3` is `nvidia-h100-80gb-hbm3`."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:LONGEST_LABEL].strip("-")


EVERY_SECONDS = 60.0
READ_EVERY = 10  # of these: what others changed meanwhile is put right then

log = structlog.get_logger()


async def properties(kube: Kube) -> tuple[str, list[dict[str, Any]]]:
    """Return the API's version here, with its objects that are ours; "": it is not installed. Raises KubeError."""
    for version in CLUSTER_PROPERTY_VERSIONS:
        try:
            found = [item async for page in kube.pages(PROPERTIES % version, labelSelector=OURS) for item in page]
        except KubeError as error:
            if error.status != 404:
                raise
        else:
            return version, found
    return "", []


class ClusterProperties:
    """Event loop only."""

    def __init__(self, cache: Cache, writer: Writer) -> None:
        self._cache = cache
        self._writer = writer
        self._kept: Mapping[str, str] | None = None  # as written; None: read it first
        self._said = ""

    async def run(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Never ends by itself."""
        while not self._cache.synced:
            await sleep(1.0)
        for number in count():
            if number % READ_EVERY == 0:
                self._kept = None
            try:
                said = await self.keep()
            except KubeError as error:
                self._kept, said = None, str(error)
            if said and said != self._said:
                log.warning("cluster properties are not kept", why=said)
            self._said = said
            await sleep(EVERY_SECONDS)

    async def keep(self) -> str:
        """Make the objects what they should be. Returns why they are not; raises KubeError to be tried again."""
        wanted = cluster_properties(self._cache.node_devices.values())
        if wanted == self._kept:
            return ""
        version, found = await properties(self._writer.kube)
        if not version:
            return "ClusterProperty (about.k8s.io) is not installed: install its CRD, or leave --cluster-properties out"
        collection = PROPERTIES % version
        shown = {item["metadata"]["name"]: item for item in found}
        problems = []
        for name, value in wanted.items():
            if name not in shown or shown[name].get("spec", {}).get("value") != value:
                try:
                    await self._writer.apply(
                        CLUSTER_PROPERTIES, named(collection, name), _body(version, name, value), force=False
                    )
                except KubeError as error:
                    if error.status != 409:
                        raise
                    problems.append(f"{name}: another manager owns it: {error}")
        for name in shown.keys() - wanted.keys():
            metadata = shown[name]["metadata"]
            try:
                await self._writer.kube.delete(
                    named(collection, name), uid=metadata["uid"], resource_version=metadata["resourceVersion"]
                )
            except KubeError as error:
                if not error.gone:
                    raise
        self._kept = None if problems else wanted
        return "; ".join(problems)


def _body(version: str, name: str, value: str) -> dict[str, Any]:
    key, _, label = OURS.partition("=")
    return {
        "apiVersion": f"about.k8s.io/{version}",
        "kind": "ClusterProperty",
        "metadata": {"name": name, "labels": {key: label}},
        "spec": {"value": value},
    }
