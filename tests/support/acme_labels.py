"""The labels of the tests' vendor (acme.py), as somebody else would write them: all of it is in this file."""

from __future__ import annotations

from nodedevices_operator.desired.vendors.registry import VendorLabels
from nodedevices_operator.records.objects import NodeDevicesRecord


def acme(record: NodeDevicesRecord) -> dict[str, str]:
    fpgas = [device for device in record.devices if device.model.vendor == "acme"]
    if not fpgas:
        return {}
    labels = {
        "acme.com/fpga.count": str(len(fpgas)),
        "acme.com/fpga.shell": str(fpgas[0].model.attribute("shell") or "unknown"),
        "acme.com/fpga.lanes": str(fpgas[0].model.attribute("lanes") or "unknown"),
        "acme.com/driver": record.platform.driver("acme").version,
        "nvidia.com/gpu.count": "99",  # somebody else's
    }
    if profiles := [part.profile for part in fpgas[0].parts if part.profile is not None]:
        labels["acme.com/region.luts"] = str(profiles[0].count("luts"))
    return labels


ACME_LABELS = VendorLabels(("acme.com/",), acme, "acme.com/changed")
