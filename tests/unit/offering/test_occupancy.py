"""Devices that are held in another shape: what is withheld, what is not, and what stays shown to the kubelet."""

from __future__ import annotations

import dataclasses
from functools import partial

from msgspec.structs import replace
from nodedevices_api.sections import Partitions, SharedResource, Sharing
from nodedevices_plugin.kubelet.api import deviceplugin_v1beta1_pb2 as api
from nodedevices_plugin.kubelet.server import snapshot
from nodedevices_plugin.model import (
    Holder,
    HoldersState,
    Holdings,
    Inventory,
    Offer,
    OfferedResource,
    Plan,
    RecentAllocate,
    SchedulableId,
)
from nodedevices_plugin.offering.occupancy import HeldId, collide, held_otherwise, with_all
from nodedevices_plugin.offering.shape import PlanSettings, make_shape
from nodedevices_plugin.pipeline.foreign import DeviceIndex, held
from nodedevices_probe import nvidia
from support.cases import cases
from support.facts import START, gpu, gpu_id, healthy, inventory_of, mig_id, partition
from support.plans import gated

GPU, SHARED, LARGE = "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-3g.40gb"
WHOLE = PlanSettings()
MIXED = PlanSettings(partitions=Partitions(strategy="mixed"))
PLAIN = inventory_of(gpu(0), gpu(1))
HALVES = tuple(partition(1, part, profile="3g.40gb", start=4 * part, size=4) for part in (0, 1))
CUT = inventory_of(gpu(0), gpu(1, mig_enabled=True, partitions=HALVES))


def shared(replicas: int, rename: str | None = None) -> PlanSettings:
    rule = SharedResource(name=GPU, replicas=replicas, rename=rename)
    return PlanSettings(sharing=Sharing(strategy="timeSlicing", resources=(rule,)))


def holdings(*pods: tuple[str | None, str]) -> Holdings:
    holders = tuple(
        Holder(namespace="ml", pod=f"p{number}", container="main", resource=resource, ids=(id_,), since=START)
        for number, (resource, id_) in enumerate(pods)
    )
    return Holdings(state=HoldersState.SYNCED, holders=holders, taken=1.0)


def protected(
    settings: PlanSettings, *pods: tuple[str | None, str], inventory: Inventory = PLAIN
) -> tuple[Plan, tuple[HeldId, ...]]:
    verdicts = healthy(*(each.fact for each in inventory.devices))
    taken = held(holdings(*pods), (), DeviceIndex(inventory))
    shape = make_shape(inventory, settings)
    others = held_otherwise(shape, taken, inventory)
    return gated(shape, inventory, verdicts, (GPU, SHARED), held=taken, held_otherwise=others), others


def free(plan: Plan) -> set[str]:
    return {each.id for resource in plan.resources for each in resource.ids if each.healthy}


def of(*ids: str) -> set[str]:
    return set(ids)


def test_what_is_held_as_offered_or_is_anothers_changes_nothing() -> None:
    plan, others = protected(shared(2), (GPU, f"{gpu_id(0)}::1"))
    assert others == ()
    assert len(free(plan)) == 4
    assert protected(WHOLE, ("example.com/nic", "nic-0"), (GPU, "GPU-of-another-node"))[1] == ()


@cases(
    ("settings", "resource", "id_"),
    (shared(2), GPU, gpu_id(0)),  # whole, and now in shares
    (WHOLE, GPU, f"{gpu_id(0)}::1"),  # a share, and now whole
    (shared(2), GPU, f"{gpu_id(0)}::3"),  # a share of more
    (shared(2, SHARED), GPU, f"{gpu_id(0)}::1"),  # under another name
    (WHOLE, "vendor.example/gpu", gpu_id(0)),  # of another plugin
    (WHOLE, None, "gpu.nvidia.com/n1/gpu-0"),  # by a DRA driver
)
def test_a_device_held_in_another_shape_is_withheld_alone(
    settings: PlanSettings, resource: str | None, id_: str
) -> None:
    plan, [stranger] = protected(settings, (resource, id_))
    assert (stranger.device_id, stranger.holder) == (gpu_id(0), "ml/p0")
    assert {each.partition("::")[0] for each in free(plan)} == {gpu_id(1)}


def test_a_gpu_that_was_cut_or_made_whole_under_its_pod_is_kept_back() -> None:
    plan, others = protected(MIXED, (GPU, gpu_id(1)), inventory=CUT)
    assert [each.id for each in others] == [gpu_id(1)]
    assert free(plan) == of(gpu_id(0))
    left = dataclasses.replace(CUT.devices[1], departed_partitions=frozenset({mig_id(1, 0)}))
    left = dataclasses.replace(
        left, fact=dataclasses.replace(left.fact, extra=nvidia.attributes(mig_enabled=False), partitions=HALVES[:1])
    )
    plan, others = protected(MIXED, (LARGE, mig_id(1, 0)), inventory=replace(CUT, devices=(CUT.devices[0], left)))
    assert [each.id for each in others] == [mig_id(1, 0)]
    assert free(plan) == of(gpu_id(0))


def test_of_a_gpu_partitioned_again_only_what_lies_where_a_held_one_was_is_kept_back() -> None:
    small = (partition(1, 3, start=0, size=2), partition(1, 4, start=4, size=2), partition(1, 5))
    anew = dataclasses.replace(CUT.devices[1], departed_partitions=frozenset({mig_id(1, 0)}))
    anew = dataclasses.replace(anew, fact=dataclasses.replace(anew.fact, partitions=(HALVES[0], *small)))
    plan, _ = protected(MIXED, (LARGE, mig_id(1, 0)), inventory=replace(CUT, devices=(CUT.devices[0], anew)))
    assert free(plan) == of(gpu_id(0), mig_id(1, 4)), "nobody knows where the last one lies"
    here = partial(collide, listed={each.id: each for each in HALVES}, departed=set())
    one = HeldId(resource=GPU, id=mig_id(1, 0), device_id=gpu_id(1), partition_id=mig_id(1, 0))
    assert [here(each, one) for each in (None, mig_id(1, 0), mig_id(1, 1))] == [True, True, False]
    assert here(mig_id(1, 0), replace(one, partition_id=None)), "the whole device"
    assert here(mig_id(1, 0), replace(one, partition_id="MIG-unknown"))


@cases(
    ("start", "size", "where", "same"),
    (0, 2, (2, 2), False),
    (2, 2, (0, 2), False),
    (0, 3, (2, 2), True),
    (2, 2, (0, 3), True),
    (0, 8, (2, 2), True),
    (2, 2, (0, 8), True),
    (None, 2, (4, 2), True),
    (0, None, (4, 2), True),
    (0, 2, (None, 2), True),
    (0, 2, (4, None), True),
)
def test_a_partition_that_is_gone_takes_the_place_of_those_that_it_overlaps_or_may(
    start: int | None, size: int | None, where: tuple[int | None, int | None], same: bool
) -> None:
    gone = partition(1, 0, start=start, size=size)
    listed = {gone.id: gone, "new": partition(1, 1, start=where[0], size=where[1])}
    before = HeldId(resource=GPU, id=gone.id, device_id=gpu_id(1), partition_id=gone.id)
    assert collide("new", before, listed=listed, departed={gone.id}) is same
    assert collide("unlisted", before, listed=listed, departed={gone.id})


def test_a_holder_of_a_resource_that_is_given_whole_has_all_its_devices() -> None:
    ids = tuple(SchedulableId(id=each, device_id=each) for each in ("a", "b"))
    kept = SchedulableId(id="c::0", device_id="c", replica=0)
    board = OfferedResource(name=GPU, ids=ids, together=True, retained=(kept,))
    listed = holdings((GPU, "a"), (SHARED, "x"), (None, "claim"))
    found = with_all(listed, Plan(resources=(OfferedResource(name=SHARED, ids=ids), board)))
    assert [each.also for each in found.holders] == [("b", "c"), (), ()]
    assert with_all(listed, Plan(resources=(replace(board, together=False),))) == listed
    assert with_all(listed, None) == listed
    nothing = replace(listed, holders=(replace(listed.holders[0], ids=()),))
    assert with_all(nothing, Plan(resources=(board,))) == nothing


def test_what_is_beside_a_held_device_stays_free_and_an_old_id_is_shown_only_when_it_is_ill() -> None:
    plan, [stranger] = protected(MIXED, ("vendor.example/mig", mig_id(1, 0)), inventory=CUT)
    assert stranger.partition_id == mig_id(1, 0)
    assert free(plan) == of(gpu_id(0), mig_id(1, 1))
    plan, _ = protected(shared(2), (GPU, gpu_id(0)))
    [resource] = plan.resources
    assert [(each.id, each.healthy) for each in resource.retained] == [(gpu_id(0), True)]
    assert gpu_id(0) not in shown(plan)
    ill = dataclasses.replace(healthy(gpu(0))[gpu_id(0)], offered=False)
    verdicts = {**healthy(gpu(1)), gpu_id(0): ill}
    taken = held(holdings((GPU, gpu_id(0))), (), DeviceIndex(PLAIN))
    plan = gated(make_shape(PLAIN, shared(2)), PLAIN, verdicts, held=taken)
    assert shown(plan)[gpu_id(0)] == "Unhealthy"


def test_a_name_stays_while_a_pod_holds_it_and_an_allocate_that_no_list_shows_yet_is_held() -> None:
    plan, _ = protected(shared(2, SHARED), (GPU, gpu_id(0)))
    by_name = {each.name: each for each in plan.resources}
    assert (by_name[GPU].ids, len(by_name[GPU].retained)) == ((), 1)
    assert snapshot(by_name[GPU]) == b""
    recent = RecentAllocate(resource=GPU, ids=(gpu_id(0), gpu_id(1)), time=START, monotonic=5.0)
    assert [(each.id, each.holder) for each in held(holdings(), (recent,), DeviceIndex(PLAIN))] == [
        (gpu_id(0), ""),
        (gpu_id(1), ""),
    ]


def test_what_the_checkpoint_gives_to_containers_is_held_whether_or_not_a_list_is_complete() -> None:
    possible = (Offer(resource=GPU, ids=(gpu_id(0), gpu_id(1))),)
    unknown = replace(holdings((GPU, gpu_id(0))), state=HoldersState.INCOMPLETE, possible=possible)
    taken = held(unknown, (), DeviceIndex(PLAIN))
    assert [(each.id, each.holder) for each in taken] == [(gpu_id(0), "ml/p0"), (gpu_id(1), "")]
    assert (
        held(replace(unknown, state=HoldersState.SYNCED), (), DeviceIndex(PLAIN)) == taken
    )  # List has no init containers


def shown(plan: Plan) -> dict[str, str]:
    message = api.ListAndWatchResponse.FromString(snapshot(plan.resources[0]))
    return {each.ID: each.health for each in message.devices}
