"""A ResourceSlice (resource.k8s.io/v1) as a pure function of a NodeDevices, and the API server's rules for it.

Nothing serves DRA yet; that this function can be written, and never has to leave a device out, is what the contract
promises. The rules are those of pkg/apis/resource/validation in Kubernetes 1.34.
"""

from __future__ import annotations

import re
from typing import Any

from nodedevices_api.nodedevices import Device, DeviceAttributes, NodeDevicesStatus, Partition

Json = dict[str, Any]

DRIVER = "nodedevices.io"
STANDARD = "resource.kubernetes.io"  # domain of the attributes that Kubernetes itself knows
MAX_DEVICES = 128  # of a slice
MAX_ATTRIBUTES = 32  # and capacities, of a device
MAX_TEXT = 64  # bytes
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DOMAIN = re.compile(rf"{_LABEL}([.]{_LABEL})*")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_QUANTITY = re.compile(r"[0-9]+([.][0-9]+)?(Ki|Mi|Gi|Ti|Pi|Ei|k|M|G|T|P|E)?")
_VERSION = re.compile(  # https://semver.org
    r"(0|[1-9][0-9]*)[.](0|[1-9][0-9]*)[.](0|[1-9][0-9]*)"
    r"(-((0|[1-9][0-9]*|[0-9]*[a-zA-Z-][0-9a-zA-Z-]*)([.](0|[1-9][0-9]*|[0-9]*[a-zA-Z-][0-9a-zA-Z-]*))*))?"
    r"([+]([0-9a-zA-Z-]+([.][0-9a-zA-Z-]+)*))?"
)


def slices(node: str, status: NodeDevicesStatus) -> list[Json]:
    """The slices of a node's pool: every device, and in the place of one that is cut its partitions."""
    devices = [each for device in status.devices for each in _devices(device)]
    pages = [devices[at : at + MAX_DEVICES] for at in range(0, len(devices), MAX_DEVICES)]
    pool = {"name": node, "generation": 1, "resourceSliceCount": len(pages)}
    return [
        {
            "spec": {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": page},
            "metadata": {"name": f"{node}-{n}"},
        }
        for n, page in enumerate(pages)
    ]


def _devices(device: Device) -> list[Json]:
    if not device.partitions:
        return [_device(device.name, _attributes(device, None), device.capacity)]
    return [_device(part.name, _attributes(device, part), part.capacity) for part in device.partitions]


def _device(name: str, attributes: Json, capacity: dict[str, str]) -> Json:
    return {
        "name": name,
        "attributes": attributes,
        "capacity": {key: {"value": value} for key, value in capacity.items()},
    }


def _attributes(device: Device, part: Partition | None) -> Json:
    it = device.attributes or DeviceAttributes()
    found: Json = {
        "type": _text(device.type),
        "uuid": _text(it.uuid or device.id),
        "vendor": _text(it.vendor),
        "productName": _text(it.product_name),
        "brand": _text(it.brand),
        "architecture": _text(it.architecture),
        "firmware": _text(it.firmware),
        f"{STANDARD}/pciBusID": _text(it.pci_bus_id),
        f"{STANDARD}/pcieRoot": _text(it.pcie_root),
        f"{STANDARD}/numaNode": None if it.numa_node is None else {"int": it.numa_node},
        "minor": None if it.minor is None else {"int": it.minor},
    }
    if part is not None:
        found |= {"uuid": _text(part.id), "profile": _text(part.profile), "parent": _text(device.name)}
    for name, value in it.extra.items():
        typed = {"string": value.string, "int": value.integer, "bool": value.boolean, "version": value.version}
        [(kind, said)] = [(kind, said) for kind, said in typed.items() if said is not None]
        found.setdefault(name, _text(said) if kind == "string" else {kind: said})
    return {name: value for name, value in found.items() if value is not None}


def _text(value: object) -> Json | None:
    """The text as an attribute: at most 64 bytes. Absent for an empty one."""
    return {"string": str(value).encode()[:MAX_TEXT].decode(errors="ignore")} if value else None


# --- the API server's rules -------------------------------------------------------------------------------------------
def problems(pool: list[Json]) -> list[str]:
    """What the API server, or the scheduler that joins a pool's slices, would not take."""
    devices = [device for each in pool for device in each["spec"]["devices"]]
    names = [device["name"] for device in devices]
    found = [f"{name} is given twice" for name in set(names) if names.count(name) > 1]
    counts = [len(each["spec"]["devices"]) for each in pool]
    found += [f"{count} devices in one slice" for count in counts if count > MAX_DEVICES]
    for device in devices:
        found += [f"{device['name']}: {what}" for what in _of_device(device)]
    return found


def _of_device(device: Json) -> list[str]:
    found = []
    if re.fullmatch(_LABEL, device["name"]) is None or len(device["name"]) > 63:
        found.append("the name is no DNS label")
    if len(device["attributes"]) + len(device["capacity"]) > MAX_ATTRIBUTES:
        found.append(f"{len(device['attributes'])} attributes and {len(device['capacity'])} capacities")
    for name in (*device["attributes"], *device["capacity"]):
        domain, slash, identifier = name.rpartition("/")
        if slash and (_DOMAIN.fullmatch(domain) is None or len(domain) > 63):
            found.append(f"{name}: the domain is no DNS subdomain of at most 63 characters")
        if _IDENTIFIER.fullmatch(identifier) is None or len(identifier) > 32:
            found.append(f"{name}: no C identifier of at most 32 characters")
    found += [f"{name}: {value}" for name, value in device["attributes"].items() if not _is_legal(value)]
    found += [
        f"{name}: {value['value']} is no quantity"
        for name, value in device["capacity"].items()
        if _QUANTITY.fullmatch(value["value"]) is None
    ]
    return found


def _is_legal(value: Json) -> bool:
    [(kind, said)] = value.items()
    match kind:
        case "string":
            return isinstance(said, str) and len(said.encode()) <= MAX_TEXT
        case "version":
            return isinstance(said, str) and _VERSION.fullmatch(said) is not None and len(said) <= MAX_TEXT
        case "int":
            return type(said) is int and -(2**63) <= said < 2**63
        case _:
            return kind == "bool" and isinstance(said, bool)
