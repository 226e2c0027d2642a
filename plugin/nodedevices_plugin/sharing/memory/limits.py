"""The limits of a client of an MPS control daemon, where MPS enforces shares of memory.

The container's variables set the limits of its CUDA processes, and the driver enforces them; each process is a client
with limits of its own. They can only lower what the daemon allows (CUDA documentation, Multi-Process Service), which
for shares of memory is all memory that is divided and all threads (mps.DaemonKind): the daemon cannot know how much a
client has, and a lower default would limit clients that hold more. So a program that unsets its variables has only the
daemon's limit.
"""

from __future__ import annotations

from nodedevices_common.quantity import MEBIBYTE

from nodedevices_plugin.model import cuda_mps
from nodedevices_plugin.sharing.memory.grant import MemoryGrant


def variables(grant: MemoryGrant) -> dict[str, str]:
    """`0` is the GPU as the container counts: it sees one."""
    memory, percentage = {cuda_mps.MEMORY_LIMIT: f"0={grant.limit_bytes // MEBIBYTE}M"}, thread_percentage(grant)
    return memory if percentage is None else memory | {cuda_mps.THREAD_PERCENTAGE: str(percentage)}


def thread_percentage(grant: MemoryGrant) -> int | None:
    """The part of the GPU's threads that goes with its shares of memory, rounded down, so that all containers together
    have no more than all; 1 is the least that MPS knows. Where computing power is shared on its own it is that part,
    and None, no limit, where the container is not known yet: its demand may be the larger one."""
    if grant.cores_shared:
        return grant.cores
    return max(1, 100 * grant.units // grant.device_units)
