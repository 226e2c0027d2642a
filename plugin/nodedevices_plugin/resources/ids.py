"""Schedulable ids: a device's own id, or `<id>::<replica>` for a share of it, the form that clusters know."""

from __future__ import annotations

SEPARATOR = "::"


def compose(base: str, replica: int) -> str:
    """The id of one share: `GPU-...::3`. Replicas count from 0."""
    return f"{base}{SEPARATOR}{replica}"


def split(schedulable_id: str) -> tuple[str, int | None]:
    """The device's (or partition's) own id, and the replica if there is one; split at the first `::`.

    What does not end in a number is no replica of ours: it is returned whole, and matches no device.
    """
    base, separator, replica = schedulable_id.partition(SEPARATOR)
    if separator and replica.isascii() and replica.isdecimal():
        return base, int(replica)
    return schedulable_id, None


def physical_id(schedulable_id: str) -> str:
    """`GPU-...::3` -> `GPU-...`: the device or partition of an id that somebody holds, whosever plugin wrote it."""
    return schedulable_id.partition(SEPARATOR)[0]
