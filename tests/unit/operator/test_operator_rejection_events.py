"""The Event on a pod that its node's kubelet rejected: what the node has, and why the rest is not offered."""

from __future__ import annotations

from typing import Any

import pytest
from nodedevices_operator.concerns.device_events import EVENTS_AT_ONCE, SECONDS_PER_EVENT
from nodedevices_operator.desired.device_news import MAX_DEVICES, NEWS_SECONDS, SETTLE_SECONDS, rejection_text
from nodedevices_operator.kube.port import KubeError
from nodedevices_operator.records import kinds as records
from nodedevices_operator.records.objects import NodeDevicesRecord
from support.cases import cases
from support.concerns import RejectionBench
from support.fakekube import FakeKube
from support.opfacts import GPU, SINCE, device, record, rejected_pod, resource
from support.there import there


def gpus(capacity: int, healthy: int, allocated: int, free: int | None = None) -> dict[str, Any]:
    return resource(capacity, healthy) | {"allocated": allocated} | ({} if free is None else {"free": free})


def pod(limits: dict[str, str] | None = None, **metadata: Any) -> dict[str, Any]:
    raw = rejected_pod(**metadata)
    container = {"name": "main", "resources": {"limits": limits or {GPU: "2"}}}
    return raw | {"spec": {"nodeName": "n1", "containers": [container]}}


def text(shown: NodeDevicesRecord, raw: dict[str, Any] | None = None) -> str | None:
    found = there(records.rejected_pod(raw or pod()))
    return rejection_text(found, shown)


# --- what it says ----------------------------------------------------------------------------------------------------
def withheld(
    reason: str, *devices: str, count: int = 1, message: str = "", pods: tuple[str, ...] = ()
) -> dict[str, Any]:
    return {"reason": reason, "count": count, "devices": list(devices), "message": message, "waitsFor": list(pods)}


def test_it_says_how_many_there_are_and_why_the_others_are_not_offered() -> None:
    why = [
        withheld("Unhealthy", "gpu-1", message="Xid79"),
        withheld("HeldInAnotherShape", "gpu-2", count=4, message="held under another resource or id", pods=("ml/a",)),
    ]
    shown = record(
        device(0), device(3, excluded="resources.exclude[0]"), resources=[gpus(6, 1, 1, 0) | {"withheld": why}]
    )
    assert text(shown) == (
        "node n1 rejected this pod, which requests 2 nvidia.com/gpu (the node has 6: 1 offered, 1 held, 0 free); "
        "devices of nvidia.com/gpu that are not offered: gpu-1 (Unhealthy: Xid79), gpu-2 and 3 more ids "
        "(HeldInAnotherShape: held under another resource or id; waits for ml/a); excluded by resources.exclude: gpu-3."
    )


def test_where_enough_are_offered_or_free_no_device_is_to_blame_and_holders_may_be_unknown() -> None:
    shown = record(device(0), device(1, "Unhealthy", "LinkDown", type="nic"), resources=[gpus(1, 1, 1, 0)])
    assert text(shown) == (
        "node n1 rejected this pod, which requests 2 nvidia.com/gpu (the node has 1: 1 offered, 1 held, 0 free)."
    )
    shown = record(device(0), device(1), resources=[gpus(2, 2, 0, 2)])
    assert str(text(shown)).endswith("2 free); the node has enough now: the cause is over, or the message of the "
                                     "pod's status names it.")  # fmt: skip
    assert str(text(record(device(0), resources=[gpus(1, 1, 0)]))).endswith("(the node has 1: 1 offered, 0 held).")


@cases(
    ("condition", "said"),
    ({"Ready": ("False", "AgentStopped")}, "; Ready is False (AgentStopped)."),
    ({"Stale": ("True", "HeartbeatOverdue")}, "; Stale is True (HeartbeatOverdue)."),
)
def test_what_keeps_all_of_a_nodes_devices_back_is_said(condition: dict[str, tuple[str, str]], said: str) -> None:
    shown = record(device(0), resources=[gpus(1, 1, 0, 1)], conditions=condition)
    assert str(text(shown)).endswith(said)


def test_several_resources_of_ours_are_told_in_a_bounded_text() -> None:
    shown = record(resources=[gpus(1, 1, 1, 0), resource(4, 4, "example.com/rdma") | {"free": 4}])
    said = text(shown, pod({GPU: "1", "example.com/rdma": "1", "other.example.com/x": "1", "cpu": "1"}))
    assert said == (
        "node n1 rejected this pod, which requests 1 example.com/rdma (the node has 4: 4 offered, 0 held, 4 free) and "
        "1 nvidia.com/gpu (the node has 1: 1 offered, 1 held, 0 free)."
    )
    first = [f"gpu-{number}" for number in range(MAX_DEVICES)]
    sick = gpus(256, 0, 0, 0) | {"withheld": [withheld("Unhealthy", *first, count=256, message="Xid79" * 200)]}
    said = str(text(record(resources=[sick])))
    assert f"gpu-{MAX_DEVICES - 1} and {256 - MAX_DEVICES} more ids (Unhealthy: Xid79" in said
    assert len(said) < 500


@cases("limits", {"example.com/other": "1"}, {"cpu": "1"})
def test_a_pod_that_requests_nothing_of_the_nodes_is_none_of_ours(limits: dict[str, str]) -> None:
    assert text(record(device(0)), pod(limits)) is None


def test_what_a_pod_requests_is_what_the_scheduler_counts() -> None:
    first = {"name": "init", "resources": {"requests": {GPU: "3"}}}
    main = {"name": "main", "resources": {"limits": {GPU: "1"}}}
    raw = pod() | {"spec": {"nodeName": "n1", "initContainers": [first], "containers": [main, main]}}
    assert "requests 3 nvidia.com/gpu" in str(text(record(device(0)), raw))


# --- when it is written ----------------------------------------------------------------------------------------------
SHOWN = record(device(0), resources=[gpus(1, 1, 1, 0)])


def bench(kube: FakeKube | None = None, *, seconds: float = 10.0) -> RejectionBench:
    return RejectionBench(SHOWN, seconds=seconds, kube=kube)


async def test_a_rejected_pod_has_one_event_which_says_why_also_without_a_controller() -> None:
    one = bench()
    one.put(pod(ownerReferences=[]))
    await one.run()
    [event] = one.kube.events
    assert (event["reason"], event["type"]) == ("DevicesUnavailable", "Warning")
    assert event["involvedObject"]["uid"] == "pod-web-1"
    assert "1 offered, 1 held, 0 free" in event["message"]
    await one.run()
    assert len([path for verb, path, _ in one.kube.writes if verb == "create"]) == 1


async def test_a_restarted_operator_writes_no_second_one_and_the_agent_is_given_time_to_report() -> None:
    one = bench()
    one.put(pod())
    await one.run()
    again = bench(one.kube, seconds=60.0)
    await again.run(record(device(0, "Unhealthy", "Xid79"), resources=[gpus(1, 0, 0, 0)]))
    assert len(one.kube.events) == 1
    one = bench(seconds=1.0)
    one.put(pod())
    assert (await one.run()).again == pytest.approx(SETTLE_SECONDS - 1.0)
    assert one.kube.events == []
    one.seconds = SETTLE_SECONDS
    await one.run()
    assert len(one.kube.events) == 1


async def test_about_a_pod_of_long_ago_nothing_is_said() -> None:
    one = bench(seconds=NEWS_SECONDS)
    one.put(pod())
    await one.run()
    assert one.kube.writes == []


@cases(
    "raw",
    pytest.param(pod() | {"status": {"phase": "Failed", "reason": "Evicted", "startTime": SINCE}}, id="otherwise"),
    pytest.param(pod({"example.com/other": "1"}), id="of another's resource"),
    pytest.param(pod() | {"status": {**pod()["status"], "startTime": "soon"}}, id="at no time"),
)
async def test_of_another_pod_that_failed_nothing_is_said(raw: dict[str, Any]) -> None:
    one = bench()
    one.put(raw)
    await one.run()
    assert one.kube.writes == []


async def test_a_controller_that_makes_one_after_the_other_gets_a_bounded_number_of_them() -> None:
    one = bench()
    for number in range(EVENTS_AT_ONCE + 4):
        one.put(pod() | {"metadata": rejected_pod(f"web-{number}")["metadata"]})
    await one.run()
    name = "nodedevices_operator_suppressed_events_total"
    assert (len(one.kube.events), one.metrics.registry.get_sample_value(name)) == (EVENTS_AT_ONCE, 4.0)
    one.seconds += SECONDS_PER_EVENT
    await one.run()
    assert len(one.kube.events) == EVENTS_AT_ONCE, "one that was suppressed is never written later"
    alone = rejected_pod("alone")["metadata"]
    one.put(pod() | {"metadata": {key: value for key, value in alone.items() if key != "ownerReferences"}})
    await one.run()
    assert len(one.kube.events) == EVENTS_AT_ONCE + 1, "it costs no other pod its Event"


async def test_between_two_watches_nothing_is_forgotten() -> None:
    one = bench()
    for number in range(EVENTS_AT_ONCE + 1):
        one.put(pod() | {"metadata": rejected_pod(f"web-{number}")["metadata"]})
    await one.run()
    shown = dict(one.kube.objects)
    one.kube.objects.clear()
    await one.run()
    one.kube.objects.update(shown)
    one.seconds += SECONDS_PER_EVENT
    await one.run()
    assert len(one.kube.events) == EVENTS_AT_ONCE


@cases("status", 403, 503)
async def test_an_event_that_cannot_be_written_is_not_tried_again(status: int) -> None:
    one = bench()
    one.put(pod())
    one.kube.fails = lambda verb, _: KubeError("no", status=status) if verb == "create" else None
    await one.run()
    one.kube.fails = lambda _verb, _path: None
    await one.run()
    assert one.kube.events == []
