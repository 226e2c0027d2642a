"""The variables by which every container with shares of memory is told its limit. A courtesy: nothing enforces it."""

from __future__ import annotations

from nodedevices_common.quantity import MEBIBYTE

from nodedevices_plugin.sharing.memory.grant import MemoryGrant


def variables(grant: MemoryGrant) -> dict[str, str]:
    return {
        "NODEDEVICES_MEMORY_LIMIT_MIB": str(grant.limit_bytes // MEBIBYTE),
        "NODEDEVICES_MEMORY_TOTAL_MIB": str(grant.total_bytes // MEBIBYTE),
        "NODEDEVICES_MEMORY_FRACTION": fraction(grant.limit_bytes, grant.total_bytes),
        "NODEDEVICES_MEMORY_UNITS": str(grant.units),
        "NODEDEVICES_MEMORY_DEVICE": grant.device,
    }


def fraction(limit: int, total: int) -> str:
    """Return it with four decimals, rounded down: a program that keeps to it stays within its limit."""
    parts = limit * 10_000 // total
    return f"{parts // 10_000}.{parts % 10_000:04d}"
