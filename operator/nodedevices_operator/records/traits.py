"""What a device is, as far as labels show it: read from the raw status, and shared between the nodes of a fleet.

A fleet has few models and few profiles of partitions, so that equal values are one object: 40,000 devices cost no more
memory for it. As in `records`, a missing or odd field reads as absent, and nothing here raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from nodedevices_common.quantity import MEBIBYTE, to_bytes

Raw = Mapping[str, Any]

REMEMBERED = 4096  # of each kind
Attribute = str | bool


@dataclass(frozen=True, slots=True)
class Model:
    """What a physical device is. Texts are empty where the agent does not say. `extra`: what only some devices have, by
    name. `capacity`: what it has besides memory, by name."""

    vendor: str = ""
    product: str = ""
    memory_mib: int = 0
    extra: tuple[tuple[str, Attribute], ...] = ()
    capacity: tuple[tuple[str, int], ...] = ()

    def attribute(self, name: str) -> Attribute | None:
        return next((value for key, value in self.extra if key == name), None)

    def count(self, name: str) -> int | None:
        return next((value for key, value in self.capacity if key == name), None)


@dataclass(frozen=True, slots=True)
class Profile:
    """What a partition is. None: the agent does not say. `capacity`: what it has besides memory, by name."""

    name: str = ""  # 1g.10gb
    memory_mib: int | None = None
    capacity: tuple[tuple[str, int], ...] = ()

    def count(self, name: str) -> int | None:
        return next((value for key, value in self.capacity if key == name), None)


@dataclass(frozen=True, slots=True)
class Driver:
    """A driver of one kind of device, by its name: nvidia."""

    name: str = ""
    version: str = ""  # as the driver prints it: 570.148.08
    cuda_version: str = ""  # 12.8


@dataclass(frozen=True, slots=True)
class Platform:
    """What a node is, besides its devices."""

    drivers: tuple[Driver, ...] = ()
    machine: str = ""
    mode: str = ""
    clique: str = ""
    vgpu_version: str = ""
    vgpu_branch: str = ""
    mig_strategy: str = ""  # none, single, mixed; empty: an agent that does not say

    def driver(self, name: str) -> Driver:
        """The driver of that name; where there is none, one that says nothing."""
        return next((each for each in self.drivers if each.name == name), NO_DRIVER)


UNKNOWN_MODEL, UNKNOWN_PLATFORM, NO_DRIVER = Model(), Platform(), Driver()

_model = lru_cache(REMEMBERED)(Model)
_profile = lru_cache(REMEMBERED)(Profile)
_platform = lru_cache(REMEMBERED)(Platform)


def model(device: Raw) -> Model:
    """Of an entry of status.devices."""
    attributes, capacity = _map(device, "attributes"), _map(device, "capacity")
    return _model(
        _text(attributes, "vendor"),
        _text(attributes, "productName"),
        _mebibytes(capacity.get("memory")) or 0,
        _extra(_map(attributes, "extra")),
        _counts(capacity),
    )


def profile(partition: Raw) -> Profile:
    """Of an entry of status.devices[].partitions."""
    capacity = _map(partition, "capacity")
    return _profile(
        _text(partition, "profile"),
        _mebibytes(capacity.get("memory")),
        _counts(capacity),
    )


def platform(status: Raw) -> Platform:
    """Of a whole status."""
    machine = _map(status, "machine")
    vgpu = _map(machine, "vgpu")
    return _platform(
        _drivers(status),
        _text(machine, "type"),
        _text(machine, "mode"),
        _text(machine, "clique"),
        _text(vgpu, "version"),
        _text(vgpu, "branch"),
        _text(machine, "migStrategy"),
    )


def _drivers(status: Raw) -> tuple[Driver, ...]:
    drivers = status.get("drivers")
    listed = drivers if isinstance(drivers, list) else []
    return tuple(
        Driver(_text(each, "name"), _text(each, "version"), _text(each, "cudaVersion"))
        for each in listed
        if isinstance(each, Mapping)
    )


def _extra(raw: Raw) -> tuple[tuple[str, Attribute], ...]:
    """Attributes in DRA's typed form, each with its one value; numbers as text, lest a 1 be the same as true."""
    found: list[tuple[str, Attribute]] = []
    for name in sorted(raw):
        value = next(iter(_map(raw, name).values()), None)
        if isinstance(value, str | bool):
            found.append((name, value))
        elif isinstance(value, int):
            found.append((name, str(value)))
    return tuple(found)


def _counts(capacity: Raw) -> tuple[tuple[str, int], ...]:
    found = ((name, _count(capacity, name)) for name in sorted(capacity) if name != "memory")
    return tuple((name, count) for name, count in found if count is not None)


def _map(raw: Raw, key: str) -> Raw:
    value = raw.get(key)
    return value if isinstance(value, Mapping) else {}


def _text(raw: Raw, key: str) -> str:
    value = raw.get(key)
    return value if isinstance(value, str) else ""


def _count(raw: Raw, key: str) -> int | None:
    value = raw.get(key)
    return _whole(value) if isinstance(value, str) else None


def _mebibytes(value: object) -> int | None:
    amount = _whole(value) if isinstance(value, str) else None
    return None if amount is None else amount // MEBIBYTE


@lru_cache(REMEMBERED)
def _whole(quantity: str) -> int | None:
    try:
        return to_bytes(quantity)
    except ValueError:
        return None
