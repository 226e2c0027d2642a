"""What a client of an MPS control daemon may have of a GPU, where MPS enforces shares of memory. Pure.

The container's variables set the limits of its CUDA processes, and the driver enforces them; each process is a client
with limits of its own. They can only lower what the daemon allows (CUDA documentation, Multi-Process Service), which
for shares of memory is all memory that is divided and all threads (mps.DaemonKind): the daemon cannot know how much a
client has, and a lower default would be the limit of those who hold more. So a program that unsets its variables is
held to nothing but that.
"""

from __future__ import annotations

from nodedevices_api.quantity import MEBIBYTE

from nodedevices_plugin.sharing.memory_grant import MemoryGrant

MEMORY = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
THREADS = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"


def variables(grant: MemoryGrant) -> dict[str, str]:
    """`0` is the GPU as the container counts: it sees one."""
    return {
        MEMORY: f"0={grant.limit_bytes // MEBIBYTE}M",
        THREADS: str(thread_percentage(grant.units, grant.device_units)),
    }


def thread_percentage(units: int, of: int) -> int:
    """The part of a GPU's threads that goes with so many of its shares, rounded down, so that all together have no
    more than all; 1 is the least that MPS knows."""
    return max(1, 100 * units // of)
