"""Device nodes: which ones a device needs, by which index it is called, and where they are on the host.

What a GPU needs is what the probe reports. Which other nodes exist (control nodes, IMEX channels, GDRCopy, GDS, MOFED)
is an input, read where the host's /dev is visible: a node that does not exist keeps a container from starting.

Memory shared between GPUs of several nodes needs an IMEX channel in the container. Channel 0 is all there is: NVIDIA's
plugin takes [] or [0], and gives the channel to every container, if its node exists.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence, Set
from fnmatch import fnmatchcase

from msgspec import Struct
from nodedevices_probe.protocol import DeviceFact

from nodedevices_plugin.model import Inventory, PlanError, Unit
from nodedevices_plugin.vendors.base import partitions
from nodedevices_plugin.vendors.nvidia.units import computing_gpus

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


class Handle(Struct, frozen=True):
    """How a runtime identifies a device or MIG device: NVML's index (`3`, `3:1`) and its device nodes. And its
    memory."""

    index: str
    nodes: tuple[str, ...]
    memory_bytes: int


def handles(inventory: Inventory) -> Mapping[str, Handle]:
    """Device or MIG device id -> its handle. Missing devices are in it with their last facts."""
    found: dict[str, Handle] = {}
    for device in computing_gpus(inventory.devices):
        for unit in (Unit(device), *partitions(device)):
            found[unit.id] = Handle(unit.index, nodes_of(unit), unit.memory_bytes)
    return found


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


def feature_files(feature: str, existing: Set[str]) -> tuple[str, ...]:
    return tuple(path for path in FEATURE_FILES.get(feature, ()) if path in existing)


def host_path(root: str, path: str) -> str:
    """Return the path of `/dev/...` on the host, below the root that has the devices: `/run/nvidia/driver/dev/nvidia0`.

    A root may be given with its `/dev` or without.
    """
    base = posixpath.normpath(root or "/")
    if base == "/dev" or base.endswith("/dev"):
        base = base[: -len("/dev")] or "/"
    return posixpath.join(base, path.lstrip("/"))


IMEX_VARIABLE = "NVIDIA_IMEX_CHANNELS"
_FOLDER = "/dev/nvidia-caps-imex-channels"


def imex_node(channel: int) -> str:
    """`/dev/nvidia-caps-imex-channels/channel0`."""
    return f"{_FOLDER}/channel{channel}"


def imex_channel_ids(values: Sequence[str | int]) -> tuple[int, ...]:
    """Return the channels that `imex.channelIDs` selects. Raises PlanError for anything but [] and [0]."""
    requested = tuple(dict.fromkeys(str(value).strip() for value in values))
    if requested not in {(), ("0",)}:
        shown = ", ".join(channel[:32] for channel in requested[:4])
        raise PlanError("imex.channelIDs", shown, "only channel 0 can be requested; give [0] or []")
    return tuple(int(channel) for channel in requested)


def imex_present(requested: Sequence[int], existing: Set[str], *, required: bool) -> tuple[int, ...]:
    """The channels that containers get here. Raises PlanError where a required one does not exist on the node."""
    found = tuple(channel for channel in requested if imex_node(channel) in existing)
    for channel in requested:
        if required and channel not in found:
            hint = f"{imex_node(channel)} does not exist on this node; start nvidia-imex, or set imex.required to false"
            raise PlanError("imex.channelIDs", channel, hint)
    return found
