"""Conflicts that the kubelet's list of holders shows, and no single Allocate can know: containers of which two
resources set one variable to different values, and devices that two pods hold.

The kubelet calls Allocate for each resource, and does not say for which container. Where two answers to one container
set the same variable, it keeps one of them, whichever (kubelet devicemanager, deviceRunContainerOptions). So who has
MIG devices of two profiles by NVIDIA_VISIBLE_DEVICES sees those of one, and holds both. It is found once the kubelet
lists the container, and said there. Devices that are given by CDI names are seen all the same.

The kubelet decides which id goes to which container, and it can be wrong: one that has lost its checkpoint takes the
devices of running pods for free, one whose checkpoint was restored gives them away by an old record, and a List at the
wrong moment drops an allocation that is under way (kubernetes/kubernetes#137534, open in March 2026). It is answered
nevertheless: only the kubelet knows which pods have ended, every List is older than its request, and a refusal for what
an old List says would fail each pod that follows another one on its device.

So an Allocate is compared by the Lists after it, the first of which is called within a second. What two Lists in a row
show is certain: one is put together pod by pod, while the kubelet ends and admits others. A container that restarts,
and containers of one pod that have the same ids one after the other (init containers), are no two holders. Nor are the
pods of one claim, nor a pod that has ended and is listed still: the kubelet takes its devices from it before it lists
or allocates them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace
from nodedevices_common.grouping import grouped
from nodedevices_common.text import some

from nodedevices_plugin.granting.answers import NodeContainers, edits
from nodedevices_plugin.model import (
    DRA_DRIVER,
    AllocationError,
    ContainerEdits,
    Grant,
    HealthState,
    Holder,
    OfferedResource,
    Plan,
    Verdict,
    is_core,
)
from nodedevices_plugin.offering.occupancy import HeldId

REASON = "EnvironmentConflict"
NAMED = 4  # resources, and variables, in a message
Conflicts = Mapping[tuple[str, str, str, str], Verdict]  # by namespace, pod, container and resource


def conflicts(plan: Plan | None, holders: Sequence[Holder], node: NodeContainers) -> Conflicts:
    """Return the containers, with each of their resources that is concerned. `holders`: by our own ids. What containers
    were given before another way of injection took effect is not known: it counts as the one of now."""
    offered = {resource.name: resource for resource in (plan or Plan()).resources}
    containers: dict[tuple[str, str, str], dict[str, Holder]] = defaultdict(dict)
    for holder in holders:
        if holder.resource is not None and holder.resource in offered:
            containers[holder.namespace, holder.pod, holder.container][holder.resource] = holder
    found: dict[tuple[str, str, str, str], Verdict] = {}
    for container, held in containers.items():
        if len(held) > 1:
            given = {name: _given(offered[name], holder, node) for name, holder in held.items()}
            since = max(holder.since for holder in held.values())
            found |= {(*container, name): verdict for name, verdict in _conflicting(given, since).items()}
    return found


def _given(resource: OfferedResource, holder: Holder, node: NodeContainers) -> ContainerEdits:
    ids = tuple(offered for offered in resource.ids if offered.id in holder.ids)
    try:
        return edits(Grant(resource=resource, ids=ids), node) if ids else ContainerEdits()
    except AllocationError:  # a device that left
        return ContainerEdits()


def _conflicting(given: Mapping[str, ContainerEdits], since: datetime) -> dict[str, Verdict]:
    values: dict[str, dict[str, str]] = defaultdict(dict)  # variable -> resource -> value
    for name, made in given.items():
        if not made.cdi_devices and not made.annotations:
            for variable, value in made.envs.items():
                values[variable][name] = value
    variables = sorted(variable for variable, by_name in values.items() if len(set(by_name.values())) > 1)
    names = sorted({name for variable in variables for name in values[variable]})
    text = (
        f"{some(names, NAMED)} each set {some(variables, NAMED)}, but the kubelet keeps only one value: the "
        "container may see the devices of only one resource; request only one of them in a container, or inject "
        "devices in another way (docs/injection.md)"
    )
    verdict = Verdict(
        state=HealthState.DEGRADED, reason=REASON, message=text, since=since, offered=True, fault_domain="Application"
    )
    return dict.fromkeys(names, verdict)


class DoubleAllocation(Struct, frozen=True, kw_only=True, order=True):
    """A device, a partition or a share of one, and the pods that hold it. `pods`: <namespace>/<pod>, sorted."""

    device_id: str
    id: str
    pods: tuple[str, ...]


class Comparison(Struct, frozen=True, kw_only=True):
    """`found`: shown by two Lists in a row; None before the first complete List. `latest`: shown by the last one.
    `taken`: time.monotonic() when that was called."""

    found: tuple[DoubleAllocation, ...] | None = None
    latest: tuple[DoubleAllocation, ...] = ()
    taken: float = 0.0

    @property
    def unsure(self) -> bool:
        """True when the next List will show whether there is one more."""
        return self.latest != (self.found or ())

    def after(self, latest: Sequence[DoubleAllocation], taken: float) -> Comparison:
        """Return the comparison after another complete List."""
        before = {double.id: frozenset(double.pods) for double in self.latest}
        both = (
            replace(double, pods=tuple(pod for pod in double.pods if pod in before.get(double.id, ())))
            for double in latest
        )
        return Comparison(
            found=tuple(double for double in both if len(double.pods) > 1), latest=tuple(latest), taken=taken
        )


def held_twice(
    held: Iterable[HeldId],
    *,
    by_nature: Set[str] = frozenset(),
    departed: Set[str] = frozenset(),
) -> tuple[DoubleAllocation, ...]:
    """Return what more than one pod holds, sorted: one id, or a whole device or partition and a part of it.

    A claim counts once, however many pods share it, and only one of our driver: whether another's claims share a device
    no List shows. `by_nature`: resources that several containers use without a sharing mode: only the same id is the
    same thing. `departed`: partitions that no longer exist, and whose place another one may have. What administrators
    have (HeldId.any_shape) others may have beside them.
    """
    by_device = grouped(
        (held_id.device_id, held_id)
        for held_id in held
        if held_id.holder and not held_id.any_shape and (held_id.resource is not None or held_id.driver == DRA_DRIVER)
    )
    found: dict[tuple[str, str], set[str]] = {}
    for device_id, ids in by_device.items():
        for id_, pods in (*_same_ids(ids), *_parts(ids, by_nature, departed)):
            if len(pods) > 1:
                found.setdefault((device_id, id_), set()).update(pods)
    return tuple(
        DoubleAllocation(device_id=device_id, id=id_, pods=tuple(sorted(pods)))
        for (device_id, id_), pods in sorted(found.items())
    )


def _same_ids(ids: Iterable[HeldId]) -> Iterator[tuple[str, Set[str]]]:
    same = grouped(((held_id.resource, held_id.id), held_id) for held_id in ids)
    for (_, id_), of_id in same.items():
        if len({held_id.owner for held_id in of_id}) > 1:
            yield id_, {held_id.holder for held_id in of_id}


def _parts(ids: Iterable[HeldId], by_nature: Set[str], departed: Set[str]) -> Iterator[tuple[str, Set[str]]]:
    """Yield each whole device or partition of which another owner has all or some, with the pods of all."""
    taken = grouped(
        ((held_id.partition_id, held_id.owner, held_id.replica is None or is_core(held_id.id)), held_id)
        for held_id in ids
        if held_id.resource not in by_nature and held_id.partition_id not in departed
    )
    for (partition_id, owner, whole), own in taken.items():
        others = {
            held_id.holder
            for (other, another, all_of_it), theirs in taken.items()
            if another != owner and (partition_id in {None, other} or (other is None and not all_of_it))
            for held_id in theirs
        }
        if whole and others:
            yield own[0].part_id, {held_id.holder for held_id in own} | others
