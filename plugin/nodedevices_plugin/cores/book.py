"""The bookings of computing power on this node, resource by resource: the only place that remembers them.

Nothing here does I/O. The kubelet's calls change what is booked; PodResources and the node's pods show which container
each booking is for. The former come in threads, the latter from the event loop: one of them at a time. Where computing
power is not shared, nothing is booked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from time import monotonic
from typing import Concatenate, ParamSpec, TypeVar

from msgspec import Struct
from msgspec.structs import replace
from nodedevices_common.pod_requests import ALL, WHOLE, Demand
from nodedevices_common.quantity import MEBIBYTE

from nodedevices_plugin.cores import ledger as cores
from nodedevices_plugin.cores.ledger import Booking, Claim, CoreShares, Ledger, Owner, Recorded, Room, Wanted
from nodedevices_plugin.model import (
    AllocationError,
    CoresHeld,
    HoldersState,
    Holdings,
    NodePod,
    NodePods,
    OfferedResource,
)

SHOWN_AFTER_SECONDS = 0.5  # from an Allocate's answer until PodResources has it: milliseconds


class Allocated(Struct, frozen=True, kw_only=True):
    """What one container has, as far as it is known. `owner` None: the container is not known; `cores` None: its part
    of the computing power is not known."""

    resource: str
    device: str
    ids: frozenset[str]
    owner: Owner | None = None
    demand: Demand | None = None
    cores: int | None = None
    memory_mib: int
    memory_total_mib: int


class Start(Struct, frozen=True, kw_only=True):
    """Whether a container may start. `wait`: more may be known in a moment; `refusal`: why it may not, "" where it may.
    `allocated`: the record to write for it; None: the written one stays."""

    refusal: str = ""
    wait: bool = False
    allocated: Allocated | None = None


P = ParamSpec("P")
R = TypeVar("R")


def _alone(method: Callable[Concatenate[CoreBook, P], R]) -> Callable[Concatenate[CoreBook, P], R]:
    """Run it while no other thread runs such a method."""

    @wraps(method)
    def alone(self: CoreBook, /, *arguments: P.args, **named: P.kwargs) -> R:
        with self.lock:
            return method(self, *arguments, **named)

    return alone


class CoreBook:
    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.lock = threading.RLock()
        self._clock = clock
        self._shares: dict[str, CoreShares] = {}
        self._made_of: dict[str, OfferedResource] = {}
        self._ledgers: dict[str, Ledger] = {}
        self._since: dict[str, float] = {}
        self._claims: dict[str, tuple[Claim, ...]] = {}
        self._holdings = Holdings(state=HoldersState.UNAVAILABLE)
        self._pods: NodePods = NodePods()
        self._by_name: Mapping[tuple[str, str], NodePod] = {}
        self._recorded: Mapping[frozenset[str], Recorded] = {}

    # --- facts --------------------------------------------------------------------------------------------------------
    @_alone
    def use(self, resources: Iterable[OfferedResource]) -> None:
        """Take these resources as the offered ones."""
        by_name = {resource.name: resource for resource in resources if resource.sharing.cores}
        for name, resource in by_name.items():
            if self._made_of.get(name) != resource:
                self._shares[name] = CoreShares.from_resource(resource)
            if name not in self._ledgers:
                self._ledgers[name], self._since[name] = Ledger(), self._clock()
                self._claims[name] = cores.claims(self._pods.pods or (), name)
        for gone in self._ledgers.keys() - by_name.keys():
            del self._ledgers[gone], self._shares[gone], self._since[gone], self._claims[gone]
        self._made_of = by_name
        self._resolve()

    @_alone
    def remember(self, recorded: Mapping[frozenset[str], Recorded]) -> None:
        """Take the records of an earlier run of this agent."""
        self._recorded = recorded
        self._resolve()

    @_alone
    def observe(self, holdings: Holdings) -> None:
        if holdings != self._holdings:
            self._holdings = holdings
            self._resolve()

    @_alone
    def observe_pods(self, pods: NodePods) -> None:
        if pods.pods != self._pods.pods:
            # Of two that had the same name one after the other, the one that has not finished.
            order = sorted(pods.pods or (), key=lambda pod: (not pod.finished, pod.seen))
            self._by_name = {(pod.namespace, pod.name): pod for pod in order}
            self._claims = {name: cores.claims(pods.pods or (), name) for name in self._ledgers}
            self._pods = pods
            self._resolve()

    def _resolve(self) -> None:
        for name, ledger in self._ledgers.items():
            shares = self._shares[name]
            found = cores.resolved(
                ledger,
                shares,
                [holder for holder in self._holdings.holders if holder.resource == name],
                self._claims[name],
                taken=self._holdings.taken,
                pods=self._by_name,
                recorded=self._recorded,
            )
            found = replace(found, bookings=self._current(name, found.bookings))
            since = max(self._since[name] + SHOWN_AFTER_SECONDS, ledger.asked)
            if self._holdings.state is HoldersState.SYNCED and self._holdings.taken > since:
                found = replace(found, complete=True)
            self._ledgers[name] = found

    def _current(self, resource: str, bookings: tuple[Booking, ...]) -> tuple[Booking, ...]:
        """Return the bookings without those of ids that are no longer offered (another unit of memory) and no longer
        held: the kubelet never calls these free. Their device is withheld until then (offering.occupancy)."""
        offered, listed = self._shares[resource].device_of.keys(), self._listed()
        unnamed = (offer.ids for offer in self._holdings.possible or () if offer.resource == resource)
        listed |= {id_ for ids in unnamed for id_ in ids}
        known = self._holdings.known
        return tuple(
            booking
            for booking in bookings
            if booking.ids <= offered
            or not known
            or booking.ids & listed
            or self._holdings.taken - booking.at < SHOWN_AFTER_SECONDS
        )

    def _listed(self) -> frozenset[str]:
        """Ids that PodResources shows held, under whichever name: an id is of one resource."""
        return frozenset(id_ for holder in self._holdings.holders for id_ in holder.ids)

    # --- the kubelet's questions --------------------------------------------------------------------------------------
    @_alone
    def knows(self, resource: str, size: int, ids: Iterable[str] = ()) -> bool:
        """True when a pod that may make this request is known, or where computing power is not shared."""
        if resource not in self._ledgers:
            return True
        return cores.wanted(self._ledgers[resource], self._claims[resource], size, ids=frozenset(ids)).known

    @_alone
    def prefer(self, resource: str, available: Sequence[str], must_include: Sequence[str], size: int) -> Room | None:
        """Return what each device has left for a request; None: computing power is not shared. Raises
        AllocationError."""
        if resource not in self._ledgers:
            return None
        shares, must = self._shares[resource], frozenset(must_include)
        free, listed = frozenset(available) - must, self._listed()
        ledger = cores.freed(self._ledgers[resource], shares, free, listed, at=self._clock())
        self._ledgers[resource] = ledger
        wanted = self._wanted(resource, size, must)
        return cores.room(ledger, shares, wanted, ids=must)

    @_alone
    def grant(self, resource: str, ids: Sequence[str]) -> int | None:
        """Books an Allocate. The percentage that the container has, where it is certain. Raises AllocationError."""
        if resource not in self._ledgers:
            return None
        ledger, shares, own = self._ledgers[resource], self._shares[resource], frozenset(ids)
        wanted = self._wanted(resource, len(own), own)
        device = shares.device_of[ids[0]]
        if refusal := cores.room(ledger, shares, wanted, ids=own).refusal(device):
            raise AllocationError(f"{resource}: {refusal}")
        self._ledgers[resource] = cores.granted(ledger, shares, wanted, own, at=self._clock())
        return cores.exact(wanted, shares.totals[device])

    def _wanted(self, resource: str, size: int, ids: frozenset[str]) -> Wanted:
        wanted = cores.wanted(self._ledgers[resource], self._claims[resource], size, ids=ids)
        cores.check_claims(resource, wanted)
        return wanted

    @_alone
    def start(self, resource: str, ids: Sequence[str]) -> Start:
        """Decide the start of a container with these ids. At its first start its booking must be enough for it. Later
        it keeps what it has, also where other containers are not known."""
        own, shares = frozenset(ids), self._shares.get(resource)
        overlapping = [booking for booking in self._bookings(resource) if booking.ids & own]
        booking = next((booking for booking in overlapping if booking.ids == own), None)
        if shares is None or (booking is None and not overlapping and self._started_before(own)):
            # Computing power is no longer shared, or it starts again; a record alone may be of an earlier holder.
            return Start(wait=shares is not None and self._pods.pods is None)
        if booking is not None and not own <= shares.device_of.keys():
            return Start()  # of an earlier unit of memory: what is written down for it stays
        if booking is None and overlapping:  # an init container, with what a container of its pod took over
            return Start(allocated=self._allocated(resource, overlapping[0].device, own))
        if booking is None or booking.owner is None:
            if booking is not None and booking.demand == ALL:
                if booking.at == 0.0 and self._started_before(own):
                    return Start(wait=True)  # what is written says more
                if booking.at or not self._refusal(resource, shares, booking):  # it was not checked in this run
                    return Start(wait=True, allocated=self._allocated(resource, booking.device, own))
            why = self._holdings.message or self._pods.problem or "the kubelet does not list them yet"
            text = f"it is not known which pod these shares are for ({why}); the kubelet tries again"
            return Start(wait=True, refusal=f"{resource}: {text}")
        claim = next((claim for claim in self._claims[resource] if claim.owner == booking.owner), None)
        if claim is not None and claim.problem and not claim.started:
            return Start(refusal=f"{resource}: {claim.problem}")
        if not (claim is not None and claim.started) and (refusal := self._refusal(resource, shares, booking)):
            return Start(refusal=refusal)
        return Start(allocated=self._allocated(resource, booking.device, own, booking))

    def _refusal(self, resource: str, shares: CoreShares, booking: Booking) -> str:
        """Return why a container cannot have what is booked for it; "" where it can."""
        room = cores.room(self._ledgers[resource], shares, Wanted(demand=booking.demand), ids=booking.ids)
        refusal = room.refusal(booking.device)
        return f"{resource}: {refusal}" if refusal else ""

    def _started_before(self, ids: frozenset[str]) -> bool:
        """True when the container with these ids was started before this agent, as far as that is known."""
        recorded = self._recorded.get(ids)
        if recorded is None:
            return False
        if self._pods.pods is None:
            holders = [holder for holder in self._holdings.holders if frozenset(holder.ids) == ids]
            named = {(holder.namespace, holder.pod, holder.container) for holder in holders}
            return not named or recorded.owner[1:] in named
        return any(pod.uid == recorded.owner.uid and not pod.finished for pod in self._pods.pods)

    # --- what is shown ------------------------------------------------------------------------------------------------
    @_alone
    def allocated(self) -> tuple[Allocated, ...]:
        """Return what each known container has; of one with shares of an earlier unit of memory, or of a device that is
        no longer offered, what was written down for it stays."""
        return tuple(
            self._allocated(name, booking.device, booking.ids, booking)
            for name, shares in self._shares.items()
            for booking in self._bookings(name)
            if booking.owner is not None and booking.ids <= shares.device_of.keys()
        )

    @_alone
    def held(self) -> CoresHeld:
        """Return for the report what is held: by pods that have not finished, and by Allocates that PodResources has
        not shown yet."""
        listed = {(holder.resource, frozenset(holder.ids)): holder for holder in self._holdings.holders}
        devices: dict[str, int] = {}
        holders: dict[tuple[str, str, str, str], int] = {}
        for name, shares in self._shares.items():
            held = dict.fromkeys(shares.totals, 0)  # as Demand.scaled
            for booking in self._bookings(name):
                if not booking.ids <= shares.device_of.keys():
                    continue  # of an earlier unit of memory
                holder = listed.get((name, booking.ids))
                if holder is None and booking.at < self._holdings.taken:
                    continue
                if booking.owner is not None and self._finished(booking.owner):
                    continue
                total = shares.totals[booking.device]
                held[booking.device] += booking.demand.scaled(total)
                if holder is not None and booking.owner is not None:
                    key = (holder.namespace, holder.pod, holder.container, name)
                    holders[key] = booking.demand.percent_of(total)
            devices |= {device: min(WHOLE, -(-amount // shares.totals[device])) for device, amount in held.items()}
        return CoresHeld(devices=devices, holders=holders)

    def _finished(self, owner: Owner) -> bool:
        pod = self._by_name.get((owner.namespace, owner.pod))
        return pod is not None and pod.uid == owner.uid and pod.finished

    def _bookings(self, resource: str) -> tuple[Booking, ...]:
        return self._ledgers.get(resource, Ledger()).bookings

    def _allocated(self, resource: str, device: str, ids: frozenset[str], booking: Booking | None = None) -> Allocated:
        memory = self._made_of[resource].sharing.memory
        of_device = memory.devices.get(device, 0) if memory is not None else 0
        return Allocated(
            resource=resource,
            device=device,
            ids=ids,
            owner=booking.owner if booking is not None else None,
            demand=booking.demand if booking is not None else None,
            cores=booking.demand.percent_of(self._shares[resource].totals[device]) if booking is not None else None,
            memory_mib=len(ids) * memory.unit_bytes // MEBIBYTE if memory is not None else 0,
            memory_total_mib=of_device // MEBIBYTE,
        )
