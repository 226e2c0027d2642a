"""How a resource is shared, as its sharing mode decided."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct

WHOLE = "none"  # what the way to share is called where there is none


class Mode(Protocol):
    """A sharing mode (sharing.base.SharingMode), as far as what knows none of them has to know it."""

    @property
    def name(self) -> str: ...


class MemoryShares(Struct, frozen=True, kw_only=True):
    """Shares that are amounts of memory: a container requests as many as it needs. `unit`: what one share is, as ids
    and messages have it (1Gi); `devices`: all memory of each device or partition, in bytes, by id."""

    unit: str
    unit_bytes: int
    devices: Mapping[str, int]


class SharingFacts(Struct, frozen=True, kw_only=True):
    """How one resource is shared: made by its mode (sharing.base.SharingMode.split), and given back to it unchanged.

    The fields here exist for every mode. A fact that only one mode needs is a field of its own record, which derives
    from this one, and only that mode reads it.
    """

    mode: Mode | None = None  # None: its devices are handed out whole
    replicas: int | None = None  # how many shares each device has, where that is one number for all of them
    memory: MemoryShares | None = None
    packing: str | None = None  # a container's are of one device: the fullest (binpack) or emptiest (spread)
    enforced_by: Mode | None = None  # keeps containers to their shares, where this mode does not
    cores: bool = False  # computing power is shared as well (cores.ledger)

    @property
    def name(self) -> str:
        """none | timeSlicing | mps | memory; shared: by its nature (Vendor.shares)."""
        return WHOLE if self.mode is None else self.mode.name


NOT_SHARED = SharingFacts()
