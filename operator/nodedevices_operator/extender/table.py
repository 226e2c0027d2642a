"""Free shares of a node for the next pod, and whether a pod fits there.

A pod is placed by the kubelet and the agent, each container's shares on one device. The kubelet
(devicemanager/manager.go, Allocate and devicesToAllocate, v1.36) goes through the init containers and then the others.
What init containers had, the next ones get first, and the agent adds to it on the same device; a sidecar and a main
container keep what they get. What is free of a reused device and not enough is a refusal, as is a container for which
no device has room. Where nothing is reused, the agent chooses: nodedevices_common.pod_requests, here as there.

Where computing power is shared, too, a device has room only if that much of it is left. An init container's part is
that of those which reuse its shares.

A NodeDevices is some seconds behind: what it shows as free is less what pods get that are bound to the node and not
among the holders yet. They are placed as the agent places them, in the order in which they were bound. What containers
of pods that have ended seem to hold is free: the kubelet takes it back when it allocates next. Both are done in the
order of their events, since where a pod is placed depends on who has left by then; so also pods count that came and
went since the report.

Where a device has more holders than its list shows, it is not known whose the unlisted shares are: pods without a
listed holder have them, the earliest first, and only the rest are about to come.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from msgspec import Struct
from nodedevices_common.pod_requests import INIT, WHOLE, Demand, choose

from nodedevices_operator.extender.shares import MemoryResource, PodRequest, Steps

ROUNDED_UP = 1  # percent by which what a report shows as held may be too much; the agent counts exactly
LONG_AGO = -1  # before everything whose order is known
MAX_OUTCOMES = 16  # that a table remembers: pods of one controller request the same
MAX_REASONS = 4  # for withholding, of one resource in a refusal
MAX_SCORE = 10  # extender/v1: MaxExtenderPriority


# --- placement -------------------------------------------------------------------------------------------------------
class Placement(Struct, frozen=True):
    """`devices` has one for each container up to the first for which there is no room."""

    devices: tuple[str, ...]
    unused: int = 0  # shares that init containers had, that no later one reuses and that the pod keeps
    unused_of: str = ""  # their device

    def complete(self, steps: Steps) -> bool:
        return len(self.devices) == len(steps)


class Cores(Struct):
    """Computing power of devices that share it."""

    left: dict[str, int]  # in percent times the device's shares, as Demand.scaled
    totals: Mapping[str, int]  # shares of each device

    def has(self, device: str, demand: Demand) -> bool:
        return device not in self.left or demand.scaled(self.totals[device]) <= self.left[device]

    def take(self, device: str, demand: Demand) -> None:
        if device in self.left:
            self.left[device] -= demand.scaled(self.totals[device])

    def percent_left(self, device: str) -> int:
        """Rounded down; of a device that does not share it all."""
        return max(0, self.left[device]) // max(1, self.totals[device]) if device in self.left else WHOLE

    def copy(self) -> Cores:
        return Cores(dict(self.left), self.totals)


def place(
    free: dict[str, int], steps: Steps, *, spread: bool, cores: Cores | None = None, demands: Sequence[Demand] = ()
) -> Placement:
    """Return where the containers will be. Takes from `free` what they get, up to the first for which there is no room,
    and from `cores`; `demands` as a Request's."""
    devices: list[str] = []
    reused, reused_of = 0, ""  # shares that the next container gets first, and their device
    for at, (kind, size) in enumerate(steps):
        demand = demands[at] if demands else Demand(units=size)
        missing, device = size - reused, reused_of
        if missing > 0:
            chosen = choose(free, missing, spread=spread, among=_allowed(reused_of if reused else "", cores, demand))
            if chosen is None:
                break
            device = chosen
            free[device] -= missing
        elif cores is not None and not cores.has(device, demand):
            break
        if cores is not None and kind != INIT:
            cores.take(device, demand)
        devices.append(device)
        if kind == INIT:
            reused, reused_of = max(reused, size), device
        else:
            reused = max(0, reused - size)
    return Placement(tuple(devices), reused, reused_of if reused else "")


def _allowed(only: str, cores: Cores | None, demand: Demand) -> Callable[[str], bool] | None:
    """Return a test for the devices that come into question; None: all do."""
    if cores is None:
        return only.__eq__ if only else None
    return lambda device: (not only or device == only) and cores.has(device, demand)


# --- what is free ----------------------------------------------------------------------------------------------------
class BoundPod(Struct, frozen=True):
    """A pod that is bound to a node and has not ended. Sorts by when it was bound."""

    order: tuple[int, int, int, str]  # PodScheduled's time, arrival here (0: listed), creation, uid
    key: str  # namespace/name
    node: str
    requests: Mapping[str, PodRequest]  # by resource

    @property
    def uid(self) -> str:
        return self.order[-1]


class EndedPod(Struct, frozen=True):
    """A pod that was bound to the node and has ended, or is gone."""

    pod: BoundPod
    at: int  # as the arrival of a BoundPod


class PodFit(Struct, frozen=True):
    """Result for a pod on a node. `refusal` empty: every container has room."""

    score: int = 0
    refusal: str = ""
    never: bool = False  # not even on these devices when all are free


@dataclass(slots=True)
class Table:
    """The shares of one resource on one node."""

    resource: MemoryResource
    free: dict[str, int]  # by device, by index
    coming: dict[str, str] = field(default_factory=dict)  # pod that is not among the holders -> device of its first
    cores: Cores | None = None  # where computing power is shared, too
    largest: int = field(init=False)  # free on one device
    _totals: dict[str, int] = field(init=False)
    _outcomes: dict[PodRequest, PodFit] = field(init=False, default_factory=dict)
    _scores: dict[int, int] = field(init=False, default_factory=dict)  # of single containers, by size

    def __post_init__(self) -> None:
        self.largest = max(self.free.values())
        self._totals = {device.id: device.total for device in self.resource.devices}

    def fits(self, request: PodRequest) -> bool:
        """True when there is room for one more pod. Called for every node of a cluster."""
        size = request.single
        if size and self.cores is None:
            return size <= self.largest
        return not self.outcome(request).refusal

    def outcome(self, request: PodRequest) -> PodFit:
        """Return what becomes of one more pod."""
        known = self._outcomes.get(request)
        if known is None:
            if len(self._outcomes) >= MAX_OUTCOMES:
                self._outcomes.clear()
            known = self._outcomes[request] = self._judge(request)
        return known

    def score(self, request: PodRequest) -> int:
        """Return the score for one more pod; 0 where there is no room."""
        size = request.single
        if not size or self.cores is not None:
            return self.outcome(request).score
        known = self._scores.get(size)
        if known is None:
            if len(self._scores) >= MAX_OUTCOMES:
                self._scores.clear()
            device = choose(self.free, size, spread=self.resource.spread)
            known = 0 if device is None else self._score((self.free[device] - size) / max(1, self._totals[device]))
            self._scores[size] = known
        return known

    def _judge(self, request: PodRequest) -> PodFit:
        if self.cores is not None and request.problem:
            return PodFit(refusal=request.problem, never=True)
        steps, spread = request.steps, self.resource.spread
        left, cores = dict(self.free), self.cores.copy() if self.cores is not None else None
        placement = place(left, steps, spread=spread, cores=cores, demands=request.demands)
        if placement.complete(steps):
            used = set(placement.devices)
            return PodFit(score=self._score(sum(left[it] / max(1, self._totals[it]) for it in used) / len(used)))
        empty = {device.id: device.total if device.offered else 0 for device in self.resource.devices}
        never = not place(dict(empty), steps, spread=spread).complete(steps)
        return PodFit(refusal=self._refusal(request, placement, left, empty, cores), never=never)

    def _refusal(
        self,
        request: PodRequest,
        placement: Placement,
        left: Mapping[str, int],
        empty: Mapping[str, int],
        cores: Cores | None,
    ) -> str:
        """Return why there is no room for the first container that has none, for the pod's owner."""
        at, name = len(placement.devices), self.resource.name
        size, container = request.steps[at][1], request.names[at]
        largest = max(shared.total for shared in self.resource.devices)
        if size > largest:
            return f"no single GPU has {size} units of {name} (largest: {largest}); request fewer"
        if not any(empty.values()):
            return f"no GPU of this node offers {name} now: {_withheld(self.resource)}"
        there = left[placement.unused_of] + placement.unused if placement.unused else 0
        if placement.unused and there < size:
            return (
                f"container {container} needs {size} units of {name} on the GPU of the pod's init containers "
                f"(free there: {there}); request the same in both"
            )
        rest = f" for container {container} beside the pod's others" if at else ""
        roomy = [placement.unused_of] if there else [device for device, free in left.items() if free >= size]
        if cores is not None and roomy:
            demand = request.demands[at] if request.demands else Demand(units=size)
            device = max(roomy, key=cores.percent_left)
            most, needed = cores.percent_left(device), demand.percent_of(cores.totals[device])
            wanted = f"{size} free units of {name} and {needed} % of its computing power free"
            return f"no single GPU has {wanted}{rest} (where the memory is free: {most} %)"
        withheld = f"; {_withheld(self.resource)}" if self.resource.withheld else ""
        return f"no single GPU has {size} free units of {name}{rest} (largest free: {max(left.values())}){withheld}"

    def _score(self, empty: float) -> int:
        """By how empty the chosen device will be; the mean, where they are several."""
        score = MAX_SCORE - round(MAX_SCORE * min(1.0, empty))
        return MAX_SCORE - score if self.resource.spread else score


def _withheld(resource: MemoryResource) -> str:
    """Return how many units of the resource are withheld, and why, in a bounded text."""
    if not resource.withheld:
        return "see status.devices of its NodeDevices"  # an agent from before `withheld`
    count = sum(withheld.count for withheld in resource.withheld)
    first, more = resource.withheld[:MAX_REASONS], resource.withheld[MAX_REASONS:]
    reasons = [f"{withheld.count} {withheld.reason}" for withheld in first]
    if more:
        reasons.append(f"{sum(withheld.count for withheld in more)} for other reasons")
    return f"{count} of {max(count, resource.capacity)} units are withheld ({', '.join(reasons)})"


def tabulate(resource: MemoryResource, pods: Collection[BoundPod], ended: Collection[EndedPod] = ()) -> Table:
    """`pods`: all that are bound to the node, have not ended and request the resource; `ended`: those of which it is
    known when. Others that hold shares have ended before all these."""
    there = {pod.key: pod for pod in pods}
    gone = {end.pod.key: end for end in ended if end.pod.key not in there}
    free = {device.id: device.free for device in resource.devices}
    holding: dict[str, dict[str, str]] = {}  # pod -> container -> device
    returns: list[Return] = []
    cores = _cores(resource)
    for device in resource.devices:
        for held in device.holders:
            if held.pod in there or held.pod in gone:
                holding.setdefault(held.pod, {})[held.container] = device.id
            if held.pod not in there and device.offered:
                at = gone[held.pod].at if held.pod in gone else LONG_AGO
                returns.append((at, device.id, held.shares, held.cores * device.total))
    for key, containers in holding.items():
        pod = there.get(key) or gone[key].pod
        unused, device_id = _unused(pod.requests[resource.name], containers)
        if unused:
            free[device_id] = max(0, free[device_id] - unused)
            if key not in there:
                returns.append((gone[key].at, device_id, unused, 0))
    since = _Timeline(resource, free, cores, holding, returns)
    since.run(pods, [end for key, end in gone.items() if key not in holding])
    return Table(resource, free, since.coming, cores)


def _cores(resource: MemoryResource) -> Cores | None:
    """Return what is left of the devices' computing power; None: none of them shares it."""
    left = {
        device.id: (WHOLE - device.cores_held + (ROUNDED_UP if device.cores_held else 0)) * device.total
        for device in resource.devices
        if device.cores_held is not None
    }
    return Cores(left, {device.id: device.total for device in resource.devices}) if left else None


Return = tuple[int, str, int, int]  # when (as BoundPod's arrival), device, shares, computing power as in Cores


class _Timeline:
    """Events since the report, in order."""

    def __init__(
        self,
        resource: MemoryResource,
        free: dict[str, int],
        cores: Cores | None,
        holding: Mapping[str, Mapping[str, str]],
        returns: list[Return],
    ) -> None:
        self.coming: dict[str, str] = {}
        self._resource = resource
        self._free = free
        self._cores = cores
        self._power = cores.left if cores is not None else {}
        self._holding = holding
        self._returns = returns
        self._unlisted = sum(device.unlisted for device in resource.devices)

    def run(self, pods: Collection[BoundPod], gone: Collection[EndedPod]) -> None:
        ends = {end.pod.uid: end.at for end in gone}
        for pod in sorted((*pods, *(end.pod for end in gone)), key=lambda it: it.order):
            self._return_until(pod.order[1])
            if pod.uid in ends:
                before, power = dict(self._free), dict(self._power)
                request = pod.requests[self._resource.name]
                self._place(request.steps, request.demands)
                for device, count in before.items():
                    taken, used = count - self._free[device], power.get(device, 0) - self._power.get(device, 0)
                    if taken or used:
                        self._returns.append((ends[pod.uid], device, taken, used))
            else:
                self._add(pod)
        self._return_until(inf)

    def _return_until(self, arrival: float) -> None:
        for _, device, shares, power in (it for it in self._returns if it[0] < arrival):
            self._free[device] += shares
            if device in self._power:
                self._power[device] += power
        self._returns = [it for it in self._returns if it[0] >= arrival]

    def _add(self, pod: BoundPod) -> None:
        """Take what it will get, or has got since."""
        request = pod.requests[self._resource.name]
        held = self._holding.get(pod.key)
        size = sum(size for kind, size in request.steps if kind != INIT)
        if not held and self._unlisted and size <= self._unlisted:
            self._unlisted -= size
            return
        missing = [
            at
            for at, (kind, _) in enumerate(request.steps)
            if not held or (kind != INIT and request.names[at] not in held)
        ]
        demands = [request.demands[at] for at in missing] if request.demands else []
        placement = self._place(tuple(request.steps[at] for at in missing), demands)
        if placement.devices:
            self.coming[pod.key] = placement.devices[0]

    def _place(self, steps: Steps, demands: Sequence[Demand]) -> Placement:
        return place(self._free, steps, spread=self._resource.spread, cores=self._cores, demands=demands)


def _unused(request: PodRequest, held: Mapping[str, str]) -> tuple[int, str]:
    """Return what an init container had beyond what the others request, and its device: the pod keeps it, and
    PodResources does not show it. It is of the device of the last container, which reuses some of it."""
    if all(kind != INIT for kind, _ in request.steps):
        return 0, ""
    plenty = {"": sum(size for _, size in request.steps)}
    unused = place(plenty, request.steps, spread=False).unused
    device = held.get(request.names[-1], "")
    return (unused, device) if device else (0, "")
