"""The memory that one container has of a device: the value from which the forms of its limit are made.

Each form in which programs read a limit is its own module of pure functions from this value: our variables
(memory_variables), those that the resource's name brings (memory_presets). memory.py puts them together.
"""

from __future__ import annotations

from msgspec import Struct

from nodedevices_plugin.model import Grant
from nodedevices_plugin.sharing.memory.facts import MemoryFacts


class MemoryGrant(Struct, frozen=True, kw_only=True):
    """`resource`: the name under which it was requested. device, index: of the GPU or partition, index as NVML counts.
    total_bytes: all its memory; device_units: how many shares it is divided into. units, limit_bytes: the container's.
    cores_shared: whether computing power is shared as well; cores: then its percentage, where it is certain.
    """

    resource: str
    device: str
    index: str
    total_bytes: int
    device_units: int
    units: int
    limit_bytes: int
    cores_shared: bool
    cores: int | None = None


def memory_grant(grant: Grant) -> MemoryGrant | None:
    """Return the memory of shares of one device; None: its memory is not known."""
    resource, facts = grant.resource, grant.resource.sharing
    device, memory = grant.ids[0].part_id, facts.memory
    if not isinstance(facts, MemoryFacts) or memory is None or device not in memory.devices:
        return None
    return MemoryGrant(
        resource=resource.name,
        device=device,
        index=facts.indices[device],
        total_bytes=memory.devices[device],
        device_units=facts.units[device],
        units=len(grant.ids),
        limit_bytes=len(grant.ids) * memory.unit_bytes,
        cores_shared=facts.cores,
        cores=grant.cores,
    )
