"""Pods that hold devices and do not use them: the condition DeviceIdle and its Event, by the whole operator."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from typing import Any

from nodedevices_operator.cleanup import clean_up
from nodedevices_operator.desired.idle import idle_pods
from nodedevices_operator.kube.port import KubeError
from nodedevices_operator.manager import Manager
from support.cases import cases
from support.crashes import CrashingKube, Killed, live
from support.fakekube import FakeKube, settle
from support.opfacts import GPU, device, holder, node_devices, raw_node, raw_pod, raw_policy, record
from support.whole_operator import (
    ITEM,
    NODE,
    POD,
    POLICY,
    action,
    arrive,
    one_node,
    said,
    started,
    verdict,
    with_status,
)

KIND = "nodedevices.io/DeviceIdle"
# Their Events are still there, also when these are the last tests of a suite.
RECENT = f"{datetime.now(UTC) - timedelta(minutes=3):%Y-%m-%dT%H:%M:%SZ}"
LATER = f"{datetime.now(UTC) - timedelta(minutes=1):%Y-%m-%dT%H:%M:%SZ}"
NONE = ("", "")  # no such condition
HALF_AN_HOUR = {"afterSeconds": 1800}


def idle(word: str = "NeverUsed", index: int = 0, since: str = RECENT, pod: str = "trainer") -> dict[str, Any]:
    return device(index, holders=[holder(pod) | {"idle": word, "idleSince": since}])


def busy(index: int = 0) -> dict[str, Any]:
    return device(index, holders=[holder()])


def rig(*devices: dict[str, Any], section: dict[str, Any] | None = None) -> FakeKube:
    made = one_node(*devices, gpus=8)
    made.put(POD, raw_pod())
    made.put(POLICY, raw_policy("p", idle=HALF_AN_HOUR if section is None else section))
    return made


async def running(kube: FakeKube) -> Manager:
    manager = await started(kube)
    await rest(manager)
    return manager


async def run(*devices: dict[str, Any], section: dict[str, Any] | None = None) -> tuple[FakeKube, Manager]:
    """That rig, and an operator that has come to rest over it."""
    kube = rig(*devices, section=section)
    return kube, await running(kube)


async def rest(manager: Manager) -> None:
    """Reconcile until nothing is left, whatever was asked to wait."""
    for _ in range(4):
        await settle(manager)
        await manager.reconcile_node("n1")


async def report(kube: FakeKube, manager: Manager, *devices: dict[str, Any], **conditions: tuple[str, str]) -> None:
    """The agent's next status; what is the operator's stays."""
    before = kube.objects[ITEM]
    made = node_devices(*devices, conditions=conditions)
    agents = [each["type"] for each in made["status"]["conditions"]]
    made["status"]["conditions"] += [it for it in before["status"]["conditions"] if it["type"] not in agents]
    made |= {"spec": before["spec"], "metadata": before["metadata"]}
    arrive(manager, kube, ITEM, made)
    await rest(manager)


async def policy(kube: FakeKube, manager: Manager, **section: Any) -> None:
    arrive(manager, kube, POLICY, raw_policy("p", idle=section, generation=2))
    await rest(manager)


def mark(kube: FakeKube) -> tuple[str, str]:
    return verdict(kube, POD, KIND)


def synced(kube: FakeKube) -> str:
    """The reason of the action; empty: there is none."""
    reason: str = action(kube, "idlePods").get("reason", "")
    return reason


def told(kube: FakeKube) -> list[str]:
    return [message for reason, message in said(kube) if reason == "DeviceIdle"]


async def test_a_pod_that_never_used_its_device_shows_it_and_its_owner_hears_of_it_once() -> None:
    kube, _ = await run(idle())
    assert mark(kube) == ("True", "NeverUsed")
    assert synced(kube) == "InSync"
    [message] = told(kube)
    assert message.startswith("NeverUsed: gpu-0 GPU-")
    assert message.endswith(f"since {RECENT}: no process has been seen on it since the pod got it")
    await running(kube)  # a second operator
    assert len(told(kube)) == 1


async def test_a_pod_that_uses_its_device_again_shows_that_also_by_a_restarted_operator() -> None:
    kube, manager = await run(idle("Idle"))
    await report(kube, manager, busy())
    assert mark(kube) == ("False", "InUse")
    await report(kube, manager, idle("MemoryOnly", since=LATER))
    assert mark(kube) == ("True", "MemoryOnly")
    assert len(told(kube)) == 2
    kube, manager = await run(idle())
    kube.put(ITEM, with_status(kube, devices=[busy()]))
    await running(kube)
    assert mark(kube) == ("False", "InUse")
    assert manager is not None


async def test_nothing_is_written_where_no_policy_asks_for_it() -> None:
    kube, _ = await run(idle(), section={})
    assert (mark(kube), synced(kube), told(kube)) == (NONE, "", [])


async def test_the_condition_goes_with_the_policy_also_while_no_operator_ran() -> None:
    kube, manager = await run(idle())
    await policy(kube, manager)
    assert (mark(kube), synced(kube)) == (NONE, "")
    await policy(kube, manager, **HALF_AN_HOUR)
    assert (mark(kube), synced(kube)) == (("True", "NeverUsed"), "InSync")
    kube, _ = await run(idle())
    kube.put(POLICY, raw_policy("p", partitions={"strategy": "none"}, generation=2))
    await running(kube)
    assert (mark(kube), synced(kube)) == (NONE, "")


async def test_the_condition_goes_with_the_policy_from_a_pod_in_use_and_while_holders_are_not_known() -> None:
    kube, manager = await run(idle())
    await report(kube, manager, busy())
    await policy(kube, manager)
    assert (mark(kube), synced(kube)) == (NONE, "")
    kube, manager = await run(idle())
    await report(kube, manager, idle(), HoldersKnown=("Unknown", "PodResourcesUnavailable"))
    await policy(kube, manager)
    assert (mark(kube), synced(kube)) == (NONE, "")


async def test_a_new_nodedevices_takes_back_what_the_earlier_one_led_to_where_no_policy_asks_for_it() -> None:
    kube, _ = await run(idle())
    kube.put(POLICY, raw_policy("p", partitions={"strategy": "none"}, generation=2))
    kube.put(ITEM, node_devices(idle()))  # made anew, without any condition of ours
    await running(kube)
    assert (mark(kube), synced(kube)) == (NONE, "")


@cases("reported", False, True)
async def test_of_a_policy_that_comes_later_the_event_comes_once_and_not_again_with_its_next_change(
    reported: bool,
) -> None:
    kube, manager = await run(idle(), section={})
    await policy(kube, manager, **HALF_AN_HOUR)
    assert len(told(kube)) == 1
    kube.events.clear()  # as after an hour
    if reported:
        await report(kube, manager, idle(), device(1))
    await policy(kube, manager, afterSeconds=900)
    assert told(kube) == []


async def test_a_pod_whose_agent_is_lost_may_use_its_device_by_now() -> None:
    kube, manager = await run(idle())
    arrive(manager, kube, NODE, raw_node({GPU: 8}, ready="False"))
    await rest(manager)
    assert mark(kube) == ("Unknown", "NodeNotReady")
    writes = len(kube.written("/pods/"))
    await rest(manager)
    assert len(kube.written("/pods/")) == writes
    arrive(manager, kube, NODE, raw_node({GPU: 8}))
    await rest(manager)
    assert mark(kube) == ("True", "NeverUsed")
    assert len(told(kube)) == 1


async def test_a_pod_is_not_marked_by_what_is_out_of_date_or_where_the_node_may_not_name_it() -> None:
    kube = rig(idle())
    kube.put(NODE, raw_node({GPU: 8}, ready="False"))
    await running(kube)
    assert (mark(kube), told(kube)) == (NONE, [])
    kube = rig(idle())
    elsewhere = raw_pod()
    elsewhere["spec"]["nodeName"] = "n2"
    kube.put(POD, elsewhere)
    await running(kube)
    assert (mark(kube), told(kube)) == (NONE, [])


async def test_nothing_is_read_or_written_again_when_nothing_changed() -> None:
    kube, manager = await run(idle())
    calls: list[tuple[str, str]] = []
    kube.fails = lambda verb, path: calls.append((verb, path))
    await rest(manager)
    assert calls == []


async def test_a_pod_that_was_replaced_in_between_is_read_again() -> None:
    kube, manager = await run(idle())
    kube.fails = lambda verb, path: KubeError("no", status=409) if (verb, path) == ("apply", f"{POD}/status") else None
    await report(kube, manager, idle("Idle", since=LATER))
    wait = await manager.reconcile_node("n1")
    assert wait is not None
    assert wait <= 2
    kube.fails = lambda _verb, _path: None
    await manager.reconcile_node("n1")
    assert mark(kube) == ("True", "Idle")


async def test_a_pod_that_ended_or_whose_holders_are_not_known_keeps_what_it_shows() -> None:
    kube, manager = await run(idle())
    kube.objects[POD]["status"]["phase"] = "Succeeded"
    await report(kube, manager)
    assert mark(kube) == ("True", "NeverUsed")
    kube, manager = await run(idle())
    await report(kube, manager, HoldersKnown=("Unknown", "PodResourcesUnavailable"))
    assert mark(kube) == ("True", "NeverUsed")


async def test_a_period_that_began_while_no_operator_ran_is_news_and_one_of_hours_ago_is_not() -> None:
    kube, _ = await run(idle(since="2026-11-01T00:00:00Z"))
    assert mark(kube) == ("True", "NeverUsed")
    assert told(kube) == []
    began = f"{datetime.now(UTC) - timedelta(hours=2, minutes=3):%Y-%m-%dT%H:%M:%SZ}"
    kube, _ = await run(idle("Idle", since=began), section={"afterSeconds": 7200})
    assert len(told(kube)) == 1


async def test_without_the_right_the_condition_says_so() -> None:
    kube = rig(idle())
    kube.fails = lambda verb, path: KubeError("no", status=403) if (verb, path) == ("apply", f"{POD}/status") else None
    await running(kube)
    assert synced(kube) == "Forbidden"


async def test_cleanup_takes_the_condition_away_and_leaves_the_other_one() -> None:
    kube, _ = await run(idle())
    assert await clean_up(kube, dry_run=False) == 0
    assert mark(kube) == NONE
    kube = rig(idle())
    gated = raw_pod()
    gated["spec"]["readinessGates"] = [{"conditionType": "nodedevices.io/DeviceHealthy"}]
    kube.put(POD, gated)
    await running(kube)
    assert await clean_up(kube, dry_run=False) == 0
    assert mark(kube) == NONE


def test_a_pod_with_several_devices_has_one_condition_by_the_longest() -> None:
    found = idle_pods(record(idle("Idle", 1, "2026-11-21T09:00:00Z"), idle("NeverUsed", 2, "2026-11-21T08:00:00Z")))
    [held] = found.values()
    assert [(each.word, each.holding.device_name) for each in held] == [("NeverUsed", "gpu-2"), ("Idle", "gpu-1")]


@cases("word", "Unknown", "", "Invented")
def test_a_word_that_does_not_say_that_it_is_unused_marks_nothing(word: str) -> None:
    assert idle_pods(record(idle(word))) == {}


async def test_killed_between_any_two_calls_it_comes_to_the_same_end() -> None:
    calls = dies_at = 0
    while dies_at <= calls:
        dies_at += 1
        kube = rig(idle())
        first = CrashingKube(kube, dies_at)
        with contextlib.suppress(Killed):
            await live(first)
        calls = max(calls, len(first.calls))
        await running(kube)
        assert (mark(kube), synced(kube), len(told(kube))) == (("True", "NeverUsed"), "InSync", 1), dies_at
        kube.put(ITEM, with_status(kube, devices=[busy()]))
        await running(kube)
        assert mark(kube) == ("False", "InUse"), dies_at
    assert calls > 5
