"""Schedulable ids: a device's own id, `<id>::<n>` for a share of it, the form that clusters know, `<id>::<unit>.<n>`
for a share that is an amount of memory, or `<id>::core.<n>` for one of a whole device's hundred (core_ids).

The amount is part of the id because it is part of what a pod holds: where the unit changes, no new id is an old one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from nodedevices_common.quantity import to_bytes

SEPARATOR = "::"
CORE = "core"  # where shares of memory have their amount
_SHARE = re.compile(r"(?:(?:[0-9]+[KMGT]?i?|core)[.])?([0-9]+)", re.ASCII)


def compose(base: str, replica: int, unit: str | None = None) -> str:
    """The id of one share: `GPU-...::3`, `GPU-...::1Gi.3`. They count from 0."""
    return f"{base}{SEPARATOR}{unit}.{replica}" if unit else f"{base}{SEPARATOR}{replica}"


def split(schedulable_id: str) -> tuple[str, int | None]:
    """The device's (or partition's) own id, and the share's number if there is one; split at the first `::`.

    What does not end in a share is none of ours: it is returned whole, and matches no device.
    """
    base, separator, share = schedulable_id.partition(SEPARATOR)
    found = _SHARE.fullmatch(share) if separator else None
    return (schedulable_id, None) if found is None else (base, int(found[1]))


def is_core(schedulable_id: str) -> bool:
    """True for one of a device's hundred ids of computing power, which one container has all of: the device is
    whole."""
    return schedulable_id.partition(SEPARATOR)[2].startswith(f"{CORE}.")


def memory_held(schedulable_ids: Iterable[str]) -> dict[str, int]:
    """Device or partition -> how many bytes of its memory these shares are: `GPU-...::1Gi.3` is 1Gi. What is no amount
    of memory is left out."""
    split_at_number = (schedulable.rpartition(".") for schedulable in schedulable_ids)
    found: dict[str, int] = {}
    for of_unit, count in Counter(head for head, _, number in split_at_number if number.isdecimal()).items():
        device, _, unit = of_unit.partition(SEPARATOR)
        if amount := _amount(unit):
            found[device] = found.get(device, 0) + count * amount
    return found


def _amount(unit: str) -> int | None:
    try:
        return to_bytes(unit)
    except ValueError:  # another plugin's id, or one of cores
        return None


def share_of(base: str, schedulable_id: str) -> str:
    """The same share, or the whole, of `base`: what another plugin calls by an index, by our id."""
    share = schedulable_id.partition(SEPARATOR)[2]
    return base if split(schedulable_id)[1] is None else f"{base}{SEPARATOR}{share}"


def physical_id(schedulable_id: str) -> str:
    """Return the device or partition of a held id, by any plugin: `GPU-...` for `GPU-...::3`."""
    return schedulable_id.partition(SEPARATOR)[0]
