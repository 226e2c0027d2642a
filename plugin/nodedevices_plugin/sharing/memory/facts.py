"""The facts that this mode keeps with a resource that it shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nodedevices_plugin.model import ContainerEdits, SharingFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFacts(SharingFacts):
    """`indices`: of each device or partition, by id, NVML's. `container`: what the policy gives each container with
    shares besides; values may hold $(WORD) (container)."""

    indices: Mapping[str, str]
    container: ContainerEdits
