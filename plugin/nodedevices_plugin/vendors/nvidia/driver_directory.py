"""Containers that get the driver itself: its directory on the node, mounted read-only beside device nodes.

So Google's device plugin (container-engine-accelerators) hands GPUs out on nodes without NVIDIA's container runtime: no
variable names the devices, their nodes are all that a container sees of them, and programs find the driver's libraries
where it is mounted. A client of MPS is told its limits by variables, too; Google's plugin computes them from GPU 0's
memory, here they are those of the GPU that was granted.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from nodedevices_common.quantity import MEBIBYTE
from nodedevices_common.text import show

from nodedevices_plugin.model import Mount, OfferedResource, PlanError, SchedulableId, cuda_mps
from nodedevices_plugin.vendors.nvidia.nodes import NEEDED

STRATEGY = "driver-directory"  # of injection.deviceListStrategies
MPS = "mps"  # the sharing mode
DEFAULT = "/home/kubernetes/bin/nvidia"
IN_CONTAINERS, VULKAN_ICD_IN_CONTAINERS = "/usr/local/nvidia", "/etc/vulkan/icd.d"  # as Google's plugin has them


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverDirectory:
    """The driver's path on the node, with the Vulkan ICD in it."""

    path: str = DEFAULT

    def mounts(self) -> tuple[Mount, ...]:
        pairs = ((self.path, IN_CONTAINERS), (f"{self.path}/vulkan/icd.d", VULKAN_ICD_IN_CONTAINERS))
        return tuple(Mount(container_path=inside, host_path=host) for host, inside in pairs)


def at(text: str) -> DriverDirectory:
    """The directory that --driver-directory names. Raises PlanError."""
    plain = posixpath.normpath(text) if text else ""
    if not plain.startswith("/") or plain.strip("/") == "" or any(ord(char) < ord(" ") for char in plain):
        raise PlanError("--driver-directory", show(text), "give the absolute path of a directory other than /")
    return DriverDirectory(path="/" + plain.lstrip("/"))


def check_alone(strategies: Sequence[str]) -> None:
    """Raises PlanError where it is beside another strategy; of a policy's the API server says so."""
    if STRATEGY in strategies and set(strategies) != {STRATEGY}:
        hint = f"each of the others would bring the driver once more; give {STRATEGY} alone, or leave it out"
        raise PlanError("deviceListStrategy", ", ".join(strategies), hint)


def check(existing: Set[str]) -> None:
    """Raises PlanError where containers would start without what every GPU needs, as Google's plugin waits for it."""
    missing = [path for path in NEEDED if path not in existing]
    if missing:
        do = "do" if len(missing) > 1 else "does"
        hint = (
            f"{' and '.join(missing)} {do} not exist on this node, or this agent does not see the host's /dev; wait "
            "for the driver's installer, or add the component driver-directory"
        )
        raise PlanError("injection.deviceListStrategies", STRATEGY, hint)


def mps_limits(
    resource: OfferedResource, granted: Sequence[SchedulableId], memory: Mapping[str, int]
) -> Mapping[str, str]:
    """Variables with the limits of an MPS client: its shares' part of the threads, and of the memory of each GPU, by
    the number that the GPU has in the container. `memory`: in bytes, by device id, in the order of those numbers."""
    shares = Counter(schedulable.device_id for schedulable in granted if schedulable.replica is not None)
    replicas = resource.sharing.replicas
    if resource.sharing.name != MPS or not replicas or not shares:
        return {}
    gpus = [id_ for id_ in memory if id_ in shares]
    limits = [(place, memory[id_] * shares[id_] // replicas // MEBIBYTE) for place, id_ in enumerate(gpus)]
    threads = {cuda_mps.THREAD_PERCENTAGE: str(min(shares.values()) * 100 // replicas)}
    by_number = ",".join(f"{place}={limit}M" for place, limit in limits if limit)
    return threads | ({cuda_mps.MEMORY_LIMIT: by_number} if by_number else {})
