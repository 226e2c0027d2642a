"""What a claim gets when the kubelet prepares it, and which records are of claims that have ended.

The kubelet calls again whenever it makes a sandbox, after its own restart too: a claim that is prepared already gets
the same devices. Nothing is ever given in the place of a device that is gone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from typing import Any

from msgspec import Struct
from nodedevices_common.raw import mapping, text

from nodedevices_plugin.claims.records import Claim, ClaimError, NotNowError, Prepared, Record, Result, results_of
from nodedevices_plugin.claims.shares import AGAIN, Available, chosen


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
