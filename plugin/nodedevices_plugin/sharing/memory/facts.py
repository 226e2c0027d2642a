"""The facts that this mode keeps with a resource that it shares."""

from __future__ import annotations

from collections.abc import Mapping

from nodedevices_plugin.model import ContainerEdits, SharingFacts


class MemoryFacts(SharingFacts, frozen=True, kw_only=True):
    """Of each device or partition, by id: `indices`, NVML's, and `units`, how many shares it is divided into.
    `container`: what the policy gives each container with shares besides; values may hold $(WORD) (container)."""

    indices: Mapping[str, str]
    units: Mapping[str, int]
    container: ContainerEdits
