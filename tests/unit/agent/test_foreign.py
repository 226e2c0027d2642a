"""What another plugin or a DRA driver offers and hands out here, from literals: whose it is, what is remembered."""

from __future__ import annotations

from hypothesis import given, strategies as st
from msgspec.structs import replace
from nodedevices_plugin.model import (
    Holder,
    HoldersState,
    Holdings,
    Inventory,
    Offer,
    OfferedResource,
    Plan,
    SchedulableId,
    SharingFacts,
)
from nodedevices_plugin.pipeline.foreign import (
    DeviceIndex,
    named,
    observe,
    offered_text,
    other_plugins,
    remembered,
    take_over,
    unread_holders,
)
from nodedevices_plugin.sharing.mps import Mps
from nodedevices_plugin.sharing.registry import TimeSlicing
from support.cases import cases
from support.facts import START, gpu, gpu_id, inventory_of, mig_id, partition

GPU = "nvidia.com/gpu"
SHARED = "nvidia.com/gpu.shared"
TWO = inventory_of(gpu(0), gpu(1))
SPLIT = inventory_of(
    gpu(0, mig_enabled=True, partitions=(partition(0, 0, start=0, size=1), partition(0, 1, start=1, size=1))), gpu(1)
)


def offered(*offers: tuple[str, tuple[str, ...]], state: HoldersState = HoldersState.SYNCED) -> Holdings:
    found = tuple(Offer(resource=name, ids=ids) for name, ids in offers)
    return Holdings(state=state, offered=found, taken=1.0)


def holder(*ids: str, resource: str | None = GPU, claim: str | None = None, pod: str = "train-0") -> Holder:
    return Holder(
        namespace="ml",
        pod=pod,
        container="main",
        resource=None if claim else resource,
        claim=claim,
        ids=ids,
        since=START,
    )


def names(inventory: Inventory = TWO, *, indices: bool = False) -> DeviceIndex:
    return DeviceIndex(inventory, index_prefix="nvidia.com" if indices else None)


def shows(plan: Plan) -> dict[str, tuple[int, int]]:
    """Resource -> (ids, healthy ids)."""
    return {each.name: (len(each.ids), sum(one.healthy for one in each.ids)) for each in plan.resources}


BOTH = offered((GPU, (gpu_id(0), gpu_id(1))))
SERVED = observe({}, BOTH, names())


def test_what_the_kubelet_offers_of_our_devices_is_shown_and_of_others_nothing() -> None:
    assert shows(SERVED) == {GPU: (2, 2)}
    assert [each.sharing.name for each in SERVED.resources] == ["none"]
    foreign = offered(("vendor.example/nic", ("0", "nic-1")), (GPU, ("GPU-of-another-node",)))
    assert observe({}, foreign, names(indices=True)) == Plan()


def test_shares_and_mig_devices_are_their_devices() -> None:
    four = tuple(f"{gpu_id(number)}::{share}" for number in range(2) for share in range(4))
    [resource] = observe({}, offered((SHARED, four)), names(), mode=Mps()).resources
    assert (len(resource.ids), resource.sharing) == (8, SharingFacts(mode=Mps(), replicas=4))
    assert {each.device_id for each in resource.ids} == {gpu_id(0), gpu_id(1)}
    [unknown] = observe({}, offered((SHARED, four)), names()).resources
    assert unknown.sharing.name == "timeSlicing"
    profile = "nvidia.com/mig-1g.10gb"
    [resource] = observe({}, offered((profile, (mig_id(0, 0), mig_id(0, 1)))), names(SPLIT)).resources
    assert {(each.device_id, each.partition_id) for each in resource.ids} == {
        (gpu_id(0), mig_id(0, 0)),
        (gpu_id(0), mig_id(0, 1)),
    }


@cases(("id_", "unit"), ("1", gpu_id(1)), ("0:1", mig_id(0, 1)), ("1::2", f"{gpu_id(1)}::2"))
def test_indices_are_devices_only_where_they_are_configured(id_: str, unit: str) -> None:
    held = replace(BOTH, holders=(holder(id_),))
    assert named(held, names(SPLIT, indices=True)).holders[0].ids == (unit,)
    assert named(held, names(SPLIT)) == held
    elsewhere = replace(BOTH, holders=(holder(id_, resource="smarter-devices/fuse"),))
    assert named(elsewhere, names(SPLIT, indices=True)) == elsewhere


@cases(
    ("device", "unit"),
    ("gpu.nvidia.com/n1/gpu-1", gpu_id(1)),
    ("gpu.nvidia.com/rack/7/gpu-1", gpu_id(1)),
    ("gpu.nvidia.com/n1/gpu-0-mig-1g.10gb-19-1", mig_id(0, 1)),
    ("gpu.nvidia.com/n1/gpu-0-mig-1g10gb-19-1", mig_id(0, 1)),
    ("gpu.nvidia.com/n1/gpu-0-mig-3g.40gb-9-4", gpu_id(0)),
    ("gpu.nvidia.com/n1/gpu-7", "gpu.nvidia.com/n1/gpu-7"),
    ("other.example/n1/gpu-1", "other.example/n1/gpu-1"),
)
def test_a_dra_drivers_devices_are_found_by_their_minor_number(device: str, unit: str) -> None:
    held = replace(BOTH, holders=(holder(device, claim="ml/claim"),))
    assert named(held, names(SPLIT)).holders[0].ids == (unit,)


# --- what cannot be seen any more -------------------------------------------------------------------------------------
def test_a_plugin_that_is_down_or_ill_keeps_its_name_and_its_capacity() -> None:
    later = observe(remembered(SERVED), offered((GPU, (gpu_id(0),))), names())
    assert shows(later) == {GPU: (2, 1)}
    down = observe(remembered(SERVED), offered(), names())
    assert shows(down) == {GPU: (2, 0)}
    assert shows(observe(remembered(down), BOTH, names())) == {GPU: (2, 2)}


def test_what_is_held_is_capacity_and_what_is_gone_for_good_is_forgotten() -> None:
    silent = replace(BOTH, state=HoldersState.UNAVAILABLE)
    assert shows(observe(remembered(SERVED), silent, names())) == {GPU: (2, 0)}
    refused = replace(BOTH, state=HoldersState.RATE_LIMITED)
    assert shows(observe(remembered(SERVED), refused, names())) == {GPU: (2, 2)}
    held = replace(offered((GPU, (gpu_id(1),))), holders=(holder(gpu_id(0)),))
    assert shows(observe({}, held, names())) == {GPU: (2, 1)}
    assert shows(observe(remembered(SERVED), offered(), names(inventory_of(gpu(0))))) == {GPU: (1, 0)}
    assert observe(remembered(SERVED), offered(), names(Inventory())) == Plan()


def test_devices_that_are_offered_again_are_forgotten_under_their_old_name() -> None:
    four = tuple(f"{gpu_id(number)}::{share}" for number in range(2) for share in range(4))
    two = tuple(f"{gpu_id(number)}::{share}" for number in range(2) for share in range(2))
    renamed = observe(remembered(SERVED), offered((SHARED, four)), names())
    assert shows(renamed) == {SHARED: (8, 8)}
    assert shows(observe(remembered(renamed), offered((SHARED, two)), names())) == {SHARED: (4, 4)}


@given(
    st.lists(
        st.sets(
            st.sampled_from(
                [
                    (name, f"{gpu_id(n)}{share}")
                    for name in (GPU, SHARED)
                    for n in range(2)
                    for share in ("", "::0", "::1")
                ]
            )
        )
    )
)
def test_what_is_offered_now_is_healthy_and_looking_twice_changes_nothing(looks: list[set[tuple[str, str]]]) -> None:
    known: dict[str, tuple[str, ...]] = {}
    for look in looks:
        said = offered(*((name, tuple(sorted(id_ for of, id_ in look if of == name))) for name in (GPU, SHARED)))
        plan = observe(known, said, names())
        assert {(each.name, one.id) for each in plan.resources for one in each.ids if one.healthy} == look
        known = remembered(plan)
        assert observe(known, said, names()) == plan


# --- taking over ------------------------------------------------------------------------------------------------------
WANTED = Plan(
    resources=(
        OfferedResource(name=GPU, ids=tuple(SchedulableId(id=gpu_id(n), device_id=gpu_id(n)) for n in range(2))),
    )
)


def test_the_same_ids_under_the_same_name_are_taken_over_with_their_pods() -> None:
    held = replace(BOTH, holders=(holder(gpu_id(0)),))
    assert take_over(WANTED, held, names()).apply
    assert take_over(WANTED, offered(), names()).apply


def test_a_pod_that_holds_what_would_not_be_offered_is_waited_for() -> None:
    for held in (
        holder(f"{gpu_id(0)}::1"),
        holder(gpu_id(0), resource=SHARED),
        holder("gpu.nvidia.com/n/gpu-0", claim="ml/c"),
    ):
        decision = take_over(WANTED, replace(offered(), holders=(held,)), names())
        assert not decision.apply
        assert "ml/train-0" in decision.message


def test_a_pod_that_holds_the_very_ids_that_would_be_shared_by_mps_is_waited_for() -> None:
    """Whether it is a client of the other plugin's daemon cannot be seen."""
    share = SchedulableId(id=f"{gpu_id(0)}::0", device_id=gpu_id(0), replica=0)
    by_time = Plan(
        resources=(OfferedResource(name=GPU, ids=(share,), sharing=SharingFacts(mode=TimeSlicing(), replicas=2)),)
    )
    by_mps = Plan(resources=(replace(by_time.resources[0], sharing=SharingFacts(mode=Mps(), replicas=2)),))
    held = replace(offered(), holders=(holder(share.id),))
    assert take_over(by_time, held, names()).apply
    decision = take_over(by_mps, held, names())
    assert not decision.apply
    assert "ml/train-0" in decision.message
    assert take_over(by_mps, offered((GPU, (share.id,))), names()).apply


def test_a_plugin_that_offers_our_devices_differently_is_waited_for_and_other_devices_are_not() -> None:
    decision = take_over(WANTED, offered((SHARED, (f"{gpu_id(0)}::0",))), names())
    assert not decision.apply
    assert SHARED in decision.message
    busy = replace(
        offered(("vendor.example/nic", ("nic-1",))), holders=(holder("nic-1", resource="vendor.example/nic"),)
    )
    assert take_over(WANTED, busy, names()).apply
    for unknown in (replace(BOTH, state=HoldersState.RATE_LIMITED, message="not now"), replace(BOTH, offered=None)):
        assert not take_over(WANTED, unknown, names()).apply


# --- in the way of a registration -------------------------------------------------------------------------------------
MIG = "nvidia.com/mig-1g.10gb"


def plan_of(*resources: tuple[str, tuple[str, ...]]) -> Plan:
    return Plan(
        resources=tuple(
            OfferedResource(
                name=name, ids=tuple(SchedulableId(id=each, device_id=each.partition("::")[0]) for each in ids)
            )
            for name, ids in resources
        )
    )


WANTED = plan_of((GPU, (gpu_id(0), gpu_id(1))))


def in_the_way(
    *offers: Offer, plan: Plan = WANTED, resource: str = GPU, own: tuple[str, ...] = (), indices: bool = False
) -> dict[str, int]:
    """Resource -> ids."""
    found = other_plugins(resource, plan, offers, names(indices=indices), own=own)
    return {each.resource: len(each.ids) for each in found}


def test_whoever_offers_under_our_name_or_our_devices_is_in_the_way_and_nobody_else() -> None:
    assert in_the_way(Offer(resource=GPU, ids=(gpu_id(0),))) == {GPU: 1}
    assert in_the_way(Offer(resource=GPU, ids=("somebody-elses",))) == {GPU: 1}
    shares = Offer(resource=SHARED, ids=(f"{gpu_id(0)}::0", f"{gpu_id(0)}::1", "GPU-of-nobody"))
    assert in_the_way(shares) == {SHARED: 2}
    assert in_the_way(Offer(resource=SHARED, ids=("0", "7")), indices=True) == {SHARED: 1}
    assert in_the_way(Offer(resource="nvidia.com/nic", ids=("0",))) == {}
    assert in_the_way(Offer(resource="vendor.example/gpu", ids=(gpu_id(0),))) == {}
    assert in_the_way(Offer(resource=GPU, ids=(gpu_id(0),)), own=(GPU,)) == {}
    left_out = plan_of((GPU, (gpu_id(0),)))
    assert in_the_way(Offer(resource="nvidia.com/special", ids=(gpu_id(1),)), plan=left_out) == {}


@cases(
    ("offer", "found"),
    (Offer(resource=GPU, ids=(gpu_id(0), gpu_id(1))), {}),
    (Offer(resource=GPU, ids=(gpu_id(0), f"{gpu_id(1)}::0")), {GPU: 1}),
    (Offer(resource=GPU, ids=("GPU-0-_-0", "GPU-0-_-1")), {GPU: 2}),
    (Offer(resource=SHARED, ids=(gpu_id(0),)), {SHARED: 1}),
)
def test_a_name_is_taken_over_beside_the_same_ids_and_no_others(offer: Offer, found: dict[str, int]) -> None:
    offers = other_plugins(GPU, WANTED, [offer], names(), own=(), taking_over=True)
    assert {each.resource: len(each.ids) for each in offers} == found


def test_a_plan_is_one_thing_no_name_of_it_is_registered_beside_another() -> None:
    plan = plan_of((GPU, (gpu_id(0),)), (MIG, (gpu_id(1),)), ("vendor.example/fpga", ("x",)))
    theirs = Offer(resource=GPU, ids=(gpu_id(0),))
    assert in_the_way(theirs, plan=plan, resource=MIG) == {GPU: 1}
    assert in_the_way(theirs, plan=plan, resource="vendor.example/fpga") == {}


def test_it_is_said_who_it_is_and_what_to_do() -> None:
    assert offered_text(()) == ""
    remedy = "; remove it from this node, or set serving.mode: Observe"
    one, two = Offer(resource=GPU, ids=(gpu_id(0),)), Offer(resource=SHARED, ids=(gpu_id(0), gpu_id(1)))
    assert offered_text((one,)) == (
        f"another device plugin serves {GPU} to this kubelet: the healthy id {gpu_id(0)}{remedy}"
    )
    assert offered_text((one, two)) == (
        f"another device plugin serves {GPU}, {SHARED} to this kubelet: 3 healthy ids, such as {gpu_id(0)}{remedy}"
    )
    many = tuple(Offer(resource=f"nvidia.com/mig-{number}g.10gb", ids=("x",)) for number in range(6))
    assert "mig-3g.10gb and 2 more to this kubelet" in offered_text(many)


# Ids as these plugins write them, each under the name that its migration page gives to our devices.
OTHERS = {
    "Aliyun": ("aliyun.com/gpu-mem", f"{gpu_id(0)}-_-3"),
    "gpu-manager": ("tencent.com/vcuda-core", "tencent.com/vcuda-core-17"),
    "HAMi": ("nvidia.com/gpu", f"{gpu_id(0)}-3"),
    "Google": ("nvidia.com/gpu", "nvidia0"),
    "Google, shared": ("nvidia.com/gpu", "nvidia0/vgpu3"),
    "NVIDIA, by index": ("nvidia.com/gpu", "0"),
    "AMD": ("amd.com/gpu", "amdgpu_xcp_30"),
    "Intel": ("gpu.intel.com/i915", "card0-2"),
    "squat": ("squat.ai/fuse", "5c2f1d6e"),
}


@cases(("resource", "id_"), *OTHERS.values(), ids=OTHERS)
def test_a_name_is_not_taken_over_while_its_plugin_lives_or_pods_hold_any_of_its_ids(resource: str, id_: str) -> None:
    ours = Plan(resources=(OfferedResource(name=resource, ids=(SchedulableId(id=gpu_id(0), device_id=gpu_id(0)),)),))
    alive = take_over(ours, offered((resource, (id_,))), names())
    assert not alive.apply
    assert resource in alive.message
    held = holder(id_, resource=resource)
    assert take_over(ours, replace(offered(), holders=(held,)), names()).waits_for == (f"{held.namespace}/{held.pod}",)
    init = replace(offered(), possible=(Offer(resource=resource, ids=(id_,)),))
    assert not take_over(ours, init, names()).apply
    assert take_over(ours, offered(), names()).apply


@cases(("resource", "id_"), *OTHERS.values(), ids=OTHERS)
def test_a_name_is_not_registered_where_pods_hold_ids_of_a_plugin_that_has_gone(resource: str, id_: str) -> None:
    ours = Plan(resources=(OfferedResource(name=resource, ids=(SchedulableId(id=gpu_id(0), device_id=gpu_id(0)),)),))
    said = unread_holders(resource, ours, replace(offered(), holders=(holder(id_, resource=resource),)), names())
    assert id_ in said
    assert "ml/train-0" in said
    assert not unread_holders("another.example/name", ours, offered(), names())


def test_a_pod_that_holds_a_gpu_that_has_left_keeps_no_name_back() -> None:
    """After a lost state file nothing else is known of it."""
    ours = Plan(resources=(OfferedResource(name=GPU, ids=(SchedulableId(id=gpu_id(0), device_id=gpu_id(0)),)),))
    for id_ in (gpu_id(7), f"{gpu_id(7)}::2"):
        assert not unread_holders(GPU, ours, replace(offered(), holders=(holder(id_),)), names())
