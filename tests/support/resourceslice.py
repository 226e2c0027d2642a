"""The API server's rules for ResourceSlices (resource.k8s.io/v1), as tests hold what is published against them.

They are those of pkg/apis/resource/validation in Kubernetes 1.37.2, written again from there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from nodedevices_common.quantity import to_bytes

Json = dict[str, Any]

MAX_DEVICES = 128  # of a slice, and half as many where one of them has a taint
MAX_TAINTS = 16  # of a device
MAX_ATTRIBUTES = 32  # and capacities, of a device
MAX_TEXT = 64  # bytes
MAX_VALUES = 10  # of a request policy
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DOMAIN = re.compile(rf"{_LABEL}([.]{_LABEL})*")
_KEY = re.compile(rf"{_LABEL}([.]{_LABEL})*/[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?")
_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_QUANTITY = re.compile(r"[0-9]+([.][0-9]+)?(Ki|Mi|Gi|Ti|Pi|Ei|k|M|G|T|P|E)?")
_VERSION = re.compile(  # https://semver.org
    r"(0|[1-9][0-9]*)[.](0|[1-9][0-9]*)[.](0|[1-9][0-9]*)"
    r"(-((0|[1-9][0-9]*|[0-9]*[a-zA-Z-][0-9a-zA-Z-]*)([.](0|[1-9][0-9]*|[0-9]*[a-zA-Z-][0-9a-zA-Z-]*))*))?"
    r"([+]([0-9a-zA-Z-]+([.][0-9a-zA-Z-]+)*))?"
)


def problems(specs: Sequence[Json]) -> list[str]:
    """What the API server, or the scheduler that joins a pool's slices, would not take."""
    devices = [device for spec in specs for device in spec["devices"]]
    names = [device["name"] for device in devices]
    found = [f"{name} is given twice" for name in set(names) if names.count(name) > 1]
    for spec in specs:
        most = MAX_DEVICES // 2 if any("taints" in device for device in spec["devices"]) else MAX_DEVICES
        found += [f"{len(spec['devices'])} devices in one slice"] if len(spec["devices"]) > most else []
        found += ["pool"] if spec["pool"]["resourceSliceCount"] != len(specs) or spec["pool"]["generation"] < 0 else []
    return found + [f"{device['name']}: {what}" for device in devices for what in _of_device(device)]


def _of_device(device: Json) -> list[str]:
    found = []
    if re.fullmatch(_LABEL, device["name"]) is None or len(device["name"]) > 63:
        found.append("the name is no DNS label")
    attributes, capacity = device["attributes"], device.get("capacity", {})
    if len(attributes) + len(capacity) > MAX_ATTRIBUTES:
        found.append(f"{len(attributes)} attributes and {len(capacity)} capacities")
    for name in (*attributes, *capacity):
        domain, slash, identifier = name.rpartition("/")
        if slash and (_DOMAIN.fullmatch(domain) is None or len(domain) > 63):
            found.append(f"{name}: the domain is no DNS subdomain of at most 63 characters")
        if _IDENTIFIER.fullmatch(identifier) is None or len(identifier) > 32:
            found.append(f"{name}: no C identifier of at most 32 characters")
    found += [f"{name}: {value}" for name, value in attributes.items() if not _is_legal(value)]
    found += [
        f"{name}: {value['value']} is no quantity"
        for name, value in capacity.items()
        if _QUANTITY.fullmatch(value["value"]) is None
    ]
    for name, said in capacity.items():
        policy = said.get("requestPolicy")
        if policy is not None:
            found += [f"{name}: a policy, and no allowMultipleAllocations"] * (
                not device.get("allowMultipleAllocations")
            )
            found += [f"{name}: {wrong}" for wrong in _of_policy(to_bytes(said["value"]), policy)]
    taints = device.get("taints", [])
    found += [f"{len(taints)} taints"] if len(taints) > MAX_TAINTS else []
    found += [
        f"taint {taint}"
        for taint in taints
        if _KEY.fullmatch(taint["key"]) is None
        or _VALUE.fullmatch(taint["value"]) is None
        or taint["effect"] not in {"NoSchedule", "NoExecute", "None"}
    ]
    return found


def _of_policy(value: int, policy: Json) -> list[str]:
    default = to_bytes(policy["default"])
    values = [to_bytes(one) for one in policy.get("validValues", ())]
    if "validRange" not in policy:
        right = 0 < len(values) <= MAX_VALUES and values == sorted(set(values)) and values[-1] <= value
        return [] if right and default in values else [f"validValues {values}, default {default}, of {value}"]
    least, step = (to_bytes(policy["validRange"][key]) for key in ("min", "step"))
    right = not values and least <= default <= value and 0 < step <= value - least and not (default - least) % step
    return [] if right else [f"{policy} of {value}"]


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
