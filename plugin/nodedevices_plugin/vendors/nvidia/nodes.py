"""Device nodes: which ones a device needs, by which index it is called, and where they are on the host.

What a GPU needs is what the probe reports. Which other nodes exist (control nodes, IMEX channels, GDRCopy, GDS, MOFED)
is an input, read where the host's /dev is visible: a node that does not exist keeps a container from starting.

Memory shared between GPUs of several nodes needs an IMEX channel in the container. Channel 0 is all there is: NVIDIA's
plugin takes [] or [0], and gives the channel to every container, if its node exists.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Set
from fnmatch import fnmatchcase

from nodedevices_probe.nvidia import DISPLAY_PRODUCTS, VENDOR
from nodedevices_probe.protocol import DeviceFact

from nodedevices_plugin.model import Inventory, InventoryDevice, Unit

TYPES = frozenset({"gpu"})
DEFAULT_PREFIX = "nvidia.com"
# Needed with any GPU; each is passed only if it exists (NVIDIA's plugin alike).
CONTROL_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
NEEDED = CONTROL_NODES[:2]  # without which no program can use a GPU
GPU_NODES = "/dev/nvidia[0-9]*"
# What goes with a GPU on request: nodes by glob, and files of the host (NVIDIA's container toolkit looks for the same).
FEATURE_NODES: Mapping[str, tuple[str, ...]] = {
    "gdrcopy": ("/dev/gdrdrv",),
    "gds": ("/dev/nvidia-fs*",),
    "mofed": ("/dev/infiniband/uverbs*", "/dev/infiniband/rdma_cm"),
}
FEATURE_FILES: Mapping[str, tuple[str, ...]] = {"gds": ("/etc/cufile.json", "/run/udev")}
# All that an adapter has to find besides the devices of the line, as globs.
OPTIONAL_PATHS = (
    *CONTROL_NODES,
    GPU_NODES,
    "/dev/nvidia-caps-imex-channels/channel*",
    *(path for paths in FEATURE_NODES.values() for path in paths),
    *(path for paths in FEATURE_FILES.values() for path in paths),
)


def computing_gpus(devices: Iterable[InventoryDevice]) -> tuple[InventoryDevice, ...]:
    """NVIDIA's GPUs without display adapters, in their order."""
    return tuple(
        device
        for device in devices
        if device.fact.type in TYPES
        and device.fact.vendor == VENDOR
        and device.fact.product_name not in DISPLAY_PRODUCTS
    )


def units_by_id(inventory: Inventory) -> Mapping[str, Unit]:
    """Return GPUs and MIG devices by id. Missing devices are in it with their last facts."""
    gpus = computing_gpus(inventory.devices)
    return {unit.id: unit for device in gpus for unit in (Unit(device), *device.partitions)}


def nodes_of(unit: Unit) -> tuple[str, ...]:
    """`/dev/nvidia<minor>`, and for a MIG device those of its GPU instance and its compute instance."""
    own = unit.partition.device_nodes if unit.partition else ()
    return (*_gpu_nodes(unit.device.fact), *own)


def _gpu_nodes(fact: DeviceFact) -> tuple[str, ...]:
    if fact.device_nodes or fact.minor is None:
        return fact.device_nodes
    return (f"/dev/nvidia{fact.minor}",)


def control_nodes(existing: Set[str]) -> tuple[str, ...]:
    return tuple(path for path in CONTROL_NODES if path in existing)


def seen(existing: Set[str]) -> bool:
    """True when one of NVIDIA's nodes is there; else this agent does not see the host's /dev, since the driver's own
    library needs them as well."""
    return not existing.isdisjoint(CONTROL_NODES) or any(fnmatchcase(path, GPU_NODES) for path in existing)


def missing(fact: DeviceFact, existing: Set[str]) -> tuple[str, ...]:
    """Return what a container with this GPU would lack."""
    of_gpu = (path for path in _gpu_nodes(fact) if fnmatchcase(path, GPU_NODES))
    return tuple(path for path in (*NEEDED, *of_gpu) if path not in existing)


def feature_nodes(feature: str, existing: Set[str]) -> tuple[str, ...]:
    """The nodes of `gdrcopy`, `gds` or `mofed` on this node, sorted; empty: it is not to be had here."""
    globs = FEATURE_NODES[feature]
    return tuple(sorted(path for path in existing if any(fnmatchcase(path, glob) for glob in globs)))


def host_path(root: str, path: str) -> str:
    """Return the path of `/dev/...` on the host, below the root that has the devices: `/run/nvidia/driver/dev/nvidia0`.

    A root may be given with its `/dev` or without.
    """
    base = posixpath.normpath(root or "/")
    if base == "/dev" or base.endswith("/dev"):
        base = base[: -len("/dev")] or "/"
    return posixpath.join(base, path.lstrip("/"))


IMEX_VARIABLE = "NVIDIA_IMEX_CHANNELS"


def imex_node(channel: int) -> str:
    return f"/dev/nvidia-caps-imex-channels/channel{channel}"
