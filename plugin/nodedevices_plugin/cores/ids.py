"""Computing power as a resource of its own, as gpu-manager's tencent.com/vcuda-core: 100 for each GPU.

A container that shares a GPU requests 1 to 99 beside an amount of memory. The memory's ids decide which GPU it has, and
the kubelet allocates the two resources in any order. So the 100 ids for each shared GPU belong to no device: they are
counted, and a container gets nothing for them. They cannot contradict the memory's ids. For each shared GPU that no
container can get 100 of them are blocked (gates.apply), held ones last.

A multiple of 100 requests whole GPUs: those of the resource that are not shared. All 100 ids of one go to the same
container (`GPU-...::core.3`). The kubelet allocates the ids of our answer, but where exactly as many are free as are
requested it does not ask: so Allocate checks again.

Tells a container its part of shared computing power: by a variable where that is certain at its allocation, and
always by a file, which is written before it starts (host.cores).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import PurePosixPath

from nodedevices_plugin.model import AllocationError, ContainerEdits, Mount, OfferedResource, SchedulableId, ids

PER_DEVICE = 100
COUNTED = "shared"  # before the ids of no device

Closest = Callable[[Sequence[SchedulableId], Sequence[SchedulableId], int], Sequence[SchedulableId]]


def counted(devices: int) -> tuple[SchedulableId, ...]:
    """The ids that go with shares of so many devices."""
    return tuple(
        SchedulableId(id=ids.compose(COUNTED, number, ids.CORE), device_id="") for number in range(devices * PER_DEVICE)
    )


def prefer(
    resource: OfferedResource, known: Sequence[SchedulableId], must_include: frozenset[str], size: int, closest: Closest
) -> tuple[str, ...]:
    """`size` of the known ids, `must_include` (what an init container of the pod had) among them: ids of no device, or
    all ids of free devices, those that are connected best (`closest`: which to add to some, and how many).
    Raises AllocationError."""
    _check_size(resource, size)
    must = [schedulable for schedulable in known if schedulable.id in must_include]
    if size < PER_DEVICE:
        free = [schedulable.id for schedulable in known if not schedulable.device_id]
        if any(schedulable.device_id for schedulable in must):
            raise AllocationError(_init_containers(resource))
        if len(free) < size:
            raise AllocationError(_none_to_share(resource, size, len(free)))
        others = [id_ for id_ in free if id_ not in must_include]
        chosen = {*must_include, *others[: size - len(must)]}
        return tuple(id_ for id_ in free if id_ in chosen)
    whole, wanted = _complete(resource, known), size // PER_DEVICE
    anchors = dict.fromkeys(schedulable.part_id for schedulable in must)
    if any(anchor not in whole for anchor in anchors) or len(anchors) > wanted:
        raise AllocationError(_init_containers(resource))
    if len(whole) < wanted:
        raise AllocationError(_none_whole(resource, wanted, len(whole)))
    first = [whole[anchor] for anchor in anchors]
    others_first = [schedulable for part, schedulable in whole.items() if part not in anchors]
    parts = {schedulable.part_id for schedulable in (*first, *closest(first, others_first, wanted - len(first)))}
    return tuple(schedulable.id for schedulable in known if schedulable.part_id in parts)


def check(resource: OfferedResource, granted: Sequence[SchedulableId]) -> None:
    """Raises AllocationError unless these are ids of no device, fewer than 100, or all ids of some devices."""
    _check_size(resource, len(granted))
    free = [schedulable for schedulable in granted if not schedulable.device_id]
    if len(granted) < PER_DEVICE:
        if len(free) < len(granted):
            raise AllocationError(_none_to_share(resource, len(granted), len(free)))
        return
    whole = _complete(resource, granted)
    if len(whole) * PER_DEVICE < len(granted):
        raise AllocationError(_none_whole(resource, len(granted) // PER_DEVICE, len(whole)))


def is_counted(granted: Sequence[SchedulableId]) -> bool:
    """True for ids of no device alone, for which a container gets nothing."""
    return bool(granted) and not any(schedulable.device_id for schedulable in granted)


def _complete(resource: OfferedResource, known: Sequence[SchedulableId]) -> Mapping[str, SchedulableId]:
    """The devices and partitions of which all ids are among the known, with one of these each."""
    found = Counter(schedulable.part_id for schedulable in known if schedulable.device_id)
    return {
        schedulable.part_id: schedulable for schedulable in known if found[schedulable.part_id] == resource.per_device
    }


def _check_size(resource: OfferedResource, size: int) -> None:
    whole, rest = divmod(size, PER_DEVICE)
    if whole and rest:
        raise AllocationError(
            f"{resource.name}: {size} requested; request 1 to {PER_DEVICE - 1} with an amount of GPU memory to share a "
            f"GPU, or a multiple of {PER_DEVICE} for whole GPUs, such as {whole * PER_DEVICE}."
        )


def _none_to_share(resource: OfferedResource, size: int, free: int) -> str:
    shared = sum(not schedulable.device_id for schedulable in resource.ids)
    do = "Delete the pod, so that it is scheduled again" if shared else "No GPU of this node is shared"
    return f"{resource.name}: {size} requested of shared GPUs, but only {free} of {shared} on this node are free. {do}."


def _none_whole(resource: OfferedResource, wanted: int, free: int) -> str:
    total = len({schedulable.part_id for schedulable in resource.ids if schedulable.device_id})
    do = "Delete the pod, so that it is scheduled again" if total >= wanted else "The others are shared: request fewer"
    return (
        f"{resource.name}: {wanted * PER_DEVICE} requested, whole GPUs: {wanted}, but only {free} of the {total} that "
        f"this node gives whole are free. {do}."
    )


def _init_containers(resource: OfferedResource) -> str:
    return (
        f"{resource.name}: the pod's init containers have only a part of what this container requests; request the "
        "same in init containers and containers."
    )


CONTAINER_PATH = "/etc/nodedevices"
FILE = "allocation.json"
VARIABLE = "NODEDEVICES_CORES"


def key(ids: Collection[str]) -> str:
    """The name of the folder of one container's ids."""
    return hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest()[:32]


def edits(folder: str, ids: Collection[str], cores: int | None) -> ContainerEdits:
    """`cores`: None where it is not certain."""
    variables = {} if cores is None else {VARIABLE: str(cores)}
    mount = Mount(container_path=CONTAINER_PATH, host_path=str(PurePosixPath(folder, key(ids))), read_only=True)
    return ContainerEdits(envs=variables, mounts=(mount,))
