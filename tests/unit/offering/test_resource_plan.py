from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings as tried, strategies as st
from nodedevices_api.sections import (
    OfferMatch,
    Partitions,
    ResourceRule,
    Resources,
    Sections,
    Serving,
    SharedResource,
    Sharing,
)
from nodedevices_plugin.model import (
    HealthState,
    Inventory,
    OfferedResource,
    Plan,
    SchedulableId,
    SharingFacts,
    Unit,
    Verdict,
)
from nodedevices_plugin.offering.shape import PlanError, PlanSettings, shape_of
from nodedevices_plugin.pipeline import inventory as stage
from nodedevices_plugin.sharing.base import Settings
from nodedevices_plugin.sharing.registry import TimeSlicing
from nodedevices_plugin.vendors.base import Naming, VendorShares
from nodedevices_plugin.vendors.nvidia.vendor import Nvidia
from nodedevices_plugin.vendors.registry import Vendors, VendorValues
from nodedevices_probe.protocol import DeviceFact
from support.cases import cases
from support.facts import START, gpu, gpu_id, healthy, inventory_of, mig_id, partition, silent_gpu, snapshot
from support.plans import gated, make_plan

BAD = Verdict(state=HealthState.UNHEALTHY, reason="Xid79", message="", since=START, offered=False)


def slices(replicas: int, *, name: str = "nvidia.com/gpu", **rest: object) -> Sharing:
    general = {key: rest.pop(key) for key in ("rename_by_default", "fail_requests_greater_than_one") if key in rest}
    rule = SharedResource(name=name, replicas=replicas, **rest)
    return Sharing(strategy="timeSlicing", resources=(rule,), **general)


def plan(*devices: DeviceFact, bad: tuple[str, ...] = (), cordoned: tuple[str, ...] = (), **settings: object) -> Plan:
    verdicts = healthy(*devices) | dict.fromkeys(bad, BAD)
    return make_plan(inventory_of(*devices), verdicts, PlanSettings(**settings), frozenset(cordoned))  # type: ignore[arg-type]


def shown(found: Plan) -> dict[str, list[tuple[str, bool]]]:
    return {resource.name: [(each.id, each.healthy) for each in resource.ids] for resource in found.resources}


def ids(resource: OfferedResource) -> list[str]:
    return [each.id for each in resource.ids]


def cut(number: int, *profiles: str) -> DeviceFact:
    parts = tuple(partition(number, place, profile=profile) for place, profile in enumerate(profiles))
    return gpu(number, mig_enabled=True, partitions=parts)


# --- whole devices ----------------------------------------------------------------------------------------------------
def test_gpus_are_offered_by_index_with_their_numa_node_and_those_not_well_stay_listed_for_nobody() -> None:
    found = plan(gpu(5), gpu(0))
    assert shown(found) == {"nvidia.com/gpu": [(gpu_id(0), True), (gpu_id(5), True)]}
    assert [each.numa_node for each in found.resources[0].ids] == [0, 1]
    assert shown(plan(gpu(0), gpu(1), bad=(gpu_id(1),))) == {"nvidia.com/gpu": [(gpu_id(0), True), (gpu_id(1), False)]}
    gone = stage.update(inventory_of(gpu(0), gpu(1)), snapshot(gpu(0)), now=START, monotonic=1)
    found = make_plan(gone, healthy(gpu(0), gpu(1)), PlanSettings())
    assert shown(found) == {"nvidia.com/gpu": [(gpu_id(0), True), (gpu_id(1), False)]}
    assert shown(make_plan(inventory_of(gpu(0)), {}, PlanSettings())) == {"nvidia.com/gpu": [(gpu_id(0), False)]}
    found = plan(gpu(0), gpu(1), cordoned=(gpu_id(0),), sharing=slices(2))
    assert [healthy for _, healthy in shown(found)["nvidia.com/gpu"]] == [False, False, True, True]


def test_nodes_without_gpus_offer_nothing_and_another_prefix_gives_other_names() -> None:
    assert plan() == Plan()
    assert plan(gpu(0, vendor="acme")) == Plan()
    assert plan(gpu(0, product_name="NVIDIA DGX Display")) == Plan()
    assert plan(gpu(0), serving=Serving(mode="Observe")) == Plan()
    assert list(shown(plan(gpu(0), resource_prefix="example.com"))) == ["example.com/gpu"]


# --- time-slicing -----------------------------------------------------------------------------------------------------
def test_time_slicing_multiplies_ids_and_a_fault_is_one_of_all_shares_of_its_gpu() -> None:
    (resource,) = plan(gpu(0), gpu(1), sharing=slices(2)).resources
    assert (resource.name, resource.sharing) == ("nvidia.com/gpu", SharingFacts(mode=TimeSlicing(), replicas=2))
    assert ids(resource) == [f"{gpu_id(0)}::0", f"{gpu_id(0)}::1", f"{gpu_id(1)}::0", f"{gpu_id(1)}::1"]
    assert [each.device_id for each in resource.ids] == [gpu_id(0)] * 2 + [gpu_id(1)] * 2
    assert [each.replica for each in resource.ids] == [0, 1, 0, 1]
    found = plan(gpu(0), gpu(1), sharing=slices(3), bad=(gpu_id(0),))
    assert [healthy for _, healthy in shown(found)["nvidia.com/gpu"]] == [False] * 3 + [True] * 3


def test_shares_may_have_a_name_of_their_own_a_limit_of_one_and_be_of_the_first_devices() -> None:
    assert list(shown(plan(gpu(0), sharing=slices(2, rename_by_default=True)))) == ["nvidia.com/gpu.shared"]
    named = slices(2, rename="nvidia.com/slice", rename_by_default=True)
    assert list(shown(plan(gpu(0), sharing=named))) == ["nvidia.com/slice"]
    (resource,) = plan(gpu(0), sharing=slices(2, fail_requests_greater_than_one=True)).resources
    assert resource.fail_requests_greater_than_one
    found = plan(gpu(0), gpu(1), gpu(2), sharing=slices(2, devices=("first:1", "2", "first:x"), rename_by_default=True))
    assert {resource.name: ids(resource) for resource in found.resources} == {
        "nvidia.com/gpu": [gpu_id(1)],
        "nvidia.com/gpu.shared": [f"{gpu_id(number)}::{share}" for number in (0, 2) for share in (0, 1)],
    }


@cases("devices", ("1",), (gpu_id(1),), ("GPU-*1",))
def test_some_devices_may_be_shared_and_the_others_whole(devices: tuple[str, ...]) -> None:
    found = plan(gpu(0), gpu(1), sharing=slices(2, devices=devices, rename_by_default=True))
    assert {resource.name: ids(resource) for resource in found.resources} == {
        "nvidia.com/gpu": [gpu_id(0)],
        "nvidia.com/gpu.shared": [f"{gpu_id(1)}::0", f"{gpu_id(1)}::1"],
    }
    together = plan(gpu(0), gpu(1), sharing=slices(2, devices=devices)).resources[0]
    assert ids(together) == [gpu_id(0), f"{gpu_id(1)}::0", f"{gpu_id(1)}::1"]


@cases(
    ("own", "replicas"),
    (VendorShares(counts=(3, 3)), 3),
    (VendorShares(counts=(3, 2)), None),
    (VendorShares(counts=(3, 3), together=True), None),
)
def test_devices_that_are_shared_by_nature_are_requested_in_any_number(own: VendorShares, replicas: int | None) -> None:
    class Hubs(Nvidia):
        def shares(self, name: str, units: Sequence[Unit], naming: Naming) -> VendorShares:
            return own

    [found] = plan(gpu(0), gpu(1), vendors=VendorValues(known=Vendors((Hubs(),)))).resources
    assert (found.sharing.replicas, found.together) == (replicas, own.together)
    assert not found.fail_requests_greater_than_one


@cases("device", "0:1", mig_id(0, 1), f"MIG-{gpu_id(0)}/8/0")
def test_some_mig_devices_may_be_shared(device: str) -> None:
    found = plan(
        cut(0, "1g.10gb", "1g.10gb"),
        partitions=Partitions(strategy="mixed"),
        sharing=slices(2, name="nvidia.com/mig-1g.10gb", devices=(device,)),
    )
    assert ids(found.resources[0]) == [mig_id(0, 0), f"{mig_id(0, 1)}::0", f"{mig_id(0, 1)}::1"]


def test_several_resources_may_be_shared_each_in_its_way() -> None:
    rules = (
        SharedResource(name="nvidia.com/gpu", replicas=2),
        SharedResource(name="nvidia.com/mig-1g.10gb", replicas=3, rename="nvidia.com/slice"),
    )
    found = plan(
        gpu(0),
        cut(1, "1g.10gb"),
        partitions=Partitions(strategy="mixed"),
        sharing=Sharing(strategy="timeSlicing", resources=rules),
    )
    assert {resource.name: len(resource.ids) for resource in found.resources} == {
        "nvidia.com/gpu": 2,
        "nvidia.com/slice": 3,
    }


def test_a_new_name_that_the_kubelet_would_not_take_is_refused_where_a_device_would_have_it() -> None:
    long = f"nvidia.com/{'g' * 60}"
    with pytest.raises(PlanError, match=r"sharing\.resources\[.*\]\.rename: .*: 67 characters after the slash; 63 are"):
        plan(
            gpu(0),
            resources=Resources(devices=(ResourceRule(match=OfferMatch(), name=long),)),
            sharing=slices(2, name=long, rename_by_default=True),
        )
    named = Resources(devices=(ResourceRule(match=OfferMatch(), name=long),))
    none = slices(2, name=long, devices=("7",), rename_by_default=True)
    assert plan(gpu(0), resources=named, sharing=none) == plan(gpu(0), resources=named)


def test_sharing_that_this_agent_does_not_know_is_refused() -> None:
    rule = SharedResource(name="nvidia.com/gpu", replicas=2)
    sharing = Sharing.model_construct(strategy="windows", resources=(rule,), rename_by_default=False)
    with pytest.raises(
        PlanError, match=r"sharing\.strategy: windows: this agent knows none, timeSlicing, mps and memory"
    ):
        plan(gpu(0), sharing=sharing)


def test_a_taken_name_and_an_answer_that_the_kubelet_could_not_read_are_refused() -> None:
    sharing = slices(2, name="nvidia.com/mig-1g.10gb", rename="nvidia.com/gpu")
    with pytest.raises(PlanError, match=r"sharing\.resources\[nvidia\.com/mig-1g\.10gb\]\.rename: nvidia\.com/gpu"):
        plan(gpu(0), cut(1, "1g.10gb"), sharing=sharing, partitions=Partitions(strategy="mixed"))
    many = tuple(gpu(number) for number in range(8))
    with pytest.raises(PlanError, match=r"replicas: 16384: .* 3 MiB; give fewer replicas"):
        plan(*many, sharing=slices(16384))
    assert len(plan(*many, sharing=slices(4096)).resources[0].ids) == 8 * 4096


# --- MIG --------------------------------------------------------------------------------------------------------------
def test_gpus_are_offered_whole_without_a_strategy_and_with_mixed_beside_a_name_per_profile() -> None:
    assert shown(plan(gpu(0), cut(1, "1g.10gb"))) == {"nvidia.com/gpu": [(gpu_id(0), True), (gpu_id(1), True)]}
    found = plan(gpu(0), cut(1, "3g.40gb", "1g.10gb", "1g.10gb"), partitions=Partitions(strategy="mixed"))
    assert {resource.name: ids(resource) for resource in found.resources} == {
        "nvidia.com/gpu": [gpu_id(0)],
        "nvidia.com/mig-1g.10gb": [mig_id(1, 1), mig_id(1, 2)],
        "nvidia.com/mig-3g.40gb": [mig_id(1, 0)],
    }
    small = partition(1, 0, profile="1c.3g.40gb")
    odd = gpu(1, mig_enabled=True, partitions=(small, partition(1, 1)))
    found = plan(cut(0), odd, partitions=Partitions(strategy="mixed"))
    assert {resource.name: ids(resource) for resource in found.resources} == {"nvidia.com/mig-1g.10gb": [mig_id(1, 1)]}


def test_single_offers_mig_devices_as_gpus_of_all_but_lost_or_excluded_ones() -> None:
    found = plan(cut(0, "3g.40gb", "3g.40gb"), partitions=Partitions(strategy="single"))
    assert shown(found) == {"nvidia.com/gpu": [(mig_id(0, 0), True), (mig_id(0, 1), True)]}
    assert shown(plan(gpu(0), partitions=Partitions(strategy="single"))) == {"nvidia.com/gpu": [(gpu_id(0), True)]}
    small = tuple(partition(0, part, profile="1c.3g.40gb") for part in range(3))
    found = plan(gpu(0, mig_enabled=True, partitions=small), partitions=Partitions(strategy="single"))
    assert len(shown(found)["nvidia.com/gpu"]) == 3
    # NVIDIA's plugin serves nothing on a node with one lost GPU.
    lost = silent_gpu(1, lost=True)
    found = plan(cut(0, "3g.40gb"), lost, bad=(gpu_id(1),), partitions=Partitions(strategy="single"))
    assert shown(found) == {"nvidia.com/gpu": [(mig_id(0, 0), True)]}
    gpus = (cut(0, "3g.40gb"), gpu(1), cut(2, "3g.40gb", "1g.10gb"))
    exclude = Resources(exclude=(gpu_id(1), mig_id(2, 1)))
    found = plan(*gpus, partitions=Partitions(strategy="single"), resources=exclude)
    assert shown(found) == {"nvidia.com/gpu": [(mig_id(0, 0), True), (mig_id(2, 0), True)]}


@cases(
    ("devices", "hint"),
    ((cut(0, "3g.40gb"), gpu(1)), "GPU 1 is not in MIG mode and others are"),
    ((cut(0, "3g.40gb"), cut(1)), "GPU 1 is in MIG mode and has no MIG devices"),
    ((cut(0, "3g.40gb", "1g.10gb"),), r"several MIG profiles \(1g\.10gb, 3g\.40gb\)"),
)
def test_single_refuses_what_is_not_alike(devices: tuple[DeviceFact, ...], hint: str) -> None:
    with pytest.raises(PlanError, match=r"partitions\.strategy: single: .*" + hint):
        plan(*devices, partitions=Partitions(strategy="single"))


def test_a_fault_of_a_gpu_is_a_fault_of_its_mig_devices_but_not_the_other_way_round() -> None:
    mixed = Partitions(strategy="mixed")
    gpus = (cut(0, "1g.10gb", "1g.10gb"), cut(1, "1g.10gb"))
    assert shown(plan(*gpus, bad=(gpu_id(0),), partitions=mixed)) == {
        "nvidia.com/mig-1g.10gb": [(mig_id(0, 0), False), (mig_id(0, 1), False), (mig_id(1, 0), True)]
    }
    assert shown(plan(*gpus, bad=(mig_id(0, 1),), partitions=mixed)) == {
        "nvidia.com/mig-1g.10gb": [(mig_id(0, 0), True), (mig_id(0, 1), False), (mig_id(1, 0), True)]
    }
    assert shown(plan(*gpus, cordoned=(mig_id(1, 0),), partitions=mixed))["nvidia.com/mig-1g.10gb"][2] == (
        mig_id(1, 0),
        False,
    )


def test_a_vanished_mig_device_that_is_held_stays_listed_as_unhealthy() -> None:
    before, after = cut(0, "1g.10gb", "1g.10gb"), replace(cut(0, "1g.10gb"))
    found = stage.update(
        inventory_of(before), snapshot(after), now=START, monotonic=1, held_partitions=frozenset({mig_id(0, 1)})
    )
    offered = make_plan(found, healthy(before), PlanSettings(partitions=Partitions(strategy="mixed")))
    assert shown(offered) == {"nvidia.com/mig-1g.10gb": [(mig_id(0, 0), True), (mig_id(0, 1), False)]}


@cases(
    ("strategy", "offers"),
    ("mixed", {"nvidia.com/gpu": [(gpu_id(0), True)], "nvidia.com/mig-1g.10gb": [(mig_id(0, 1), False)]}),
    ("single", {"nvidia.com/gpu": [(gpu_id(0), True), (mig_id(0, 1), False)]}),
)
def test_what_a_pod_holds_of_a_gpu_out_of_mig_stays_ill(
    strategy: str, offers: dict[str, list[tuple[str, bool]]]
) -> None:
    """The kubelet would show an id that is dropped as healthy."""
    before = cut(0, "1g.10gb", "1g.10gb")
    found = stage.update(
        inventory_of(before), snapshot(gpu(0)), now=START, monotonic=1, held_partitions=frozenset({mig_id(0, 1)})
    )
    settings = PlanSettings(partitions=Partitions(strategy=strategy))
    assert shown(make_plan(found, healthy(before), settings)) == offers


# --- the plan that stays ----------------------------------------------------------------------------------------------
def test_the_plan_in_effect_gets_the_health_of_now_and_what_is_no_longer_known_is_not_healthy() -> None:
    current = plan(gpu(0), gpu(1), sharing=slices(2))
    fresh = gated(shape_of(current), inventory_of(gpu(0)), healthy(gpu(0)))
    assert [healthy for _, healthy in shown(fresh)["nvidia.com/gpu"]] == [True, True, False, False]
    assert gated(shape_of(fresh), inventory_of(gpu(0), gpu(1)), healthy(gpu(0), gpu(1))) == current
    current = plan(cut(0, "1g.10gb", "1g.10gb"), partitions=Partitions(strategy="mixed"))
    fresh = gated(shape_of(current), inventory_of(cut(0, "1g.10gb")), healthy(cut(0)))
    assert shown(fresh) == {"nvidia.com/mig-1g.10gb": [(mig_id(0, 0), True), (mig_id(0, 1), False)]}


def test_settings_come_from_sections() -> None:
    sharing = slices(4)
    resources = Resources(exclude=("GPU-*",))
    sections = Sections(sharing=sharing, resources=resources)
    assert PlanSettings.from_sections(
        sections, resource_prefix="example.com", modes=Settings(mps_root="/run/mps")
    ) == PlanSettings(
        sharing=sharing, resources=resources, resource_prefix="example.com", modes=Settings(mps_root="/run/mps")
    )
    assert PlanSettings.from_sections(Sections()) == PlanSettings()


# --- what always holds ------------------------------------------------------------------------------------------------
machines = st.lists(
    st.tuples(st.booleans(), st.lists(st.sampled_from(["1g.10gb", "2g.20gb", "3g.40gb"]), max_size=4)), max_size=6
)
shared = st.one_of(
    st.just(Sharing()),
    st.builds(
        lambda replicas, rename, devices: slices(replicas, rename_by_default=rename, devices=devices),
        st.integers(2, 5),
        st.booleans(),
        st.one_of(st.none(), st.lists(st.sampled_from(["0", "1", "2:0", "*"]), unique=True).map(tuple)),
    ),
)


matches = st.builds(
    OfferMatch,
    product_name=st.sampled_from([None, "*H100*", "*A100*"]),
    profile=st.sampled_from([None, "*", "1g.*"]),
    ids=st.one_of(st.none(), st.lists(st.sampled_from([gpu_id(0), mig_id(1, 0)]), unique=True).map(tuple)),
)
rules = st.builds(
    Resources,
    devices=st.lists(
        st.builds(ResourceRule, match=matches, name=st.sampled_from(["nvidia.com/gpu", "example.com/a", "x.io/b"])),
        max_size=3,
    ).map(tuple),
    exclude=st.lists(st.sampled_from([gpu_id(1), mig_id(0, 0), "MIG-*2"]), unique=True).map(tuple),
)


@tried(deadline=None)
@given(machines, shared, rules, st.sampled_from(["none", "mixed"]), st.sets(st.integers(0, 5)))
def test_whatever_the_machine(
    parts: list[tuple[bool, list[str]]], sharing: Sharing, resources: Resources, strategy: str, broken: set[int]
) -> None:
    gpus = [cut(number, *profiles) if mig else gpu(number) for number, (mig, profiles) in enumerate(parts)]
    settings = PlanSettings(sharing=sharing, resources=resources, partitions=Partitions(strategy=strategy))
    inventory: Inventory = inventory_of(*gpus)
    verdicts = healthy(*gpus)
    whole = make_plan(inventory, verdicts, settings)
    found = make_plan(inventory, verdicts | {gpu_id(number): BAD for number in broken}, settings)
    listed = [each for resource in found.resources for each in resource.ids]
    assert len({each.id for each in listed}) == len(listed)
    assert [resource.name for resource in found.resources] == sorted({resource.name for resource in found.resources})
    assert [each.id for resource in whole.resources for each in resource.ids] == [each.id for each in listed]
    bad = {gpu_id(number) for number in broken}
    assert all(each.healthy == (each.device_id not in bad) for each in listed)
    assert all(resource.ids for resource in found.resources)
    assert not {each.device_id for each in listed} & set(resources.exclude)
    assert not {each.partition_id for each in listed} & set(resources.exclude)
    assert make_plan(inventory, verdicts, settings) == whole


def test_the_shape_of_a_plan_has_what_the_kubelet_was_sent_and_nothing_that_is_only_kept_for_pods() -> None:
    one, kept = SchedulableId(id="a", device_id="a"), SchedulableId(id="b", device_id="b")
    plan = Plan(
        resources=(
            OfferedResource(name="both", ids=(one,), retained=(kept,), unlisted=(kept,)),
            OfferedResource(name="empty", ids=()),
            OfferedResource(name="kept", ids=(), retained=(kept,)),
        )
    )
    assert shape_of(plan).resources == (OfferedResource(name="both", ids=(one,)), OfferedResource(name="empty", ids=()))
