"""Shares that are amounts of memory: all that one container gets are of one device.

The kubelet knows ids and no devices. It asks which of the free ids are best (GetPreferredAllocation), and allocates
those of the answer. Where it aligns shares by NUMA nodes and needs all ids of some nodes, it takes these without
asking, so Allocate checks again. Either refusal ends the pod's admission, with a text that shows how much each device
has.

Only the ids in the kubelet's request count as free; nothing is remembered here. So two answers that cross cannot give a
share twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from nodedevices_common.pod_requests import choose

from nodedevices_plugin.cores.ledger import Room
from nodedevices_plugin.model import AllocationError, OfferedResource, SchedulableId

SHOWN = 8  # devices in one message
SAME_AMOUNT = "request the same amount in init containers and containers."


def pack(
    resource: OfferedResource,
    known: Sequence[SchedulableId],
    must_include: frozenset[str],
    size: int,
    room: Room | None = None,
) -> tuple[str, ...]:
    """`size` of the known ids, all of one device, `must_include` (what an init container of the pod had) among them: of
    the devices with room the fullest (`spread`: the emptiest), of equals the first by index. `room`: where computing
    power is shared, too. Raises AllocationError where no device has room."""
    free: dict[str, list[SchedulableId]] = {}
    for schedulable in known:
        free.setdefault(schedulable.part_id, []).append(schedulable)
    anchors = {schedulable.part_id for schedulable in known if schedulable.id in must_include}
    if len(anchors) > 1:
        raise AllocationError(
            f"{resource.name}: the init containers of this pod have shares of {_several(anchors)}; {SAME_AMOUNT}"
        )
    counts = {part: len(ids) for part, ids in free.items()}
    spread = resource.sharing.packing == "spread"
    best = choose(
        counts,
        size,
        spread=spread,
        among=lambda device: (not anchors or device in anchors) and (room is None or room.has(device)),
    )
    if best is None:
        anywhere = choose(counts, size, spread=spread, among=None if room is None else room.has)
        for anchor in anchors:
            if anywhere is not None and counts[anchor] < size:
                raise AllocationError(  # another device has room, and this pod is bound to one
                    f"{resource.name}: the init containers of this pod have shares of {anchor}, which has "
                    f"{counts[anchor]} for this pod; {size} are requested: {SAME_AMOUNT}"
                )
        raise AllocationError(no_room(resource, counts, size, room))
    own = [schedulable.id for schedulable in free[best]]
    others = [id_ for id_ in own if id_ not in must_include]
    chosen = {*must_include, *others[: size - len(must_include)]}
    return tuple(id_ for id_ in own if id_ in chosen)


def check(resource: OfferedResource, granted: Iterable[SchedulableId]) -> None:
    """Raises AllocationError for shares of several devices."""
    devices = {schedulable.part_id for schedulable in granted}
    if len(devices) > 1:
        raise AllocationError(
            f"{resource.name}: the free shares of this node are on {_several(devices)}, and a container's are of one "
            "device. Delete the pod, so that it is scheduled again; a smaller request fits sooner."
        )


def no_room(resource: OfferedResource, free: Mapping[str, int], size: int, room: Room | None = None) -> str:
    """Return the message for the pod's owner."""
    memory = resource.sharing.memory
    unit = f" of {memory.unit}" if memory is not None else ""
    most = max(Counter(schedulable.part_id for schedulable in resource.ids).values(), default=size)
    power = {} if room is None else {part: f" and {room.left_text(part)}" for part in free}
    shown = ", ".join(f"{part}: {count}{power.get(part, '')}" for part, count in list(free.items())[:SHOWN])
    more = f" and {len(free) - SHOWN} more devices" if len(free) > SHOWN else ""
    left = f"free are {shown}{more}" if free else "none is free"
    do = (
        "delete the pod, so that it is scheduled again"
        if size <= most
        else f"the largest device has {most}: request fewer"
    )
    also = f" and {room.needed_text}" if room is not None else ""
    return f"{resource.name}: no device of this node has {size} free shares{unit}{also}; {left}; {do}."


def _several(devices: Iterable[str]) -> str:
    named = sorted(devices)
    return f"{len(named)} devices ({', '.join(named[:SHOWN])})"
