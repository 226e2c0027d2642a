"""Names of devices and partitions: `gpu-3`, `nic-0`, `gpu-3-mig-1g10gb-19-0`, as in a ResourceSlice.

Every name is a DNS label and unique on the node: of two devices with the same name the later one, in the inventory's
order, has a hash of its id behind its name. Programs use ids; names are for people, claims (DRA) and ResourceSlices.
"""

from __future__ import annotations

import hashlib

from nodedevices_api.bounds import MAX_DEVICE_NAME
from nodedevices_probe.protocol import DeviceFact, Partition

from nodedevices_plugin.model import Inventory

HASH_CHARACTERS = 8


def device_names(inventory: Inventory) -> dict[str, str]:
    """Id -> name, of every device and partition of the inventory."""
    names: dict[str, str] = {}
    taken: set[str] = set()

    def give(id_: str, wanted: str) -> None:
        name = wanted
        if name in taken or len(name) > MAX_DEVICE_NAME:
            name = f"{wanted[: MAX_DEVICE_NAME - HASH_CHARACTERS - 1].rstrip('-')}-{_hash(id_)}"
        taken.add(name)
        names[id_] = name

    for device in inventory.devices:
        give(device.fact.id, device.fact.name or usual_name(device.fact))
    for device in inventory.devices:
        for part in device.fact.partitions:
            give(part.id, part.name or _part_name(names[device.fact.id], part))
    return names


def usual_name(fact: DeviceFact) -> str:
    """`gpu-<minor>`, the name in NVIDIA's ResourceSlices; by index where there is no minor number."""
    return f"{fact.type.lower()}-{fact.minor if fact.minor is not None else fact.index}"


def plain(profile: str) -> str:
    """`1g.10gb+me` as it may stand in a name, where only letters, digits and dashes may."""
    return "".join(char for char in profile.lower() if char.isalnum())


def _part_name(device: str, part: Partition) -> str:
    return f"{device}-{plain(part.profile)}-{part.index}"


def _hash(id_: str) -> str:
    return hashlib.sha256(id_.encode()).hexdigest()[:HASH_CHARACTERS]
