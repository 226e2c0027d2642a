"""What a fault leads to: which taint, whose eviction, and what counts as out of service; all of it pure."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace
from nodedevices_api.errors import parse
from nodedevices_api.sections import Faults
from nodedevices_operator.desired import consequences
from nodedevices_operator.desired.configuration import DryRun, understood
from nodedevices_operator.desired.consequences import (
    KEEP,
    MIRROR,
    ON_OFFER,
    grace_begins,
    kept,
    taint_patch,
    tainting,
)
from nodedevices_operator.desired.dry_run import DryRunEffect, dry_run_effect
from nodedevices_operator.desired.fleet import OPEN, Action, ActionAnswer, Fleet, arrivals, decide
from nodedevices_operator.desired.pools import limits, survey
from nodedevices_operator.records.kinds import node_devices_record
from nodedevices_operator.records.names import TAINT
from nodedevices_operator.records.objects import NodeDevicesRecord, TaintRecord
from support.cases import cases
from support.opfacts import (
    SINCE,
    Decided,
    device,
    health,
    holder,
    node,
    node_devices,
    policy,
    raw_node,
    raw_pod,
    record,
    sharing,
)

LATER = "2026-11-21T11:59:30Z"
NO_SCHEDULE = {"taintEffect": "NoSchedule"}
IMMEDIATE = {"evictMode": "Immediate", "budget": {"perHour": 1}}


def section(**fields: Any) -> Faults:
    return parse(Faults, fields)


def lost(index: int, reason: str = "Xid79", **more: Any) -> dict[str, Any]:
    made = device(index, "Unhealthy", reason, holders=[holder(f"pod-{index}")])
    return made | {"health": made["health"] | more}


def wanted(*devices: dict[str, Any], faults: Faults, shown: tuple[TaintRecord, ...] = ()) -> TaintRecord | None:
    found = tainting(record(*devices), faults, shown)
    return None if found is None else found.taint


# --- the taint -------------------------------------------------------------------------------------------------------
def test_a_fault_taints_with_its_reason_and_its_end_takes_the_taint_away() -> None:
    faults = section(**NO_SCHEDULE)
    taint = TaintRecord("NoSchedule", "Xid79")
    assert wanted(lost(0), faults=faults) == taint
    assert wanted(device(0), faults=faults, shown=(taint,)) is None
    assert wanted(device(0, "Degraded", "NvlinkDown"), faults=faults, shown=(taint,)) is None


def test_the_first_rule_that_matches_decides_and_what_it_does_not_set_is_as_in_general() -> None:
    faults = section(
        taintEffect="NoSchedule",
        rules=[
            {"reasons": ["Xid48"], "taintEffect": "None"},
            {"recoveryActions": ["RebootNode"], "taintEffect": "NoExecute"},
            {"reasons": ["Xid95"], "evictMode": "Immediate"},
        ],
        budget={"perHour": 1},
    )
    assert wanted(lost(0, "Xid48", recoveryAction="RebootNode"), faults=faults) is None
    assert wanted(lost(0, "Xid79", recoveryAction="RebootNode"), faults=faults) == TaintRecord("NoExecute", "Xid79")
    assert wanted(lost(0, "Xid95"), faults=faults) == TaintRecord("NoSchedule", "Xid95")
    assert [it.grace.total_seconds() for it in consequences.evictions(record(lost(0, "Xid95")), faults)] == [0]
    assert consequences.evictions(record(lost(0, "Xid48")), faults) == []


def test_a_rule_is_about_every_reason_of_the_device_and_not_the_worst_alone() -> None:
    both = lost(0, "RecoveryAction", reasons=["RecoveryAction", "EccUncorrectable"], recoveryAction="ResetDevice")
    rule = {"reasons": ["EccUncorrectable"], "taintEffect": "NoSchedule", "evictMode": "Immediate"}
    faults = section(rules=[rule], budget={"perHour": 1})
    assert wanted(both, faults=faults) == TaintRecord("NoSchedule", "RecoveryAction")
    assert evicted(both, faults=faults) == ["pod-0"]
    assert wanted(lost(0, "RecoveryAction"), faults=faults) is None
    worst_first = section(rules=[{"reasons": ["RecoveryAction"], "taintEffect": "None"}, rule], budget={"perHour": 1})
    assert wanted(both, faults=worst_first) is None


def nic(index: int, reason: str = "LinkDown", **more: Any) -> dict[str, Any]:
    """A NIC at fault, with a pod that holds it."""
    made = lost(index, reason, **more)
    own = {"vendor": "mellanox", "productName": "ConnectX-7"}
    return made | {"id": f"0000:1b:00.{index}", "name": f"nic-{index}", "type": "nic", "attributes": own}


NOT_NICS: dict[str, Any] = {
    "taintEffect": "NoSchedule",
    "evictMode": "Immediate",
    "rules": [{"match": {"type": "nic"}, "taintEffect": "None", "evictMode": "Never"}],
    "budget": {"perHour": 9},
}


def evicted(*devices: dict[str, Any], faults: Faults) -> list[str]:
    return [it.holding.holder.pod for it in consequences.evictions(record(*devices), faults)]


def test_a_gpus_fault_taints_and_evicts_and_a_nics_does_not_whichever_comes_first() -> None:
    faults = section(**NOT_NICS)
    assert wanted(nic(1), faults=faults) is None
    assert evicted(nic(1), faults=faults) == []
    assert wanted(nic(1), lost(0), faults=faults) == TaintRecord("NoSchedule", "Xid79")
    assert evicted(nic(1), lost(0), faults=faults) == ["pod-0"]
    faults = section(**NOT_NICS)
    for devices in ((nic(0, "Missing"), lost(1, "Missing")), (lost(1, "Missing"), nic(0, "Missing"))):
        assert wanted(*devices, faults=faults) == TaintRecord("NoSchedule", "Missing")
        assert evicted(*devices, faults=faults) == ["pod-1"]


@cases(
    ("match", "hit"),
    ({}, True),
    ({"type": "nic"}, True),
    ({"type": "gpu"}, False),
    ({"type": "nic", "productName": "ConnectX-*"}, True),
    ({"type": "nic", "productName": "ConnectX-6*"}, False),
    ({"productName": "connectx-*"}, False),
    ({"ids": ["0000:1b:00.1"]}, True),
    ({"ids": ["nic-1"]}, False),  # its name here, which is no id
)
def test_each_key_of_a_rules_match_counts(match: dict[str, Any], hit: bool) -> None:
    rule = {"match": match, "taintEffect": "NoSchedule"}
    assert (wanted(nic(1), faults=section(rules=[rule])) is not None) is hit


def test_an_unknown_product_matches_no_glob_and_an_unknown_key_makes_the_section_no_ground_to_act() -> None:
    by_product = section(rules=[{"match": {"productName": "NVIDIA*"}, "taintEffect": "NoSchedule"}])
    by_type = section(rules=[{"match": {"type": "gpu"}, "taintEffect": "NoSchedule"}])
    assert wanted(lost(0), faults=by_product) is None
    assert wanted(lost(0), faults=by_type) is not None
    # Without the key that is not known here the rule would be about more devices than it says.
    newer = understood({"faults": NOT_NICS | {"rules": [{"match": {"type": "nic", "later": "x"}}]}})
    assert newer.partly == {"faults"}


def test_a_rule_needs_reason_action_and_device() -> None:
    rule = {
        "reasons": ["Xid79"],
        "recoveryActions": ["RebootNode"],
        "match": {"ids": ["GPU-0"]},
        "taintEffect": "NoSchedule",
    }
    faults, reboot = section(rules=[rule]), {"recoveryAction": "RebootNode"}
    assert wanted(lost(0, **reboot), faults=faults) is not None
    assert wanted(lost(1, **reboot), faults=faults) is None
    assert wanted(lost(0, "Xid95", **reboot), faults=faults) is None
    assert wanted(lost(0, recoveryAction="Replace"), faults=faults) is None


@cases(("type_", "hit"), ("gpu", True), ("nic", False))
def test_a_partition_and_a_holders_own_fault_go_by_the_device(type_: str, hit: bool) -> None:
    part = {"id": "MIG-1", "name": "mig-1", "profile": "1g.10gb", "holders": [holder("on-a-part")]}
    failed = part | {"health": health("Unhealthy", "Xid95")}
    own = holder("own", health=health("Unhealthy", "MpsDaemonRestarted", recoveryAction="RestartApp"))
    rule = {"match": {"type": type_}, "evictMode": "Immediate", "taintEffect": "NoSchedule"}
    faults = section(rules=[rule], budget={"perHour": 9})
    assert evicted(device(0, partitions=[failed]), faults=faults) == (["on-a-part"] if hit else [])
    assert (wanted(device(0, partitions=[failed]), faults=faults) is not None) is hit
    assert evicted(lost(0) | {"partitions": [part]}, faults=faults) == (["on-a-part", "pod-0"] if hit else [])
    assert evicted(device(0, holders=[own]), faults=faults) == (["own"] if hit else [])


def test_the_strongest_effect_wins_and_its_reason_stays_while_that_fault_lasts() -> None:
    faults = section(
        taintEffect="NoSchedule",
        rules=[{"reasons": ["Xid79", "Xid95"], "taintEffect": "NoExecute"}],
        budget={"perHour": 1},
    )
    devices = (lost(0, "Xid48"), lost(1, "Xid95", since=LATER), lost(2, "Xid79"))
    assert wanted(*devices, faults=faults) == TaintRecord("NoExecute", "Xid79")
    shown = (TaintRecord("NoSchedule", "Xid95"),)
    assert wanted(lost(0), lost(1, "Xid95", since=LATER), faults=section(**NO_SCHEDULE), shown=shown) == shown[0]


@cases(("state", "reason"), ("Unknown", "ProbeSilent"), ("Unknown", "Missing"), ("Degraded", "Correlating"))
def test_a_taint_stays_while_health_is_unknown_and_none_is_put(state: str, reason: str) -> None:
    faults, shown = section(**NO_SCHEDULE), (TaintRecord("NoSchedule", "Xid79"),)
    assert wanted(device(0, state, reason), faults=faults, shown=shown) == shown[0]
    assert wanted(device(0, state, reason), faults=faults) is None


@cases(("acted_on", "stays"), ({"GPU-0"}, False), ({"GPU-0", "GPU-1"}, True), ((), False), (None, True))
def test_a_taint_stays_for_its_own_device_and_for_no_other(acted_on: Collection[str] | None, stays: bool) -> None:
    faults, shown = section(**NO_SCHEDULE), (TaintRecord("NoSchedule", "Xid79"),)
    for reported in (
        [device(0), device(1, "Unknown", "ProbeSilent")],
        [device(0), device(1, "Degraded", "Correlating")],
    ):
        assert (tainting(record(*reported), faults, shown, acted_on) is not None) is stays


def test_no_taint_is_for_a_workloads_own_error_or_without_a_policy_and_odd_words_are_left_out() -> None:
    shown = (TaintRecord("NoSchedule", "Xid79"),)
    assert wanted(lost(0), device(1, "Unknown", "ProbeSilent"), faults=section(), shown=shown) is None
    faults = section(**NO_SCHEDULE, **IMMEDIATE)
    own = lost(0, "Xid31", faultDomain="Application")
    assert wanted(own, faults=faults) is None
    assert consequences.evictions(record(own), faults) == []
    assert wanted(lost(0, "a reason/with all sorts"), faults=section(**NO_SCHEDULE)) == TaintRecord("NoSchedule")


def tainted(*taints: dict[str, Any]) -> dict[str, Any]:
    return raw_node() | {"spec": {"taints": list(taints)}}


OTHER = {"key": "example.com/other", "effect": "NoSchedule"}
OURS = {"key": TAINT, "effect": "NoSchedule", "value": "Xid79"}
TESTS = [
    {"op": "test", "path": "/metadata/uid", "value": "node-uid"},
    {"op": "test", "path": "/metadata/resourceVersion", "value": "1"},
]


@cases(
    ("before", "wish", "operations"),
    ([], TaintRecord("NoSchedule", "Xid79"), [{"op": "add", "path": "/spec/taints", "value": [OURS]}]),
    ([OTHER], TaintRecord("NoSchedule", "Xid79"), [{"op": "add", "path": "/spec/taints/-", "value": OURS}]),
    ([OURS, OTHER], None, [{"op": "remove", "path": "/spec/taints/0"}]),
    (
        [OURS, OTHER, OURS | {"effect": "NoExecute"}],
        TaintRecord("NoSchedule"),
        [
            {"op": "remove", "path": "/spec/taints/2"},
            {"op": "remove", "path": "/spec/taints/0"},
            {"op": "add", "path": "/spec/taints/-", "value": {"key": TAINT, "effect": "NoSchedule"}},
        ],
    ),
    ids=["first", "beside another", "gone", "two of ours"],
)
def test_only_the_taint_of_our_key_is_changed_and_only_on_the_node_that_was_read(
    before: list[dict[str, Any]], wish: TaintRecord | None, operations: list[dict[str, Any]]
) -> None:
    assert taint_patch(tainted(*before), wish) == TESTS + operations


@cases(("before", "wish"), ([OTHER], None), ([OURS], TaintRecord("NoSchedule", "Xid79")), ([], None))
def test_a_node_with_the_taint_is_not_written(before: list[dict[str, Any]], wish: TaintRecord | None) -> None:
    assert taint_patch(tainted(*before), wish) == []


# --- evictions -------------------------------------------------------------------------------------------------------
def test_pods_of_excluded_namespaces_are_not_evicted_not_even_by_a_rule() -> None:
    faults = section(
        evictExcludeNamespaces=["m?", "kube-*"],
        rules=[{"reasons": ["Xid79"], "evictMode": "Immediate"}],
        budget={"perHour": 1},
    )
    elsewhere = device(1, "Unhealthy", "Xid79", holders=[holder("b") | {"namespace": "web"}])
    assert [it.holding.holder.pod for it in consequences.evictions(record(lost(0), elsewhere), faults)] == ["b"]


@cases("resource", "", "cpu", "memory")
def test_an_agents_claim_evicts_no_pod_that_requested_no_device(resource: str) -> None:
    held = device(0, "Unhealthy", "Xid79", holders=[holder(resource=resource)])
    assert consequences.evictions(record(held), section(**IMMEDIATE)) == []


def test_a_pod_of_several_bad_devices_is_evicted_once_and_for_what_is_due_first() -> None:
    faults = section(
        evictMode="AfterGrace",
        rules=[{"reasons": ["Xid95"], "evictMode": "Immediate"}],
        budget={"perHour": 1},
    )
    both = [device(index, "Unhealthy", reason, holders=[holder()]) for index, reason in enumerate(("Xid79", "Xid95"))]
    [due] = consequences.evictions(record(*both), faults)
    assert (due.holding.health.reason, due.grace.total_seconds()) == ("Xid95", 0)


@cases(
    ("conditions", "at"),
    ([], "2026-11-21T12:00:00+00:00"),
    ([{"status": "False", "lastTransitionTime": "2026-11-21T12:10:00Z"}], "2026-11-21T12:11:00+00:00"),
    ([{"status": "True", "lastTransitionTime": "2026-11-21T12:10:00Z"}], "2026-11-21T12:00:00+00:00"),
    ids=["not marked", "marked", "not yet"],
)
def test_the_grace_begins_with_the_mark(conditions: list[dict[str, Any]], at: str) -> None:
    faults = section(evictMode="AfterGrace", budget={"perHour": 1})
    [due] = consequences.evictions(record(lost(0)), faults)
    shown = [{"type": "nodedevices.io/DeviceHealthy", "reason": "Xid79"} | it for it in conditions]
    now = datetime(2026, 11, 21, 13, tzinfo=UTC)
    assert (grace_begins(due, raw_pod(conditions=shown), None, now) + due.grace).isoformat() == at


def test_the_grace_of_a_fault_does_not_begin_with_the_mark_of_an_earlier_one() -> None:
    [due] = consequences.evictions(record(lost(0)), section(**IMMEDIATE))
    mark = {"type": "nodedevices.io/DeviceHealthy", "status": "False", "lastTransitionTime": "2026-11-21T08:00:00Z"}
    now, noticed = datetime(2026, 11, 21, 13, tzinfo=UTC), datetime(2026, 11, 21, 12, 5, tzinfo=UTC)
    assert grace_begins(due, raw_pod(conditions=[mark]), noticed, now) == noticed
    assert grace_begins(due, raw_pod(conditions=[mark]), None, now) == datetime.fromisoformat(SINCE)
    before = datetime(2026, 11, 20, tzinfo=UTC)  # by the operator's clock; the node's is ahead of it
    assert grace_begins(due, raw_pod(conditions=[mark]), None, before) == datetime.fromisoformat("2026-11-21T08:00:00Z")


def test_a_holder_whose_container_has_restarted_is_not_evicted_for_what_that_ended() -> None:
    own = health("Unhealthy", "MpsDaemonRestarted", recoveryAction="RestartApp")
    held = record(device(0, holders=[holder(health=own)]))
    [due] = consequences.evictions(held, section(**IMMEDIATE))
    restarted = {(due.holding.holder, due.holding.device)}
    assert consequences.evictions(held, section(**IMMEDIATE), restarted) == []
    both = record(device(0, "Unhealthy", "Xid79", holders=[holder(health=own)]))
    [still] = consequences.evictions(both, section(**IMMEDIATE), restarted)
    assert still.holding.health.reason == "Xid79"


@cases(
    ("metadata", "why"),
    ({}, ""),
    ({"annotations": {KEEP: "true"}}, ""),
    ({"annotations": {KEEP: "false"}}, "its annotation"),
    ({"annotations": {MIRROR: "x"}}, "a static pod"),
    ({"ownerReferences": [{"kind": "DaemonSet", "controller": True}]}, "a DaemonSet"),
    ({"ownerReferences": [{"kind": "ReplicaSet", "controller": True}]}, ""),
)
def test_some_pods_are_never_evicted(metadata: dict[str, Any], why: str) -> None:
    pod = raw_pod()
    found = kept(pod | {"metadata": pod["metadata"] | metadata})
    assert (why in found) if why else found == ""


@cases(
    ("shown", "effect", "more"),
    ((), "NoSchedule", True),
    (("NoSchedule",), "NoSchedule", False),
    (("NoSchedule",), "NoExecute", True),
    (("NoExecute",), "NoSchedule", False),
)
def test_a_taint_that_takes_no_more_than_shown_is_no_action(shown: tuple[str, ...], effect: str, more: bool) -> None:
    taints = [TaintRecord(value="Xid79", effect=each) for each in shown]
    wanted = consequences.Tainting(TaintRecord(value="Xid79", effect=effect), "Xid79", SINCE)
    assert (wanted.action("n1", taints) is not None) is more


# --- budgets ---------------------------------------------------------------------------------------------------------
def fleet_record(name: str, *devices: dict[str, Any], generation: int = 1, **faults: Any) -> NodeDevicesRecord:
    spec = {
        "config": {"faults": faults},
        "policies": [{"name": "p", "generation": generation, "priority": 0, "sections": ["faults"]}],
    }
    raw = node_devices(*devices, spec=spec)
    return node_devices_record(raw | {"metadata": raw["metadata"] | {"name": name}})


def test_a_policys_nodes_are_those_that_take_their_section_from_it() -> None:
    records = {name: fleet_record(name, lost(0) if name == "b" else device(0), budget={"perHour": 3}) for name in "abc"}
    records["d"] = record(device(0))
    found = survey(records, {name: node() for name in "abcd"})
    [pool] = found.pools
    assert (pool.policy, set(pool.nodes), pool.limits.per_hour) == ("p", {"a", "b", "c"}, 3)
    assert found.faults == {"b": {"GPU-0": SINCE}}
    again = survey(records, {"a": node(), "e": node()})
    assert again.others == {"d", "e"}, "a Node whose NodeDevices is being made again is there all the same"
    assert again.nodes == {"a", "b", "c", "d", "e"}


def hit(pod: str, since: str = SINCE, **more: Any) -> dict[str, Any]:
    """A holder to which alone something happened, on a device that is well."""
    own = health("Unhealthy", "MpsDaemonRestarted", recoveryAction="RestartApp", faultDomain="Node")
    return holder(pod, health=own | more | {"since": since})


@cases(
    ("holders", "at_fault"),
    ([hit("a")], {"GPU-0": SINCE}),
    ([hit("a"), hit("b", LATER), holder("c")], {"GPU-0": LATER}),
    ([hit("a", faultDomain="Application")], {}),
    ([hit("a", reason="Correlating")], {}),
    ([holder("c")], {}),
)
def test_what_hit_holders_alone_is_their_devices_fault(holders: list[dict[str, Any]], at_fault: dict[str, str]) -> None:
    shown = device(0, holders=holders)
    assert consequences.faulty(record(shown)) == at_fault
    cut = device(0, partitions=[{"id": "MIG-1", "name": "mig-1", "profile": "1g", "holders": holders}])
    assert consequences.faulty(record(cut)) == at_fault
    failed = shown | {"health": health("Unhealthy", "Xid79")}
    assert consequences.faulty(record(failed)) == {"GPU-0": SINCE}, "the device's own fault is the worse one"


def test_an_eviction_for_what_happened_to_a_holder_alone_takes_its_node_out_of_service() -> None:
    budget = {"maxUnavailable": 1}
    records = {name: fleet_record(name, device(0, holders=[hit("p")]), budget=budget) for name in "ab"}
    found = survey(records, {name: node() for name in "ab"})
    wanted_of_all = [Action(SINCE, name, "Evict", f"ml/p/{name}", "MpsDaemonRestarted") for name in "ab"]
    quiet = {name: dict.fromkeys(its.items()) for name, its in found.faults.items()}
    [pool] = found.pools
    apart = replace(found, pools=[replace(pool, limits=replace(pool.limits, percent=100))])
    decision = Decided.of(decide(Fleet(), wanted_of_all, datetime(2026, 11, 21, 12, tzinfo=UTC), apart, quiet))
    assert decision.granted == {wanted_of_all[0]}
    assert decision.fleet.unavailable == {"a": ("GPU-0",)}
    assert "allows 1 nodes out of service" in decision.refused[wanted_of_all[1]]


def test_only_the_newest_budget_of_a_policy_that_supplies_the_section_limits_a_node() -> None:
    other = {"name": "h", "generation": 1, "priority": 9, "sections": ["health"]}
    own = {"name": "p", "generation": 1, "priority": 0, "sections": ["faults"]}
    both, one = (
        record(device(0), spec={"config": {"faults": {}}, "policies": refs}) for refs in ([other, own], [other])
    )
    assert [pool.policy for pool in survey({"n1": both}, {}).pools] == ["p"]
    assert survey({"n1": one}, {}).pools == []
    old = fleet_record("a", device(0), budget={"perHour": 9})
    new = fleet_record("b", device(0), generation=2, budget={"perHour": 1})
    [pool] = survey({"b": new, "a": old}, {}).pools
    assert pool.limits.per_hour == 1


def test_a_node_that_is_not_ready_cordoned_tainted_or_unknown_is_out_of_service() -> None:
    records = {name: fleet_record(name, device(0)) for name in ("well", "away", "cordoned", "tainted", "unknown")}
    nodes = {
        "well": node(),
        "away": node(ready="False"),
        "cordoned": node(spec={"unschedulable": True}),
        "tainted": node(spec={"taints": [OURS]}),
    }
    [pool] = survey(records, nodes).pools
    assert pool.out == {"away", "cordoned", "tainted", "unknown"}


def test_a_new_policy_has_all_its_nodes_before_each_of_them_says_so() -> None:
    """Otherwise a mass fault among them would look like one of the first node alone."""
    records = {
        "a": fleet_record("a", lost(0), **dict[str, Any](IMMEDIATE)),
        "b": record(lost(0)),
        "c": record(device(0)),
    }
    nodes = {"a": node(labels={"pool": "x"}), "b": node(labels={"pool": "x"}), "c": node(labels={"pool": "y"})}
    new = policy("p", faults=IMMEDIATE, selector={"matchLabels": {"pool": "x"}})
    found = survey(records, nodes, [new])
    [pool] = found.pools
    assert (set(pool.nodes), set(pool.all)) == ({"a"}, {"a", "b"})
    eviction = Action(node="a", kind="evict", target="ns/train", reason="Xid79", since=SINCE)
    seen = arrivals(None, found.faults, 0.0)
    decision = Decided.of(decide(Fleet(), [eviction], datetime.fromisoformat(SINCE), found, seen))
    assert (decision.fleet.breaker, decision.granted) == (OPEN, frozenset())


def test_a_policy_that_does_not_react_or_is_not_in_effect_takes_no_node_and_limits_nothing() -> None:
    records = {"a": fleet_record("a", device(0), budget={"perHour": 3})}
    nodes = {"a": node(labels={"pool": "x"})}
    others = [policy("q", 9, health={}), policy("r", 9, faults=IMMEDIATE, mode="DryRun")]
    [pool] = survey(records, nodes, others).pools
    assert (pool.policy, pool.limits.per_hour) == ("p", 3)
    # It may be refused as a combination, and never come.
    records = {"a": fleet_record("a", device(0), budget={"perHour": 1})}
    strong = policy("s", 9, faults=IMMEDIATE | {"budget": {"perHour": 200}})
    [pool] = survey(records, {"a": node()}, [strong]).pools
    assert (pool.policy, set(pool.nodes), pool.limits.per_hour) == ("p", {"a"}, 1)


@cases(("given", "nodes", "most"), (3, 100, 3), ("10%", 39, 3), ("10%", 9, 0), ("100%", 7, 7), (None, 9, None))
def test_a_share_of_the_nodes_is_rounded_down(given: object, nodes: int, most: int | None) -> None:
    budget = {"perHour": 1} if given is None else {"maxUnavailable": given}
    assert limits({"budget": budget}, nodes).max_unavailable == most


def test_a_section_without_limits_has_the_usual_ones_and_one_that_cannot_be_read_allows_nothing() -> None:
    found = limits({}, 10)
    assert (found.percent, limits({"breakerPercent": 0}, 10).percent) == (50, 0)
    found = limits({"budget": "of a newer version"}, 10)
    assert (found.per_hour, found.max_unavailable) == (0, 0)


# --- what a DryRun policy says ---------------------------------------------------------------------------------------


def test_a_dry_run_names_the_taint_and_so_many_pods_and_the_grace() -> None:
    faults = NO_SCHEDULE | IMMEDIATE
    found = dry_run_effect(DryRun(("faults",), changes=("faults",), faults=faults), record(lost(0), lost(1)), ())
    assert found.text({}) == (
        "would change faults, would taint the Node NoSchedule for Xid79, would evict ml/pod-0, ml/pod-1"
    )
    assert dry_run_effect(DryRun(("faults",), faults=faults), record(device(0)), ()) == DryRunEffect()
    found = dry_run_effect(DryRun(("faults",), faults=IMMEDIATE), record(*map(lost, range(7))), ())
    assert found.text({}).endswith("ml/pod-4 and 2 more")
    late: dict[str, Any] = {"evictMode": "AfterGrace", "evictGraceSeconds": 600, "budget": {"perHour": 1}}
    found = dry_run_effect(DryRun(("faults",), faults=late), record(lost(0)), ())
    assert found.text({}) == "would evict ml/pod-0 when 600 s after it was marked"


def test_a_dry_run_says_what_would_not_be_done_now_and_why() -> None:
    faults = NO_SCHEDULE | IMMEDIATE
    found = dry_run_effect(DryRun(("faults",), faults=faults), record(lost(0), lost(1), lost(2)), ())
    taint, *evictions = found.actions
    answers = {taint: ActionAnswer(granted=True), evictions[0]: ActionAnswer(granted=True)}
    no = ActionAnswer(granted=False, reason="the budget is used up")
    assert found.text(answers | dict.fromkeys(evictions[1:], no)) == (
        "would taint the Node NoSchedule for Xid79, would evict ml/pod-0, "
        "would not evict ml/pod-1, ml/pod-2: the budget is used up"
    )
    assert found.text(dict.fromkeys(found.actions, no)) == (
        "would not taint the Node NoSchedule for Xid79, nor evict ml/pod-0, ml/pod-1, ml/pod-2: the budget is used up"
    )


def test_a_dry_run_says_which_expected_devices_a_node_does_not_have() -> None:
    expect = [{"type": "gpu", "count": 8}, {"productName": "NVIDIA H200*", "count": 1}]
    trial = DryRun(("expect",), changes=("expect",), then={"expect": expect})
    away = device(7, "Unhealthy", "Missing")
    eight = [device(index, attributes={"productName": "NVIDIA H200"}) for index in range(8)]
    found = dry_run_effect(trial, record(*map(device, range(7)), away), ()).text({})
    assert found == "would change expect (type gpu: 7 of 8 found; productName NVIDIA H200*: 0 of 1 found)"
    assert dry_run_effect(trial, record(*eight), ()).text({}) == "would change expect"


def test_a_dry_run_says_what_would_not_be_done_while_another_plugin_serves() -> None:
    there = record(lost(0), configuration={"serving": "Observe"})
    found = dry_run_effect(DryRun(("faults",), faults=IMMEDIATE), there, ())
    assert (found.text({}), found.actions) == (f"would not evict ml/pod-0: {ON_OFFER}", ())
    tainted = dry_run_effect(DryRun(("faults",), faults=NO_SCHEDULE | IMMEDIATE), there, ())
    assert tainted.text({}) == "would taint the Node NoSchedule for Xid79, would evict ml/pod-0"
    there = record(device(0), configuration={"serving": "Observe"})
    found = dry_run_effect(DryRun(("sharing",), changes=("sharing",), then={"sharing": sharing(2)}), there, ())
    assert found.text({}) == "would change sharing (sharing.* has no effect while serving.mode is Observe)"
