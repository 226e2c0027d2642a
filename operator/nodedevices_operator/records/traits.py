"""What a device is, as far as labels tell it: read from the raw status, and shared between the nodes of a fleet.

A fleet has few models and few MIG profiles, so that equal values are one object: 40,000 devices cost no more memory
for it. As in `records`, a missing or odd field reads as absent, and nothing here raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from nodedevices_api.quantity import MEBIBYTE, to_bytes

Raw = Mapping[str, Any]

REMEMBERED = 4096  # of each kind
NVIDIA = "nvidia"  # a vendor, and the name of its driver


@dataclass(frozen=True, slots=True)
class Model:
    """What a physical device is. Texts are empty and flags false where the agent does not say."""

    vendor: str = ""
    product: str = ""
    compute_capability: str = ""  # 9.0.0
    memory_mib: int = 0
    mig_capable: bool = False
    mig_enabled: bool = False


@dataclass(frozen=True, slots=True)
class Profile:
    """What a MIG device is. None: the agent does not say."""

    name: str = ""  # 1g.10gb
    memory_mib: int | None = None
    multiprocessors: int | None = None
    copy_engines: int | None = None
    decoders: int | None = None
    encoders: int | None = None
    jpeg_engines: int | None = None
    ofa_engines: int | None = None


@dataclass(frozen=True, slots=True)
class Platform:
    """What a node is, besides its devices."""

    driver_version: str = ""  # as the driver prints it: 570.148.08
    cuda_version: str = ""  # 12.8
    machine: str = ""
    mode: str = ""
    clique: str = ""
    vgpu_version: str = ""
    vgpu_branch: str = ""
    mig_strategy: str = ""  # none, single, mixed; empty: an agent that does not say


UNKNOWN_MODEL, UNKNOWN_PLATFORM = Model(), Platform()

_model = lru_cache(REMEMBERED)(Model)
_profile = lru_cache(REMEMBERED)(Profile)
_platform = lru_cache(REMEMBERED)(Platform)


def model(device: Raw) -> Model:
    """Of an entry of status.devices."""
    attributes = _map(device, "attributes")
    extra = _map(attributes, "extra")
    return _model(
        _text(attributes, "vendor"),
        _text(attributes, "productName"),
        _text(_map(extra, "cudaComputeCapability"), "version"),
        _mebibytes(_map(device, "capacity").get("memory")) or 0,
        _map(extra, "migCapable").get("bool") is True,
        _map(extra, "migEnabled").get("bool") is True,
    )


def profile(partition: Raw) -> Profile:
    """Of an entry of status.devices[].partitions."""
    capacity = _map(partition, "capacity")
    return _profile(
        _text(partition, "profile"),
        _mebibytes(capacity.get("memory")),
        _count(capacity, "multiprocessors"),
        _count(capacity, "copyEngines"),
        _count(capacity, "decoders"),
        _count(capacity, "encoders"),
        _count(capacity, "jpegEngines"),
        _count(capacity, "ofaEngines"),
    )


def platform(status: Raw) -> Platform:
    """Of a whole status."""
    driver, machine = _driver(status), _map(status, "machine")
    vgpu = _map(machine, "vgpu")
    return _platform(
        _text(driver, "version"),
        _text(driver, "cudaVersion"),
        _text(machine, "type"),
        _text(machine, "mode"),
        _text(machine, "clique"),
        _text(vgpu, "version"),
        _text(vgpu, "branch"),
        _text(machine, "migStrategy"),
    )


def _driver(status: Raw) -> Raw:
    """NVIDIA's: the labels are about it."""
    drivers = status.get("drivers")
    listed = drivers if isinstance(drivers, list) else []
    return next((each for each in listed if isinstance(each, Mapping) and each.get("name") == NVIDIA), {})


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
