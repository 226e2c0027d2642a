"""status.resources[].withheld: every id that is not Healthy has its reason, within the contract's bounds."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from hypothesis import given, strategies as st
from nodedevices_api import nodedevices as api
from nodedevices_api.base import to_dict
from nodedevices_api.withheld import CORDONED, HELPER_NOT_READY, MEANINGS, SERVED_BY_ANOTHER, UNHEALTHY
from nodedevices_plugin.model import (
    Blocked,
    HealthState,
    HoldersState,
    Holdings,
    OfferedResource,
    Plan,
    Registration,
    RegistrationState,
    SchedulableId,
    Verdict,
)
from nodedevices_plugin.status.facts import ProbeFacts
from nodedevices_plugin.status.report import report
from support.facts import START, gpu, gpu_id, healthy, inventory_of
from support.reports import node_facts
from support.there import there

GPU = "nvidia.com/gpu"
PODS = [f"ml/p{number}" for number in range(20)]
BLOCKED = st.builds(
    Blocked,
    reason=st.sampled_from(list(MEANINGS)),
    message=st.sampled_from(["", "Xid79", "é" * 700, "a\nb"]),
    waits_for=st.lists(st.sampled_from(PODS), max_size=12).map(tuple),
)


def shares(blocked: list[Blocked | None]) -> tuple[SchedulableId, ...]:
    return tuple(
        SchedulableId(id=f"{gpu_id(n % 8)}::{n}", device_id=gpu_id(n % 8), replica=n, blocked=each)
        for n, each in enumerate(blocked)
    )


def whole(*blocked: Blocked | None) -> tuple[SchedulableId, ...]:
    return tuple(SchedulableId(id=gpu_id(n), device_id=gpu_id(n), blocked=each) for n, each in enumerate(blocked))


def status(
    ids: tuple[SchedulableId, ...],
    state: RegistrationState = RegistrationState.REGISTERED,
    unlisted: tuple[SchedulableId, ...] = (),
    **more: Any,
) -> api.NodeDevicesStatus:
    devices = [gpu(number) for number in range(8)]
    inventory = inventory_of(*devices)
    known: dict[str, Any] = {"verdicts": healthy(*devices), **more}
    return report(
        node_facts(
            inventory=inventory,
            plan=Plan(resources=(OfferedResource(name=GPU, ids=ids, unlisted=unlisted),)),
            holdings=Holdings(state=HoldersState.SYNCED, taken=1.0),
            registrations=(Registration(resource=GPU, state=state),),
            started=START,
            now=START + timedelta(seconds=30),
            probes=(ProbeFacts(name="simulated", inventory=inventory),),
            **known,
        )
    )


def test_a_resource_that_the_kubelet_is_not_shown_yet_says_why_and_the_node_is_not_called_fit() -> None:
    """As after the agent's start, where the MPS daemon is not there."""
    why = Blocked(reason=HELPER_NOT_READY, message="the daemon has not answered")
    shown = status((), unlisted=shares([why, why]))
    [resource] = shown.resources
    assert (resource.capacity, resource.healthy) == (2, 0)
    assert [(each.reason, each.count) for each in resource.withheld] == [(HELPER_NOT_READY, 2)]
    assert shown.summary is not None
    assert shown.summary.message == (
        "nvidia.com/gpu: 0 of 2 can be allocated (gpu-0, gpu-1 HelperNotReady: the daemon has not answered)."
    )


@given(
    st.lists(st.none() | BLOCKED, max_size=40),
    st.lists(BLOCKED, max_size=10),
    st.sampled_from([RegistrationState.REGISTERED, RegistrationState.SERVED_BY_ANOTHER]),
)
def test_what_is_healthy_and_what_is_withheld_add_up_to_the_capacity(
    blocked: list[Blocked | None], unlisted: list[Blocked | None], state: RegistrationState
) -> None:
    [resource] = status(shares(blocked), state, shares(unlisted)).resources
    assert resource.healthy + sum(each.count for each in resource.withheld) == resource.capacity
    reasons = [each.reason for each in resource.withheld]
    assert len(set(reasons)) == len(reasons)
    assert all(len(each.devices) <= 8 and len(each.waits_for) <= 8 for each in resource.withheld)


def test_each_reason_says_how_many_which_devices_why_and_whom_it_waits_for() -> None:
    change = Blocked(reason="ChangeWaits", message="a change waits", waits_for=("ml/train",))
    bad, lost = (Blocked(reason=UNHEALTHY, message=each) for each in ("Xid79", "FallenOffBus"))
    [resource] = status(whole(bad, None, lost, change, change)).resources
    assert [to_dict(each) for each in resource.withheld] == [
        {
            "reason": UNHEALTHY,
            "count": 2,
            "devices": ["gpu-0", "gpu-2"],
            "message": "gpu-0: Xid79; gpu-2: FallenOffBus",
        },
        {
            "reason": "ChangeWaits",
            "count": 2,
            "devices": ["gpu-3", "gpu-4"],
            "message": "a change waits",
            "waitsFor": ["ml/train"],
        },
    ]


def test_a_node_with_nothing_in_the_way_says_no_more_and_what_another_serves_is_withheld() -> None:
    [resource] = status(whole(None, None), RegistrationState.SERVED_BY_ANOTHER).resources
    assert [(each.reason, each.count) for each in resource.withheld] == [(SERVED_BY_ANOTHER, 2)]
    made = status(whole(*[None] * 8))
    assert made.resources[0].withheld == ()
    assert made.summary is not None
    assert (made.summary.withheld, made.summary.message) == ("", "8 devices, all fit for use.")


def test_the_summary_says_in_a_sentence_or_two_what_is_wrong_since_when_and_what_helps() -> None:
    rma = Blocked(reason=CORDONED, message="taken out of service by jane: RMA 4711")
    xid = Verdict(
        state=HealthState.UNHEALTHY,
        reason="Xid79",
        message="the GPU has fallen off the bus (XID 79); reboot the node",
        since=START,
        offered=False,
        recovery_action="RebootNode",
    )
    verdicts = {**healthy(*(gpu(number) for number in range(8))), gpu_id(0): xid}
    ids = whole(Blocked(reason=UNHEALTHY, message="Xid79"), rma, *[None] * 6)
    summary = there(status(ids, verdicts=verdicts).summary)
    assert summary.withheld == "Unhealthy=1,Cordoned=1"
    assert summary.message == (
        "nvidia.com/gpu: 6 of 8 can be allocated (gpu-0 Unhealthy: Xid79; gpu-1 Cordoned: taken out of service by "
        "jane: RMA 4711). gpu-0: Xid79 since "
        f"{START.isoformat().replace('+00:00', 'Z')}: the GPU has fallen off the bus (XID 79); reboot the node."
    )


def test_a_long_reason_is_cut_and_costs_no_report() -> None:
    [resource] = status(whole(Blocked(reason=UNHEALTHY, message="x" * 5000))).resources
    [each] = resource.withheld
    assert (each.count, each.message[:2], each.message[-1]) == (1, "xx", "…")
