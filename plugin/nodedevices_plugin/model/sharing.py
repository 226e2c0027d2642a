"""How a resource is shared, as its sharing mode decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryShares:
    """Shares that are amounts of memory: a container requests as many as it needs. `unit`: what one share is, as ids
    and messages have it (1Gi); `devices`: all memory of each device or partition, in bytes, by id."""

    unit: str
    unit_bytes: int
    devices: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingFacts:
    """How one resource is shared: made by its mode (sharing.base.SharingMode.split), and given back to it unchanged.

    The fields here may be asked of every mode. What only one mode needs is a field of its own record, which derives
    from this one; nobody else reads it.
    """

    mode: str  # none | timeSlicing | mps | memory; shared: by its nature (vendors.base.OwnShares)
    replicas: int | None = None  # how many shares each device has, where that is one number for all of them
    memory: MemoryShares | None = None
    packing: str | None = None  # a container's are of one device: the fullest (binpack) or emptiest (spread)
    enforcement: str = "none"  # the mode whose helper keeps containers to their shares, where this one has none
    cores: bool = False  # computing power is shared as well (cores.ledger)


NOT_SHARED = SharingFacts(mode="none")
