from __future__ import annotations

from msgspec.structs import replace
from nodedevices_plugin.model import (
    NOT_SHARED,
    Holder,
    HoldersState,
    Holdings,
    Offer,
    OfferedResource,
    Plan,
    RecentAllocate,
    SchedulableId,
    SharingFacts,
)
from nodedevices_plugin.offering.occupancy import decide_change, leaving, none_held, not_listed, wait
from nodedevices_plugin.sharing.mps import Mps
from nodedevices_plugin.sharing.registry import TimeSlicing
from support.cases import cases
from support.facts import START

NOW = 1000.0


def plan(**resources: list[str]) -> Plan:
    return Plan(
        resources=tuple(
            OfferedResource(
                name=f"nvidia.com/{name}",
                ids=tuple(SchedulableId(id=each, device_id=each.split("::")[0]) for each in ids),
            )
            for name, ids in resources.items()
        )
    )


WHOLE = plan(gpu=["GPU-0", "GPU-1"])
SLICED = plan(gpu=["GPU-0::0", "GPU-0::1", "GPU-1::0", "GPU-1::1"])
BY_MPS = Plan(resources=(replace(SLICED.resources[0], sharing=SharingFacts(mode=Mps(), replicas=2)),))
BY_TIME = Plan(resources=(replace(SLICED.resources[0], sharing=SharingFacts(mode=TimeSlicing(), replicas=2)),))
RENAMED = plan(shared=["GPU-0::0", "GPU-1::0"])


def holder(pod: str = "train", *, resource: str | None = "nvidia.com/gpu", ids: tuple[str, ...] = ("GPU-0",)) -> Holder:
    return Holder(namespace="ml", pod=pod, container="main", resource=resource, ids=ids, since=START)


def holdings(*holders: Holder, state: HoldersState = HoldersState.SYNCED) -> Holdings:
    return Holdings(state=state, message="no socket" if state is HoldersState.UNAVAILABLE else "", holders=holders)


def recent(*ids: str, age: float, resource: str = "nvidia.com/gpu") -> RecentAllocate:
    return RecentAllocate(resource=resource, ids=ids, time=START, monotonic=NOW - age)


def test_what_nobody_holds_applies_at_once_and_a_change_of_ids_waits_for_pods() -> None:
    assert decide_change(WHOLE, SLICED, holdings(), (), whole=True).apply
    assert decide_change(WHOLE, RENAMED, holdings(), (), whole=True).apply
    more = plan(gpu=["GPU-0", "GPU-1"], extra=["GPU-2::0"])
    assert decide_change(WHOLE, more, holdings(holder()), (), whole=True).apply
    assert decide_change(Plan(), SLICED, holdings(holder()), (), whole=True).apply
    others = holdings(holder(resource="example.com/nic", ids=("nic-0",)), holder(resource=None, ids=("gpu-0",)))
    assert decide_change(WHOLE, SLICED, others, (), whole=True).apply
    for wanted in (SLICED, RENAMED, Plan()):
        decision = decide_change(WHOLE, wanted, holdings(holder()), (), whole=True)
        assert not decision.apply
        assert decision.waits_for == ("ml/train",)
        assert decision.message == "the change of nvidia.com/gpu waits until these pods have ended: ml/train"


@cases(
    ("current", "wanted", "how"),
    (BY_TIME, BY_MPS, "from timeSlicing to mps"),
    (BY_MPS, BY_TIME, "from mps to timeSlicing"),
)
def test_a_change_to_or_from_mps_waits_though_the_ids_stay(current: Plan, wanted: Plan, how: str) -> None:
    """The GPUs' compute mode and the daemon are under the pods' feet, which have MPS's environment or not."""
    decision = decide_change(current, wanted, holdings(holder(ids=("GPU-0::0",))), (), whole=True)
    assert (decision.apply, decision.waits_for) == (False, ("ml/train",))
    assert decision.message == f"the change of nvidia.com/gpu {how} waits until these pods have ended: ml/train"
    assert not decide_change(current, wanted, holdings(), (recent("GPU-0::0", age=5),), whole=True).apply
    assert decide_change(current, wanted, holdings(), (), whole=True).apply


def test_how_a_resource_is_shared_is_said_where_ids_do_not_and_what_no_pod_feels_does_not_wait() -> None:
    decision = decide_change(WHOLE, BY_MPS, holdings(holder()), (), whole=True)
    assert decision.message == "the change of nvidia.com/gpu waits until these pods have ended: ml/train"
    plain = Plan(resources=(replace(BY_TIME.resources[0], sharing=NOT_SHARED),))
    assert decide_change(BY_TIME, plain, holdings(holder(ids=("GPU-0::0",))), (), whole=True).apply


def test_a_change_waits_while_nobody_knows_who_holds_what_or_an_allocate_is_not_listed_yet() -> None:
    for state in (HoldersState.UNAVAILABLE, HoldersState.RATE_LIMITED):
        decision = decide_change(WHOLE, SLICED, holdings(state=state), (), whole=True)
        assert not decision.apply
        assert state.value in decision.message
    young = recent("GPU-0", age=5)
    decision = decide_change(WHOLE, SLICED, holdings(), (young,), whole=True)
    assert (decision.apply, decision.waits_for) == (False, ())
    assert "allocated less than 30 s ago" in decision.message
    listed, young, failed = recent("GPU-0", age=5), recent("GPU-1", age=29.9), recent("GPU-2", age=30)
    now = replace(holdings(), taken=NOW)
    assert not_listed((failed, young, listed), {listed}, now) == (young,)
    assert not_listed((failed,), (), replace(now, taken=NOW - 15)) == (failed,), "no List is that young"
    assert not_listed((failed,), (), holdings(state=HoldersState.UNAVAILABLE)) == (failed,), "there was no List"


def test_only_resources_by_mps_are_waited_for_once_it_is_known_who_holds_what() -> None:
    for wanted in (SLICED, RENAMED, Plan()):
        assert decide_change(WHOLE, wanted, holdings(holder()), (recent("GPU-1", age=5),)).apply
        assert not decide_change(WHOLE, wanted, holdings(state=HoldersState.INCOMPLETE), ()).apply
    current = Plan(resources=(*RENAMED.resources, *BY_MPS.resources))
    assert decide_change(current, WHOLE, holdings(holder(resource="nvidia.com/shared", ids=("GPU-0::0",))), ()).apply
    waits = decide_change(current, Plan(resources=RENAMED.resources), holdings(holder(ids=("GPU-0::0",))), ())
    assert (waits.apply, waits.message) == (
        False,
        "the change of nvidia.com/gpu waits until these pods have ended: ml/train",
    )


def test_a_change_waits_for_an_id_that_only_the_kubelets_checkpoint_gives_to_a_container() -> None:
    init = Offer(resource="nvidia.com/gpu", ids=("GPU-0",))
    unlisted = replace(holdings(), possible=(Offer(resource="example.com/nic", ids=("nic-0",)), init))
    decision = decide_change(WHOLE, SLICED, unlisted, (), whole=True)
    assert (decision.apply, decision.waits_for) == (False, ())
    assert "waits until the pod that holds nvidia.com/gpu GPU-0 has ended (the kubelet's checkpoint" in decision.message
    several = replace(unlisted, possible=(Offer(resource="nvidia.com/gpu", ids=("GPU-0", "GPU-1", "GPU-2")),))
    assert (
        "nvidia.com/gpu GPU-0 and 2 more has ended (the"
        in decide_change(WHOLE, SLICED, several, (), whole=True).message
    )
    two = replace(unlisted, possible=(Offer(resource="nvidia.com/gpu", ids=("GPU-0", "GPU-1")),))
    assert "nvidia.com/gpu GPU-0 and 1 more has ended" in decide_change(WHOLE, SLICED, two, (), whole=True).message
    other = replace(unlisted, possible=(Offer(resource="example.com/nic", ids=("nic-0",)),))
    assert decide_change(WHOLE, SLICED, other, (), whole=True).apply
    assert decide_change(WHOLE, SLICED, holdings(), (recent("n", age=1, resource="e.com/n"),), whole=True).apply


def test_an_entry_without_ids_holds_nothing_and_a_message_is_cut_to_what_a_condition_carries() -> None:
    assert decide_change(WHOLE, SLICED, holdings(holder(ids=())), (), whole=True).apply
    assert wait("x" * 1024).message == "x" * 1024
    assert wait("x" * 1025).message == "x" * 1023 + "\u2026"


@cases(
    ("pods", "shown"),
    (("a", "a", "b"), "ml/a, ml/b"),
    (("a", "b", "c", "d", "e"), "ml/a, ml/b, ml/c, ml/d, ml/e"),
    (("a", "b", "c", "d", "e", "f", "g"), "ml/a, ml/b, ml/c, ml/d, ml/e and 2 more"),
)
def test_of_the_pods_that_a_change_waits_for_five_are_named(pods: tuple[str, ...], shown: str) -> None:
    decision = decide_change(WHOLE, SLICED, holdings(*(holder(each) for each in pods)), (), whole=True)
    assert decision.message == f"the change of nvidia.com/gpu waits until these pods have ended: {shown}"


@cases(
    ("held", "ages", "none"),
    (holdings(), (), True),
    (holdings(), (30.0,), True),
    (holdings(), (45.0, 29.9), False),
    (holdings(holder()), (), False),
    (replace(holdings(), possible=(Offer(resource="nvidia.com/gpu", ids=("GPU-0",)),)), (), False),
    (holdings(state=HoldersState.INCOMPLETE), (), False),
    (replace(holdings(), unread_because="no permission"), (), False),
)
def test_nothing_is_held_only_if_no_list_no_checkpoint_and_no_young_allocate_says_otherwise(
    held: Holdings, ages: tuple[float, ...], none: bool
) -> None:
    allocates = [recent("GPU-0", age=age) for age in ages]
    assert none_held(held, allocates, monotonic=NOW) is none


def test_ids_that_a_plan_takes_away_are_those_that_are_gone_or_come_to_a_daemon() -> None:
    now = {each.name: each for each in (*WHOLE.resources, *RENAMED.resources)}
    fewer = plan(gpu=["GPU-0"], shared=["GPU-0::0", "GPU-1::0", "GPU-1::1"])
    assert leaving(now, fewer) == {"nvidia.com/gpu": {"GPU-1"}}
    assert leaving(now, Plan(resources=WHOLE.resources)) == {"nvidia.com/shared": {"GPU-0::0", "GPU-1::0"}}
    ids = {each.id for each in SLICED.resources[0].ids}
    assert leaving({"nvidia.com/gpu": BY_TIME.resources[0]}, BY_MPS) == {"nvidia.com/gpu": ids}
    assert leaving({"nvidia.com/gpu": BY_TIME.resources[0]}, SLICED) == {}


def test_a_resource_that_is_given_whole_changes_with_any_of_its_devices() -> None:
    """A pod with any of its ids has all of them."""
    board = plan(board=["GPU-0::0", "GPU-1::0"]).resources[0]
    whole = Plan(resources=(replace(board, together=True),))
    grown = plan(board=["GPU-0::0", "GPU-1::0", "GPU-2::0"]).resources[0]
    wider = Plan(resources=(replace(grown, together=True),))
    has = holdings(holder(resource="nvidia.com/board", ids=("GPU-0::0",)))
    decision = decide_change(whole, wider, has, ())
    assert (decision.apply, decision.waits_for) == (False, ("ml/train",))
    assert leaving({"nvidia.com/board": whole.resources[0]}, wider) == {"nvidia.com/board": {"GPU-0::0", "GPU-1::0"}}
    more = Plan(resources=(replace(board, together=True, ids=(*board.ids, replace(board.ids[0], id="GPU-0::1"))),))
    assert leaving({"nvidia.com/board": whole.resources[0]}, more) == {}, "more shares of the same devices"
