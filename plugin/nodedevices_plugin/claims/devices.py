"""The devices of a plan for claims: how they are shared, what a claim gets of them, and which claims have ended.

A shared device is one device in the slice, `allowMultipleAllocations`, whose capacity claims consume: `shares` where it
has replicas, `memory` in steps of its unit. Every capacity has a requestPolicy: what a claim does not ask for is
consumed by its default, which without one is all of it, and the device would be whole again. So one share is the
default, and of what is not shared nobody consumes anything.

The scheduler counts what is consumed; here a claim gets shares by their ids, which no other record has. So a device is
given out once whatever the scheduler allocates, and where a policy changes its shares, what was given before is another
shape, as it is for containers of the device plugin API (offering.occupancy).

The kubelet calls again whenever it makes a sandbox, after its own restart too: a claim that is prepared already gets
the same devices. Nothing is ever given in the place of a device that is gone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

from msgspec import Struct
from nodedevices_api.withheld import TOLERABLE
from nodedevices_common.grouping import grouped
from nodedevices_common.quantity import from_bytes, whole_units
from nodedevices_common.raw import mapping, text

from nodedevices_plugin.claims.records import Claim, ClaimError, NotNowError, Prepared, Record, Result, results_of
from nodedevices_plugin.model import Blocked, ContainerEdits, OfferedResource, SchedulableId

SHARES = "shares"
MEMORY = "memory"
NOTHING: Mapping[str, Any] = {"default": "0", "validValues": ["0"]}  # a policy by which nobody consumes a capacity
AGAIN = "Delete the pod, so that it is scheduled again"


class Available(Struct, frozen=True, kw_only=True):
    """A device of the node's plan for DRA. `ids`: its own, or those of its shares. `blocked`: why it goes to no new
    pod; where that is a taint, a claim may tolerate it."""

    part_id: str
    resource: OfferedResource
    ids: tuple[SchedulableId, ...]
    blocked: Blocked | None = None

    @property
    def shared(self) -> bool:
        return self.ids[0].replica is not None

    @property
    def left_out(self) -> bool:
        """True when no claim may get it, whatever it tolerates."""
        return _leaves_out(self.blocked)

    @property
    def unit(self) -> str:
        """The amount of memory that a share is; empty: a share is one of several."""
        return self.resource.sharing.memory.unit if self.resource.sharing.memory is not None and self.shared else ""


def devices_of(resource: OfferedResource) -> Iterator[Available]:
    """Yield the resource's devices in the plan's order, those that are left out too. One is left out where any of its
    shares is."""
    by_part = grouped((schedulable.part_id, schedulable) for schedulable in (*resource.ids, *resource.unlisted))
    for part_id, ids in by_part.items():
        reasons = [schedulable.blocked for schedulable in ids if schedulable.blocked is not None]
        first = next(filter(_leaves_out, reasons), reasons[0] if reasons else None)
        yield Available(part_id=part_id, resource=resource, ids=tuple(ids), blocked=first)


def _leaves_out(blocked: Blocked | None) -> bool:
    """A reason that is not known is one that no claim may tolerate."""
    return blocked is not None and blocked.reason not in TOLERABLE


def capacity(device: Available, of_device: Mapping[str, str]) -> dict[str, Any]:
    """Return the capacity in a slice. `of_device`: the amounts that the device has."""
    if not device.shared:
        return {name: {"value": value} for name, value in of_device.items()}
    name, unit, count = _consumed(device), _unit(device), len(device.ids)
    one = _amount(device, unit)
    policy: dict[str, Any] = {"default": one, "validValues": [one]}
    if count > 1 and not device.resource.fail_requests_greater_than_one:
        policy = {"default": one, "validRange": {"min": one, "step": one}}
    others = {other: {"value": value, "requestPolicy": {**NOTHING}} for other, value in of_device.items()}
    return {**others, name: {"value": _amount(device, count * unit), "requestPolicy": policy}}


def chosen(device: Available, result: Result, taken: Mapping[str, str], own: Iterable[str] = ()) -> tuple[int, ...]:
    """Return the numbers of the shares that a claim gets; none of a whole device.

    Args:
        taken: claims by the ids of this device that they have.
        own: ids that this claim has by other results.

    Raises:
        NotNowError: there are not so many free, or the claim was allocated something else than is offered.
    """
    strangers = taken.keys() - {schedulable.id for schedulable in device.ids}
    if strangers or (taken and not device.shared):
        raise NotNowError(f"the device {result.device} is prepared for the claim {min(taken.values())}. {AGAIN}")
    if not device.shared:
        if result.share:
            raise NotNowError(f"the claim has a share of {result.device}, which is not shared (any more). {AGAIN}")
        return ()
    count = _count(device, result)
    gone = {*taken, *own}
    free = [schedulable.replica for schedulable in device.ids if schedulable.id not in gone]
    numbers = tuple(number for number in free[:count] if number is not None)
    if len(numbers) < count:
        claims = ", ".join(sorted(set(taken.values()))) or "this claim"
        of_it = f"{_amount(device, len(device.ids) * _unit(device))} of {_consumed(device)}"
        left = _amount(device, len(free) * _unit(device))
        raise NotNowError(
            f"of the device {result.device} ({of_it}) {left} is free, and the claim has "
            f"{result.consumed[_consumed(device)]} allocated: it is prepared for {claims}. {AGAIN}"
        )
    return numbers


def _count(device: Available, result: Result) -> int:
    given, unit = result.consumed.get(_consumed(device)), _unit(device)
    count, more = divmod(whole_units(given), unit)
    if count and not more:
        return count
    what = f"{given} of {_consumed(device)}" if given else "all"
    raise NotNowError(
        f"the claim was allocated {what} of {result.device}, whose shares are of {_amount(device, unit)} of "
        f"{_consumed(device)} now. {AGAIN}"
    )


def added(with_shares: ContainerEdits, without: ContainerEdits) -> ContainerEdits:
    """Return what a container is given for its shares beside the devices: limits, an MPS daemon's pipe."""
    return ContainerEdits(
        envs={name: value for name, value in with_shares.envs.items() if without.envs.get(name) != value},
        mounts=tuple(mount for mount in with_shares.mounts if mount not in without.mounts),
    )


def _consumed(device: Available) -> str:
    return MEMORY if device.resource.sharing.memory is not None else SHARES


def _unit(device: Available) -> int:
    memory = device.resource.sharing.memory
    return 1 if memory is None else memory.unit_bytes


def _amount(device: Available, amount: int) -> str:
    return str(amount) if device.resource.sharing.memory is None else from_bytes(amount)


# --- what a claim gets when it is prepared, and which have ended -----------------------------------------------------
class Prepare(Struct, frozen=True, kw_only=True):
    """`is_new`: the record replaces that of the same claim, if there is one, and releases what only that one has."""

    record: Record
    is_new: bool


def prepare(
    claim: Claim,
    devices: Mapping[str, Available],
    records: Mapping[str, Record],
    *,
    present: Set[str],
    leaving: Collection[str] = (),
) -> Prepare:
    """Decide what the claim gets. Call it under the lock under which Allocate grants.

    Args:
        devices: of the plan in effect, by their names in the slices.
        records: of all claims, by uid.
        present: ids of all devices and partitions that the node has.
        leaving: ids that the next plan takes away.

    Raises:
        NotNowError: a device is gone, is not offered or is another claim's.
        ClaimError: the claim has a device twice, or a newer version has prepared it.
    """
    before = records.get(claim.uid)
    if before is not None and before.not_understood and (before.is_of(claim) or not before.prepared):
        raise ClaimError(
            f"a newer version of NodeDevices has prepared the claim ({before.not_understood}): install that version "
            "again, or delete the pod"
        )
    if before is not None and before.is_of(claim):
        for entry in before.prepared:
            if entry.part_id not in present:
                raise NotNowError(
                    f"device {entry.result.device} ({entry.part_id}), which the claim was given, is not on this node "
                    "now; the claim gets no other device. Delete the pod, or wait until the device is back"
                )
        return Prepare(record=before, is_new=False)
    others = [record for uid, record in records.items() if uid != claim.uid]
    prepared: list[Prepared] = []
    for result in claim.results:
        prepared.append(_prepared(result, _offered(result, devices, present, leaving), others, prepared))
    record = Record(uid=claim.uid, namespace=claim.namespace, name=claim.name, prepared=tuple(prepared))
    return Prepare(record=record, is_new=True)


def _offered(
    result: Result, devices: Mapping[str, Available], present: Set[str], leaving: Collection[str]
) -> Available:
    device = devices.get(result.device)
    if device is None:
        raise NotNowError(f"this node does not offer the device {result.device[:64]} (any more). {AGAIN}")
    if device.part_id not in present:
        raise NotNowError(f"the device {result.device} ({device.part_id}) is not on this node now. {AGAIN}")
    if device.part_id in leaving:
        raise NotNowError(f"this node is about to stop offering the device {result.device}. {AGAIN}")
    if device.blocked is not None and device.left_out:
        why = f"{device.blocked.reason}: {device.blocked.message}"
        raise NotNowError(f"the device {result.device} goes to no new pod ({why}). {AGAIN}")
    return device


def _prepared(result: Result, device: Available, others: Sequence[Record], before: Sequence[Prepared]) -> Prepared:
    """`before`: what the claim has by its other results."""
    numbers: tuple[int, ...] = ()
    if not result.admin:
        taken = {
            id_: record.claim
            for record in others
            for entry in record.own
            if entry.part_id == device.part_id
            for id_ in entry.ids
        }
        same = [entry for entry in before if entry.part_id == device.part_id and not entry.result.admin]
        if same and not device.shared:
            raise ClaimError(f"the claim has the device {result.device} twice")
        numbers = chosen(device, result, taken, {id_ for entry in same for id_ in entry.ids})
    return Prepared(
        result=result,
        part_id=device.part_id,
        resource=device.resource.name,
        shares=numbers,
        unit=device.unit if numbers else "",
    )


def ended(record: Record, shown: Collection[tuple[str, str]] | None, answer: Any, *, driver: str, pool: str) -> bool:
    """True when two proofs say that the claim has ended, although the kubelet has never unprepared it.

    Args:
        shown: namespace and name of the claims in a complete List of PodResources; None: there is none.
        answer: the claim, as the API server has it; {}: it is gone; None: the server has not answered.
    """
    if shown is None or answer is None or (record.namespace, record.name) in shown:
        return False
    claim = mapping(answer)
    if not claim or text(mapping(claim.get("metadata")).get("uid")) != record.uid:
        return True
    return not results_of(claim, driver=driver, pool=pool)
