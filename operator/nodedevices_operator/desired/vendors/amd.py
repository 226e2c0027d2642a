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
from collections.abc import Iterable, Iterator

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
        for kind, value in (*_of_gpu(device), *_of_parts(device)):
            kinds.setdefault(kind, Counter())[_clean(value)] += not device.health.missing
    found: dict[str, str] = {}
    for kind, counts in kinds.items():
        counts.pop("", None)
        for prefix in PREFIXES:
            found |= {f"{prefix}{kind}.{value}": str(count) for value, count in counts.items()}
            if len(counts) == 1:
                found[f"{prefix}{kind}"] = next(iter(counts))
    if devices:
        found |= _of_node(devices)
    if devices and (driver := _clean(record.platform.driver("amdgpu").version)):
        found[f"{PREFIX}driver-version"] = driver
    return {name: value for name, value in found.items() if len(name.partition("/")[2]) <= MAX_NAME}


def _of_gpu(device: DeviceRecord) -> Iterator[tuple[str, str]]:
    said = {"device-id": device.model.attribute("deviceID"), "product-name": device.model.product}
    yield from ((kind, str(value)) for kind, value in said.items() if value)


def _of_parts(device: DeviceRecord) -> Iterator[tuple[str, str]]:
    """Yield the labels of each of its partitions, or of the GPU where it is whole."""
    model, partitioned = device.model, device.model.attribute("partitionProfile")
    parts = [
        part.profile
        for part in device.parts
        if part.profile is not None and (device.health.missing or not part.health.missing)
    ]
    described: list[PartitionProfile | DeviceModel] = [*parts] if parts else [model]
    for unit in described:
        said = {
            "vram": f"{round(unit.memory_mib / 1024)}G" if unit.memory_mib else None,
            "compute-memory-partition": partitioned,
            "simd-count": unit.count("simds"),
            "cu-count": unit.count("computeUnits"),
        }
        yield from ((kind, str(value)) for kind, value in said.items() if value)


def _of_node(devices: Iterable[DeviceRecord]) -> dict[str, str]:
    """Return the label that says whether its GPUs can be cut."""
    models = [device.model for device in devices]
    supported = {
        "compute-partitioning-supported": any(model.attribute("partitionable") is True for model in models),
        "memory-partitioning-supported": any(model.attribute("memoryPartitionable") is True for model in models),
    }
    return {f"{PREFIX}{kind}": str(value).lower() for kind, value in supported.items()}


def _clean(value: str) -> str:
    return _NOT_IN_VALUE.sub("_", value)[:MAX_NAME].strip("_.-")
