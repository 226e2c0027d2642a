"""The health of devices that claims have, as the kubelet is sent it."""

from __future__ import annotations

from dataclasses import replace

from nodedevices_plugin.claims.records import Prepared, Record, Result
from nodedevices_plugin.claims.slices import pool_health
from nodedevices_plugin.model import HealthState, Inventory, OfferedResource, SchedulableId, Verdict
from support.facts import gpu, healthy, inventory_of, partition

WHOLE, PARTS = gpu(0), gpu(1, partitions=(partition(1, 0), partition(1, 1)))
OFFERED = OfferedResource(
    name="nvidia.com/gpu",
    ids=(
        SchedulableId(id=WHOLE.id, device_id=WHOLE.id),
        *(SchedulableId(id=part.id, device_id=PARTS.id, partition_id=part.id) for part in PARTS.partitions),
    ),
)
FIRST, SECOND = "gpu-1-1g10gb-0", "gpu-1-1g10gb-1"


def ill(verdict: Verdict, reason: str) -> Verdict:
    return replace(verdict, state=HealthState.UNHEALTHY, reason=reason, offered=False)


def states(inventory: Inventory, verdicts: dict[str, Verdict], *records: Record) -> dict[str, tuple[str, str]]:
    found = pool_health([OFFERED] if not records else [], records, inventory, verdicts)
    return {device.name: (device.state.value, device.reason) for device in found}


def record(part_id: str, device: str) -> Record:
    prepared = Prepared(result=Result(request="gpu", device=device), part_id=part_id, resource="nvidia.com/gpu")
    return Record(uid="u", namespace="ml", name="train", prepared=(prepared,))


def test_a_partition_has_its_own_verdict_but_for_that_of_a_gpu_that_no_pod_may_get() -> None:
    verdicts = healthy(WHOLE, PARTS)
    first, second = PARTS.partitions
    verdicts[first.id] = ill(verdicts[PARTS.id], "RowRemapFailure")
    inventory = inventory_of(WHOLE, PARTS)
    well = ("Healthy", "")
    assert states(inventory, verdicts) == {"gpu-0": well, FIRST: ("Unhealthy", "RowRemapFailure"), SECOND: well}
    verdicts[PARTS.id] = ill(verdicts[PARTS.id], "Xid79")
    verdicts[second.id] = replace(verdicts[WHOLE.id])
    lost = ("Unhealthy", "Xid79")
    assert states(inventory, verdicts) == {"gpu-0": well, FIRST: lost, SECOND: lost}


def test_a_device_that_is_not_judged_is_unknown_and_one_of_a_claim_is_shown_whatever_the_node_offers() -> None:
    inventory = inventory_of(WHOLE)
    assert states(inventory, {}, record(WHOLE.id, "gpu-0")) == {"gpu-0": ("Unknown", "")}
    assert states(inventory, healthy(WHOLE), record("GPU-gone", "gpu-7")) == {"gpu-7": ("Unhealthy", "Missing")}
    assert pool_health([], [], inventory, healthy(WHOLE)) == ()
