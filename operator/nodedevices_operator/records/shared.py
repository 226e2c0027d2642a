"""Equal values kept once: what thousands of nodes have in common, such as an empty set of 216 bytes, a configuration,
or the properties of a device, as far as labels show them.

A fleet has few models and few profiles of partitions, so that 40,000 devices cost no more memory for these. As in
`records/kinds.py`, a missing or odd field reads as absent, and nothing here raises.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

import orjson
from nodedevices_common.quantity import MEBIBYTE, to_bytes
from nodedevices_common.raw import At, Raw, mapping, reader, text

REMEMBERED = 4096  # different values of a kind; a fleet has far fewer
MAX_CONFIGS = 256  # the same of configurations, which are larger


def shared(items: Iterable[str]) -> frozenset[str]:
    """Return the set of these; equal ones are the same object."""
    return _one(frozenset(items))


@lru_cache(REMEMBERED)
def _one(value: frozenset[str]) -> frozenset[str]:
    return value


def one_of_equals(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same object for all nodes with that configuration."""
    try:
        return _config(orjson.dumps(config, option=orjson.OPT_SORT_KEYS))
    except TypeError:  # an integer of more than 64 bits, which no schema of ours allows
        return config


@lru_cache(MAX_CONFIGS)
def _config(dumped: bytes) -> Mapping[str, Any]:
    return mapping(orjson.loads(dumped))


AttributeValue = str | bool


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """Properties of a physical device. Texts are empty where the agent does not say. `extra`: what only some devices
    have, by name. `capacity`: what it has besides memory, by name."""

    vendor: str
    product: str
    memory_mib: int
    extra: tuple[tuple[str, AttributeValue], ...]
    capacity: tuple[tuple[str, int], ...]

    def attribute(self, name: str) -> AttributeValue | None:
        return next((value for key, value in self.extra if key == name), None)

    def count(self, name: str) -> int | None:
        return next((value for key, value in self.capacity if key == name), None)


@dataclass(frozen=True, slots=True)
class PartitionProfile:
    """Properties of a partition. None: the agent does not say. `capacity`: what it has besides memory, by name."""

    name: str = ""  # 1g.10gb
    memory_mib: int | None = None
    capacity: tuple[tuple[str, int], ...] = ()

    def count(self, name: str) -> int | None:
        return next((value for key, value in self.capacity if key == name), None)


@dataclass(frozen=True, slots=True)
class DriverRecord:
    """A driver of one kind of device, by its name: nvidia."""

    name: str = ""
    version: str = ""  # as the driver prints it: 570.148.08
    cuda_version: str = ""  # 12.8


@dataclass(frozen=True, slots=True)
class Platform:
    """Properties of a node, besides its devices."""

    drivers: tuple[DriverRecord, ...] = ()
    machine: Annotated[str, At("machine", "type")] = ""
    mode: Annotated[str, At("machine", "mode")] = ""
    clique: Annotated[str, At("machine", "clique")] = ""
    vgpu_version: Annotated[str, At("machine", "vgpuVersion")] = ""
    vgpu_branch: Annotated[str, At("machine", "vgpuBranch")] = ""
    mig_strategy: Annotated[str, At("machine", "migStrategy")] = (
        ""  # none, single, mixed; empty: an agent that does not say
    )

    def driver(self, name: str) -> DriverRecord:
        """The driver of that name; where there is none, one that says nothing."""
        return next((driver for driver in self.drivers if driver.name == name), NO_DRIVER)


UNKNOWN_PLATFORM, NO_DRIVER = Platform(), DriverRecord()

_model = lru_cache(REMEMBERED)(DeviceModel)
_profile = lru_cache(REMEMBERED)(PartitionProfile)
_read_platform = reader(Platform)


def model(device: Raw) -> DeviceModel:
    """Return the model of an entry of status.devices."""
    attributes, capacity = mapping(device.get("attributes")), mapping(device.get("capacity"))
    return _model(
        text(attributes.get("vendor")),
        text(attributes.get("productName")),
        _mebibytes(capacity.get("memory")) or 0,
        _extra(mapping(attributes.get("extra"))),
        _counts(capacity),
    )


def profile(partition: Raw) -> PartitionProfile:
    """Return the profile of an entry of status.devices that is a partition."""
    capacity = mapping(partition.get("capacity"))
    return _profile(
        text(partition.get("profile")),
        _mebibytes(capacity.get("memory")),
        _counts(capacity),
    )


def platform(status: Raw) -> Platform:
    """Return the platform of a whole status."""
    return _same_platform(_read_platform(status))


@lru_cache(REMEMBERED)
def _same_platform(given: Platform) -> Platform:
    return given


def _extra(raw: Raw) -> tuple[tuple[str, AttributeValue], ...]:
    """Attributes in DRA's typed form, each with its one value; numbers as text, lest a 1 be the same as true."""
    found: list[tuple[str, AttributeValue]] = []
    for name in sorted(raw):
        value = next(iter(mapping(raw[name]).values()), None)
        if isinstance(value, str | bool):
            found.append((name, value))
        elif isinstance(value, int):
            found.append((name, str(value)))
    return tuple(found)


def _counts(capacity: Raw) -> tuple[tuple[str, int], ...]:
    found = ((name, _whole(value)) for name, value in sorted(capacity.items()) if isinstance(value, str))
    return tuple((name, count) for name, count in found if name != "memory" and count is not None)


def _mebibytes(value: object) -> int | None:
    amount = _whole(value) if isinstance(value, str) else None
    return None if amount is None else amount // MEBIBYTE


@lru_cache(REMEMBERED)
def _whole(quantity: str) -> int | None:
    try:
        return to_bytes(quantity)
    except ValueError:
        return None
