"""What can be offered: whole devices and MIG devices, before they get a name (naming: matching.py).

The MIG strategies are NVIDIA's: none offers every GPU whole; single offers MIG devices of one kind in place of GPUs;
mixed offers whole GPUs and MIG devices side by side. What `resources.exclude` names is not there for any of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from nodedevices_plugin.model import Inventory, InventoryDevice, PlanError, Unit

# Not for computing: the display adapter of a DGX Station (go-nvlib skips the same names).
DISPLAY_PRODUCTS = frozenset({"DGX Display", "NVIDIA DGX Display"})


def computing_gpus(inventory: Inventory) -> tuple[InventoryDevice, ...]:
    """The devices that this agent knows how to hand out: NVIDIA's GPUs without display adapters, by index."""
    return tuple(
        device
        for device in inventory.devices
        if device.fact.type == "gpu"
        and device.fact.vendor == "nvidia"
        and device.fact.product_name not in DISPLAY_PRODUCTS
    )


def units(inventory: Inventory, mig_strategy: str, exclude: Sequence[str] = ()) -> tuple[Unit, ...]:
    """All units, by device index then partition index. `exclude`: ids or globs over ids; a GPU's takes its MIG devices
    along. Raises PlanError (partitions.strategy single only)."""
    gpus = [device for device in computing_gpus(inventory) if not excluded_by(device.fact.id, exclude)]
    if mig_strategy == "single" and any(device.fact.mig_enabled for device in gpus):
        _check_single(gpus, exclude)
        found = [unit for device in gpus for unit in partitions(device)]
    elif mig_strategy == "none":
        found = [Unit(device) for device in gpus]
    else:  # a GPU that left MIG mode keeps the MIG devices that pods still hold, so that they are listed as not healthy
        found = [
            unit
            for device in gpus
            for unit in (*(() if device.fact.mig_enabled else (Unit(device),)), *partitions(device))
        ]
    return tuple(unit for unit in found if not excluded_by(unit.id, exclude))


def partitions(device: InventoryDevice) -> list[Unit]:
    """Its MIG devices, by index."""
    return [Unit(device, part) for part in sorted(device.fact.partitions, key=lambda part: (part.index, part.id))]


def excluded_by(device_id: str, exclude: Sequence[str]) -> str | None:
    """The first entry that this id matches."""
    return next((pattern for pattern in exclude if fnmatchcase(device_id, pattern)), None)


def _check_single(gpus: Sequence[InventoryDevice], exclude: Sequence[str]) -> None:
    """Of the GPUs that answer. One that is lost since the start does not even say whether it is in MIG mode."""
    here = [device for device in gpus if device.present and not (device.fact.mig_enabled is None and _dumb(device))]
    plain = [device.fact.index for device in here if not device.fact.mig_enabled]
    if plain:
        raise PlanError(
            "partitions.strategy",
            "single",
            f"GPU {plain[0]} is not in MIG mode and others are; make them alike or use mixed",
        )
    profiles: set[str] = set()
    for device in here:
        live = [part for part in device.fact.partitions if part.id not in device.departed_partitions]
        if not live:
            hint = f"GPU {device.fact.index} is in MIG mode and has no MIG devices; create them or use mixed"
            raise PlanError("partitions.strategy", "single", hint)
        profiles |= {part.profile for part in live if not excluded_by(part.id, exclude)}
    if len(profiles) > 1:
        raise PlanError(
            "partitions.strategy",
            "single",
            f"this node has several MIG profiles ({', '.join(sorted(profiles))}); use mixed",
        )


def _dumb(device: InventoryDevice) -> bool:
    return device.fact.readings.lost or device.fact.readings.error is not None
