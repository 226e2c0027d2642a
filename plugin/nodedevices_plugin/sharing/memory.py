"""Sharing by memory: a share is an amount of one device's memory, and a container requests as many as it needs.

Every share belongs to one device, which its id says, so the kubelet's own record of ids is the whole accounting: no
annotation, no lock, no guess which pod an Allocate is for. All shares of one container are of one device
(granting.packing). What a container gets for them: memory_container.
"""

from __future__ import annotations

from nodedevices_common.quantity import MEBIBYTE, from_bytes, to_bytes

from nodedevices_plugin.model import ContainerEdits, Grant, OfferedResource, PlanError, Unit
from nodedevices_plugin.sharing import memory_container, mps
from nodedevices_plugin.sharing.base import (
    NodeTraits,
    Settings,
    SharingMode,
    Split,
    SplitRequest,
    device_ids,
    memory_shares,
    merged,
)
from nodedevices_plugin.sharing.memory_container import MemoryFacts

NAME = "memory"
SHARES_NAME = "nodedevices.io/gpu-memory"
_UNENFORCED = "use enforcement none"
LEAST_UNIT = MEBIBYTE  # limits are told in MiB


class Memory(SharingMode, frozen=True):
    name = NAME
    shares_name = SHARES_NAME

    def check(self, node: NodeTraits) -> None:
        """Always possible, but for what a rule's enforcement needs."""
        for rule in node.rules:
            if rule.enforcement == mps.NAME:
                mps.check_node(f"sharing.resources[{rule.name}].enforcement", node, instead=_UNENFORCED)

    def split(self, request: SplitRequest) -> Split:
        """Split each device by its own memory: a node may have several models. A device without known memory has no
        shares."""
        place, given = f"{request.place}.memoryUnit", request.rule.unit_of_memory or "0"
        unit = to_bytes(given)
        if unit < LEAST_UNIT or unit % MEBIBYTE:
            raise PlanError(place, given, "give whole MiB, such as 1Gi")
        if not request.renamed:
            hint = f"memory has shares of a name of their own; leave rename out for {SHARES_NAME}"
            raise PlanError(f"{request.place}.rename", request.rule.rename, hint)
        enforced_by = mps.Mps() if request.rule.enforcement == mps.NAME else None
        if enforced_by is not None:
            mps.check_name(request)
            mps.check_units(f"{request.place}.enforcement", request.units, instead=_UNENFORCED)
        reserve = to_bytes(request.rule.memory_reserve or "0")
        small = [candidate for candidate in request.units if 0 < candidate.memory_bytes < reserve + unit]
        if small:
            raise PlanError(place, given, _too_large(small[0], reserve), devices=device_ids(small))
        counts = tuple(max(0, (device.memory_bytes - reserve) // unit) for device in request.units)
        return Split(
            counts=counts,
            sharing=MemoryFacts(
                mode=self,
                memory=memory_shares(unit, request.units),
                packing=request.rule.packing or "binpack",
                enforced_by=enforced_by,
                cores=bool(request.rule.cores),
                indices={device.id: device.index for device in request.units},
                units={device.id: count for device, count in zip(request.units, counts, strict=True)},
                container=memory_container.template(request.rule.container),
            ),
            numa=bool(request.rule.numa),
        )

    def edits(self, grant: Grant, settings: Settings) -> ContainerEdits:
        """The limit, in forms that programs read; shares of one container are of one device."""
        resource, facts, has = grant.resource, grant.resource.sharing, memory_container.memory_grant(grant)
        if has is None or not isinstance(facts, MemoryFacts):
            return ContainerEdits()
        parts = [
            memory_container.edits(facts.container, has, settings),
            ContainerEdits(envs=memory_container.variables(has)),
        ]
        if facts.enforced_by is not None:
            parts += [
                ContainerEdits(envs=memory_container.mps_variables(has)),
                mps.client_edits(resource, settings),
            ]
        return merged(parts)

    def refusal(self, resource: OfferedResource, settings: Settings) -> PlanError | None:
        facts = resource.sharing
        return memory_container.refusal(facts.container, settings) if isinstance(facts, MemoryFacts) else None


def _too_large(unit: Unit, reserve: int) -> str:
    left = f"{from_bytes(unit.memory_bytes)} of memory" + (f", {from_bytes(reserve)} of it reserved" if reserve else "")
    return f"{unit.id} has {left}: give a smaller unit, or leave the device out (devices, match)"
