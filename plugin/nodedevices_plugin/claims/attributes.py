"""The attributes and capacities of a device in a ResourceSlice.

The API server refuses a whole slice for one attribute (pkg/apis/resource/validation of Kubernetes 1.37.2). So an
attribute that it would refuse is left out here, and named: it costs only itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct
from nodedevices_api.bounds import ATTRIBUTE_NAME_PATTERN
from nodedevices_api.dra import RESOURCE_ATTRIBUTE
from nodedevices_probe.protocol import Attribute, DeviceFact, Partition

STANDARD = "resource.kubernetes.io"  # the domain of attributes that Kubernetes defines
MAX_ATTRIBUTES = 32  # attributes and capacities of a device together
MAX_BYTES = 64  # of a string
MAX_DOMAIN = 63

Json = dict[str, Any]
Value = Mapping[str, str | int | bool]  # {"string": ...}, {"int": ...}, {"bool": ...} or {"version": ...}

_NAME = re.compile(ATTRIBUTE_NAME_PATTERN)


class Described(Struct, frozen=True, kw_only=True):
    """`capacity`: as a slice has it. `problems`: what was left out, and why, for people."""

    attributes: Mapping[str, Value]
    capacity: Mapping[str, Json]
    problems: tuple[str, ...] = ()


def describe(
    fact: DeviceFact,
    part: Partition | None,
    *,
    parent: str,
    resource: str,
    driver: str,
    capacity: Callable[[Mapping[str, str]], Mapping[str, Json]],
) -> Described:
    """Describe a device, or a partition of it.

    Args:
        parent: the name of the whole device.
        resource: the extended resource that offers it.
        driver: its domain is that of attributes without one.
        capacity: makes a slice's capacity of the device's amounts (claims.shares).
    """
    own: dict[str, Value | None] = {
        RESOURCE_ATTRIBUTE: _text(resource),
        "type": _text(fact.type),
        "uuid": _text(part.id if part is not None else fact.uuid or fact.id),
        "vendor": _text(fact.vendor),
        "productName": _text(fact.product_name),
        "brand": _text(fact.brand),
        "architecture": _text(fact.architecture),
        "firmware": _text(fact.firmware),
        f"{STANDARD}/pciBusID": _text(fact.pci_bus_id),
        f"{STANDARD}/pcieRoot": _text(fact.pcie_root),
        f"{STANDARD}/numaNode": _number(fact.numa_node),
        "minor": _number(fact.minor),
        "profile": _text(part.profile) if part is not None else None,
        "parent": _text(parent) if part is not None else None,
    }
    extra = {key.removeprefix(f"{driver}/"): _value(fact.extra[key]) for key in sorted(fact.extra)}
    amounts = dict(part.capacity if part is not None else fact.capacity)
    found: dict[str, Value] = {}
    problems = [f"capacity {key}: {_WRONG_NAME}" for key in amounts if not _is_name(key)]
    kept = capacity({key: value for key, value in amounts.items() if _is_name(key)})
    for key, value in {**own, **{key: value for key, value in extra.items() if key not in own}}.items():
        if value is None:
            continue
        if why := _wrong(key, value):
            problems.append(f"attribute {key}: {why}")
        elif len(found) + len(kept) == MAX_ATTRIBUTES:
            problems.append(f"attribute {key}: a device has at most {MAX_ATTRIBUTES} attributes and capacities")
        else:
            found[key] = value
    return Described(attributes=found, capacity=kept, problems=tuple(problems))


_WRONG_NAME = "not a C identifier of at most 32 characters, with or without a domain of at most 63"


def _is_name(key: str) -> bool:
    return _NAME.fullmatch(key) is not None and len(key.rpartition("/")[0]) <= MAX_DOMAIN


def _wrong(key: str, value: Value) -> str:
    """Return why the API server would refuse the attribute; empty: it takes it."""
    if not _is_name(key):
        return _WRONG_NAME
    size = max((len(said.encode()) for said in value.values() if isinstance(said, str)), default=0)
    return f"{size} bytes; a value has at most {MAX_BYTES}" if size > MAX_BYTES else ""


def _value(given: Attribute) -> Value | None:
    if given.version is not None:
        return {"version": given.version}
    if given.boolean is not None:
        return {"bool": given.boolean}
    return _number(given.integer) if given.integer is not None else _text(given.string or "")


def _text(value: str) -> Value | None:
    return {"string": value} if value else None


def _number(value: int | None) -> Value | None:
    return None if value is None else {"int": value}
