"""What can be offered of NVIDIA's GPUs: whole GPUs and MIG devices.

The strategies are those of NVIDIA's plugin: none offers every GPU whole; single offers MIG devices of one kind in place
of GPUs; mixed offers whole GPUs and MIG devices side by side.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from nodedevices_probe.nvidia import DISPLAY_PRODUCTS, VENDOR, mig_enabled

from nodedevices_plugin.model import InventoryDevice, PlanError, Unit
from nodedevices_plugin.vendors.base import partitions, unlike_most

TYPES = frozenset({"gpu"})
DEFAULT_PREFIX = "nvidia.com"


def computing_gpus(devices: Iterable[InventoryDevice]) -> tuple[InventoryDevice, ...]:
    """NVIDIA's GPUs without display adapters, in their order."""
    return tuple(
        device
        for device in devices
        if device.fact.type in TYPES
        and device.fact.vendor == VENDOR
        and device.fact.product_name not in DISPLAY_PRODUCTS
    )


def units(devices: Sequence[InventoryDevice], strategy: str, excluded: Set[str] = frozenset()) -> list[Unit]:
    """All units, by GPU then MIG device. Raises PlanError (partitions.strategy single only)."""
    gpus = computing_gpus(devices)
    if strategy == "single" and any(mig_enabled(device.fact) for device in gpus):
        _check_single(gpus, excluded)
        return [unit for device in gpus for unit in partitions(device)]
    if strategy == "none":
        return [Unit(device) for device in gpus]
    # A GPU that left MIG mode keeps the MIG devices that pods still hold, so that they are listed as not healthy.
    return [
        unit
        for device in gpus
        for unit in (*(() if mig_enabled(device.fact) else (Unit(device),)), *partitions(device))
    ]


def _check_single(gpus: Sequence[InventoryDevice], excluded: Set[str]) -> None:
    """Check the GPUs that answer. One that is lost since the start does not even report whether it is in MIG mode."""
    answering = [
        device for device in gpus if device.present and not (mig_enabled(device.fact) is None and _unresponsive(device))
    ]
    plain = [device.fact for device in answering if not mig_enabled(device.fact)]
    if plain:
        cut = [device.fact for device in answering if mig_enabled(device.fact)]
        raise PlanError(
            "partitions.strategy",
            "single",
            f"GPU {plain[0].index} is not in MIG mode and others are; make them alike or use mixed",
            devices=[fact.id for fact in min(plain, cut, key=len)],  # what fewer are is what changed
        )
    profiles: dict[str, set[str]] = {}
    for device in answering:
        live = [part for part in device.fact.partitions if part.id not in device.departed_partitions]
        if not live:
            hint = f"GPU {device.fact.index} is in MIG mode and has no MIG devices; create them or use mixed"
            raise PlanError("partitions.strategy", "single", hint, devices=[device.fact.id])
        profiles[device.fact.id] = {part.profile for part in live if part.id not in excluded}
    found = {profile for some in profiles.values() for profile in some}
    if len(found) > 1:
        raise PlanError(
            "partitions.strategy",
            "single",
            f"this node has several MIG profiles ({', '.join(sorted(found))}); use mixed",
            devices=unlike_most(profiles),
        )


def _unresponsive(device: InventoryDevice) -> bool:
    return device.fact.readings.lost or device.fact.readings.error is not None
