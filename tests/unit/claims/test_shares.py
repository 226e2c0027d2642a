"""Shares of devices by claims: what the slices say, and that no share is given twice, whatever the scheduler says."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from msgspec.structs import replace
from nodedevices_api.sections import Partitions, Serving, SharedResource, Sharing
from nodedevices_api.withheld import CORDONED, HELD_IN_ANOTHER_SHAPE
from nodedevices_plugin.claims.devices import devices_of
from nodedevices_plugin.claims.records import ClaimError, DraFacts, NotNowError, Record
from nodedevices_plugin.claims.slices import Json, dropped, publish, writes
from nodedevices_plugin.host.claim_files import ClaimFiles
from nodedevices_plugin.model import (
    DRA_DRIVER,
    AllocationError,
    Api,
    Blocked,
    Holder,
    HoldersState,
    Holdings,
    Inventory,
    OfferedResource,
    Plan,
    SharingFacts,
)
from nodedevices_plugin.offering.occupancy import held_otherwise, not_in
from nodedevices_plugin.offering.shape import PlanSettings, make_shape, not_by_dra
from nodedevices_plugin.pipeline.foreign import DeviceIndex, held
from nodedevices_plugin.pipeline.holding import with_shares
from nodedevices_plugin.sharing.base import Settings
from nodedevices_plugin.sharing.registry import ByNature
from support import resourceslice
from support.cases import cases
from support.claim_node import NODE, Node
from support.facts import GIB, START, gpu, gpu_id, healthy, inventory_of, partition
from support.plans import gated

GPU, MEMORY = "nvidia.com/gpu", "nodedevices.io/gpu-memory"
FACTS = (gpu(0), gpu(1, memory_bytes=24 * GIB))
DEVICES = inventory_of(*FACTS)


def by(strategy: str, *, api: str = "DRA", once: bool = False, **rule: Any) -> PlanSettings:
    sharing = Sharing(
        strategy=strategy,
        resources=() if strategy == "none" else (SharedResource(name=GPU, **rule),),
        fail_requests_greater_than_one=once,
    )
    return PlanSettings(serving=Serving(api=api), sharing=sharing, modes=Settings(mps_root="/run/nvidia/mps"))


TIMES4 = by("timeSlicing", replicas=4)
GIBS = by("memory", memory_unit="1Gi", memory_reserve="1Gi")
WHOLE = by("none")


def slices(wanted: PlanSettings, devices: Inventory = DEVICES) -> dict[str, Json]:
    shape = make_shape(devices, wanted)
    found = publish(
        shape.by(Api.DRA).resources,
        devices,
        healthy(*(device.fact for device in devices.devices)),
        driver=DRA_DRIVER,
    )
    assert not found.unsaid
    specs = writes(NODE, DRA_DRIVER, found.devices, ()).creates.values()
    assert resourceslice.problems(list(specs)) == []
    return {device["name"]: device for device in found.devices}


# --- what the slices say ----------------------------------------------------------------------------------------------
@cases("strategy", "timeSlicing", "mps")
def test_a_device_with_replicas_is_one_device_whose_shares_are_its_capacity(strategy: str) -> None:
    found = slices(by(strategy, replicas=4))
    assert list(found) == ["gpu-0", "gpu-1"]
    device = found["gpu-0"]
    assert device["allowMultipleAllocations"] is True
    assert device["capacity"] == {
        "memory": {"value": "80Gi", "requestPolicy": {"default": "0", "validValues": ["0"]}},
        "shares": {"value": "4", "requestPolicy": {"default": "1", "validRange": {"min": "1", "step": "1"}}},
    }


def test_a_device_that_is_shared_by_memory_has_what_is_divided_in_steps_of_the_unit() -> None:
    found = slices(GIBS)
    policy = {"default": "1Gi", "validRange": {"min": "1Gi", "step": "1Gi"}}
    assert found["gpu-0"]["capacity"] == {"memory": {"value": "79Gi", "requestPolicy": policy}}
    assert found["gpu-1"]["capacity"]["memory"]["value"] == "23Gi"


def test_a_device_with_one_share_or_one_for_each_request_says_so_in_a_way_that_the_api_server_stores() -> None:
    one = slices(by("memory", memory_unit="20Gi"))["gpu-1"]["capacity"]["memory"]
    assert one == {"value": "20Gi", "requestPolicy": {"default": "20Gi", "validValues": ["20Gi"]}}
    each = slices(by("timeSlicing", once=True, replicas=4))["gpu-0"]["capacity"]["shares"]
    assert each == {"value": "4", "requestPolicy": {"default": "1", "validValues": ["1"]}}


def test_partitions_are_shared_as_devices_are_and_a_rule_for_some_leaves_the_others_whole() -> None:
    cut = inventory_of(gpu(0, mig_enabled=True, partitions=(partition(0, 0), partition(0, 1))), gpu(1))
    found = slices(
        replace(by("timeSlicing", replicas=2, devices=["0:1"]), partitions=Partitions(strategy="single")),
        inventory_of(cut.devices[0].fact),
    )
    assert [device.get("allowMultipleAllocations", False) for device in found.values()] == [False, True]


def test_a_device_is_left_out_where_one_of_its_shares_is() -> None:
    [resource] = make_shape(DEVICES, TIMES4).resources
    away = Blocked(reason=HELD_IN_ANOTHER_SHAPE, message="a pod")
    ids = (resource.ids[0], replace(resource.ids[1], blocked=away), *resource.ids[2:])
    assert [device.blocked for device in devices_of(replace(resource, ids=ids))] == [away, None]
    advice = replace(resource.ids[0], blocked=Blocked(reason=CORDONED, message="repair"))
    first, _ = devices_of(replace(resource, ids=(advice, *ids[1:])))
    assert first.blocked == away, "a claim that tolerates the one is not to pass by the other"


def test_what_cannot_be_shared_by_claims_stays_with_the_device_plugin_and_says_why() -> None:
    [cores, *_] = make_shape(DEVICES, by("memory", memory_unit="1Gi", cores=True)).resources
    assert (cores.api, not_by_dra(cores)) == (Api.DEVICE_PLUGIN, "it shares computing power")
    hca = OfferedResource(name="rdma/hca", ids=(), sharing=SharingFacts(mode=ByNature(), replicas=63))
    assert not_by_dra(hca) == "its devices are shared by their nature"


def test_a_server_that_drops_sharing_or_its_policy_is_noticed() -> None:
    sent = {"devices": list(slices(TIMES4).values())}
    assert dropped(sent, sent) == frozenset()
    for key in ("allowMultipleAllocations", "capacity"):
        kept = {"devices": [dict(device) for device in sent["devices"]]}
        if key == "capacity":
            kept["devices"][0]["capacity"] = {"shares": {"value": "4"}}
        else:
            del kept["devices"][1][key]
        assert dropped(sent, kept) == {"allowMultipleAllocations"}


# --- what a claim gets ------------------------------------------------------------------------------------------------
class SharedNode(Node):
    """What the agent does with a policy, by the records and by what containers of the device plugin have."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.shape = Plan()
        self.plan = Plan()
        self.by_plugin: dict[str, tuple[str, str]] = {}

    def apply(self, wanted: PlanSettings | None = None, devices: Inventory = DEVICES) -> None:
        """One step: the plan of a policy, or of the same with what is held now."""
        self.shape = self.shape if wanted is None else make_shape(devices, wanted)
        holders = tuple(
            Holder(namespace="ml", pod=pod, container="c", resource=resource, ids=(id_,), since=START)
            for pod, (resource, id_) in self.by_plugin.items()
        )
        facts = DraFacts(records=self.offer.records)
        listed = with_shares(Holdings(state=HoldersState.SYNCED, holders=holders, taken=1.0), facts)
        index = DeviceIndex(devices)
        taken = held(listed, (), index, dra=facts)
        verdicts = healthy(*(device.fact for device in devices.devices))
        self.plan = gated(
            self.shape, devices, verdicts, held=taken, held_otherwise=held_otherwise(self.shape, taken, devices)
        )
        self.use(self.plan, devices)

    def restart(self) -> None:
        files = ClaimFiles(self.folder / "claims", self.folder / "cdi", driver=DRA_DRIVER)
        again = SharedNode(self.folder)
        again.stored, again.by_plugin, again.shape = self.stored, self.by_plugin, self.shape
        again.offer.restore(files.read())
        assert not files.problem
        self.__dict__ = again.__dict__
        self.claims = self.waiting(0.0)
        self.apply()

    def env(self, name: str) -> dict[str, str]:
        return dict(variable.split("=", 1) for variable in self.edits(name).get("env", ()))

    def record(self, name: str) -> Record:
        return self.offer.records[f"uid-{name}"]


@pytest.fixture
def node(tmp_path: Path) -> SharedNode:
    node = SharedNode(tmp_path)
    node.apply(GIBS)
    return node


def test_claims_have_the_memory_that_they_consume_by_ids_of_their_own_and_their_limits(node: SharedNode) -> None:
    assert node.prepare("a", "gpu-0", memory="10Gi") == ["gpu-0"]
    node.prepare("b", "gpu-0", memory="69Gi")
    assert node.env("a")["NODEDEVICES_MEMORY_LIMIT_MIB"] == "10240"
    assert node.env("b")["NODEDEVICES_MEMORY_LIMIT_MIB"] == str(69 * 1024)
    assert (node.record("a").prepared[0].shares, node.record("a").prepared[0].unit) == (tuple(range(10)), "1Gi")
    assert not node.record("a").held & node.record("b").held
    with pytest.raises(NotNowError, match=r"gpu-0 \(79Gi of memory\) 0 is free, .* 1Gi allocated: .* ml/a, ml/b"):
        node.prepare("late", "gpu-0", memory="1Gi")
    node.claims.unprepare("uid-a")
    node.prepare("late", "gpu-0", memory="10Gi")


def test_clients_of_mps_have_its_pipe_and_the_limits_of_their_own_claim(node: SharedNode) -> None:
    ready = by("memory", memory_unit="1Gi", enforcement="mps")
    node.use(make_shape(DEVICES, ready), DEVICES, modes=ready.modes)  # its daemon answers
    node.prepare("a", "gpu-0", memory="20Gi")
    env = node.env("a")
    assert (env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"], env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"]) == ("0=20480M", "25")
    assert "/dev/shm" in [mount["containerPath"] for mount in node.edits("a")["mounts"]]
    node.claims.unprepare("uid-a")
    node.use(make_shape(DEVICES, by("mps", replicas=4)), DEVICES, modes=ready.modes)
    node.prepare("b", "gpu-1", shares="2")
    assert node.env("b")["CUDA_MPS_PIPE_DIRECTORY"] == "/mps/nvidia.com/gpu/pipe"


def test_two_results_of_one_request_are_one_amount_of_one_device_and_never_of_two(node: SharedNode) -> None:
    node.prepare("a", "gpu-0", "gpu-0", memory="10Gi")
    assert node.env("a")["NODEDEVICES_MEMORY_LIMIT_MIB"] == "20480"
    assert len(node.record("a").held) == 20
    with pytest.raises(ClaimError, match="of one device"):
        node.prepare("b", "gpu-0", "gpu-1", memory="10Gi")
    node.apply(by("timeSlicing", once=True, replicas=4))
    with pytest.raises(ClaimError, match="failRequestsGreaterThanOne"):
        node.prepare("c", "gpu-1", "gpu-1", shares="1")
    assert list(node.offer.records) == ["uid-a"]


@cases(
    ("wanted", "consumed", "why"),
    (GIBS, {}, "allocated all of gpu-0, whose shares are of 1Gi of memory now"),
    (GIBS, {"shares": "1"}, "allocated all of gpu-0, whose shares are of 1Gi"),
    (GIBS, {"memory": "1500Mi"}, "allocated 1500Mi of memory of gpu-0, whose shares are of 1Gi"),
    (GIBS, {"memory": "0"}, "allocated 0 of memory"),
    (GIBS, {"memory": "-1Gi"}, "allocated -1Gi of memory"),
    (GIBS, {"memory": "?"}, r"allocated \? of memory"),
    (GIBS, {"memory": "1e30"}, "allocated 1e30 of memory"),
    (GIBS, {"memory": "80Gi"}, "79Gi is free, and the claim has 80Gi"),
    (TIMES4, {"shares": "5"}, "4 is free, and the claim has 5"),
    (WHOLE, {"shares": "1"}, "has a share of gpu-0, which is not shared"),
)
def test_what_was_allocated_otherwise_than_it_is_offered_now_is_refused_by_name(
    node: SharedNode, wanted: PlanSettings, consumed: dict[str, str], why: str
) -> None:
    node.apply(wanted)
    with pytest.raises(NotNowError, match=why):
        node.prepare("a", "gpu-0", **consumed)
    assert not node.offer.records


def test_a_prepared_share_stays_as_it_was_whatever_the_policy_is_and_after_a_restart(node: SharedNode) -> None:
    node.prepare("a", "gpu-0", memory="10Gi")
    before, record = node.edits("a"), node.record("a")
    for wanted in (by("memory", memory_unit="2Gi"), TIMES4, WHOLE, by("none", api="DevicePlugin")):
        node.apply(wanted)
        node.restart()
        assert node.prepare("a", "gpu-0", memory="10Gi") == ["gpu-0"]
        assert (node.edits("a"), node.record("a")) == (before, record)
        blocked = {entry.device_id for resource in node.plan.resources for entry in resource.ids if entry.blocked}
        assert blocked == {gpu_id(0)}, "what is left of the device goes to nobody, by either API"
    node.apply(GIBS)
    node.prepare("b", "gpu-0", memory="69Gi")
    assert not node.record("a").held & node.record("b").held


def test_a_claim_takes_no_device_of_which_another_has_a_share_before_the_plan_knows_it(node: SharedNode) -> None:
    node.prepare("a", "gpu-0", memory="10Gi")
    for wanted, consumed in (
        (WHOLE, {}),
        (TIMES4, {"shares": "1"}),
        (by("memory", memory_unit="2Gi"), {"memory": "2Gi"}),
    ):
        node.use(make_shape(DEVICES, wanted), DEVICES)
        with pytest.raises(NotNowError, match="gpu-0 is prepared for the claim ml/a"):
            node.prepare("late", "gpu-0", **consumed)
    node.claims.unprepare("uid-a")
    node.use(make_shape(DEVICES, WHOLE), DEVICES)
    node.prepare("all", "gpu-0")
    node.use(make_shape(DEVICES, GIBS), DEVICES)
    with pytest.raises(NotNowError, match="gpu-0 is prepared for the claim ml/all"):
        node.prepare("late", "gpu-0", memory="1Gi")


def test_an_administrator_has_the_device_beside_the_shares_and_takes_none(node: SharedNode) -> None:
    node.prepare("a", "gpu-0", memory="79Gi")
    node.prepare("admin", "gpu-1", memory="1Gi")
    claim = node.stored["ml", "admin"]
    [result] = claim["status"]["allocation"]["devices"]["results"]
    result |= {"device": "gpu-0", "adminAccess": True}
    node.claims.prepare("ml", "admin", "uid-admin")
    assert node.record("admin").held == frozenset()
    assert node.record("admin").prepared[0].shares == ()
    assert "NODEDEVICES_MEMORY_LIMIT_MIB" not in node.env("admin")


def test_a_prepare_that_fails_gives_its_shares_back(node: SharedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise ClaimError("no space left")

    monkeypatch.setattr(node.files, "write", full)
    with pytest.raises(ClaimError, match="no space left"):
        node.prepare("a", "gpu-0", memory="79Gi")
    monkeypatch.undo()
    node.prepare("b", "gpu-0", memory="79Gi")


def test_while_a_plan_is_made_that_shares_otherwise_no_share_is_given(node: SharedNode) -> None:
    fewer, more = by("timeSlicing", replicas=2), by("timeSlicing", replicas=8)
    node.apply(TIMES4)
    assert node.withdraw(make_shape(DEVICES, more), DEVICES)
    node.prepare("a", "gpu-0", shares="1")
    assert node.withdraw(make_shape(DEVICES, more), DEVICES), "the claim keeps its share in this one"
    for wanted in (fewer, by("mps", replicas=4), GIBS, WHOLE, by("timeSlicing", replicas=4, api="DevicePlugin")):
        assert not node.withdraw(make_shape(DEVICES, wanted), DEVICES)
        with pytest.raises(NotNowError, match="about to stop offering"):
            node.prepare("late", "gpu-0", shares="1")


# --- what the rest of the agent knows of it ---------------------------------------------------------------------------
def shown(node: SharedNode, claim: str, *, released: tuple[Record, ...] = ()) -> tuple[Holdings, set[str]]:
    """A pod that the kubelet lists with a claim; and what is held in another shape than that of the node."""
    name = f"{DRA_DRIVER}/{NODE}/gpu-0"
    pod = Holder(namespace="ml", pod="p", container="c", claim=f"ml/{claim}", ids=(name,), since=START)
    facts = DraFacts(records=node.offer.records, released=released)
    listed = with_shares(Holdings(state=HoldersState.SYNCED, holders=(pod,), possible=(), taken=1.0), facts)
    taken = held(listed, (), DeviceIndex(DEVICES), dra=facts)
    return listed, {held_id.device_id for held_id in not_in(node.shape, taken)}


def test_a_pod_holds_its_claims_shares_and_those_of_unlisted_claims_are_held_too(node: SharedNode) -> None:
    node.prepare("a", "gpu-0", memory="3Gi")
    node.prepare("init", "gpu-0", memory="1Gi")
    listed, strangers = shown(node, "a")
    [holder] = listed.holders
    assert (holder.resource, holder.claim, len(holder.ids)) == (MEMORY, "ml/a", 3)
    assert [(offer.claim, offer.resource, len(offer.ids)) for offer in listed.possible or ()] == [
        ("ml/init", MEMORY, 1)
    ]
    assert strangers == set()


def test_a_claim_without_a_record_has_all_of_the_device_but_for_one_that_has_just_ended(node: SharedNode) -> None:
    node.prepare("a", "gpu-0", memory="3Gi")
    before = (node.record("a"),)
    node.claims.unprepare("uid-a")
    assert node.offer.released(0.0) == before
    assert shown(node, "a", released=before)[1] == set()
    assert shown(node, "a")[1] == {gpu_id(0)}, "how much it had is not known"
    assert node.offer.released(float("inf")) == ()


def test_an_administrators_pod_takes_nothing_from_claims_and_all_from_the_other_api(node: SharedNode) -> None:
    node.prepare("admin", "gpu-0", memory="1Gi")
    [result] = node.stored["ml", "admin"]["status"]["allocation"]["devices"]["results"]
    result["adminAccess"] = True
    node.claims.prepare("ml", "admin", "uid-admin")
    assert shown(node, "admin")[1] == set()
    node.shape = make_shape(DEVICES, by("none", api="DevicePlugin"))
    assert shown(node, "admin")[1] == {gpu_id(0)}


def test_a_device_in_a_slice_is_held_for_the_other_api_alone(node: SharedNode) -> None:
    index = DeviceIndex(DEVICES)
    taken = held(Holdings(state=HoldersState.SYNCED), (), index, dra=DraFacts(in_slices=frozenset({"gpu-0"})))
    for wanted in (GIBS, TIMES4, WHOLE):
        assert not_in(make_shape(DEVICES, wanted), taken) == ()
    [stranger] = not_in(make_shape(DEVICES, by("timeSlicing", replicas=4, api="DevicePlugin")), taken)
    assert stranger.device_id == gpu_id(0)


# --- whatever happens -------------------------------------------------------------------------------------------------
POLICIES = (
    TIMES4,
    by("timeSlicing", replicas=2),
    GIBS,
    by("memory", memory_unit="4Gi"),
    WHOLE,
    by("timeSlicing", replicas=4, api="DevicePlugin"),
    by("none", api="DevicePlugin"),
)
CLAIM, DEVICE = st.sampled_from("abcdef"), st.sampled_from(["gpu-0", "gpu-1"])
AMOUNT = st.sampled_from(
    [{}, {"shares": "1"}, {"shares": "3"}, {"memory": "4Gi"}, {"memory": "20Gi"}, {"memory": "60Gi"}]
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("prepare"), CLAIM, st.lists(DEVICE, min_size=1, max_size=3), AMOUNT),
        st.tuples(st.just("unprepare"), CLAIM),
        st.tuples(st.just("policy"), st.sampled_from(POLICIES)),
        st.tuples(st.just("restart")),
        st.tuples(st.just("allocate"), CLAIM, st.integers(0, 7)),
        st.tuples(st.just("end"), CLAIM),
        st.tuples(st.just("step")),
    ),
    max_size=40,
)


def holdings_of(node: SharedNode) -> Mapping[str, list[str]]:
    """By device the ids that claims and containers have, each as often as it was given."""
    found: dict[str, list[str]] = defaultdict(list)
    for record in node.offer.records.values():
        for entry in record.prepared:
            found[entry.part_id] += entry.ids
    for _, id_ in node.by_plugin.values():
        found[id_.partition("::")[0]].append(id_)
    return found


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_no_share_is_given_twice_and_no_device_beyond_its_total(steps: list[tuple[Any, ...]]) -> None:
    totals = {gpu_id(number): device.fact.capacity["memory"] for number, device in enumerate(DEVICES.devices)}
    with TemporaryDirectory() as folder:
        node = SharedNode(Path(folder))
        node.apply(TIMES4)
        for what, *given_to in steps:
            _carry_out(node, what, *given_to)
            for part, ids in holdings_of(node).items():
                assert len(ids) == len(set(ids)), f"{part} twice"
                units = {id_.partition("::")[2].rpartition(".")[0] for id_ in ids if "::" in id_}
                assert len(units) + (part in ids) == 1, f"{part} in two shapes: {ids}"
                memory = sum(int(unit.removesuffix("Gi")) for id_ in ids for unit in units if unit)
                assert memory <= int(totals[part].removesuffix("Gi"))


def _carry_out(node: SharedNode, what: str, *given_to: Any) -> None:
    match what, given_to:
        case "prepare", (claim, devices, consumed):
            try:
                node.prepare(claim, *devices, **consumed)
            except ClaimError:
                return
        case "unprepare", (claim,):
            node.claims.unprepare(f"uid-{claim}")
        case "policy", (wanted,):
            node.apply(wanted)
        case "restart", ():
            node.restart()
        case "allocate", (pod, number):
            resources = [resource for resource in node.plan.by(Api.DEVICE_PLUGIN).resources if resource.ids]
            if pod in node.by_plugin or not resources:
                return
            offered = resources[0].ids[number % len(resources[0].ids)]
            if any(id_ == offered.id for _, id_ in node.by_plugin.values()):
                return  # the kubelet gives no id twice
            try:
                node.allocate(offered.id, resources[0].name)
            except AllocationError:
                return
            node.by_plugin[pod] = (resources[0].name, offered.id)
        case "end", (pod,):
            node.by_plugin.pop(pod, None)
        case "step", ():
            node.apply()
