"""What a cluster has, by product, for whoever looks at several: ClusterProperty objects (about.k8s.io, KEP-2149), kept
at most once a minute (whole_objects); --cluster-properties.

One for each product, `<type>.<product>.nodedevices.io`, and what is too much for that in `other.nodedevices.io`. A hub
of clusters copies them (ClusterProfile's status.properties), so that no hub needs credentials for this cluster.

Where the API is not installed it looks again. No node or pod depends on it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from nodedevices_api.conditions import STALE

from nodedevices_operator.kube.port import Kube, KubeError
from nodedevices_operator.reconcile.whole_objects import WholeObjects
from nodedevices_operator.records.names import CLUSTER_PROPERTIES, CLUSTER_PROPERTY_VERSIONS, OURS, PROPERTIES
from nodedevices_operator.records.objects import NodeDevicesRecord

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
