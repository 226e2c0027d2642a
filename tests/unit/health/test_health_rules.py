"""Health rules about some devices: what one reason means depends on the device that has it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nodedevices_api.sections import HealthRule
from nodedevices_plugin.claims.records import DraFacts, Prepared, Record, Result
from nodedevices_plugin.health.events import logged_events
from nodedevices_plugin.health.history import follow_notices
from nodedevices_plugin.health.rules import HealthRules
from nodedevices_plugin.model import facts_by_id
from nodedevices_probe.nic import LINK_DOWN
from nodedevices_probe.protocol import DeviceFact
from support.cases import cases
from support.facts import (
    CONFIRMED,
    REGISTERED,
    START,
    Story,
    gpu,
    gpu_id,
    inventory_of,
    mig_id,
    old,
    partition,
    silent_gpu,
    well,
    xid,
)
from support.nics import hca, port
from support.stepped_node import Node

XID31: dict[str, Any] = {"reasons": ["Xid31"], "state": "Unhealthy"}
L4 = gpu(1, product_name="NVIDIA L4")


def ruled(*rules: dict[str, Any], **more: Any) -> HealthRules:
    return HealthRules(rules=tuple(HealthRule.model_validate(each) for each in rules), **more)


def state(rules: HealthRules, fact: DeviceFact, reason: str = "Xid31") -> str | None:
    rule = rules.for_device(fact).rule(reason)
    return None if rule is None else rule.state


@cases(
    ("match", "fact", "hit"),
    ({}, gpu(0), True),
    ({"type": "gpu", "productName": "NVIDIA H100*"}, gpu(0), True),
    ({"productName": "NVIDIA H100*"}, L4, False),
    ({"productName": "nvidia h100*"}, gpu(0), False),
    ({"productName": "*"}, silent_gpu(0), True),
    ({"productName": "NVIDIA*"}, silent_gpu(0), False),
    ({"type": "nic"}, gpu(0), False),
    ({"type": "nic"}, hca(0), True),
    ({"ids": [gpu_id(0)]}, gpu(0), True),
    ({"ids": [gpu_id(0)]}, L4, False),
    ({"ids": ["gpu-0"]}, gpu(0), False),  # its name in NodeDevices, which is no id
)
def test_each_key_of_the_match_counts(match: dict[str, Any], fact: DeviceFact, hit: bool) -> None:
    rules = ruled(XID31 | {"match": match})
    assert state(rules, fact) == ("Unhealthy" if hit else None)


def test_the_first_rule_that_matches_reason_and_device_decides() -> None:
    rules = ruled(
        XID31 | {"match": {"productName": "NVIDIA L4"}, "state": "Ignored"},
        {"reasons": ["Xid13"], "state": "Ignored"},
        XID31 | {"match": {"type": "gpu"}, "state": "Degraded"},
        XID31,
    )
    assert (state(rules, L4), state(rules, gpu(0)), state(rules, hca(0))) == ("Ignored", "Degraded", "Unhealthy")


def test_a_device_under_no_rule_has_its_usual_meaning_and_a_reading_goes_by_its_devices_rules() -> None:
    mine = {"reasons": ["Xid95"], "state": "Degraded", "match": {"ids": [gpu_id(0)]}}
    story = Story(ruled(mine)).line(gpu(0), gpu(1), at=0, xids=[xid(95, 0), xid(95, 1)])
    assert story.says(0) == ("Degraded", "Xid95")
    assert story.says(1) == ("Unhealthy", "Xid95")
    rule = {"reasons": ["RowRemapPending"], "state": "Ignored", "match": {"ids": [gpu_id(0)]}}
    pending = well(remap_pending=True)
    story = Story(ruled(rule)).line(gpu(0, readings=pending), gpu(1, readings=pending), at=0)
    assert story.says(0) == ("Healthy", "")
    assert story.says(1)[1] == "RowRemapPending"


@cases(("match", "hit"), ({"type": "gpu"}, True), ({"type": "nic"}, False))
def test_a_partition_has_its_devices_rules(match: dict[str, Any], *, hit: bool) -> None:
    cut = gpu(0, mig_enabled=True, partitions=(partition(0, 0),))
    rules = ruled({"reasons": ["Xid94"], "state": "Unhealthy", "match": match})
    story = Story(rules).line(cut, at=0, xids=[xid(94, gi=7, ci=0)])
    assert [each.reason for id_, each in story.verdicts.items() if id_ == mig_id(0, 0)] == (["Xid94"] if hit else [])
    assert story.says(0) == ("Healthy", "")


def test_an_event_without_a_device_is_under_no_rule_about_devices_and_notices_go_by_them() -> None:
    ignored = ruled(XID31 | {"state": "Ignored", "match": {"type": "gpu"}})
    devices = facts_by_id(inventory_of(gpu(0, mig_enabled=True, partitions=(partition(0, 0),))))
    assert [each.xid for each in logged_events([xid(31, None)], ignored, devices, REGISTERED)] == [31]
    assert logged_events([xid(31, 0)], ignored, devices, REGISTERED) == ()
    of_part = replace(xid(31), device_id=mig_id(0, 0))
    assert logged_events([of_part], ignored, devices, REGISTERED) == ()
    ignored = ruled(XID31 | {"state": "Ignored", "match": {"ids": [gpu_id(0)]}})
    found = follow_notices({}, [xid(31, 0), xid(31, 1)], inventory_of(gpu(0), gpu(1)), ignored, REGISTERED, now=START)
    assert list(found) == [gpu_id(1)]


# --- on a node -------------------------------------------------------------------------------------------------------
def every(match: dict[str, Any], state: str = "Ignored") -> dict[str, Any]:
    return {"health": {"rules": [{"reasons": ["*"], "state": state, "match": match}]}}


def test_a_port_without_a_link_is_at_fault_while_a_claim_has_it_though_no_resource_has_it_any_more() -> None:
    result = Result(request="nic", device="nic-0")
    own = Prepared(result=result, part_id=port(0), resource="example.com/nic")
    record = Record(uid="u", namespace="ml", name="train", prepared=(own,))
    node = Node(gpu(0), hca(0, conditions=(LINK_DOWN,))).now().given(dra=DraFacts(records={"u": record})).line()
    assert node.states[port(0)] == ("Unhealthy", "LinkDown")
    node.given(dra=DraFacts()).line()
    assert node.states[port(0)] == ("Degraded", "LinkDown")


def test_a_changed_policy_applies_at_once_and_to_what_came_before() -> None:
    node = Node(gpu(0), hca(0, conditions=(LINK_DOWN,))).now()
    node.line(xids=(xid(95),))
    both = {gpu_id(0): ("Unhealthy", "Xid95"), port(0): ("Degraded", "LinkDown")}
    assert node.states == both
    node.now(every({"type": "nic"}))
    assert node.states == both | {port(0): ("Healthy", "")}
    assert node.unmatched == []
    node.now(every({"type": "gpu", "productName": "*A100*"}))
    assert node.states == both
    [note] = node.unmatched
    assert note.startswith("health.rules[0].match productName *A100*, type gpu: the rule applies to no device")
    node.now(every({"type": "gpu", "productName": "*H100*"}, "Degraded"))
    assert node.states == both | {gpu_id(0): ("Degraded", "Xid95")}


def about(reason: str, state: str) -> dict[str, Any]:
    return {"health": {"rules": [{"reasons": [reason], "state": state}]}}


@cases("restarted", False, True, ids=["same", "restarted"])
@cases("state", "Degraded", "Ignored")
@cases("before", False, True, ids=["rule-first", "fault-first"])
@cases(("number", "action"), (79, "RebootNode"), (119, "ResetDevice"))
def test_without_the_rule_that_made_less_of_a_fault_the_catalogue_decides(
    number: int, action: str, state: str, *, before: bool, restarted: bool
) -> None:
    node = Node(gpu(0, readings=old())).now({} if before else about(f"Xid{number}", state))
    node.line(xids=(xid(number),)).now(about(f"Xid{number}", state))
    reason = f"Xid{number}"
    assert node.says() == (("Degraded", reason, True) if state == "Degraded" else ("Healthy", "", True))
    node = (node.restarted() if restarted else node).now({})
    assert node.says() == ("Unhealthy", reason, False)
    assert node.world.known.verdicts[gpu_id(0)].recovery_action == action


def test_a_fault_is_over_without_the_rule_that_made_it_or_where_one_ignores_it() -> None:
    node = Node(gpu(0, readings=old())).now(about("Xid31", "Unhealthy")).line(xids=(xid(31),))
    assert node.says() == ("Unhealthy", "Xid31", False)
    assert node.now({}).says() == ("Healthy", "", True)
    assert node.now(about("Xid31", "Degraded")).says() == ("Degraded", "Xid31", True)
    node = Node(gpu(0, readings=old())).now(about("Xid79", "Ignored")).line(xids=(xid(79),))
    assert node.world.known.verdicts[gpu_id(0)].ignored
    node.sees(confirm=f"{gpu_id(0)}=recovered@{CONFIRMED}").line()
    assert node.world.known.verdicts[gpu_id(0)].ignored == ()
    assert node.now({}).says() == ("Healthy", "", True)


def test_a_rule_that_ignores_an_undecided_event_decides_nothing_for_later_and_none_changes_what_is_over() -> None:
    node = Node(gpu(0, readings=old())).now({}).line(xids=(xid(95),))
    assert node.now(about("Xid95", "Ignored")).says() == ("Healthy", "", True)
    node.line(after=20)
    assert node.says() == ("Healthy", "", True)
    assert node.now({}).says() == ("Unhealthy", "Xid95", False)
    node = Node(gpu(0, readings=old(remap_failure=True))).now({})
    assert node.says() == ("Unhealthy", "RowRemapFailure", False)
    node.devices = (gpu(0, readings=old()),)
    node.now(about("RowRemapFailure", "Ignored"))
    assert node.says() == ("Healthy", "", True)
    assert node.now({}).says() == ("Unhealthy", "RowRemapFailure", False), "a remap failure is repaired by no driver"
