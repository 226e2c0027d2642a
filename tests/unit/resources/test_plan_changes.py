from __future__ import annotations

from dataclasses import replace

import pytest
from nodedevices_plugin.model import (
    Holder,
    HoldersState,
    Holdings,
    OfferedResource,
    Plan,
    RecentAllocate,
    SchedulableId,
)
from nodedevices_plugin.resources.changes import decide_change
from support.facts import START

NOW = 1000.0


def plan(**resources: list[str]) -> Plan:
    return Plan(
        resources=tuple(
            OfferedResource(
                name=f"nvidia.com/{name}",
                ids=tuple(SchedulableId(id=each, device_id=each.split("::")[0], healthy=True) for each in ids),
            )
            for name, ids in resources.items()
        )
    )


WHOLE = plan(gpu=["GPU-0", "GPU-1"])
SLICED = plan(gpu=["GPU-0::0", "GPU-0::1", "GPU-1::0", "GPU-1::1"])
BY_MPS = Plan(resources=(replace(SLICED.resources[0], sharing="mps", replicas=2),))
BY_TIME = Plan(resources=(replace(SLICED.resources[0], sharing="timeSlicing", replicas=2),))
RENAMED = plan(shared=["GPU-0::0", "GPU-1::0"])


def holder(pod: str = "train", *, resource: str | None = "nvidia.com/gpu", ids: tuple[str, ...] = ("GPU-0",)) -> Holder:
    return Holder(namespace="ml", pod=pod, container="main", resource=resource, ids=ids, since=START)


def holdings(*holders: Holder, state: HoldersState = HoldersState.SYNCED) -> Holdings:
    return Holdings(state=state, message="no socket" if state is HoldersState.UNAVAILABLE else "", holders=holders)


def recent(*ids: str, age: float, resource: str = "nvidia.com/gpu") -> RecentAllocate:
    return RecentAllocate(resource=resource, ids=ids, time=START, monotonic=NOW - age)


def test_a_change_that_nobody_feels_applies_at_once() -> None:
    assert decide_change(WHOLE, SLICED, holdings(), (), monotonic=NOW).apply
    assert decide_change(WHOLE, RENAMED, holdings(), (), monotonic=NOW).apply


def test_a_change_of_ids_or_name_waits_for_the_pods_that_hold_one() -> None:
    for wanted in (SLICED, RENAMED, Plan()):
        decision = decide_change(WHOLE, wanted, holdings(holder()), (), monotonic=NOW)
        assert not decision.apply
        assert decision.waiting_for == (holder(),)
        assert decision.message == "the change of nvidia.com/gpu waits until these pods have ended: ml/train"


def test_a_plan_with_the_same_ids_never_waits() -> None:
    assert decide_change(WHOLE, WHOLE, holdings(holder(), state=HoldersState.UNAVAILABLE), (), monotonic=NOW).apply
    assert decide_change(BY_MPS, BY_MPS, holdings(holder(ids=("GPU-0::0",))), (), monotonic=NOW).apply


@pytest.mark.parametrize(
    ("current", "wanted", "how"),
    [(BY_TIME, BY_MPS, "from timeSlicing to mps"), (BY_MPS, BY_TIME, "from mps to timeSlicing")],
)
def test_a_change_to_or_from_mps_waits_though_the_ids_stay(current: Plan, wanted: Plan, how: str) -> None:
    """The GPUs' compute mode and the daemon are under the pods' feet, which have MPS's environment or not."""
    decision = decide_change(current, wanted, holdings(holder(ids=("GPU-0::0",))), (), monotonic=NOW)
    assert (decision.apply, decision.waiting_for) == (False, (holder(ids=("GPU-0::0",)),))
    assert decision.message == f"the change of nvidia.com/gpu {how} waits until these pods have ended: ml/train"
    assert not decide_change(current, wanted, holdings(), (recent("GPU-0::0", age=5),), monotonic=NOW).apply
    assert decide_change(current, wanted, holdings(), (), monotonic=NOW).apply


def test_how_a_resource_is_shared_is_said_only_where_its_ids_do_not_tell() -> None:
    decision = decide_change(WHOLE, BY_MPS, holdings(holder()), (), monotonic=NOW)
    assert decision.message == "the change of nvidia.com/gpu waits until these pods have ended: ml/train"


def test_ways_to_share_that_no_pod_feels_do_not_wait() -> None:
    plain = Plan(resources=(replace(BY_TIME.resources[0], sharing="none", replicas=None),))
    assert decide_change(BY_TIME, plain, holdings(holder(ids=("GPU-0::0",))), (), monotonic=NOW).apply


def test_a_new_resource_beside_the_old_ones_never_waits() -> None:
    more = plan(gpu=["GPU-0", "GPU-1"], extra=["GPU-2::0"])
    assert decide_change(WHOLE, more, holdings(holder()), (), monotonic=NOW).apply
    assert decide_change(Plan(), SLICED, holdings(holder()), (), monotonic=NOW).apply


def test_holders_of_other_resources_and_of_claims_do_not_count() -> None:
    others = holdings(holder(resource="example.com/nic", ids=("nic-0",)), holder(resource=None, ids=("gpu-0",)))
    assert decide_change(WHOLE, SLICED, others, (), monotonic=NOW).apply


def test_a_change_waits_while_nobody_knows_who_holds_what() -> None:
    for state in (HoldersState.UNAVAILABLE, HoldersState.RATE_LIMITED):
        decision = decide_change(WHOLE, SLICED, holdings(state=state), (), monotonic=NOW)
        assert not decision.apply
        assert state.value in decision.message


def test_a_change_waits_for_an_allocate_that_is_not_listed_yet() -> None:
    young = recent("GPU-0", age=5)
    decision = decide_change(WHOLE, SLICED, holdings(), (young,), monotonic=NOW)
    assert (decision.apply, decision.waiting_for) == (False, ())
    assert "allocated less than 120 s ago" in decision.message


def test_an_allocate_is_waited_for_two_minutes_at_most() -> None:
    assert not decide_change(WHOLE, SLICED, holdings(), (recent("GPU-0", age=119.9),), monotonic=NOW).apply
    assert decide_change(WHOLE, SLICED, holdings(), (recent("GPU-0", age=120),), monotonic=NOW).apply


def test_an_allocate_of_another_resource_is_not_waited_for() -> None:
    other = recent("nic-0", age=1, resource="example.com/nic")
    assert decide_change(WHOLE, SLICED, holdings(), (other,), monotonic=NOW).apply


def test_a_listed_allocate_is_a_holder_like_any_other() -> None:
    decision = decide_change(WHOLE, SLICED, holdings(holder()), (recent("GPU-0", age=1),), monotonic=NOW)
    assert decision.waiting_for == (holder(),)


def test_the_message_is_bounded_and_names_the_pods_once() -> None:
    many = [holder(f"pod-{number}") for number in range(9)]
    message = decide_change(WHOLE, SLICED, holdings(*many, *many), (), monotonic=NOW).message
    assert message.endswith("ml/pod-0, ml/pod-1, ml/pod-2, ml/pod-3, ml/pod-4 and 4 more")
    long = [holder("p" * 253) for _ in range(9)] + [holder("q" * 253 + str(number)) for number in range(9)]
    assert len(decide_change(WHOLE, SLICED, holdings(*long), (), monotonic=NOW).message) <= 1024
