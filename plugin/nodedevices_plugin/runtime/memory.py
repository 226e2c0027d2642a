"""Gives memory that is only kept for later back to the kernel.

Loading the API client leaves about 10 MiB free inside glibc's heap, which it would keep for good. On another libc
nothing happens.
"""

from __future__ import annotations

import asyncio
import ctypes

from nodedevices_plugin.runtime.worker import Worker

FIRST_SECONDS = 8.0  # after the start: everything is loaded by then
AGAIN_SECONDS = 600.0


async def keep_small(worker: Worker) -> None:
    """Until cancelled: once after the start, then now and then."""
    await asyncio.sleep(FIRST_SECONDS)
    while True:
        await worker.run(trim)
        await asyncio.sleep(AGAIN_SECONDS)


def trim() -> None:
    """malloc_trim(3): takes some milliseconds, without the interpreter's lock."""
    try:
        release = ctypes.CDLL("libc.so.6").malloc_trim
    except (OSError, AttributeError):
        return
    release(0)
