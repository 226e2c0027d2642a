"""The labels of AMD's node labeller (k8s-device-plugin, cmd/k8s-node-labeller), by the same names and values.

`amd.com/gpu.vram=192G` where all GPUs of the node agree, and `amd.com/gpu.vram.192G=8`, how many have it, always; both
also as `beta.amd.com/...`, for older clusters. Of a GPU that is cut each partition counts, with what it has itself; but
the model is counted by GPU, as there. A GPU or partition that its driver no longer lists does not count; of a node
that has lost all, the labels go on saying what they were, and the numbers are 0. Firmware versions and the family,
which take a query of the driver, and `driver-src-version` are not there; `product-name` and `compute-memory-
partition` say more.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from nodedevices_operator.records.objects import DeviceRecord, NodeDevicesRecord
from nodedevices_operator.records.shared import DeviceModel, PartitionProfile

VENDOR = "amd"
PREFIX = "amd.com/gpu."
PREFIXES = (PREFIX, "beta.amd.com/gpu.")
MAX_NAME = 63
_NOT_IN_VALUE = re.compile(r"[^A-Za-z0-9_.-]+")


def labels(record: NodeDevicesRecord) -> dict[str, str]:
    listed = [device for device in record.devices if device.model.vendor == VENDOR]
    devices = [device for device in listed if not device.health.missing] or listed
    kinds: dict[str, Counter[str]] = {}
    for device in devices:
        for kind, value in _described(device):
            kinds.setdefault(kind, Counter())[_clean(value)] += not device.health.missing
    found: dict[str, str] = {}
    for kind, counts in kinds.items():
        counts.pop("", None)
        for prefix in PREFIXES:
            found |= {f"{prefix}{kind}.{value}": str(count) for value, count in counts.items()}
            if len(counts) == 1:
                found[f"{prefix}{kind}"] = next(iter(counts))
    if devices:
        for kind, key in (("compute", "partitionable"), ("memory", "memoryPartitionable")):
            supported = any(device.model.attribute(key) is True for device in devices)
            found[f"{PREFIX}{kind}-partitioning-supported"] = str(supported).lower()
    if devices and (driver := _clean(record.platform.driver("amdgpu").version)):
        found[f"{PREFIX}driver-version"] = driver
    return {name: value for name, value in found.items() if len(name.partition("/")[2]) <= MAX_NAME}


def _described(device: DeviceRecord) -> Iterator[tuple[str, str]]:
    """Yield the labels of the GPU, and those of each of its partitions, or of the GPU where it is whole."""
    model, partitioned = device.model, device.model.attribute("partitionProfile")
    parts = [
        part.profile
        for part in device.parts
        if part.profile is not None and (device.health.missing or not part.health.missing)
    ]
    described: list[PartitionProfile | DeviceModel] = [*parts] if parts else [model]
    said: list[dict[str, object]] = [{"device-id": model.attribute("deviceID"), "product-name": model.product}]
    said += [
        {
            "vram": f"{round(unit.memory_mib / 1024)}G" if unit.memory_mib else None,
            "compute-memory-partition": partitioned,
            "simd-count": unit.count("simds"),
            "cu-count": unit.count("computeUnits"),
        }
        for unit in described
    ]
    yield from ((kind, str(value)) for labels in said for kind, value in labels.items() if value)


def _clean(value: str) -> str:
    return _NOT_IN_VALUE.sub("_", value)[:MAX_NAME].strip("_.-")
