"""The labels of AMD's node labeller (k8s-device-plugin, cmd/k8s-node-labeller), by the same names and values. Pure.

`amd.com/gpu.vram=192G` where all GPUs of the node agree, and `amd.com/gpu.vram.192G=8`, how many have it, always. Its
`beta.amd.com/...` names of older clusters are there, too. Firmware versions and the family, which take a query of the
driver, are not; `product-name` and `compute-memory-partition` say more.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from nodedevices_operator.records.objects import DeviceRecord, NodeDevicesRecord

VENDOR = "amd"
PREFIX = "amd.com/gpu."
OLD_PREFIX = "beta.amd.com/gpu."
MAX_NAME = 63
_NOT_IN_VALUE = re.compile(r"[^A-Za-z0-9_.-]+")


class AmdLabels:
    prefixes = (PREFIX, OLD_PREFIX)
    timestamp = ""

    def labels(self, record: NodeDevicesRecord) -> dict[str, str]:
        devices = [device for device in record.devices if device.model.vendor == VENDOR]
        kinds: dict[str, Counter[str]] = {}
        for device in devices:
            for kind, value in _said(device):
                kinds.setdefault(kind, Counter())[_clean(value)] += 1
        labels: dict[str, str] = {}
        for kind, counts in kinds.items():
            counts.pop("", None)
            for value, count in counts.items():
                labels |= {f"{prefix}{kind}.{value}": str(count) for prefix in (PREFIX, OLD_PREFIX)}
            if len(counts) == 1:
                labels[f"{PREFIX}{kind}"] = next(iter(counts))
        if devices and (driver := _clean(record.platform.driver("amdgpu").version)):
            labels[f"{PREFIX}driver-version"] = driver
        return {name: value for name, value in labels.items() if len(name.partition("/")[2]) <= MAX_NAME}


def _said(device: DeviceRecord) -> Iterator[tuple[str, str]]:
    model = device.model
    said = {
        "vram": f"{round(device.memory_mib / 1024)}G" if device.memory_mib else None,
        "device-id": model.attribute("deviceID"),
        "product-name": model.product,
        "compute-memory-partition": model.attribute("partitionProfile"),
        "simd-count": model.count("simds"),
        "cu-count": model.count("computeUnits"),
    }
    yield from ((kind, str(value)) for kind, value in said.items() if value)


def _clean(value: str) -> str:
    return _NOT_IN_VALUE.sub("_", value)[:MAX_NAME].strip("_.-")
