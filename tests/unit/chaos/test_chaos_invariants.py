"""Each invariant of a chaos run finds its violation, and finds none where there is none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from chaos import invariants, machines
from chaos.invariants import History
from chaos.model import CreatePod, NodePlan, Part, Plan, SetPolicy, Strike, after
from chaos.seen import Holder, NodeSeen, PodSeen, Process, Seen
from support.audit import Request
from support.cases import cases

GPU, MEMORY, SHARED = machines.GPU, machines.MEMORY, machines.SHARED
A, B = "GPU-a", "GPU-b"
PART, OTHER_PART = "MIG-a-1", "MIG-a-2"
KNOWN = History(parents={PART: A, OTHER_PART: A}, mib={A: 4096, B: 4096})


def running(**had: Iterable[tuple[str, str]]) -> tuple[NodeSeen, History]:
    """Pods, each with one container that has these ids, as kubelet and machine show them."""
    seen = Seen(
        nodes={},
        pods={name: PodSeen(f"uid-{name}", name, "n1", "Running", containers={f"c-{name}": "main"}) for name in had},
    )
    node = NodeSeen(
        "n1",
        holders=tuple(Holder(name, "main", frozenset(ids)) for name, ids in had.items()),
        processes=tuple(Process(n, f"uid-{name}", f"c-{name}") for n, name in enumerate(had)),
    )
    return node, invariants.remember(KNOWN, seen)


def twice(**had: Iterable[tuple[str, str]]) -> list[str]:
    return invariants.nothing_twice(*running(**had))


# --- no device twice --------------------------------------------------------------------------------------------------
@cases(
    ("one", "other"),
    pytest.param((GPU, A), (GPU, A), id="the same device"),
    pytest.param((GPU, A), (SHARED, A), id="under two names"),
    pytest.param((GPU, A), (GPU, f"{A}::1"), id="whole and a share"),
    pytest.param((GPU, f"{A}::1"), (GPU, f"{A}::1"), id="the same share"),
    pytest.param((GPU, f"{A}::1"), (SHARED, f"{A}::2"), id="shares under two names"),
    pytest.param((GPU, f"{A}::1"), (MEMORY, f"{A}::1Gi.0"), id="a share and memory"),
    pytest.param((GPU, A), ("nvidia.com/mig-1g.10gb", PART), id="whole and a partition"),
    pytest.param((GPU, PART), ("nvidia.com/mig-1g.10gb", PART), id="a partition under two names"),
    pytest.param((GPU, f"{A}::0"), (GPU, PART), id="a share and a partition"),
)
def test_two_containers_with_one_device_are_found(one: tuple[str, str], other: tuple[str, str]) -> None:
    [said] = twice(first=[one], second=[other])
    assert said == f"n1: first/main has {one[0]} {one[1]}, and second/main has {other[0]} {other[1]}"


def test_more_memory_than_a_device_has_or_ids_that_are_not_capacity_are_found() -> None:
    [said] = twice(first=[(MEMORY, f"{A}::1Gi.{n}") for n in range(3)], second=[(MEMORY, f"{A}::2Gi.0")])
    assert said == f"n1: {A} has 4096 MiB, and containers have 5120 MiB of it"
    assert invariants.counts_add_up(node(resource(healthy=3, withheld=[{"reason": "Cordoned", "count": 1}]))) == []
    assert invariants.counts_add_up(node(resource(healthy=3)))
    assert invariants.counts_add_up(node(resource(free=5)))


@cases("offered", (SHARED, A), (GPU, f"{A}::1"), ("nvidia.com/mig-1g.10gb", PART))
def test_a_held_device_that_another_container_could_get_is_found(offered: tuple[str, str]) -> None:
    seen, history = running(pod=[(GPU, A)])
    [said] = invariants.nothing_twice(replace(seen, offered=frozenset({offered, (GPU, A), (GPU, B)})), history)
    assert said == f"n1: pod/main has {GPU} {A}, and another container could get {offered[0]} of {offered[1][:5]}" + (
        "-1" if offered[1] == PART else ""
    )


def test_init_containers_have_the_devices_of_their_pods_others_and_unknown_ones_what_they_had() -> None:
    init = PodSeen("u", "pod", "n1", "Running", containers={"c-1": "fetch", "c-2": "main"}, init=frozenset({"fetch"}))
    node = NodeSeen(
        "n1",
        checkpoint=tuple(Holder("u", name, frozenset({(GPU, A)})) for name in ("fetch", "main")),
        processes=(Process(1, "u", "c-1"), Process(2, "u", "c-2")),
    )
    history = invariants.remember(KNOWN, Seen({}, {"pod": init}))
    assert invariants.nothing_twice(node, history) == []
    assert invariants.nothing_twice(node, replace(history, init=frozenset()))
    node, history = running(first=[(GPU, A)], second=[(GPU, A)])
    before = invariants.remember(history, Seen({"n1": replace(node, holders=node.holders[:1])}, None))
    forgotten = replace(node, holders=node.holders[1:])
    assert invariants.nothing_twice(forgotten, before)


@cases("phase", "Failed", "gone")
def test_a_container_of_a_pod_that_is_over_may_take_a_moment_to_end(phase: str) -> None:
    node, history = running(first=[(GPU, A)], second=[(GPU, A)])
    pods = {name: PodSeen(f"uid-{name}", name, "n1", "Running") for name in ("first", "second")}
    seen = Seen({"n1": node}, pods)
    assert invariants.nothing_twice(node, history, invariants.over(seen))
    ended = {"first": replace(pods["first"], phase=phase)} if phase != "gone" else {}
    seen = Seen({"n1": node}, {"second": pods["second"], **ended})
    assert invariants.nothing_twice(node, history, invariants.over(seen)) == []


# --- containers and kubelet -------------------------------------------------------------------------------------------
def test_a_container_that_sees_another_gpu_or_loses_one_is_found() -> None:
    node, history = running(pod=[(GPU, A)])
    sees = replace(node, processes=(replace(node.processes[0], visible=frozenset({B})),))
    assert invariants.containers_see_what_they_have(sees, history) == [f"n1: pod/main has ['{A}'] and sees ['{B}']"]
    right = replace(node, processes=(replace(node.processes[0], visible=frozenset({A})),))
    assert invariants.containers_see_what_they_have(right, history) == []
    assert invariants.containers_see_what_they_have(node, history) == [f"n1: pod/main has ['{A}'] and sees none"]
    node, history = running(pod=[(GPU, A)])
    history = invariants.remember(history, Seen({"n1": node}))
    assert invariants.nothing_lost(node, history) == []
    now, _ = running(pod=[(GPU, B)])
    assert invariants.nothing_lost(now, history)


def test_a_container_may_be_seen_with_one_of_its_resources_and_then_with_both() -> None:
    node, history = running(pod=[(GPU, A)])
    history = invariants.remember(history, Seen({"n1": node}))
    both, _ = running(pod=[(GPU, A), ("nic", "n")])
    assert invariants.nothing_lost(both, history) == []
    history = invariants.remember(history, Seen({"n1": both}))
    assert invariants.nothing_lost(both, history) == []
    assert invariants.nothing_lost(node, history), "one of them has gone"
    more, _ = running(pod=[(GPU, A), (GPU, B), ("nic", "n")])
    assert invariants.nothing_lost(more, history), "another of the same resource"


# --- numbers ----------------------------------------------------------------------------------------------------------
def resource(name: str = GPU, **numbers: Any) -> dict[str, Any]:
    return {"name": name, "capacity": 4, "healthy": 4, "allocated": 0, "managedBy": "plugin", "withheld": [], **numbers}


def device(index: int, id_: str = "", **more: Any) -> dict[str, Any]:
    named = {"id": id_ or f"d-{index}", "name": f"gpu-{index}"}
    return {**named, "type": "gpu", "index": index, "health": {"state": "Healthy"}, **more}


GOOD = {
    "Ready": ("True", "Ready"),
    "HoldersKnown": ("True", "Synced"),
    "AllocatedOnce": ("True", "NoDoubleAllocation"),
    "PolicyResolved": ("True", "Resolved"),
    "Stale": ("False", "Fresh"),
    "DevicesHealthy": ("True", "AllHealthy"),
    "ConfigApplied": ("True", "Applied"),
}


def node(*resources: dict[str, Any], conditions: dict[str, tuple[str, str]] | None = None, **more: Any) -> NodeSeen:
    """n1 with all its devices well; `offered` and the Node's numbers as the first resource has them."""
    listed = resources or (resource(),)
    shown = {
        "spec": {"configHash": "h"},
        "status": {
            "appliedConfigHash": "h",
            "resources": list(listed),
            "devices": [device(index) for index in range(len(machines.DEVICES["n1"]))],
            "conditions": [
                {"type": kind, "status": status, "reason": reason}
                for kind, (status, reason) in {**GOOD, **(conditions or {})}.items()
            ],
        },
    }
    numbers = {each["name"]: each for each in listed}
    status = {
        what: {name: str(each[of]) for name, each in numbers.items()}
        for what, of in (("capacity", "capacity"), ("allocatable", "healthy"))
    }
    known: dict[str, Any] = {
        "offered": frozenset((name, f"x-{n}") for name, each in numbers.items() for n in range(each["healthy"])),
        "node": {"status": status},
        "shown": shown,
    }
    return NodeSeen("n1", **(known | more))


def wrong(seen: NodeSeen, plan: NodePlan | None = None, pods: dict[str, PodSeen] | None = None) -> list[str]:
    return invariants.node_is_right(seen, pods or {}, KNOWN, plan or NodePlan("n1"))


@cases(
    "seen",
    pytest.param(node(offered=frozenset()), id="the kubelet has fewer"),
    pytest.param(node(node={"status": {"capacity": {GPU: "4"}, "allocatable": {GPU: "3"}}}), id="the Node, too"),
    pytest.param(node(node={"status": {"capacity": {GPU: "5"}, "allocatable": {GPU: "4"}}}), id="its capacity"),
    pytest.param(
        node(node={"status": {"capacity": {GPU: "4", SHARED: "8"}, "allocatable": {GPU: "4", SHARED: "8"}}}),
        id="a name that nobody offers",
    ),
)
def test_a_number_that_is_not_what_is_offered_is_found(seen: NodeSeen) -> None:
    assert wrong(seen)


def test_the_kubelet_may_have_an_id_more_for_a_pod_that_holds_one_of_a_faulty_device() -> None:
    status = {"capacity": {GPU: "5"}, "allocatable": {GPU: "4"}}
    seen = node(node={"status": status}, conditions={"DevicesHealthy": ("False", "DeviceFault")})
    seen.shown["status"]["devices"][0] |= {
        "health": {"state": "Unhealthy"},
        "holders": [{"pod": "p", "container": "main"}],
    }
    held = replace(seen, holders=(Holder("p", "main", frozenset({(GPU, "d-0::9")})),))
    assert not [each for each in wrong(held) if GPU in each]
    assert [each for each in wrong(seen) if GPU in each]


# --- holders, faults, conditions, marks -------------------------------------------------------------------------------
def test_a_holder_that_nodedevices_does_not_name_is_found_and_so_is_one_that_holds_nothing() -> None:
    held = replace(node(), holders=(Holder("pod", "main", frozenset({(GPU, "d-0")})),))
    assert [each for each in wrong(held) if "is held by" in each]
    holder = {"pod": "pod", "container": "main", "namespace": "x"}
    held.shown["status"]["devices"][0]["holders"] = [holder]
    assert wrong(held) == []
    assert [each for each in wrong(replace(held, holders=())) if "is held by" in each]


def test_only_a_forgotten_device_may_have_a_holder_without_an_entry() -> None:
    held = replace(node(), holders=(Holder("pod", "main", frozenset({(GPU, "GPU-away")})),))
    forgotten = NodePlan("n1", has_forgotten=True)
    assert [each for each in wrong(held, forgotten) if "is held by" in each]
    [said] = [each for each in held.shown["status"]["conditions"] if each["type"] == "HoldersKnown"]
    said["message"] = "held, but listed by no probe: GPU-away (by x/pod)"
    assert [each for each in wrong(held, forgotten) if "is held by" in each] == []
    assert [each for each in wrong(held) if "is held by" in each]
    held = replace(node(), holders=(Holder("pod", "main", frozenset({("amd.com/cpx_nps4", "xcp-0")})),))
    assert [each for each in wrong(held, NodePlan("n1", has_forgotten=True)) if "is held by" in each] == []
    assert [each for each in wrong(held) if "is held by" in each]


def test_a_fault_that_is_not_seen_or_not_made_or_a_device_at_fault_on_offer_is_found() -> None:
    struck = after(Plan(), Strike("n1", 2, "lost", "e")).nodes["n1"]
    assert [each for each in wrong(node(), struck) if "device 2" in each]
    ill = node(conditions={"DevicesHealthy": ("False", "Unhealthy")})
    ill.shown["status"]["devices"][2]["health"] = {"state": "Unhealthy", "reason": "FallenOffBus"}
    assert wrong(ill, struck) == []
    assert [each for each in wrong(ill) if "device 2" in each]
    offered = node(offered=frozenset({(GPU, f"d-{n}::0") for n in range(4)}))
    offered.shown["status"]["devices"][1]["unschedulable"] = "chaos"
    assert [each for each in wrong(offered, NodePlan("n1", cordoned=(1,))) if "is offered" in each]


def test_a_link_that_is_down_is_a_fault_where_the_nic_is_offered_or_held() -> None:
    unused = after(Plan(), Strike("n1", 5, "linkDown", "e"))
    offered = after(unused, SetPolicy("n1", "resources", "nics")).nodes["n1"]
    seen = node(conditions={"DevicesHealthy": ("True", "Degraded")})
    seen.shown["status"]["devices"][5]["health"]["state"] = "Degraded"
    assert wrong(seen, unused.nodes["n1"]) == []
    assert [each for each in wrong(seen, offered) if "device 5" in each]
    seen = node()
    seen.shown["status"]["devices"][5]["holders"] = [{"pod": "pod", "container": "main", "namespace": "x"}]
    for state in ("Degraded", "Unhealthy"):
        seen.shown["status"]["devices"][5]["health"]["state"] = state
        assert any("device 5" in each for each in wrong(seen, unused.nodes["n1"])) is (state == "Degraded")


@cases(("withheld", "right"), ([], "Degraded"), ([{"devices": ["gpu-5"], "count": 1}], "Unhealthy"))
def test_where_policies_are_not_possible_a_link_is_judged_by_what_is_in_effect(withheld: list[Any], right: str) -> None:
    struck = after(Plan(), Strike("n1", 5, "linkDown", "e"))
    down = after(struck, SetPolicy("n1", "resources", "nics")).nodes["n1"]
    part = resource(healthy=4 - len(withheld), withheld=withheld)
    seen = node(part, conditions={"ConfigApplied": ("False", "ConfigInvalid")})
    for state in ("Healthy", "Degraded", "Unhealthy"):
        seen.shown["status"]["devices"][5]["health"]["state"] = state
        assert any("device 5" in each for each in wrong(seen, down)) is (state != right)


@cases(
    ("kind", "status", "reason"),
    ("Ready", "False", "KubeletUnreachable"),
    ("HoldersKnown", "False", "Stale"),
    ("AllocatedOnce", "Unknown", "Starting"),
    ("Stale", "True", "AgentLost"),
    ("DevicesHealthy", "False", "Unhealthy"),
    ("ConfigApplied", "False", "WaitingForHolders"),
    ("ConfigApplied", "False", "StateNotSaved"),
)
def test_a_condition_that_contradicts_the_rest_is_found(kind: str, status: str, reason: str) -> None:
    assert [each for each in wrong(node(conditions={kind: (status, reason)})) if kind in each]


@cases(
    ("name", "reason", "wanted"),
    ("capacity", "Conflict", True),
    ("capacity", "Pending", False),
    ("labels", "Pending", True),
    ("taint", "InSync", False),
    ("evictions", "Pending", False),
)
def test_an_action_that_is_not_done_is_found(name: str, reason: str, wanted: bool) -> None:
    seen = node()
    seen.shown["status"]["actions"] = [{"name": name, "reason": reason, "message": ""}]
    assert bool([each for each in wrong(seen) if f"action {name}" in each]) is wanted


def test_what_the_agent_found_with_two_pods_counts_at_every_moment_of_any_test() -> None:
    twice = node(conditions={"AllocatedOnce": ("False", "DoubleAllocation")})
    starting = node(conditions={"AllocatedOnce": ("Unknown", "Starting")})
    for seen, right in ((node(), 0), (starting, 0), (twice, 1)):
        every = Seen({"n1": seen})
        assert len(invariants.in_any_test(every, KNOWN)) == right
        assert len(invariants.at_every_moment(every, KNOWN, Plan(), ())) == right


def test_a_taint_without_a_policy_is_found() -> None:
    tainted = node()
    tainted.node["spec"] = {"taints": [{"key": "nodedevices.io/device-fault"}]}  # type: ignore[index]
    assert wrong(tainted)
    asked = after(Plan(), SetPolicy("n1", "faults", "taint"))
    struck = after(asked, Strike("n1", 2, "lost", "e"))
    assert not [each for each in wrong(tainted, struck.nodes["n1"]) if "tainted" in each]
    assert [each for each in wrong(tainted, asked.nodes["n1"]) if "tainted" in each]
    tainted.shown["status"]["devices"][2]["health"]["state"] = "Unknown"
    assert not [each for each in wrong(tainted, asked.nodes["n1"]) if "tainted" in each]


def test_a_pod_at_fault_is_marked_until_it_starts_again_and_no_other_is() -> None:
    ill = node()
    ill.shown["status"]["devices"][0] |= {"health": {"state": "Unhealthy"}, "holders": [{"pod": "p", "container": "m"}]}
    for name, healthy, right in (("p", "False", True), ("p", "", False), ("q", "", True), ("q", "False", False)):
        pods = {name: PodSeen("u", name, "n1", "Running", healthy=healthy)}
        assert (invariants.marks_are_right(ill, pods) == []) is right
    lost = node()
    lost.shown["status"]["devices"][0] |= {"holders": [{"pod": "p", "health": {"state": "Unhealthy"}}]}
    for healthy in ("False", "True"):
        assert invariants.marks_are_right(lost, {"p": PodSeen("u", "p", "n1", "Running", healthy=healthy)}) == []
    assert invariants.marks_are_right(lost, {"q": PodSeen("u", "q", "n1", "Running", healthy="False")}) != []


# --- pods -------------------------------------------------------------------------------------------------------------
def plan_with(*names: str) -> Plan:
    plan = Plan()
    for name in names:
        plan = after(plan, CreatePod(name, "n1", (Part("main", "main"),)))
    return plan


def evicted(pod: PodSeen | None, *evicting: str) -> list[str]:
    ran = invariants.remember(KNOWN, Seen({}, {"p": PodSeen("u", "p", "n1", "Running")}))
    pods = {} if pod is None else {"p": pod}
    return invariants.nobody_evicted(Seen({}, pods), ran, plan_with("p"), frozenset(evicting))


@cases(
    "pod",
    None,
    PodSeen("u", "p", "n1", "Running", deleting=True),
    PodSeen("u", "p", "n1", "Failed", "Evicted"),
    ids=["gone", "going", "failed"],
)
def test_a_pod_that_ends_without_a_policy_or_a_person_is_found(pod: PodSeen | None) -> None:
    assert evicted(pod)
    assert evicted(pod, "n1") == []


def test_an_evicted_pod_is_not_expected_back_and_a_deleted_one_that_runs_is_found() -> None:
    seen, plan = Seen({}, {}), plan_with("p")
    ran = invariants.remember(KNOWN, Seen({}, {"p": PodSeen("u", "p", "n1", "Running")}))
    assert invariants.nobody_evicted(seen, invariants.without_evicted(ran, seen, plan, frozenset()), plan, frozenset())
    after_it = invariants.without_evicted(ran, seen, plan, frozenset({"n1"}))
    assert invariants.nobody_evicted(seen, after_it, plan, frozenset()) == []
    pod = PodSeen("u", "p", "n1", "Running")
    there = Seen({"n1": NodeSeen("n1", processes=(Process(1, "u", "c"),))}, {"p": pod})
    assert invariants.every_pod_is_there(there, plan_with("p")) == []
    assert invariants.every_pod_is_there(there, Plan())
    assert invariants.every_pod_is_there(Seen({"n1": NodeSeen("n1")}, {"p": pod}), plan_with("p"))


def test_only_a_pod_with_devices_of_an_init_container_may_be_rejected_by_a_kubelet_that_restarts() -> None:
    failed = PodSeen("u", "p", "n1", "Failed", "UnexpectedAdmissionError Pod was rejected: no healthy devices present")
    assert evicted(failed)
    ran = invariants.remember(KNOWN, Seen({}, {"p": PodSeen("u", "p", "n1", "Running")}))
    init = Part("fetch", "init", ((GPU, 1),))
    plan = after(Plan(), CreatePod("p", "n1", (init, Part("main", "main", ((GPU, 1),)))))
    assert invariants.nobody_evicted(Seen({}, {"p": failed}), ran, plan, frozenset()) == []


def test_a_policy_that_is_not_accepted_and_a_healthy_device_that_needs_something_are_found() -> None:
    plan = after(Plan(), SetPolicy("n1", "sharing", "four"))
    accepted = {"status": {"conditions": [{"type": "Accepted", "status": "True"}]}}
    assert invariants.policies_are_accepted(Seen({}, {}, {"sharing-n1": accepted}), plan) == []
    assert invariants.policies_are_accepted(Seen({}, {}, {"sharing-n1": {}}), plan)
    assert invariants.policies_are_accepted(Seen({}, {}), plan)
    health = {"state": "Healthy", "recoveryAction": "ResetDevice"}
    shown = {"status": {"devices": [{"id": A, "name": "gpu-0", "health": health}]}}
    node = NodeSeen("n1", shown=shown)
    assert invariants.the_healthy_need_nothing(node) == ["n1: gpu-0 is Healthy, and ResetDevice would help"]
    health["recoveryAction"] = "None"
    assert invariants.in_any_test(Seen(nodes={"n1": node}), KNOWN) == []


def request(verb: str, resource: str, *, account: str = "nodedevices-operator", path: str = "n1") -> Request:
    right = ("nodedevices.io", resource, verb)
    return Request(f"nodedevices-system:{account}", right, 200, True, f"{account} {verb} {resource}/{path}: 200")


def test_a_write_while_nothing_happens_is_found_but_for_each_agents_heartbeat() -> None:
    assert invariants.needless([request("patch", "nodedevices")])
    assert invariants.needless([request("patch", "leases"), request("get", "nodes"), request("watch", "pods")]) == []
    beats = [request("patch", "nodedevices/status", account="nodedevices-agent", path=node) for node in ("n1", "n2")]
    assert invariants.needless(beats) == []
    assert invariants.needless([*beats, beats[0]])


# --- in any test of the real cluster ----------------------------------------------------------------------------------


def test_a_field_with_two_writers_is_found() -> None:
    def entry(manager: str, *conditions: str) -> dict[str, Any]:
        owned = {f"k:{each}": {".": dict[str, Any](), "f:status": dict[str, Any]()} for each in conditions}
        return {"manager": manager, "fieldsV1": {"f:status": owned}}

    entries = [entry("nodedevices-agent", "Ready"), entry("nodedevices-operator", "Stale"), entry("kubectl", "Ready")]
    node = NodeSeen("n1", shown={"metadata": {"managedFields": entries}})
    assert invariants.each_field_has_one_writer(node) == []
    entries.append(entry("nodedevices-operator", "Ready"))
    [one, _] = invariants.each_field_has_one_writer(node)
    assert one == "n1: .f:status.k:Ready.. is written by nodedevices-agent and nodedevices-operator"
