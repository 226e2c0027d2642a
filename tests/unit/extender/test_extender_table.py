"""What the extender says of a pod and a node: by what NodeDevices shows, what is bound and not shown yet, and what the
kubelet and the agent will do."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from hypothesis import given, strategies as st
from nodedevices_operator.extender.cache import SharesCache
from nodedevices_operator.extender.shares import requests_of
from nodedevices_operator.extender.table import MAX_OUTCOMES, PodFit
from support.cases import cases
from support.nodeshares import MEMORY, cache, container, gpu, holder, node_devices, pod
from support.odd_json import with_odd_value
from support.there import there

OTHER = "example.com/other-memory"


def judge(remembered: SharesCache, wanted: dict[str, Any], node: str = "n1", now: float = 1.0) -> PodFit:
    table = there(remembered.table(node, MEMORY, now))
    request = requests_of(wanted, {MEMORY})[MEMORY]
    found = table.outcome(request)
    for _ in range(2):  # what is remembered says the same
        assert (table.fits(request), table.score(request)) == (not found.refusal, found.score)
    return found


def free(remembered: SharesCache, node: str = "n1", now: float = 1.0) -> list[int]:
    table = there(remembered.table(node, MEMORY, now))
    return list(table.free.values())


# --- one container ---------------------------------------------------------------------------------------------------
def test_a_pod_that_fits_no_single_gpu_is_refused_in_words() -> None:
    known = cache(node_devices("n1", gpu(0, 24, held=12), gpu(1, 24, held=9)))
    assert judge(known, pod("p", 15)).refusal == ""
    for size in (20, 24):
        refused = judge(known, pod("p", size))
        assert refused.refusal == f"no single GPU has {size} free units of {MEMORY} (largest free: 15)"
        assert not refused.never
    known = cache(node_devices("n1", gpu(0, 24), gpu(1, 48)))
    refused = judge(known, pod("p", 49))
    assert refused == PodFit(refusal=f"no single GPU has 49 units of {MEMORY} (largest: 48); request fewer", never=True)


@cases(("size", "fits"), (15, True), (16, False))
def test_a_node_passes_for_as_much_as_its_emptiest_gpu_has(size: int, fits: bool) -> None:
    table = there(cache(node_devices("n1", gpu(0, 24, held=12), gpu(1, 24, held=9))).table("n1", MEMORY, 1.0))
    assert table.fits(requests_of(pod("p", size), {MEMORY})[MEMORY]) is fits


@cases("state", "Unhealthy", "Unknown")
def test_a_gpu_out_of_service_has_no_room_whatever_is_given_back_on_it(state: str) -> None:
    finished = holder("gone", 10)
    known = cache(node_devices("n1", gpu(0, 24, finished, state=state, free=0), gpu(1, 24, held=20)))
    assert free(known) == [0, 4]
    assert judge(known, pod("p", 10)).refusal == f"no single GPU has 10 free units of {MEMORY} (largest free: 4)"


@cases(
    ("withheld", "words"),
    ({"Unhealthy": 48}, "48 of 48 units are withheld (48 Unhealthy)"),
    ({"Cordoned": 12, "Unhealthy": 36}, "48 of 48 units are withheld (36 Unhealthy, 12 Cordoned)"),
    (
        {"Unhealthy": 8, "Cordoned": 20, "ChangeWaits": 12, "SamePlace": 5, "PodsUnknown": 2, "NewReason": 1},
        "48 of 48 units are withheld (20 Cordoned, 12 ChangeWaits, 8 Unhealthy, 5 SamePlace, 3 for other reasons)",
    ),
    ({}, "see status.devices of its NodeDevices"),
)
def test_a_node_whose_units_are_all_withheld_says_for_which_reasons(withheld: dict[str, int], words: str) -> None:
    node = node_devices("n1", gpu(0, 24, state="Unhealthy"), gpu(1, 24, state="Unhealthy"))
    reasons = [{"reason": reason, "count": count} for reason, count in withheld.items()]
    node["status"]["resources"] = [
        {"name": OTHER, "capacity": 9, "healthy": 0, "withheld": [{"reason": "Unhealthy", "count": 9}]},
        {"name": MEMORY, "unit": "1Gi", "capacity": 48, "healthy": 0, "withheld": reasons},
    ]
    assert judge(cache(node), pod("p", 10)) == PodFit(
        refusal=f"no GPU of this node offers {MEMORY} now: {words}", never=True
    )


def test_a_refusal_for_want_of_room_says_what_is_withheld_beside_it() -> None:
    node = node_devices("n1", gpu(0, 24, held=20), gpu(1, 24, free=0) | {"unschedulable": "RMA 4711"})
    withheld = [{"reason": "Cordoned", "count": 24}]
    node["status"]["resources"][0] |= {"capacity": 48, "healthy": 24, "withheld": withheld}
    refused = judge(cache(node), pod("p", 10))
    assert refused.refusal == (
        f"no single GPU has 10 free units of {MEMORY} (largest free: 4); 24 of 48 units are withheld (24 Cordoned)"
    )
    assert not refused.never


def test_shares_withheld_for_a_pending_change_are_not_free_when_their_holder_ends() -> None:
    assert free(cache(node_devices("n1", gpu(0, 24, holder("gone", 10), free=0)))) == [0]


def test_mixed_models_are_judged_by_their_own_memory_and_partitions_by_theirs() -> None:
    known = cache(node_devices("n1", gpu(0, 15), gpu(1, 80, held=75)))
    assert judge(known, pod("p", 15)).refusal == ""
    assert judge(known, pod("p", 16)).refusal.endswith("(largest free: 15)")
    assert not judge(known, pod("p", 16)).never
    assert judge(known, pod("p", 81)).never
    parts = [gpu(0, 10, held=4) | {"id": "MIG-1"}, gpu(0, 20, held=15) | {"id": "MIG-2"}]
    device = {"id": "GPU-0", "name": "gpu-0", "index": 0, "health": {"state": "Healthy"}, "partitions": parts}
    known = cache(node_devices("n1", device))
    assert judge(known, pod("p", 6)).refusal == ""
    assert judge(known, pod("p", 7)).refusal.endswith("(largest free: 6)")


# --- what NodeDevices does not show yet ------------------------------------------------------------------------------
def test_what_pods_hold_of_this_node_and_resource_counts_once_and_until_they_end() -> None:
    known = cache(node_devices("n1", gpu(0, 24, holder("runs", 10), holder("ended", 14))), pod("runs", 10, node="n1"))
    assert free(known) == [14]
    known = cache(node_devices("n1", gpu(0, 24, held=4), gpu(1, 24)), pod("coming", 16, node="n1"))
    assert free(known) == [4, 24]
    known = cache(node_devices("n1", gpu(0, 24, holder("runs", 16)), gpu(1, 24)), pod("runs", 16, node="n1"))
    assert free(known) == [8, 24]
    known = cache(
        node_devices("n1", gpu(0, 24)),
        node_devices("n2", gpu(0, 24, resource=OTHER)),
        pod("elsewhere", 16, node="n2"),
        pod("other", 16, node="n1", resource=OTHER),
    )
    assert free(known) == [24]


@cases(("first", "left"), ("a", [2, 0]), ("b", [0, 2]))
def test_bound_pods_are_placed_in_the_order_in_which_they_were_bound(first: str, left: list[int]) -> None:
    """10 and 8 on two GPUs of which each has 10: whichever comes first is on the first."""
    when = {"a": "2026-11-22T12:00:01Z", "b": "2026-11-22T12:00:01Z"} | {first: "2026-11-22T12:00:00Z"}
    known = cache(
        node_devices("n1", gpu(0, 10), gpu(1, 10)),
        pod("a", 8, node="n1", scheduled=when["a"]),
        pod("b", 10, node="n1", scheduled=when["b"]),
    )
    assert free(known) == left


def test_pods_bound_in_one_second_are_placed_as_they_were_seen_and_then_by_uid() -> None:
    known = cache(node_devices("n1", gpu(0, 10), gpu(1, 10)))
    for name, size in (("z", 8), ("a", 10)):
        known.observe_pod(pod(name, size, node="n1"))
    assert free(known) == [2, 0]
    older = "2026-11-22T11:00:00Z"
    known = cache(
        node_devices("n1", gpu(0, 10), gpu(1, 10)), pod("a", 10, node="n1"), pod("z", 8, node="n1", created=older)
    )
    assert free(known) == [2, 0]
    known = cache(node_devices("n1", gpu(0, 10), gpu(1, 10)), pod("b", 10, node="n1"), pod("a", 8, node="n1"))
    assert free(known) == [2, 0]


def test_a_container_beside_one_that_holds_has_its_place_and_who_cannot_be_placed_takes_nothing() -> None:
    half = pod("half", container("one", 4), container("two", 6), node="n1")
    known = cache(node_devices("n1", gpu(0, 24, holder("half", 4, container="one")), gpu(1, 6)), half)
    assert free(known) == [20, 0]
    assert free(cache(node_devices("n1", gpu(0, 24, held=10)), pod("lost", 16, node="n1"))) == [14]


def test_an_init_containers_place_stays_with_its_pod() -> None:
    held = pod("held", container("main", 6), init=[container("fetch", 10)], node="n1")
    assert free(cache(node_devices("n1", gpu(0, 24, holder("held", 6))), held)) == [14]
    half = pod("half", container("one", 4), container("two", 4), init=[container("fetch", 10)], node="n1")
    assert free(cache(node_devices("n1", gpu(0, 24, holder("half", 4, container="one"))), half)) == [16]
    held = pod("held", container("main", 6), init=[container("fetch", 10)], node="n1")
    assert free(cache(node_devices("n1", gpu(0, 24, holder("held", 6), free=3)), held)) == [0]


@cases(("held", "left"), (60, 25), (70, 15))
def test_where_not_all_holders_are_listed_the_earliest_pods_have_the_unlisted_shares(held: int, left: int) -> None:
    """60 are held, 10 of them by a listed holder: `old` and `older` have the other 50, and `new` is yet to come. So it
    is where 10 more are held, since these are not enough for it."""
    known = cache(
        node_devices("n1", gpu(0, 100, holder("listed", 10), held=held, truncated=2)),
        pod("listed", 10, node="n1"),
        pod("new", 15, node="n1", scheduled="2026-11-22T12:00:09Z"),
        pod("older", 20, node="n1", scheduled="2026-11-22T12:00:01Z"),
        pod("old", 30, node="n1", scheduled="2026-11-22T12:00:02Z"),
    )
    assert free(known) == [left]


# --- several containers ----------------------------------------------------------------------------------------------


# --- computing power -------------------------------------------------------------------------------------------------
def test_a_gpu_needs_room_in_computing_power_where_that_is_shared() -> None:
    known = cache(node_devices("n1", gpu(0, 24, held=2, cores_held=80), gpu(1, 24, held=20, cores_held=10)))
    assert judge(known, pod("p", 4, cores={"main": "50"})).refusal == ""
    assert judge(known, pod("p", 8, cores={"main": "15"})).refusal == ""
    assert judge(known, pod("p", 8, cores={"main": "50"})) == PodFit(
        refusal=f"no single GPU has 8 free units of {MEMORY} and 50 % of its computing power free (where the memory is "
        "free: 21 %)"
    )


def test_a_refusal_says_how_much_computing_power_is_left_and_who_says_nothing_needs_its_part() -> None:
    known = cache(node_devices("n1", *(gpu(n, 24, held=2, cores_held=held) for n, held in enumerate((80, 60, 70)))))
    assert judge(known, pod("p", 4, cores={"main": "50"})).refusal.endswith("(where the memory is free: 41 %)")
    known = cache(node_devices("n1", gpu(0, 24, held=2, cores_held=80)))
    assert judge(known, pod("p", 4)).refusal == ""
    assert judge(known, pod("p", 12)).refusal != ""


def test_three_thirds_of_a_gpu_fit_and_where_cores_are_not_shared_the_annotation_means_nothing() -> None:
    assert judge(cache(node_devices("n1", gpu(0, 24, held=16, cores_held=67))), pod("p", 8)).refusal == ""
    known = cache(node_devices("n1", gpu(0, 24)), pod("coming", 4, node="n1", cores={"main": "90"}))
    assert judge(known, pod("p", 4, cores={"main": "90"})).refusal == ""


def test_what_comes_and_goes_takes_computing_power_and_gives_it_back() -> None:
    coming = pod("coming", 4, node="n1", cores={"main": "70"})
    held = holder("held", 4, cores=20)
    known = cache(node_devices("n1", gpu(0, 24, held, cores_held=20)), coming, pod("held", 4, node="n1"))
    wanted = pod("p", 4, cores={"main": "25"})
    assert judge(known, wanted).refusal != ""
    known.observe_pod(pod("held", 4, node="n1"), gone=True)
    assert judge(known, wanted).refusal == ""
    known = cache(node_devices("n1", gpu(0, 24, cores_held=0)))
    known.observe_pod(coming)
    assert judge(known, pod("p", 4, cores={"main": "50"})).refusal != ""
    known.observe_pod(coming, gone=True)
    assert judge(known, pod("p", 4, cores={"main": "100"})).refusal == ""
    known.observe_pod(pod("other", 4, node="n1", cores={"main": "60"}))
    assert judge(known, pod("p", 4, cores={"main": "40"})).refusal == ""
    assert judge(known, pod("p", 4, cores={"main": "41"})).refusal != "", "as much as it had is given back, and no more"


def test_a_pod_that_says_wrongly_what_it_needs_waits_and_once_bound_counts_as_all_of_a_gpu() -> None:
    wanted = pod("p", 4, cores={"main": "30%"})
    empty = cache(node_devices("n1", gpu(0, 24, cores_held=0)))
    right = 'give a percentage of one device, "1" to "100".'
    assert judge(empty, wanted) == PodFit(
        refusal=f"annotation nodedevices.io/gpu-cores.main: '30%': {right}", never=True
    )
    assert judge(cache(node_devices("n1", gpu(0, 24))), wanted).refusal == ""  # where it is not shared, it is not read
    known = cache(node_devices("n1", gpu(0, 24, cores_held=0)), pod("coming", 4, node="n1", cores={"main": "many"}))
    assert judge(known, pod("p", 4, cores={"main": "1"})).refusal != ""


# --- scores ----------------------------------------------------------------------------------------------------------
@cases(("packing", "scores"), ("binpack", [10, 5, 2]), ("spread", [0, 5, 8]))
def test_the_fuller_the_chosen_gpu_the_higher_its_node_scores_or_with_spread_lower(
    packing: str, scores: list[int]
) -> None:
    found = []
    for held in (16, 8, 2):
        known = cache(node_devices("n1", gpu(0, 20, held=held), packing=packing))
        found.append(judge(known, pod("p", 4 if held == 16 else 2)).score)
    assert found == scores


def test_the_score_is_that_of_the_gpu_which_the_agent_will_choose() -> None:
    packed = cache(node_devices("n1", gpu(0, 20, held=10), gpu(1, 20)))
    spread = cache(node_devices("n1", gpu(0, 20, held=10), gpu(1, 20), packing="spread"))
    assert judge(packed, pod("p", 10)).score == 10
    assert judge(spread, pod("p", 10)).score == 5


@cases(("packing", "score"), ("binpack", 7), ("spread", 3))
def test_of_several_chosen_gpus_the_score_is_the_middle(packing: str, score: int) -> None:
    known = cache(node_devices("n1", gpu(0, 20), gpu(1, 20), packing=packing))
    assert judge(known, pod("p", container("a", 12), container("b", 16))).score == score


@cases(("total", "free"), (24, 30), (0, 30), (0, 5))
@cases(("packing", "score"), ("binpack", 0), ("spread", 10))
def test_a_gpu_with_more_free_than_it_has_scores_as_empty(total: int, free: int, packing: str, score: int) -> None:
    known = cache(node_devices("n1", gpu(0, total, free=free, held=0), packing=packing))
    table = there(known.table("n1", MEMORY, 1.0))
    assert table.score(requests_of(pod("p", 4), {MEMORY})[MEMORY]) == score
    assert judge(known, pod("p", container("a", 2), container("b", 2))).score == score


# --- what is not known -----------------------------------------------------------------------------------------------
def test_nothing_is_known_of_a_node_that_is_stale_overdue_or_says_nothing_of_what_is_free() -> None:
    known = cache(node_devices("n1", gpu(0, 24)), node_devices("n2", gpu(0, 24), stale=True))
    assert known.table("n1", MEMORY, 1.0) is not None
    assert known.table("n2", MEMORY, 1.0) is None
    assert known.table("n3", MEMORY, 1.0) is None
    known = cache(node_devices("n1", gpu(0, 24)))
    assert known.table("n1", MEMORY, 899.0) is not None
    assert known.table("n1", MEMORY, 900.0) is None
    known.observe_node(node_devices("n1", gpu(0, 24), heartbeat="2026-11-22T12:15:00Z"), 901.0)
    assert known.table("n1", MEMORY, 901.0) is not None
    old = gpu(0, 24)
    del old["shares"]["free"]
    assert cache(node_devices("n1", old)).table("n1", MEMORY, 1.0) is None


def test_shares_that_are_no_amounts_of_memory_are_none_of_its_business() -> None:
    sliced = node_devices("n1", gpu(0, 4))
    del sliced["status"]["resources"][0]["unit"]
    assert cache(sliced).resources == frozenset()


def test_a_resource_is_judged_once_the_pods_that_request_it_are_known() -> None:
    known = cache(node_devices("n1", gpu(0, 24)))
    wanted: list[bool] = []
    known.pods_wanted = lambda: wanted.append(True)
    known.observe_node(node_devices("n2", gpu(0, 24, resource=OTHER)), 1.0)
    assert wanted
    assert known.table("n2", OTHER, 1.0) is None
    listed = there(known.read_pod(pod("p", 20, node="n2", resource=OTHER), known.resources, arrival=0))
    known.replace_pods([listed], known.resources)
    table = there(known.table("n2", OTHER, 1.0))
    assert list(table.free.values()) == [4]


# --- changes ---------------------------------------------------------------------------------------------------------
def test_every_change_of_a_pod_or_a_node_devices_shows_in_the_next_answer() -> None:
    known = cache(node_devices("n1", gpu(0, 24)))
    assert free(known) == [24]
    known.observe_pod(pod("p", 10, node="n1"))
    assert free(known) == [14]
    known.observe_node(node_devices("n1", gpu(0, 24, holder("p", 10))), 1.0)
    assert free(known) == [14]
    known.observe_pod(pod("p", 10, node="n1", phase="Succeeded"), gone=True)
    assert free(known) == [24]
    known.observe_node(node_devices("n1", gpu(0, 24)), 1.0)
    assert free(known) == [24]
    known.observe_node(node_devices("n1"), 1.0, gone=True)
    assert known.table("n1", MEMORY, 1.0) is None


def test_only_pods_that_run_and_request_memory_are_remembered() -> None:
    known = cache(node_devices("n1", gpu(0, 24)), pod("p", 10, node="n1"))
    known.observe_pod(pod("p", 10, node="n1", phase="Failed"))
    assert (free(known), known.sizes()) == ([24], (1, 0))
    plain = pod("plain", container("main", 0), node="n1")
    known = cache(node_devices("n1", gpu(0, 24)), plain, pod("other", 1, node="n1", resource="nvidia.com/gpu"))
    known.observe_pod(plain)
    assert known.sizes() == (1, 0)


# --- hostile input ---------------------------------------------------------------------------------------------------
BY_MEMORY = {"name": "a/b", "unit": "1Gi"}


@cases(
    "status",
    None,
    [],
    {"devices": None},
    {"devices": [None, 7, {"shares": 7}, {"shares": {"resource": 7, "free": 1}}], "resources": {"a": 1}},
    {"devices": [{"shares": {"resource": "a/b", "free": "many"}, "holders": {}}], "resources": [None, BY_MEMORY]},
    {"devices": [{"parent": {"a": 1}, "health": []}], "conditions": 7, "agent": []},
    {"devices": [{"health": {"state": []}, "shares": {"resource": "a/b", "free": 1}}], "resources": [{}]},
)
def test_an_odd_status_says_nothing_and_hurts_nobody(status: Any) -> None:
    known = cache(node_devices("n1", gpu(0, 24)))
    known.observe_node({"metadata": {"name": "odd"}, "status": status}, 1.0)
    assert known.table("odd", MEMORY, 1.0) is None
    assert free(known) == [24]


@cases("odd", {}, {"spec": None}, {"spec": {"containers": "x"}}, {"spec": {"containers": [1]}})
def test_a_pod_that_is_none_requests_nothing(odd: dict[str, Any]) -> None:
    assert requests_of(odd, {MEMORY}) == {}


def test_requests_for_other_resources_are_left_out_and_a_node_of_unlisted_partitions_passes() -> None:
    spec = {"containers": [{"name": "a", "resources": {"requests": {"cpu": "2", MEMORY: "3", OTHER: "1"}}}]}
    assert requests_of({"spec": spec}, {MEMORY}).keys() == {MEMORY}
    # They may have room; a report is cut where etcd would refuse it.
    cut = node_devices("n1", gpu(0, 24))
    cut["status"]["partitionsTruncated"] = 3
    assert cache(cut).table("n1", MEMORY, 1.0) is None


@given(st.data())
def test_whatever_stands_at_any_place_of_an_object_nothing_is_raised(data: st.DataObject) -> None:
    """Who may create pods writes their annotations; an object that raises would end the watch for all."""
    bound = pod("a", 4, init=[container("fetch", 2)], node="n1", cores={"main": "30"})
    node = node_devices("n1", gpu(0, 24, holder("a", 4, cores=30), cores_held=30, truncated=1), stale=True)
    for thing in (bound, node):
        odd = data.draw(with_odd_value(thing))
        known = cache(node_devices("n1", gpu(0, 24, cores_held=0)))
        if thing is bound:
            known.observe_pod(odd)
        else:
            known.observe_node(odd, 1.0)
            known.observe_pod(bound)
        table = known.table("n1", MEMORY, 1.0)
        if table is not None:
            request = requests_of(bound, {MEMORY})[MEMORY]
            assert isinstance(table.fits(request), bool)
            assert 0 <= table.score(request) <= 10
        known.observe_pod(odd if thing is bound else bound, gone=True)


# --- what is remembered ----------------------------------------------------------------------------------------------
def test_whatever_is_requested_a_table_remembers_a_few_answers_only() -> None:
    table = there(cache(node_devices("n1", gpu(0, 24))).table("n1", MEMORY, 1.0))
    longest = 0
    for size in range(1, 40):
        request = requests_of(pod("p", size), {MEMORY})[MEMORY]
        table.outcome(request)
        table.score(request)
        remembered = (getattr(table, each.name) for each in fields(table))
        longest = max(longest, *(len(each) for each in remembered if isinstance(each, dict)))
    assert longest == MAX_OUTCOMES


def test_pods_that_are_gone_leave_nothing_behind() -> None:
    known = cache(node_devices("n1", gpu(0, 24), gpu(1, 24)), pod("stays", container("only", 3), node="n1"))
    for number in range(100):
        one = pod(f"p{number}", container(f"step-{number}", 1), node="n1")
        known.observe_pod(one)
        known.observe_pod(one, gone=True)
    assert known.sizes() == (1, 1)
    assert free(known) == [21, 24]
