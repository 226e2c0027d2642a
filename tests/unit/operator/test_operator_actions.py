"""status.actions and the condition that sums them up: what is kept, what is shown, and when something is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from nodedevices_api.conditions import ACTIONS, REASONS, action_reason
from nodedevices_common.conditions import MESSAGE_LIMIT
from nodedevices_operator.concerns.consequences import TaintConcern
from nodedevices_operator.concerns.port import Outcome, Tools, View
from nodedevices_operator.concerns.registry import CONCERNS
from nodedevices_operator.desired.conditions import next_actions, summed_up
from nodedevices_operator.kube.port import KubeError
from nodedevices_operator.manager import Manager
from nodedevices_operator.metrics import OperatorMetrics
from nodedevices_operator.records.objects import ActionRecord
from support.cases import cases
from support.concerns import tools
from support.fakekube import FakeKube, settle
from support.opfacts import MEMORY, SINCE, device, raw_policy
from support.there import there
from support.whole_operator import ITEM, NODE, POLICY, action, arrive, condition, one_node, started, with_status

OLD = ("CapacitySynced", "LabelsSynced", "TaintSynced", "EvictionsSynced", "IdlePodsMarked")
KEPT = ActionRecord("taint", "Refused", "used up", 3)
SYNCED = ("True", "InSync", "")


def failed(reason: str, message: str = "why") -> tuple[str, str, str]:
    return "False", reason, message


# --- pure ------------------------------------------------------------------------------------------------------------
def test_what_was_decided_replaces_what_is_shown_clipped_as_the_contract_has_it() -> None:
    shown = (ActionRecord("labels", "InSync", "2 labels", 3), KEPT, ActionRecord("idlePods", "InSync", "", 3))
    found = next_actions(shown, {"labels": failed("Conflict"), "idlePods": None, "capacity": SYNCED}, 5)
    assert found == (
        ActionRecord("capacity", "InSync", "", 5),
        KEPT,
        ActionRecord("labels", "Conflict", "why", 5),
    )
    assert next_actions(shown, {}, 5) == (KEPT, *(it for it in shown if it is not KEPT)), "in the order of the contract"
    assert next_actions((), {}, 5) == next_actions((KEPT,), {"taint": None}, 5) == ()
    assert next_actions((ActionRecord("invented", "InSync"), KEPT), {}, 5) == (KEPT,)
    (clipped,) = next_actions((), {"taint": failed("Refused", "x" * 2 * MESSAGE_LIMIT)}, 1)
    assert len(clipped.message) == MESSAGE_LIMIT
    assert next_actions((), {"taint": failed("Refused", "x" * 2 * MESSAGE_LIMIT)}, 1) == (clipped,)


def test_the_sum_is_in_sync_when_all_are_of_the_oldest_generation_and_of_nothing_there_is_none() -> None:
    assert summed_up(()) is None
    all_well = {"labels": ("True", "InSync", "2 labels"), "capacity": ("True", "InSync", "a/b"), "taint": SYNCED}
    assert summed_up(next_actions((), all_well, 4)) == (("True", "InSync", "capacity: a/b; labels: 2 labels"), 4)
    assert summed_up(next_actions((), {"taint": SYNCED}, 4)) == (SYNCED, 4)
    found = there(summed_up(next_actions((KEPT,), {"capacity": SYNCED}, 5)))
    assert found[1] == 3


def test_of_several_that_are_not_in_sync_the_first_gives_the_reason_and_all_are_named() -> None:
    wrong = {name: failed(reasons[-1]) for name, reasons in reversed(ACTIONS.items())}
    for name, reasons in ACTIONS.items():
        found = there(summed_up(next_actions((), wrong, 1)))
        (status, reason, message), _ = found
        assert (status, reason) == ("False", action_reason(name, reasons[-1]))
        assert reason in REASONS["ActionsSynced"]["False"]
        assert message.split(": ")[0] == f"{'idle pods' if name == 'idlePods' else name} {reasons[-1]}"
        assert message.count("why") == len(wrong)
        wrong = {each: why for each, why in wrong.items() if each != name} | {name: SYNCED}
        wrong.pop(name)
    assert summed_up(next_actions((), {"taint": failed("Refused", "a"), "labels": failed("Conflict", "b")}, 1)) == (
        ("False", "TaintRefused", "taint Refused: a; labels Conflict: b"),
        1,
    )


# --- the whole operator ----------------------------------------------------------------------------------------------
EVERYTHING: dict[str, Any] = {
    "capacity": [{"name": MEMORY, "perNode": 7}],
    "labels": {"extra": {"example.com/tier": "gold"}},
    "faults": {"taintEffect": "NoSchedule", "evictMode": "Immediate", "budget": {"maxUnavailable": 1}},
    "idle": {"afterSeconds": 1800},
}


def rig(**sections: Any) -> FakeKube:
    made = one_node(device(0))
    made.put(POLICY, raw_policy("p", **(sections or EVERYTHING)))
    return made


def actions(kube: FakeKube) -> list[tuple[str, str]]:
    return [(it["name"], it["reason"]) for it in kube.objects[ITEM]["status"].get("actions", [])]


def summary(kube: FakeKube) -> tuple[str, str]:
    found = condition(kube, ITEM, "ActionsSynced")
    return (found["status"], found["reason"]) if found else ("", "")


async def test_a_node_shows_the_actions_that_its_policies_ask_for_and_their_sum() -> None:
    kube = rig()
    manager = await started(kube)
    await settle(manager)
    assert actions(kube) == [(name, "InSync") for name in ACTIONS]
    assert summary(kube) == ("True", "InSync")
    generation = kube.objects[ITEM]["metadata"]["generation"]
    assert {it["observedGeneration"] for it in kube.objects[ITEM]["status"]["actions"]} == {generation}
    arrive(manager, kube, POLICY, raw_policy("p", health={"holdDownSeconds": 7}, generation=2))
    for _ in range(4):
        await settle(manager)
        await manager.reconcile_node("n1")
    assert (actions(kube), summary(kube)) == ([], ("", "")), "there only where at least one applies"


async def test_where_no_policy_asks_there_is_no_action_and_each_is_of_one_concern() -> None:
    kube = rig(health={"holdDownSeconds": 7})
    await started(kube)
    assert (actions(kube), summary(kube)) == ([], ("", ""))
    made: Tools = tools(FakeKube())
    found = [concern.info.action for make in CONCERNS if (concern := make(made)).info.action]
    assert sorted(found) == sorted(ACTIONS)


def stale(kube: FakeKube) -> None:
    """The Node is not Ready, so the NodeDevices is stale, and nothing is decided about the taint."""
    conditions = [{"type": "Ready", "status": "False", "reason": "KubeletStopped", "lastTransitionTime": SINCE}]
    kube.put(NODE, with_status(kube, NODE, conditions=conditions))


@cases("reason", "InSync", "Conflict")
async def test_an_action_about_which_nothing_is_decided_stays_also_in_a_new_process(reason: str) -> None:
    kube = rig()
    await settle(await started(kube))
    before = kube.objects[ITEM]["status"]
    shown = [it | ({"reason": reason} if it["name"] == "taint" else {}) for it in before["actions"]]
    said = condition(kube, ITEM, "ActionsSynced")
    if reason != "InSync":
        said |= {"status": "False", "reason": f"Taint{reason}", "message": f"taint {reason}: no fault requires a taint"}
    others = [it for it in before["conditions"] if it["type"] != "ActionsSynced"]
    kube.put(ITEM, with_status(kube, actions=shown, conditions=[*others, said]))
    stale(kube)
    await settle(await started(kube))
    assert condition(kube, ITEM, "Stale")["status"] == "True"
    assert action(kube, "taint")["reason"] == reason
    assert condition(kube, ITEM, "ActionsSynced") == said
    writes = len(kube.written(ITEM))
    await settle(await started(kube))
    assert len(kube.written(ITEM)) == writes, "nothing changed"


class RaisingTaint(TaintConcern):
    async def reconcile(self, view: View) -> Outcome:
        raise KubeError("no answer", status=503)


async def test_a_concern_that_fails_keeps_its_action_while_others_move_on() -> None:
    kube = rig()
    await settle(await started(kube))
    assert action(kube, "taint")["reason"] == "InSync"
    before, since = action(kube, "taint"), condition(kube, ITEM, "ActionsSynced")["lastTransitionTime"]
    changed = EVERYTHING | {"labels": {"extra": {"example.com/tier": "silver"}}}
    kube.put(POLICY, raw_policy("p", **changed, generation=2))
    concerns = [RaisingTaint if make is TaintConcern else make for make in CONCERNS]
    manager = Manager(kube, OperatorMetrics(), concerns=concerns)
    await manager.relister.once()
    for _ in range(3):
        with pytest.raises(KubeError):
            await manager.reconcile_node("n1")
    generation = kube.objects[ITEM]["metadata"]["generation"]
    assert generation > before["observedGeneration"]
    assert action(kube, "taint") == before
    assert action(kube, "labels")["observedGeneration"] == generation
    shown = condition(kube, ITEM, "ActionsSynced")
    assert (shown["status"], shown["observedGeneration"]) == ("True", before["observedGeneration"])
    assert shown["lastTransitionTime"] == since
    writes = len(kube.written(ITEM))
    with pytest.raises(KubeError):
        await manager.reconcile_node("n1")
    assert len(kube.written(ITEM)) == writes


async def test_the_time_moves_with_the_status_alone() -> None:
    kube, at = rig(), "2026-11-21T12:00:00Z"

    def refused(part: str) -> Callable[[str, str], KubeError | None]:
        return lambda verb, path: KubeError("no", status=403) if (verb, path) == ("apply", part) else None

    async def seen(manager: Manager) -> tuple[str, str, str]:
        await settle(manager)
        await manager.reconcile_node("n1")
        return *summary(kube), condition(kube, ITEM, "ActionsSynced")["lastTransitionTime"]

    kube.fails = refused(NODE)  # labels
    manager = Manager(kube, OperatorMetrics(), now=lambda: at)
    await manager.relister.once()
    assert await seen(manager) == ("False", "LabelsForbidden", "2026-11-21T12:00:00Z")
    at, kube.fails = "2026-11-21T12:05:00Z", refused(f"{NODE}/status")
    more = EVERYTHING | {"capacity": [{"name": MEMORY, "perNode": 8}]}
    arrive(manager, kube, POLICY, raw_policy("p", **more, generation=2))
    assert await seen(manager) == ("False", "CapacityForbidden", "2026-11-21T12:00:00Z")
    at, kube.fails = "2026-11-21T12:10:00Z", lambda _verb, _path: None
    assert await seen(manager) == ("True", "InSync", "2026-11-21T12:10:00Z")


async def test_conditions_of_an_operator_of_before_go_with_the_next_write() -> None:
    kube = rig()
    old = [
        {"type": kind, "status": "True", "reason": "InSync", "message": "", "lastTransitionTime": SINCE} for kind in OLD
    ]
    theirs = kube.objects[ITEM]["status"]["conditions"]
    body = {"metadata": {"uid": "nd-uid"}, "status": {"conditions": old}}
    await kube.apply(f"{ITEM}/status", body, "nodedevices-operator-status")
    assert {it["type"] for it in kube.objects[ITEM]["status"]["conditions"]} > set(OLD)
    await settle(await started(kube))
    shown = {it["type"] for it in kube.objects[ITEM]["status"]["conditions"]}
    assert shown == {it["type"] for it in theirs} | {"PolicyResolved", "ActionsSynced", "Stale"}
    assert actions(kube) == [(name, "InSync") for name in ACTIONS]
