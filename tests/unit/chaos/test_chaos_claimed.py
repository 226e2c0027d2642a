"""Each invariant of claims finds its violation, and finds none where there is none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from chaos import claimed, invariants
from chaos.invariants import History
from chaos.model import Claim, CreatePod, DeletePod, NodePlan, Part, Plan, Strike, after
from chaos.seen import ClaimSeen, Holder, NodeSeen, PodSeen, Process, Published, Record, Seen

GPU, A, B, PART = "nvidia.com/gpu", "GPU-a", "GPU-b", "MIG-a-1"
DEVICES = [
    {"id": A, "name": "gpu-0", "index": 0},
    {"id": PART, "name": "gpu-0-1g-0", "index": 0, "parent": "gpu-0"},
    {"id": B, "name": "gpu-1", "index": 1},
]
BY_DRA = {"name": GPU, "managedBy": "dra", "healthy": 2, "capacity": 2}
FREE = (Published("gpu-0", GPU, A), Published("gpu-1", GPU, B))
CLASSES = frozenset({"gpu.nvidia.com"})


def pod(name: str, claim: str = "", *, request: str = "", phase: str = "Running", **more: Any) -> PodSeen:
    uses = {"main": frozenset({(claim, request)})} if claim else {}
    return PodSeen(f"uid-{name}", name, "n1", phase, containers={f"c-{name}": "main"}, claims=uses, **more)


def claim(name: str, *devices: str, request: str = "some", **more: Any) -> ClaimSeen:
    return ClaimSeen(
        name, f"uid-{name}", frozenset((request, each) for each in devices), "n1" if devices else "", **more
    )


def record(name: str, *, uid: str = "", **devices: str) -> Record:
    return Record(name, uid or f"uid-{name}", {key.replace("_", "-"): id_.split() for key, id_ in devices.items()})


def scene(*pods: PodSeen, claims: tuple[ClaimSeen, ...] = (), **of_node: Any) -> tuple[Seen, History]:
    """Pods of n1, whose containers run where the pod does."""
    processes = tuple(Process(n, each.uid, f"c-{each.name}") for n, each in enumerate(pods) if each.phase == "Running")
    shown = {"status": {"devices": DEVICES, "resources": [BY_DRA]}}
    node = NodeSeen("n1", **({"processes": processes, "published": FREE, "shown": shown} | of_node))
    seen = Seen({"n1": node}, {each.name: each for each in pods}, claims={each.name: each for each in claims})
    return replace(seen, classes=CLASSES), invariants.remember(History(), seen)


def twice(*pods: PodSeen, **more: Any) -> list[str]:
    seen, history = scene(*pods, **more)
    return invariants.nothing_twice(seen.nodes["n1"], history, invariants.over(seen))


def test_a_claims_device_is_with_no_other_claim_and_no_container_of_the_plugin() -> None:
    one, other = claim("one", "gpu-0"), claim("other", "gpu-0")
    records = (record("one", gpu_0=A), record("other", gpu_0=A))
    found = twice(pod("p", "one"), pod("q", "other"), claims=(one, other), records=records)
    assert any(said.startswith("n1: p/main has claim:one GPU-a, and q/main has claim:other GPU-a") for said in found)
    own: dict[str, Any] = {"claims": (one,), "records": records[:1]}
    assert twice(pod("p", "one"), **own) == []
    assert twice(pod("p", "one"), pod("q", "one"), **own) == [], "two pods may share a claim"
    theirs = (Holder("q", "main", frozenset({(GPU, A)})),)
    assert twice(pod("p", "one"), pod("q"), holders=theirs, **own)
    assert twice(pod("q"), holders=theirs, records=records[:1], published=()), "prepared, and no container runs yet"
    assert twice(pod("p", "one"), offered=frozenset({(GPU, A)}), **own), "the plugin offers it"


def test_claims_share_a_device_by_shares_of_one_kind_that_fit_into_it() -> None:
    def shared(one: str, other: str) -> list[str]:
        claims = (claim("one", "gpu-0"), claim("other", "gpu-0"))
        records = (record("one", gpu_0=one), record("other", gpu_0=other))
        return twice(pod("p", "one"), pod("q", "other"), claims=claims, records=records)

    assert shared(f"{A}::0", f"{A}::1 {A}::2") == []
    assert shared(f"{A}::1Gi.0", f"{A}::1Gi.1") == []
    for wrong in (f"{A}::0", A, f"{A}::1Gi.0"):
        assert shared(f"{A}::0", wrong), wrong
    assert twice(pod("p", "one"), claims=(claim("one", "gpu-0"),), records=(record("one", gpu_0=f"{A}::0"),)) == []


def test_what_the_plugin_gave_is_in_no_slice_and_no_part_of_a_claims_device_is() -> None:
    theirs = (Holder("q", "main", frozenset({(GPU, A)})),)
    assert twice(pod("q"), holders=theirs)
    assert twice(pod("q"), holders=theirs, published=FREE[1:]) == []
    parts = (Published("gpu-0-1g-0", "nvidia.com/mig-1g", PART),)
    assert twice(pod("p", "one"), claims=(claim("one", "gpu-0"),), records=(record("one", gpu_0=A),), published=parts)


def test_a_container_of_a_claim_that_no_record_has_is_found() -> None:
    for records, wrong in (((), 1), ((record("one", gpu_1=B),), 1), ((record("one", gpu_0=A),), 0)):
        seen, history = scene(pod("p", "one"), claims=(claim("one", "gpu-0"),), records=records)
        found = invariants.claims_are_recorded(seen.nodes["n1"], history, frozenset())
        assert len(found) == wrong, found
    seen, history = scene(pod("p", "one"), claims=(claim("one", "gpu-0"),))
    assert invariants.claims_are_recorded(seen.nodes["n1"], history, frozenset({"uid-p"})) == []


def test_a_container_sees_the_nodes_of_its_claims_devices_and_no_others() -> None:
    seen, history = scene(pod("p", "one"), claims=(claim("one", "gpu-0"),), records=(record("one", gpu_0=A),))
    node = seen.nodes["n1"]

    def sees(*nodes: str) -> list[str]:
        process = replace(node.processes[0], nodes=frozenset(nodes), visible=frozenset())
        return invariants.containers_see_what_they_have(replace(node, processes=(process,)), history)

    assert sees("nvidia0") == []
    assert sees("nvidia1") == [f"n1: p/main has ['{A}'] and sees ['{B}']"]
    assert sees("nvidia0", "nvidia1")
    assert sees()


def test_a_claim_of_a_scheduler_gives_each_container_the_devices_of_its_request() -> None:
    special = ClaimSeen("s", "uid-s", frozenset({("r-0", "gpu-0"), ("r-1", "gpu-1")}), "n1", owner="p")
    assert claimed.devices_of(pod("p", "s", request="r-1"), {"s": special}) == {"main": {("s", "gpu-1")}}
    assert claimed.devices_of(pod("p", "s"), {"s": special}) == {"main": {("s", "gpu-0"), ("s", "gpu-1")}}
    assert claimed.devices_of(pod("p", "gone"), {}) == {"main": frozenset()}


# --- once everything had time -----------------------------------------------------------------------------------------
PLANNED = after(Plan(), CreatePod("p", "n1", (Part("main", "main", claims=True),), claim=Claim("one", GPU, 1)))


def end(*pods: PodSeen, plan: Plan = PLANNED, classes: frozenset[str] = CLASSES, **more: Any) -> list[str]:
    seen, history = scene(*pods, **more)
    return claimed.in_the_end(replace(seen, classes=classes), history.claimed, plan)


def test_a_claim_that_is_prepared_for_a_pod_that_runs_is_right() -> None:
    name = frozenset({"x/claim=one"})
    listed = (Holder("p", "main", frozenset(), frozenset({("one", "gpu-0")}), name),)
    good: dict[str, Any] = {"claims": (claim("one", "gpu-0"),), "records": (record("one", gpu_0=A),)}
    good |= {"holders": listed, "cdi": name}
    assert end(pod("p", "one"), **good) == []
    for wrong in (
        {"records": (record("one", gpu_0=A, uid="uid-older"),)},
        {"records": (record("one", gpu_1=B),)},
        {"cdi": frozenset({"x/claim=other"})},
        {"records": (*good["records"], record("two", gpu_1=B))},
        {"holders": (replace(listed[0], claims=frozenset({("one", "gpu-1")})),)},
        {"claims": (*good["claims"], claim("two"))},
        {"published": FREE[:1]},
        {"published": (*FREE, Published("nic-0", "example.com/nic", "n"))},
    ):
        assert end(pod("p", "one"), **(good | wrong)), wrong
    assert end(pod("p", "one", phase="Failed"), **good), "its claim stays prepared"


def test_a_pod_that_does_not_run_says_why() -> None:
    waits = pod("p", "one", phase="Pending")
    bound: dict[str, Any] = {"claims": (claim("one", "gpu-0"),)}
    assert end(waits, **bound), "its device is in a slice"
    refused = replace(waits, refused="the device gpu-0 goes to no new pod")
    assert end(refused, **bound)
    assert end(replace(waits, refused="the claim was allocated all of gpu-0, whose shares are of 1Gi"), **bound) == []
    left_out: dict[str, Any] = {"published": FREE[1:], "shown": {"status": {"resources": [BY_DRA | {"healthy": 1}]}}}
    assert end(refused, **bound, **left_out) == []
    assert end(waits, **bound, **left_out), "nothing says why"
    nowhere: dict[str, Any] = {"claims": (claim("one"),)}
    assert end(replace(waits, node=""), **nowhere)
    assert end(replace(waits, node="", unscheduled="0/2 nodes are available"), **nowhere) == []


def test_a_device_at_fault_that_claims_could_get_and_a_class_of_nothing_are_found() -> None:
    assert end(plan=Plan()) == []
    struck = after(Plan(), Strike("n1", 1, "xid79", "e"))
    shown = {"status": {"devices": DEVICES, "resources": [BY_DRA | {"healthy": 1}]}}
    tainted = (FREE[0], replace(FREE[1], tainted=True))
    assert end(plan=struck, published=tainted, shown=shown) == []
    assert end(plan=struck)
    assert claimed.slices_are_what_is_offered(scene(published=tainted)[0].nodes["n1"], NodePlan("n1")), "2 are healthy"
    assert end(plan=Plan(), classes=frozenset())
    assert claimed.class_name("example.com/GPU_x") == "gpu-x.example.com"


def test_a_claim_is_deleted_with_the_last_pod_that_uses_it() -> None:
    shared = after(PLANNED, CreatePod("q", "n1", (), claim=Claim("one", GPU, 1)))
    assert after(shared, DeletePod("p")).claims == {"one"}
    assert after(PLANNED, DeletePod("p")).claims == frozenset()
