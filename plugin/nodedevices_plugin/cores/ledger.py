"""CoreShares of computing power: no device is promised to more than 100 percent.

An Allocate names ids and no pod, so the container that it is for is not known. The candidates are the containers of
this node's pods that request exactly so many of the resource and have none yet. The largest demand among them is booked
(for several such Allocates, each for another container, as many of the largest). So any of the candidates fits, and
containers that start in another order than their pods were bound take nothing from each other. Later the kubelet shows
which container has the ids (PodResources), and its own demand is booked.

Only the kubelet decides what is held: a booking ends when the kubelet calls its ids free (GetPreferredAllocation) or
allocates one of them again, and in no other case. Ids that are held and not booked are unknown, and their device counts
as full. A container that cannot be a candidate, because its pod has not been seen yet, counts as 100 percent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from functools import reduce
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace
from nodedevices_common.grouping import grouped
from nodedevices_common.pod_requests import ALL, WHOLE, Demand, wants

from nodedevices_plugin.model import AllocationError, Holder, NodePod, OfferedResource


class Owner(NamedTuple):
    """A container of a pod."""

    uid: str
    namespace: str
    pod: str
    container: str


class Claim(Struct, frozen=True, kw_only=True):
    """The request of one container for a resource. `problem`: why it cannot be met, for its owner; `admitted`: the
    kubelet has it."""

    owner: Owner
    size: int
    demand: Demand
    problem: str
    started: bool
    admitted: bool
    seen: float


class Booking(Struct, frozen=True, kw_only=True):
    """What is booked for one Allocate. `at`: its time.monotonic(), 0.0 for one before this agent. `owner` None: not
    known yet; then it is one of `candidates`, each with its demand, or, where there are none, a container that has not
    been seen."""

    ids: frozenset[str]
    device: str
    demand: Demand
    at: float = 0.0
    candidates: Mapping[Owner, Demand] = field(default_factory=dict)
    owner: Owner | None = None


class CoreShares(Struct, frozen=True, kw_only=True):
    """The shares of one resource: each one's device, the number of each device, and those that are offered."""

    device_of: Mapping[str, str]
    totals: Mapping[str, int]
    healthy: frozenset[str]

    @classmethod
    def from_resource(cls, resource: OfferedResource) -> CoreShares:
        device_of = {schedulable.id: schedulable.part_id for schedulable in resource.ids}
        healthy = frozenset(schedulable.id for schedulable in resource.ids if schedulable.healthy)
        return cls(device_of=device_of, totals=Counter(device_of.values()), healthy=healthy)


class Ledger(Struct, frozen=True, kw_only=True):
    """The bookings of one resource's devices. `unknown`: ids that are held by a container that is not known.
    `complete`: every id that is held is in a booking or in `unknown`; False after a start, until the kubelet has said
    what is held; `known`: devices for which it has. `asked`: time.monotonic() when the kubelet last said which ids are
    free: an older List has no news."""

    bookings: tuple[Booking, ...] = ()
    unknown: frozenset[str] = frozenset()
    complete: bool = False
    known: frozenset[str] = frozenset()
    asked: float = 0.0

    def overlapping(self, ids: Set[str]) -> tuple[Booking, ...]:
        return tuple(booking for booking in self.bookings if booking.ids & ids)

    def without(self, ids: Set[str]) -> tuple[Booking, ...]:
        return tuple(booking for booking in self.bookings if not booking.ids & ids)


class Wanted(Struct, frozen=True, kw_only=True):
    """The need of a request from any of its candidates. `known`: it is one of `claims`; otherwise its pod has not been
    seen."""

    demand: Demand
    claims: tuple[Claim, ...] = ()
    known: bool = True


class Room(Struct, frozen=True, kw_only=True):
    """The devices with the computing power that a request needs, and the percentage that each has left without it."""

    wanted: Wanted
    left: Mapping[str, int]
    fits: frozenset[str]

    def has(self, device: str) -> bool:
        return device in self.fits

    def left_text(self, device: str) -> str:
        return f"{self.left.get(device, 0)} %"

    def refusal(self, device: str) -> str:
        """Return why a request cannot have this device, for people; "" where it can."""
        if self.has(device):
            return ""
        has = f"it has {self.left_text(device)}"
        return f"{device} does not have {self.needed_text}; {has}. Delete the pod, so that it is scheduled again."

    @property
    def needed_text(self) -> str:
        demand = self.wanted.demand
        needed = f"{demand.percent} %" if demand.percent else "as large a part"
        why = "" if self.wanted.known else " (all of it: this agent has not seen the pod yet)"
        return f"{needed} of its computing power free{why}"


class Recorded(Struct, frozen=True, kw_only=True):
    """The record from when a container's ids were first known to be its own."""

    owner: Owner
    demand: Demand


# --- demand of pods ---------------------------------------------------------------------------------------------------
def claims(pods: Iterable[NodePod], resource: str) -> tuple[Claim, ...]:
    """Return the claims of pods that have not finished."""
    return tuple(claim for pod in pods if not pod.finished for claim in _of_pod(pod, resource))


def _of_pod(pod: NodePod, resource: str) -> Iterator[Claim]:
    started = {container.name for container in pod.containers if container.started}
    for want in wants(pod.containers, resource, pod.strays):
        yield Claim(
            owner=Owner(pod.uid, pod.namespace, pod.name, want.container),
            size=want.size,
            demand=want.demand,
            problem=f"pod {pod.namespace}/{pod.name}: {want.problem}" if want.problem else "",
            started=want.container in started,
            admitted=pod.acknowledged or want.container in started,
            seen=pod.seen,
        )


# --- bookings -------------------------------------------------------------------------------------------------------
def wanted(ledger: Ledger, all_claims: Sequence[Claim], size: int, *, ids: Set[str] = frozenset()) -> Wanted:
    """Return what a request of `size` needs, from any of its candidates. `ids`: the ids that it is known to be for:
    their earlier holder has ended, or is an init container of the same pod.

    Each Allocate with an unknown container is for one of the candidates, so there must be one candidate more than
    these.
    """
    owners = {booking.owner for booking in ledger.bookings}
    candidates = tuple(
        claim for claim in all_claims if claim.size == size and not claim.started and claim.owner not in owners
    )
    before = sum(
        1 for booking in ledger.without(ids) if booking.owner is None and booking.at and len(booking.ids) == size
    )
    if len(candidates) <= before:
        return Wanted(demand=ALL, known=False)
    demands = (ALL if candidate.problem else candidate.demand for candidate in candidates)
    return Wanted(demand=reduce(Demand.__or__, demands), claims=candidates)


def check_claims(resource: str, need: Wanted) -> None:
    """Raise AllocationError where every candidate's request cannot be met."""
    if need.claims and all(claim.problem for claim in need.claims):
        raise AllocationError(f"{resource}: {need.claims[0].problem}")


def freed(ledger: Ledger, shares: CoreShares, free: Collection[str], listed: Set[str], *, at: float) -> Ledger:
    """Return the ledger after the kubelet has said which ids are free. Of a device with some free ids all others are
    held. Of a device without free ids nothing is learned: the kubelet names only ids of the NUMA nodes that the
    container is bound to. `listed`: ids that PodResources shows held."""
    not_held = frozenset(free)
    named = frozenset(shares.device_of[id_] for id_ in not_held if id_ in shares.device_of)
    bookings = tuple(booking for booking in ledger.bookings if not booking.ids <= not_held)
    booked = frozenset(id_ for booking in bookings for id_ in booking.ids)
    held = (shares.healthy | (listed & shares.device_of.keys())) - not_held - booked
    unknown = frozenset(id_ for id_ in held if shares.device_of[id_] in named)
    left_out = frozenset(id_ for id_ in ledger.unknown - booked if shares.device_of.get(id_) not in named)
    return replace(ledger, bookings=bookings, unknown=unknown | left_out, known=ledger.known | named, asked=at)


def room(ledger: Ledger, shares: CoreShares, need: Wanted, *, ids: Set[str] = frozenset()) -> Room:
    """Return what each device has left, without bookings of earlier holders of these ids, and which devices have what
    is needed."""
    unknown = {shares.device_of[id_] for id_ in _unknown(ledger, shares) - ids if id_ in shares.device_of}
    owners = {booking.owner for booking in ledger.bookings}
    by_device = grouped((booking.device, booking) for booking in ledger.without(ids))
    left: dict[str, int] = {}
    fits = set()
    new = _booking(need, ids, "")
    for device, total in shares.totals.items():
        full = 0 if device in unknown else WHOLE * total
        here = by_device.get(device, [])
        booked = _booked(here, total, owners)
        left[device] = max(0, full - booked) // total
        if _booked([*here, new], total, owners) <= full:
            fits.add(device)
    return Room(wanted=need, left=left, fits=frozenset(fits))


def _booked(bookings: Iterable[Booking], total: int, owners: Collection[Owner | None]) -> int:
    """Return what is booked of one device, as Demand.scaled: the needs of known owners, and the most that the unknown
    ones can need. `owners`: the known owners of all bookings."""
    sure, undecided = 0, list[int]()
    candidates: dict[Owner, Demand] = {}
    for booking in bookings:
        if booking.owner is not None or not booking.candidates:
            sure += booking.demand.scaled(total)
        else:
            undecided.append(booking.demand.scaled(total))
            candidates.update(booking.candidates)
    if not undecided:
        return sure
    needs = [need.scaled(total) for owner, need in candidates.items() if owner not in owners]
    largest = sorted(needs, reverse=True)[: len(undecided)]
    # Where fewer are left than there are Allocates, one was for a container that is no candidate.
    return sure + (min(sum(undecided), sum(largest)) if len(largest) == len(undecided) else sum(undecided))


def _booking(need: Wanted, ids: Set[str], device: str) -> Booking:
    candidates = {claim.owner: ALL if claim.problem else claim.demand for claim in need.claims}
    return Booking(ids=frozenset(ids), device=device, demand=need.demand, candidates=candidates)


def _unknown(ledger: Ledger, shares: CoreShares) -> frozenset[str]:
    """Return the ids that are held, or may be, and are not booked."""
    if ledger.complete:
        return ledger.unknown
    booked = frozenset(id_ for booking in ledger.bookings for id_ in booking.ids)
    return ledger.unknown | {id_ for id_ in shares.healthy - booked if shares.device_of[id_] not in ledger.known}


def granted(ledger: Ledger, shares: CoreShares, need: Wanted, ids: Set[str], *, at: float) -> Ledger:
    """Return the ledger with a booking for an Allocate of these ids, which are of one device."""
    booking = replace(_booking(need, ids, shares.device_of[next(iter(ids))]), at=at)
    return replace(ledger, bookings=(*ledger.without(ids), booking), unknown=ledger.unknown - ids)


# --- owners -----------------------------------------------------------------------------------------------------------
def resolved(
    ledger: Ledger,
    shares: CoreShares,
    holders: Iterable[Holder],
    all_claims: Sequence[Claim],
    *,
    taken: float,
    pods: Mapping[tuple[str, str], NodePod],
    recorded: Mapping[frozenset[str], Recorded],
) -> Ledger:
    """Return the ledger with the owners that PodResources shows. `holders`: of this resource, by a List that was called
    at `taken`; `pods`: by namespace and name. `recorded`: by an earlier run of this agent, by ids."""
    by_owner = {claim.owner: claim for claim in all_claims}
    for holder in holders:
        ids = frozenset(holder.ids)
        if not ids or not ids <= shares.device_of.keys():
            continue
        pod = pods.get((holder.namespace, holder.pod))
        claim = by_owner.get(Owner(pod.uid, pod.namespace, pod.name, holder.container)) if pod is not None else None
        before = ledger.overlapping(ids)
        if not before:
            if taken <= ledger.asked:
                continue
            owner, demand = _of_before(claim, recorded.get(ids))
            booking = Booking(ids=ids, device=shares.device_of[next(iter(ids))], demand=demand, owner=owner)
            ledger = replace(ledger, bookings=(*ledger.bookings, booking), unknown=ledger.unknown - ids)
            continue
        [booking, *others] = before
        if others or booking.ids != ids or booking.owner is not None:
            continue
        if booking.at == 0.0:
            owner, demand = _of_before(claim, recorded.get(ids))
        elif taken > booking.at and claim is not None and _is(claim, booking, ledger):
            owner, demand = claim.owner, ALL if claim.problem else claim.demand
        else:
            continue
        known = replace(booking, owner=owner, demand=demand)
        ledger = replace(ledger, bookings=tuple(known if booked is booking else booked for booked in ledger.bookings))
    return ledger


def _is(claim: Claim, booking: Booking, ledger: Ledger) -> bool:
    """True when an Allocate was for this container. A container of that name that was seen before and was no candidate
    is an earlier one with the same name."""
    if any(booked.owner == claim.owner for booked in ledger.bookings):
        return False
    return claim.owner in booking.candidates or claim.seen > booking.at


def _of_before(claim: Claim | None, recorded: Recorded | None) -> tuple[Owner | None, Demand]:
    """Return owner and demand of a container that had its ids before this agent was started: as recorded, else as in
    the pod that the kubelet admitted, else all of the device."""
    if claim is None:
        return None, ALL
    if recorded is not None and recorded.owner == claim.owner:
        return claim.owner, recorded.demand
    if claim.admitted:
        return claim.owner, ALL if claim.problem else claim.demand
    return None, ALL


def exact(need: Wanted, total: int) -> int | None:
    """The percentage that the container gets, whichever of the candidates it is, rounded up; None: they differ."""
    if not need.known or any(claim.problem for claim in need.claims):
        return None
    found = {claim.demand.scaled(total) for claim in need.claims}
    return -(-found.pop() // total) if len(found) == 1 else None
