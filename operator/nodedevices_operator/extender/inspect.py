"""Shares by GPU and pod in the JSON of Aliyun's GPU share, so that programs that read that can read this.

    {"nodes": [{"name", "totalGPU", "usedGPU", "devs": [{"id", "totalGPU", "usedGPU", "pods": [{"name", "namespace",
    "usedGPU"}]}]}], "error": ""}

Amounts are shares. `id` is the GPU's index. All other fields are ours; a field of Aliyun's means here what it means
there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from nodedevices_operator.extender.cache import SharesCache
from nodedevices_operator.extender.shares import NodeShares, SharedDevice
from nodedevices_operator.extender.table import Table


def inspected(nodes: Iterable[dict[str, Any]], error: str = "") -> dict[str, Any]:
    return {"nodes": list(nodes), "error": error}


def inspect_node(cache: SharesCache, shares: NodeShares, now: float) -> dict[str, Any]:
    devices = []
    coming: list[dict[str, Any]] = []
    for name, resource in shares.resources.items():
        table = cache.table(shares.name, name, now)
        for device in resource.devices:
            own = {"resource": name, "unit": resource.unit, "packing": "spread" if resource.spread else "binpack"}
            devices.append(_device(device, table) | own)
        if table is not None:
            coming += [_pod(pod) | {"resource": name, "device": device} for pod, device in table.coming.items()]
    devices.sort(key=lambda it: it["id"])
    return {
        "name": shares.name,
        "totalGPU": sum(device["totalGPU"] for device in devices),
        "usedGPU": sum(device["usedGPU"] for device in devices),
        "devs": devices,
        "stale": shares.stale,
        "bound": coming,  # to the node, and not among the holders yet
    }


def _device(device: SharedDevice, table: Table | None) -> dict[str, Any]:
    return {
        "id": device.index,
        "totalGPU": device.held if device.missing else device.total,  # of one that is gone, what pods still have
        "usedGPU": device.held,
        "pods": [
            _pod(holder.pod) | {"usedGPU": holder.shares, "container": holder.container} for holder in device.holders
        ],
        "device": device.id,
        "offered": device.offered,
        "freeGPU": table.free[device.id] if table is not None else device.free,
    }


def _pod(key: str) -> dict[str, Any]:
    namespace, _, name = key.partition("/")
    return {"name": name, "namespace": namespace}
