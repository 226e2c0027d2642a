"""Sharing by memory: a share is an amount of one device's memory, and a container requests as many as it needs.

Every share belongs to one device, which its id says, so the kubelet's own record of ids is the whole accounting: no
annotation, no lock, no guess which pod an Allocate is for. All shares of one container are of one device
(resources.packing). Nothing here keeps a program from using more: its limit is told to it by variables.
"""

from __future__ import annotations

from collections.abc import Sequence

from nodedevices_api.quantity import MEBIBYTE, from_bytes, to_bytes

from nodedevices_plugin.model import ContainerEdits, OfferedResource, PlanError, SchedulableId, Unit
from nodedevices_plugin.sharing.base import NodeTraits, Request, Settings, Split

NAME = "memory"
SHARES_NAME = "nodedevices.io/gpu-memory"
LEAST_UNIT = MEBIBYTE  # limits are told in MiB
ALIYUN = "aliyun.com/gpu-mem"


class Memory:
    name = NAME
    shares_name = SHARES_NAME
    helper = None

    def check(self, node: NodeTraits) -> None:
        """Always possible."""

    def split(self, request: Request) -> Split:
        """Each device by its own memory: a node may have several models. One whose memory its probe does not say, or
        has not said yet, has no shares."""
        unit = _bytes(request.rule.memory_unit, f"{request.place}.memoryUnit")
        if unit < LEAST_UNIT or unit % MEBIBYTE:
            raise PlanError(f"{request.place}.memoryUnit", request.rule.memory_unit, "give whole MiB, such as 1Gi")
        if not request.renamed:
            hint = f"memory has shares of a name of their own; leave rename out for {SHARES_NAME}"
            raise PlanError(f"{request.place}.rename", request.rule.rename, hint)
        reserve = to_bytes(request.rule.memory_reserve or "0")
        for each in request.units:
            if 0 < each.memory_bytes < reserve + unit:
                raise PlanError(f"{request.place}.memoryUnit", request.rule.memory_unit, _too_large(each, reserve))
        return Split(
            counts=tuple(max(0, each.memory_bytes - reserve) // unit for each in request.units),
            unit=from_bytes(unit),
            spread=request.rule.packing == "spread",
            numa=bool(request.rule.numa),
        )

    def edits(self, resource: OfferedResource, granted: Sequence[SchedulableId], settings: Settings) -> ContainerEdits:
        """The limit, in forms that programs read; `granted` is of one device."""
        memory, device = resource.memory, granted[0].partition_id or granted[0].device_id
        if memory is None or device not in memory.devices:
            return ContainerEdits()
        total, index = memory.devices[device]
        limit = len(granted) * memory.unit_bytes
        envs = {
            "NODEDEVICES_MEMORY_LIMIT_MIB": str(limit // MEBIBYTE),
            "NODEDEVICES_MEMORY_TOTAL_MIB": str(total // MEBIBYTE),
            "NODEDEVICES_MEMORY_FRACTION": fraction(limit, total),
            "NODEDEVICES_MEMORY_UNITS": str(len(granted)),
            "NODEDEVICES_MEMORY_DEVICE": device,
        }
        return ContainerEdits(envs=envs | _aliyun(resource, device, index, len(granted)))


def fraction(limit: int, total: int) -> str:
    """With four decimals, rounded down: a program that keeps to it stays within its limit."""
    parts = limit * 10_000 // total
    return f"{parts // 10_000}.{parts % 10_000:04d}"


def _aliyun(resource: OfferedResource, device: str, index: str, units: int) -> dict[str, str]:
    """Those of Aliyun's GPU share, where its resource's name is used. `_POD` is the container's, as nobody knows whose
    Allocate it is."""
    if resource.name != ALIYUN:
        return {}
    of_device = sum((each.partition_id or each.device_id) == device for each in resource.ids)
    prefix = "ALIYUN_COM_GPU_MEM"
    return {
        f"{prefix}_IDX": index,
        f"{prefix}_CONTAINER": str(units),
        f"{prefix}_POD": str(units),
        f"{prefix}_DEV": str(of_device),
    }


def _bytes(quantity: str | None, place: str) -> int:
    if quantity is None:
        raise PlanError(place, "absent", "memory needs memoryUnit, such as 1Gi")
    return to_bytes(quantity)


def _too_large(unit: Unit, reserve: int) -> str:
    left = f"{from_bytes(unit.memory_bytes)} of memory" + (f", {from_bytes(reserve)} of it reserved" if reserve else "")
    return f"{unit.id} has {left}: give a smaller unit, or leave the device out (devices)"
