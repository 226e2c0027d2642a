"""The Node condition XidCriticalError: which XIDs it names, until when, and its price.

What it looks like is Google's: the reason `{"48":true,"79":true}`, the message the boot id.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st
from nodedevices_operator.cleanup import clean_up
from nodedevices_operator.desired.conditions import WATCHED, xid_condition
from nodedevices_operator.kube.port import KubeError
from nodedevices_operator.manager import Manager
from nodedevices_operator.metrics import OperatorMetrics
from nodedevices_operator.records.kinds import node_record
from nodedevices_operator.records.objects import NodeDevicesRecord, NodeRecord
from support.fakekube import FakeKube, settle
from support.opfacts import GPU, NOW, SINCE, device, health, node_devices, raw_node, raw_policy, record
from support.there import there
from support.whole_operator import ITEM, NODE, POLICY, arrive, condition, started, with_status, writes

KIND = "XidCriticalError"


def faulty(*xids: int, index: int = 0, **more: Any) -> dict[str, Any]:
    state = ("Unhealthy", f"Xid{xids[-1]}") if xids else ("Healthy", "")
    return {**device(index), "health": health(*state, xids=list(xids)), **more}


def reported(*devices: dict[str, Any], boot: str = "boot-1") -> NodeDevicesRecord:
    return record(*devices, agent={"heartbeatTime": SINCE, "bootID": boot})


def booted(boot: str = "boot-1", shown: tuple[str, str, str] | None = None) -> NodeRecord:
    """A Node of that boot that shows the condition: status, reason, message."""
    raw = raw_node()
    raw["status"]["nodeInfo"] = {"bootID": boot}
    if shown is not None:
        status, reason, message = shown
        condition = {"type": KIND, "status": status, "reason": reason, "message": message, "lastTransitionTime": SINCE}
        raw["status"]["conditions"].append(condition)
    return node_record(raw)


def said(record: NodeDevicesRecord, node: NodeRecord) -> tuple[str, str, str] | None:
    made = xid_condition(record, node, now=NOW)
    return None if made is None else (made["reason"], made["message"], made["lastTransitionTime"])


def test_it_names_the_watched_xids_of_devices_and_partitions_as_google_does() -> None:
    named = {xid for xid in range(200) if xid_condition(reported(faulty(xid)), booted(), now=NOW) is not None}
    assert named == {48, 63, 64, 79, 119, 120, 123, 140}
    made = xid_condition(reported(faulty(48, 79), faulty(31, 119, index=1)), booted(), now=NOW)
    assert made == {
        "type": "XidCriticalError",
        "status": "True",
        "reason": '{"119":true,"48":true,"79":true}',
        "message": "boot-1",
        "lastTransitionTime": NOW,
        "lastHeartbeatTime": NOW,
    }
    part = {"id": "MIG-1", "health": health("Unhealthy", "Xid48", xids=[48])}
    assert said(reported(faulty(partitions=[part])), booted()) == ('{"48":true}', "boot-1", NOW)


def test_what_was_repaired_stays_until_a_boot_on_which_agent_and_kubelet_agree() -> None:
    shown = ("True", '{"79":true}', "boot-1")
    assert said(reported(faulty()), booted(shown=shown)) == ('{"79":true}', "boot-1", SINCE)
    assert said(reported(faulty(48)), booted(shown=shown)) == ('{"48":true,"79":true}', "boot-1", SINCE)
    assert said(reported(faulty(), boot="boot-2"), booted("boot-2", shown)) is None
    assert said(reported(faulty(48), boot="boot-2"), booted("boot-2", shown)) == ('{"48":true}', "boot-2", NOW)
    # After a reboot the kubelet is there first; the agent's last report is of the boot before.
    assert said(reported(faulty(79)), booted("boot-2", ("True", '{"79":true}', "boot-1"))) is None
    assert said(reported(faulty(79), boot="boot-2"), booted("boot-1")) is None
    assert said(reported(faulty(79)), booted("")) == ('{"79":true}', "boot-1", NOW)
    assert said(reported(faulty(79), boot=""), booted("")) is None


_REASONS = st.text(max_size=20) | st.sampled_from(
    ["[48]", '"48"', "null", "{" * 3000, "[" * 200_000, '{"48":false,"9999":true}', '{"79":true}', "NaN"]
)


@given(_REASONS, st.lists(st.integers(-5, 2000), max_size=6))
def test_whatever_a_node_shows_and_an_agent_claims_only_watched_xids_are_written(reason: str, xids: list[int]) -> None:
    made = xid_condition(reported(faulty(*xids)), booted(shown=("True", reason, "boot-1")), now=NOW)
    if made is not None:
        again = there(xid_condition(reported(faulty()), booted(shown=("True", made["reason"], "boot-1")), now=NOW))
        assert again["reason"] == made["reason"]
        assert len(made["reason"]) <= len(WATCHED) * 12


# --- by the whole operator -------------------------------------------------------------------------------------------
def cluster(*devices: dict[str, Any], wanted: bool = True) -> FakeKube:
    kube = FakeKube()
    node = raw_node({GPU: 1})
    node["status"]["nodeInfo"] = {"bootID": "boot-1"}
    kube.put(NODE, node)
    kube.put(ITEM, node_devices(*devices, agent={"heartbeatTime": SINCE, "bootID": "boot-1"}))
    kube.put(POLICY, raw_policy("p", faults={"xidNodeCondition": wanted, "podCondition": "Never"}))
    return kube


def shown(kube: FakeKube) -> dict[str, Any]:
    return condition(kube, NODE, KIND)


async def test_a_policy_has_it_written_once_and_taken_back() -> None:
    kube = cluster(faulty(79))
    manager = await started(kube)
    written = shown(kube)
    assert (written["status"], written["reason"], written["message"]) == ("True", '{"79":true}', "boot-1")
    for _ in range(3):
        await manager.reconcile_node("n1")
    assert writes(manager, "xid-condition") == 1
    arrive(manager, kube, POLICY, raw_policy("p", faults={"podCondition": "Never"}, generation=2))
    await settle(manager)
    assert shown(kube) == {}


async def test_without_a_policy_or_with_a_new_boot_there_is_no_condition() -> None:
    kube = cluster(faulty(79), wanted=False)
    manager = await started(kube)
    assert (shown(kube), writes(manager, "xid-condition")) == ({}, 0)
    kube = cluster(faulty(79))
    manager = await started(kube)
    arrive(manager, kube, NODE, with_status(kube, NODE, nodeInfo={"bootID": "boot-2"}))
    await settle(manager)
    assert shown(kube) == {}


async def test_what_another_program_wrote_stays_its_own_and_the_policy_says_so() -> None:
    kube = cluster(faulty(79))
    theirs = {"type": KIND, "status": "True", "reason": "{}", "message": "boot-1", "lastTransitionTime": SINCE}
    kube.objects[NODE]["status"]["conditions"].append(theirs)
    manager = Manager(kube, OperatorMetrics())
    await manager.relister.once()
    conflict = KubeError('conflict with "nvidia-gpu-device-plugin"', status=409)
    kube.fails = lambda verb, path: conflict if (verb, path) == ("apply", f"{NODE}/status") else None
    with pytest.raises(KubeError):
        await manager.reconcile_node("n1")
    assert shown(kube) == theirs
    assert writes(manager, "xid-condition") == 0


async def test_a_policy_that_does_not_ask_leaves_anothers_alone() -> None:
    kube = cluster(faulty(79), wanted=False)
    theirs = {"type": KIND, "status": "True", "reason": "{}", "message": "boot-0", "lastTransitionTime": SINCE}
    kube.objects[NODE]["status"]["conditions"].append(theirs)
    manager = await started(kube)
    assert (shown(kube), writes(manager, "xid-condition")) == (theirs, 0)


async def test_cleanup_takes_ours_back_and_leaves_anothers() -> None:
    kube = cluster(faulty(79))
    await started(kube)
    assert await clean_up(kube, dry_run=False) == 0
    assert shown(kube) == {}
    theirs = {"type": KIND, "status": "True", "reason": "{}", "message": "boot-0", "lastTransitionTime": SINCE}
    kube.objects[NODE]["status"]["conditions"].append(theirs)
    assert await clean_up(kube, dry_run=False) == 0
    assert shown(kube) == theirs
