"""Each gate: what it blocks, why, and in which form the kubelet is shown it."""

from __future__ import annotations

import dataclasses
import re
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace
from nodedevices_api import withheld as reasons
from nodedevices_plugin.gates.apply import GATES, apply
from nodedevices_plugin.gates.base import GateFacts, NoSpecification, WaitingChange
from nodedevices_plugin.gates.reasons import ANNOUNCED, OTHERWISE, counts_containers, unfit
from nodedevices_plugin.model import (
    DRA_DRIVER,
    Api,
    Blocked,
    Cordon,
    HealthState,
    Holder,
    HoldersState,
    Holdings,
    ListedAs,
    MemoryShares,
    NodePod,
    NodePods,
    Offer,
    OfferedResource,
    Plan,
    SchedulableId,
    SharingFacts,
    Verdict,
)
from nodedevices_plugin.offering.occupancy import HeldId
from nodedevices_plugin.sharing import mps
from nodedevices_plugin.sharing.base import SharingMode
from nodedevices_plugin.sharing.registry import TimeSlicing
from support.cases import cases
from support.daemons import answers
from support.facts import START, gpu, gpu_id, healthy, inventory_of, mig_id, partition
from support.plans import gated
from support.there import there

ARCHITECTURE = Path(__file__).parents[3] / "docs" / "architecture.md"
GPU = "nvidia.com/gpu"
BOTH = inventory_of(gpu(0), gpu(1))
WELL = healthy(gpu(0), gpu(1))
BY_TIME = TimeSlicing()


def whole(*numbers: int) -> Plan:
    ids = tuple(SchedulableId(id=gpu_id(n), device_id=gpu_id(n)) for n in numbers)
    return Plan(resources=(OfferedResource(name=GPU, ids=ids),))


def shares(*numbers: int, replicas: int = 2, sharing: SharingMode = BY_TIME, cores: bool = False) -> Plan:
    ids = tuple(
        SchedulableId(id=f"{gpu_id(n)}::{replica}", device_id=gpu_id(n), replica=replica)
        for n in numbers
        for replica in range(replicas)
    )
    resource = OfferedResource(name=GPU, ids=ids, sharing=SharingFacts(mode=sharing, replicas=replicas, cores=cores))
    return Plan(resources=(resource,))


def held(id_: str, number: int, *, resource: str = GPU, pod: str = "ml/train") -> HeldId:
    return HeldId(resource=resource, id=id_, device_id=gpu_id(number), holder=pod)


def why(plan: Plan) -> dict[str, str]:
    """Of each listed id the reason; "" where a new container can get it."""
    return {each.id: each.blocked.reason if each.blocked else "" for of in plan.resources for each in of.ids}


def said(plan: Plan, id_: str) -> Blocked:
    [found] = [each.blocked for of in plan.resources for each in of.ids if each.id == id_]
    assert found is not None
    return found


def test_a_reason_that_a_claim_may_tolerate_hides_none_that_protects_another_pod() -> None:
    """In a ResourceSlice the first would be a taint."""
    bad = Verdict(state=HealthState.UNHEALTHY, reason="Xid79", message="", since=START, offered=False)
    verdicts, elsewhere = {**WELL, gpu_id(1): bad}, (held(gpu_id(1), 1, resource="example.com/other"),)
    [resource] = whole(0, 1).resources
    by_api = {
        api: why(gated(Plan(resources=(replace(resource, api=api),)), BOTH, verdicts, held_otherwise=elsewhere))
        for api in Api
    }
    assert by_api[Api.DEVICE_PLUGIN][gpu_id(1)] == reasons.UNHEALTHY
    assert by_api[Api.DRA] == {gpu_id(0): "", gpu_id(1): reasons.HELD_IN_ANOTHER_SHAPE}


def test_nothing_in_the_way_leaves_the_shape_and_a_fault_blocks_with_its_reason() -> None:
    shape = whole(0, 1)
    assert gated(shape, BOTH, WELL) is shape
    bad = Verdict(state=HealthState.UNHEALTHY, reason="Xid79", message="long story", since=START, offered=False)
    plan = gated(whole(0, 1), BOTH, {**WELL, gpu_id(1): bad})
    assert why(plan) == {gpu_id(0): "", gpu_id(1): reasons.UNHEALTHY}
    assert said(plan, gpu_id(1)).message == "Xid79"


@cases(("state", "says"), (HealthState.UNKNOWN, "not reported by its probe yet"), (HealthState.UNHEALTHY, "Unhealthy"))
def test_a_device_that_is_withheld_without_a_reason_says_its_state(state: HealthState, says: str) -> None:
    silent = dataclasses.replace(WELL[gpu_id(0)], state=state, offered=False)
    blocked = there(unfit(BOTH.devices[0], None, {gpu_id(0): silent}))
    assert blocked.message == says


def test_a_partition_at_fault_leaves_its_neighbours_and_what_a_person_took_out_says_by_whom() -> None:
    cut = gpu(0, mig_enabled=True, partitions=(partition(0, 0), partition(0, 1)))
    ids = tuple(SchedulableId(id=mig_id(0, n), device_id=gpu_id(0), partition_id=mig_id(0, n)) for n in range(2))
    bad = Verdict(state=HealthState.UNHEALTHY, reason="Xid43", message="", since=START, offered=False)
    shape = Plan(resources=(OfferedResource(name=GPU, ids=ids),))
    plan = gated(shape, inventory_of(cut), {**healthy(cut), mig_id(0, 1): bad})
    assert why(plan) == {mig_id(0, 0): "", mig_id(0, 1): reasons.UNHEALTHY}
    cordon = Cordon(id=gpu_id(0), reason="RMA 4711", by="jane", until=datetime(2026, 12, 1, 8, tzinfo=UTC))
    plan = gated(whole(0, 1), BOTH, WELL, cordons=(cordon,))
    assert said(plan, gpu_id(0)) == Blocked(
        reason=reasons.CORDONED, message="taken out of service by jane until 2026-12-01T08:00:00Z: RMA 4711"
    )


def test_devices_in_anothers_place_or_of_a_waiting_change_are_blocked_in_its_words() -> None:
    plan = gated(whole(0, 1), BOTH, WELL, removed_probes={gpu_id(0): "it went"}, places={gpu_id(1): "GPU-9 was here"})
    assert why(plan) == {gpu_id(0): reasons.PROBE_REMOVED, gpu_id(1): reasons.SAME_PLACE}
    assert said(plan, gpu_id(1)).message == "GPU-9 was here"
    change = WaitingChange(shape=whole(0), waits_for=("ml/train",))
    plan = gated(whole(0, 1), BOTH, WELL, change=change)
    assert why(plan) == {gpu_id(0): "", gpu_id(1): reasons.CHANGE_WAITS}
    assert said(plan, gpu_id(1)).waits_for == ("ml/train",)
    assert gated(whole(0, 1), BOTH, WELL, change=change, held=(held(gpu_id(1), 1),)) == whole(0, 1), "it is held"


def test_shares_of_a_gpu_that_a_pod_holds_whole_wait_for_that_pod() -> None:
    taken = (held(gpu_id(0), 0),)
    plan = gated(shares(0, 1), BOTH, WELL, held=taken, held_otherwise=taken)
    assert why(plan) == {
        f"{gpu_id(0)}::0": reasons.HELD_IN_ANOTHER_SHAPE,
        f"{gpu_id(0)}::1": reasons.HELD_IN_ANOTHER_SHAPE,
        f"{gpu_id(1)}::0": "",
        f"{gpu_id(1)}::1": "",
    }
    assert said(plan, f"{gpu_id(0)}::0").waits_for == ("ml/train",)
    assert [each.id for each in plan.resources[0].retained] == [gpu_id(0)], "for the pod that has it"
    unnamed = (replace(taken[0], holder=""),)
    plan = gated(shares(0), BOTH, WELL, held=unnamed, held_otherwise=unnamed)
    assert said(plan, f"{gpu_id(0)}::0").waits_for == ()


@cases(("claim", "says"), ("", ANNOUNCED), ("ml/claim", OTHERWISE))
def test_a_device_in_a_slice_is_not_said_to_be_held(claim: str, says: str) -> None:
    announced = replace(held(gpu_id(0), 0), resource=None, driver=DRA_DRIVER, holder="", claim=claim, any_shape=True)
    plan = gated(whole(0, 1), BOTH, WELL, held_otherwise=(announced,))
    assert why(plan) == {gpu_id(0): reasons.HELD_IN_ANOTHER_SHAPE, gpu_id(1): ""}
    assert said(plan, gpu_id(0)).message == says


@cases(("shown", "listed"), (frozenset({GPU}), 4), (frozenset(), 0))
def test_shares_without_their_daemon_stay_where_the_kubelet_knows_them(shown: frozenset[str], listed: int) -> None:
    plan = gated(shares(0, 1, sharing=mps.Mps()), BOTH, WELL, shown=shown)
    assert list(why(plan).values()) == [reasons.HELPER_NOT_READY] * listed
    assert [each.blocked and each.blocked.reason for each in plan.resources[0].unlisted] == [
        reasons.HELPER_NOT_READY
    ] * (4 - listed)
    ready = gated(shares(0, 1, sharing=mps.Mps()), BOTH, WELL, statuses=answers({(GPU, 50): ""}))
    assert set(why(ready).values()) == {""}


def test_devices_of_a_daemon_that_stays_are_its_clients_alone() -> None:
    shape = shares(0, 1)
    [resource] = shares(0, sharing=mps.Mps()).resources
    daemon = mps.daemon(resource, BOTH)
    mine = replace(held(f"{gpu_id(0)}::0", 0), replica=0)
    other, unnamed = held(f"{gpu_id(1)}::0", 1, pod="ml/other"), replace(mine, holder="")
    plan = gated(shape, BOTH, WELL, staying=(daemon,), held=(mine, other, unnamed))
    assert why(plan) == {f"{gpu_id(0)}::1": reasons.HELPER_IN_USE, f"{gpu_id(1)}::0": "", f"{gpu_id(1)}::1": ""}
    assert said(plan, f"{gpu_id(0)}::1").waits_for == ("ml/train",)
    assert [each.id for each in plan.resources[0].retained] == [f"{gpu_id(0)}::0"]


def test_a_device_with_all_the_clients_that_its_daemon_takes_gives_no_more_shares() -> None:
    """Before Volta a daemon takes 16 clients of a device (NVIDIA's MPS documentation)."""
    old = gpu(0, compute_capability="6.1")
    memory = MemoryShares(unit="1", unit_bytes=1, devices={})
    [resource] = shares(0, 1, replicas=20, sharing=mps.Mps()).resources
    shape = Plan(resources=(replace(resource, sharing=replace(resource.sharing, memory=memory)),))
    holders = tuple(
        Holder(namespace="ml", pod=f"p{n}", container="main", resource=GPU, ids=(f"{gpu_id(0)}::{n}",), since=START)
        for n in range(16)
    )
    known = Holdings(state=HoldersState.SYNCED, taken=1.0, holders=holders)
    ready = answers({mps.key(shape.resources[0]): ""})
    plan = gated(shape, inventory_of(old, gpu(1)), healthy(old, gpu(1)), holdings=known, statuses=ready)
    blocked = [id_ for id_, reason in why(plan).items() if reason == reasons.NO_FREE_CLIENTS]
    assert blocked == [f"{gpu_id(0)}::{n}" for n in range(16, 20)]
    fewer = replace(known, holders=holders[1:])
    plan = gated(shape, inventory_of(old, gpu(1)), healthy(old, gpu(1)), holdings=fewer, statuses=ready)
    assert reasons.NO_FREE_CLIENTS not in why(plan).values()
    some = replace(
        known, holders=holders[2:], possible=tuple(Offer(resource=GPU, ids=each.ids) for each in holders[:2])
    )
    plan = gated(shape, inventory_of(old, gpu(1)), healthy(old, gpu(1)), holdings=some, statuses=ready)
    assert [id_ for id_, reason in why(plan).items() if reason == reasons.NO_FREE_CLIENTS] == blocked


def test_devices_without_the_drivers_libraries_are_not_registered_at_first() -> None:
    missing = NoSpecification(why="no CDI specification", devices=frozenset({gpu_id(0), gpu_id(1)}))
    assert why(gated(whole(0, 1), BOTH, WELL, no_specification=(missing,))) == {}
    shown = gated(whole(0, 1), BOTH, WELL, no_specification=(missing,), shown=frozenset({GPU}))
    assert set(why(shown).values()) == {reasons.NO_CDI_SPECIFICATION}
    one = replace(missing, elsewhere=frozenset({gpu_id(0)}))
    assert list(why(gated(whole(0, 1), BOTH, WELL, no_specification=(one,))).values()) == [
        "",
        reasons.NO_CDI_SPECIFICATION,
    ]


def test_shares_of_computing_power_wait_until_the_pods_are_known_but_for_those_that_are_held() -> None:
    taken = (replace(held(f"{gpu_id(0)}::0", 0), replica=0),)
    unknown = NodePods(problem="pods is forbidden")
    others = OfferedResource(name="example.com/whole", ids=whole(1).resources[0].ids)
    both = Plan(resources=(others, *shares(0, cores=True).resources))
    plan = gated(both, BOTH, WELL, pods=unknown, held=taken)
    assert why(plan) == {gpu_id(1): "", f"{gpu_id(0)}::0": "", f"{gpu_id(0)}::1": reasons.PODS_UNKNOWN}
    known = NodePods(pods=(NodePod(uid="1", namespace="ml", name="train"),))
    assert set(why(gated(shares(0, cores=True), BOTH, WELL, pods=known)).values()) == {""}


# --- several ---------------------------------------------------------------------------------------------------------
def test_of_several_gates_the_first_says_why_and_the_highest_form_of_listing_counts() -> None:
    def gate(reason: str, listed_as: ListedAs = ListedAs.UNHEALTHY) -> object:
        return lambda shape, facts: lambda resource, each: Blocked(reason=reason, message="", listed_as=listed_as)

    def after(*gates: object) -> OfferedResource:
        facts = GateFacts(inventory=BOTH, verdicts=WELL, holdings=Holdings(state=HoldersState.SYNCED))
        return apply(whole(0), facts, gates=gates).resources[0]  # type: ignore[arg-type]

    [listed] = after(gate("First"), gate("Second")).ids
    assert listed.blocked is not None
    assert listed.blocked.reason == "First"
    unlisted = after(gate("First"), gate("Second", ListedAs.NOT_LISTED))
    assert (unlisted.ids, unlisted.retained) == ((), ())
    assert [each.blocked and each.blocked.reason for each in unlisted.unlisted] == ["First"]
    kept = after(gate("First", ListedAs.NOT_LISTED), gate("Second", ListedAs.KEPT_FOR_HOLDER))
    assert (kept.ids, [(each.id, each.healthy) for each in kept.retained]) == ((), [(gpu_id(0), True)])


def test_gates_are_asked_in_the_pictures_order_and_containers_counted_where_a_daemon_serves_memory() -> None:
    """docs/architecture.md: what is wrong with the device comes first, then what people and pods keep it for, then what
    shares need."""
    section = ARCHITECTURE.read_text().partition("### From devices to what the kubelet is sent")[2]
    picture = section.split("```")[1]
    names = [gate.__name__ for gate in GATES]
    assert [word for word in re.findall(r"[a-z_]+", picture) if word in names] == names
    [by_mps] = shares(0, sharing=mps.Mps()).resources
    memory = MemoryShares(unit="1", unit_bytes=1, devices={})
    both = replace(by_mps, sharing=replace(by_mps.sharing, memory=memory))
    without = replace(both, sharing=SharingFacts(mode=TimeSlicing(), memory=memory))
    assert [counts_containers(Plan(resources=(each,))) for each in (both, by_mps, without)] == [True, False, False]
    assert counts_containers(Plan(resources=(without, both))), "one of several resources is enough"
