"""The rules for names of extended resources, and of devices and partitions.

A resource's is the same everywhere: that of Kubernetes for an extended resource (IsExtendedResourceName in k8s.io/
kubernetes pkg/apis/core/v1/helper; the kubelet's Register asks it). That is 63 characters after the slash (a node's
status is refused as a whole for a longer one), capital letters and _ among them; nothing with `kubernetes.io/` in it or
`requests.` before it.

Devices and partitions are called `gpu-3`, `nic-0`, `gpu-3-mig-1g10gb-19-0`, as in a ResourceSlice. Every name is a DNS
label and unique on the node: of two devices with the same name the later one, in the inventory's order, has a hash of
its id behind its name. A name by which a claim has a device stays that device's. Programs use ids; names are for
people, claims (DRA) and ResourceSlices.
"""

from __future__ import annotations

import hashlib
import re

from nodedevices_api.bounds import MAX_DEVICE_NAME
from nodedevices_api.fields import MAX_RESOURCE_NAME, NOT_EXTENDED, reserved_by_kubernetes
from nodedevices_probe.protocol import DeviceFact

from nodedevices_plugin.model import Inventory, PlanError

SHARED_SUFFIX = ".shared"
MAX_NAME = 63  # after the slash

_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")  # DNS-1123 subdomain
_OWN = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")


def plain_profile(profile: str) -> str:
    """A partition's profile as it stands in resource names, which have no plus: `1g.10gb.me` for `1g.10gb+me`."""
    return profile.replace("+", ".")


def shared(name: str) -> str:
    """The name of shares when `renameByDefault` is set: `nvidia.com/gpu.shared`."""
    return name + SHARED_SUFFIX


def check(field: str, name: str) -> str:
    """The name, if the kubelet takes it as that of an extended resource. Raises PlanError."""
    domain, slash, own = name.partition("/")
    if not slash or not own or _DOMAIN.fullmatch(domain) is None:
        raise PlanError(field, _shown(name), "not a resource name; write a domain and a name, such as nvidia.com/gpu")
    if len(own) > MAX_NAME:
        raise PlanError(field, _shown(name), f"{len(own)} characters after the slash; {MAX_NAME} are the most")
    if _OWN.fullmatch(own) is None:
        raise PlanError(field, _shown(name), "after the slash only letters, digits, and - _ . inside are allowed")
    if reserved_by_kubernetes(name):
        raise PlanError(field, _shown(name), NOT_EXTENDED)
    if len(name) > MAX_RESOURCE_NAME:
        raise PlanError(field, _shown(name), f"{len(name)} characters; {MAX_RESOURCE_NAME} are the most")
    return name


def is_one(name: str) -> bool:
    """True when the kubelet accepts it as the name of an extended resource."""
    try:
        check("", name)
    except PlanError:
        return False
    return True


def _shown(name: str) -> str:
    return name if len(name) <= 2 * MAX_NAME else name[: 2 * MAX_NAME] + "…"


HASH_CHARACTERS = 8


def device_names(inventory: Inventory) -> dict[str, str]:
    """Id -> name, of every device and partition of the inventory."""
    names: dict[str, str] = {}
    taken = set(inventory.pinned.values())

    def give(id_: str, wanted: str) -> None:
        name = inventory.pinned.get(id_, wanted)
        if id_ not in inventory.pinned and (name in taken or len(name) > MAX_DEVICE_NAME):
            name = f"{wanted[: MAX_DEVICE_NAME - HASH_CHARACTERS - 1].rstrip('-')}-{_hash(id_)}"
        taken.add(name)
        names[id_] = name

    for device in inventory.devices:
        give(device.fact.id, device.fact.name or usual_name(device.fact))
    for device in inventory.devices:
        for part in device.fact.partitions:
            give(part.id, part.name or f"{names[device.fact.id]}-{plain(part.profile)}-{part.index}")
    return names


def usual_name(fact: DeviceFact) -> str:
    """`gpu-<minor>`, the name in NVIDIA's ResourceSlices; by index where there is no minor number."""
    return f"{fact.type.lower()}-{fact.minor if fact.minor is not None else fact.index}"


def plain(profile: str) -> str:
    """`1g.10gb+me` as it may stand in a name, where only letters, digits and dashes may."""
    return "".join(char for char in profile.lower() if char.isalnum())


def _hash(id_: str) -> str:
    return hashlib.sha256(id_.encode()).hexdigest()[:HASH_CHARACTERS]
