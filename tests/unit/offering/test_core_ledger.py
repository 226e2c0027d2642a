"""The booking of computing power, one rule at a time: who an Allocate may be for, what a device has left for it, and
what the kubelet's answers change. test_core_shares.py has what follows from all of them together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from msgspec.structs import replace
from nodedevices_common.pod_requests import ALL, Demand
from nodedevices_plugin.cores.ledger import (
    Booking,
    CoreShares,
    Ledger,
    Owner,
    Recorded,
    Room,
    Wanted,
    check_claims,
    claims,
    exact,
    freed,
    granted,
    resolved,
    room,
    wanted,
)
from nodedevices_plugin.model import AllocationError, Holder, NodePod, PodContainer
from support.cases import cases
from support.cores import MEMORY, offered
from support.facts import START, gpu_id

A, B = gpu_id(0), gpu_id(1)
SHARES = CoreShares.from_resource(offered(8, 8))
NOTHING_HELD = Ledger(complete=True)


def ids(device: str, *numbers: int) -> frozenset[str]:
    return frozenset(f"{device}::1Gi.{each}" for each in numbers)


def pod(name: str, cores: str | None, size: int = 2, **more: Any) -> NodePod:
    started = more.pop("started", False)
    container = PodContainer(name="main", requests={MEMORY: size}, cores=cores, started=started)
    return NodePod(uid=f"uid-{name}", namespace="ml", name=name, containers=(container,), **more)


def owner(name: str) -> Owner:
    return Owner(f"uid-{name}", "ml", name, "main")


def needs(ledger: Ledger, *pods: NodePod, size: int = 2, of: frozenset[str] = frozenset()) -> Wanted:
    return wanted(ledger, claims(pods, MEMORY), size, ids=of)


def after(ledger: Ledger, of: frozenset[str], *pods: NodePod, at: float = 10.0) -> Ledger:
    """An Allocate of these ids, with these pods known."""
    return granted(ledger, SHARES, needs(ledger, *pods, size=len(of), of=of), of, at=at)


def left(ledger: Ledger, shares: CoreShares = SHARES) -> dict[str, int]:
    return dict(room(ledger, shares, Wanted(demand=Demand(percent=1))).left)


def fits(ledger: Ledger, demand: Demand, shares: CoreShares = SHARES) -> frozenset[str]:
    return room(ledger, shares, Wanted(demand=demand)).fits


def shown(
    ledger: Ledger,
    *holders: tuple[str, frozenset[str]],
    pods: Iterable[NodePod] = (),
    taken: float = 20.0,
    recorded: Mapping[frozenset[str], Recorded] | None = None,
) -> Ledger:
    """A List that was called at `taken`: pods, by name, and their ids."""
    known = tuple(pods)
    listed = [
        Holder(namespace="ml", pod=name, container="main", resource=MEMORY, ids=tuple(sorted(of)), since=START)
        for name, of in holders
    ]
    by_name = {(each.namespace, each.name): each for each in known}
    return resolved(ledger, SHARES, listed, claims(known, MEMORY), taken=taken, pods=by_name, recorded=recorded or {})


def owners(ledger: Ledger) -> dict[frozenset[str], tuple[Owner | None, Demand]]:
    return {each.ids: (each.owner, each.demand) for each in ledger.bookings}


# --- whom an Allocate may be for --------------------------------------------------------------------------------------
def test_what_is_needed_is_the_largest_demand_of_pods_that_still_wait_for_as_much() -> None:
    need = needs(NOTHING_HELD, pod("a", "30"), pod("b", "60"), pod("other", "90", size=3))
    assert (need.demand, need.known) == (Demand(percent=60), True)
    done, runs, has = pod("done", "90", finished=True), pod("runs", "80", started=True), pod("has", "70")
    ledger = shown(after(NOTHING_HELD, ids(A, 0, 1), has), ("has", ids(A, 0, 1)), pods=[has])
    need = needs(ledger, done, runs, has, pod("new", "10"))
    assert [each.owner for each in need.claims] == [owner("new")]


def test_every_allocate_of_that_size_with_an_unknown_container_leaves_one_candidate_fewer() -> None:
    pods = (pod("a", "30"), pod("b", "60"))
    one = after(NOTHING_HELD, ids(A, 0, 1), *pods)
    assert needs(one, *pods).known
    two = after(one, ids(A, 2, 3), *pods)
    assert needs(two, *pods) == Wanted(demand=ALL, known=False)
    assert needs(one, *pods, of=ids(A, 0, 1)).known, "those ids are allocated once more: their holder has ended"


def test_allocates_of_other_sizes_and_those_before_this_agent_leave_the_candidates_as_they_are() -> None:
    one = pod("a", "30")
    others = Ledger(
        complete=True,
        bookings=(
            Booking(ids=ids(A, 0, 1, 2), device=A, demand=Demand(percent=10), at=5.0),
            Booking(ids=ids(A, 3, 4), device=A, demand=ALL),
        ),
    )
    assert needs(others, one).known


def test_a_request_is_refused_when_none_of_its_candidates_can_be_met_and_not_when_one_can() -> None:
    wrong, right = pod("wrong", "many"), pod("right", "30")
    check_claims(MEMORY, needs(NOTHING_HELD, wrong, right))
    check_claims(MEMORY, needs(NOTHING_HELD))
    with pytest.raises(AllocationError, match=r"pod ml/wrong: annotation .*'many'"):
        check_claims(MEMORY, needs(NOTHING_HELD, wrong))
    assert needs(NOTHING_HELD, wrong, right).demand == ALL, "it may be for the wrong one, which may start one day"
    assert exact(needs(NOTHING_HELD, wrong, right), 8) is None


def test_a_container_is_told_its_percentage_and_a_demand_fits_exactly_what_is_left() -> None:
    assert exact(needs(NOTHING_HELD, pod("a", None, size=3), size=3), 8) == 38, "37.5 is rounded up"
    assert exact(needs(NOTHING_HELD, pod("a", "25"), pod("b", None)), 8) == 25
    assert exact(needs(NOTHING_HELD, pod("a", "26"), pod("b", None)), 8) is None
    assert exact(needs(NOTHING_HELD), 8) is None
    ledger = after(NOTHING_HELD, ids(A, 0, 1), pod("a", "70"))
    assert left(ledger) == {A: 30, B: 100}
    assert fits(ledger, Demand(percent=30)) == {A, B}
    assert fits(ledger, Demand(percent=31)) == {B}


# --- what a device has left -------------------------------------------------------------------------------------------


def test_each_allocate_counts_once_by_the_largest_demands_of_candidates_that_are_left() -> None:
    pods = (pod("a", "30"), pod("b", "50"), pod("c", "10"))
    one = after(NOTHING_HELD, ids(A, 0, 1), *pods)
    assert left(one)[A] == 50
    assert left(after(one, ids(A, 2, 3), *pods))[A] == 20, "one of 50 and one of 30, whichever is which"
    two = pods[:2]
    both = after(after(NOTHING_HELD, ids(A, 0, 1), *two), ids(B, 0, 1), *two)
    known = shown(both, ("b", ids(B, 0, 1)), pods=two)
    assert left(known) == {A: 70, B: 50}
    two = (pod("a", "30"), pod("b", "40"))
    both = after(after(NOTHING_HELD, ids(A, 0, 1), *two), ids(A, 2, 3), *two)
    gone = replace(both, bookings=(*both.bookings, Booking(ids=ids(B, 0), device=B, demand=ALL, owner=owner("a"))))
    assert left(gone)[A] == 20, "40 twice: one of the two was for a container that is no candidate"


def test_a_gpu_of_an_unknown_container_or_an_unmet_request_has_no_room_at_all() -> None:
    unknown = replace(NOTHING_HELD, unknown=ids(A, 0))
    assert left(unknown) == {A: 0, B: 100}
    single = CoreShares.from_resource(offered(1, 1))
    taken = replace(NOTHING_HELD, unknown=frozenset({f"{A}::1Gi.0"}))
    assert left(taken, single) == {A: 0, B: 100}
    assert fits(taken, Demand(percent=1), single) == {B}
    booked = replace(NOTHING_HELD, bookings=(Booking(ids=frozenset({f"{A}::1Gi.0"}), device=A, demand=ALL),))
    assert left(booked, single) == {A: 0, B: 100}
    wrong = pod("wrong", "many", acknowledged=True)
    right = pod("right", "30")
    booked = after(NOTHING_HELD, ids(A, 0, 1), wrong, right)
    assert owners(shown(booked, ("wrong", ids(A, 0, 1)), pods=[wrong]))[ids(A, 0, 1)] == (owner("wrong"), ALL)
    assert owners(shown(Ledger(), ("wrong", ids(A, 0, 1)), pods=[wrong]))[ids(A, 0, 1)] == (owner("wrong"), ALL)


def test_ids_that_are_offered_no_more_or_booked_or_broken_take_no_room_of_others() -> None:
    gone = replace(
        NOTHING_HELD,
        unknown=frozenset({"GPU-gone::1Gi.0"}),
        bookings=(Booking(ids=frozenset({"GPU-gone::1Gi.1"}), device="GPU-gone", demand=ALL),),
    )
    assert left(gone) == {A: 100, B: 100}
    booked = after(NOTHING_HELD, ids(A, 0, 1), pod("a", "30"))
    assert freed(booked, SHARES, [*ids(A, *range(2, 8))], frozenset(), at=11.0).unknown == frozenset()
    broken = replace(SHARES, healthy=SHARES.healthy - ids(A, 7))
    free = [*ids(A, *range(7))]
    assert freed(NOTHING_HELD, broken, free, frozenset(), at=11.0).unknown == frozenset()
    assert freed(NOTHING_HELD, broken, free, ids(A, 7), at=11.0).unknown == ids(A, 7), "a pod holds it nevertheless"


def test_a_refusal_says_what_is_needed_and_what_the_device_has() -> None:
    some = room(NOTHING_HELD, SHARES, Wanted(demand=Demand(percent=30)))
    assert (some.needed_text, some.left_text(A)) == ("30 % of its computing power free", "100 %")
    assert some.left_text("GPU-gone") == "0 %"
    by_memory = Room(wanted=Wanted(demand=Demand(units=2)), left={}, fits=frozenset())
    assert by_memory.needed_text == "as large a part of its computing power free"
    unseen = Room(wanted=Wanted(demand=ALL, known=False), left={}, fits=frozenset())
    assert unseen.needed_text == ("100 % of its computing power free (all of it: this agent has not seen the pod yet)")


# --- what the kubelet calls free --------------------------------------------------------------------------------------
def test_after_a_start_a_gpu_is_full_of_what_the_kubelet_does_not_call_free() -> None:
    assert left(Ledger()) == {A: 0, B: 0}
    known = freed(Ledger(), SHARES, [*ids(A, *range(8))], frozenset(), at=1.0)
    assert left(known) == {A: 100, B: 0}
    assert left(freed(known, SHARES, [*ids(B, *range(8))], frozenset(), at=2.0)) == {A: 100, B: 100}
    ledger = freed(Ledger(), SHARES, [*ids(A, *range(7)), *ids(B, *range(8))], frozenset(), at=1.0)
    assert (ledger.unknown, left(ledger)) == (ids(A, 7), {A: 0, B: 100})
    again = freed(ledger, SHARES, [*ids(A, *range(8))], frozenset(), at=2.0)
    assert left(again) == {A: 100, B: 100}


def test_a_booking_ends_when_all_its_ids_are_free_and_ids_of_an_earlier_unit_are_passed_over() -> None:
    booked = after(NOTHING_HELD, ids(A, 0, 1), pod("a", "30"))
    assert freed(booked, SHARES, [*ids(A, 0, *range(2, 8))], frozenset(), at=11.0).bookings == booked.bookings
    assert freed(booked, SHARES, [*ids(A, 0, 1)], frozenset(), at=11.0).bookings == ()
    free = [*ids(A, *range(8)), f"{A}::2Gi.0"]
    assert left(freed(Ledger(), SHARES, free, frozenset(), at=1.0)) == {A: 100, B: 0}


def test_of_a_gpu_left_out_nothing_is_learned_and_a_list_shows_whose_an_allocate_was() -> None:
    """It names only ids of the NUMA nodes that the container is bound to."""
    unknown = replace(NOTHING_HELD, unknown=ids(A, 0) | {"GPU-gone::1Gi.0"})
    after_b = freed(unknown, SHARES, [*ids(B, *range(8))], frozenset(), at=11.0)
    assert after_b.unknown == unknown.unknown
    booked = replace(unknown, bookings=(Booking(ids=ids(A, 0), device=A, demand=ALL),))
    assert freed(booked, SHARES, [*ids(B, *range(8))], frozenset(), at=11.0).unknown == {"GPU-gone::1Gi.0"}
    pods = (pod("a", "30"), pod("b", "60"))
    ledger = shown(after(NOTHING_HELD, ids(A, 0, 1), *pods), ("a", ids(A, 0, 1)), pods=pods)
    assert owners(ledger) == {ids(A, 0, 1): (owner("a"), Demand(percent=30))}


# --- who has what -----------------------------------------------------------------------------------------------------


@cases("taken", 9.0, 10.0)
def test_a_list_that_is_not_younger_than_the_allocate_shows_who_had_the_ids_before(taken: float) -> None:
    pods = (pod("a", "30"), pod("b", "60"))
    booked = after(NOTHING_HELD, ids(A, 0, 1), *pods, at=10.0)
    assert shown(booked, ("a", ids(A, 0, 1)), pods=pods, taken=taken) == booked


@cases(("taken", "booked"), (9.0, False), (10.0, False), (10.1, True))
def test_a_holder_that_is_not_booked_counts_by_a_list_after_the_answer(taken: float, booked: bool) -> None:
    ledger = freed(Ledger(), SHARES, [*ids(A, *range(2, 8))], frozenset(), at=10.0)
    found = shown(ledger, ("a", ids(A, 0, 1)), taken=taken)
    assert [each.device for each in found.bookings] == [A] * booked
    assert found.unknown == (frozenset() if booked else ids(A, 0, 1))
    assert shown(Ledger(), ("a", ids(B, 1)), taken=0.5).bookings[0].at == 0.0


def test_what_is_no_holder_of_these_shares_hides_none_after_it() -> None:
    one = pod("a", "30")
    booked = after(NOTHING_HELD, ids(A, 0, 1), one)
    mine = ("a", ids(A, 0, 1))
    for odd in (
        ("none", frozenset[str]()),
        ("old", frozenset({f"{A}::2Gi.0"})),
        ("half", frozenset({f"{A}::1Gi.5", f"{A}::2Gi.0"})),
        ("others", ids(A, 0, 1, 2)),
        ("unseen", ids(A, 0, 1)),
    ):
        assert owners(shown(booked, odd, mine, pods=[one]))[ids(A, 0, 1)] == (owner("a"), Demand(percent=30)), odd
    stale = replace(booked, asked=30.0)
    assert owners(shown(stale, ("new", ids(B, 0)), mine, pods=[one])) == {mine[1]: (owner("a"), Demand(percent=30))}
    known = shown(booked, mine, pods=[one])
    two = after(known, ids(B, 0, 1), pod("b", "60"))
    both = shown(two, mine, ("b", ids(B, 0, 1)), pods=[one, pod("b", "60")])
    assert owners(both)[ids(B, 0, 1)] == (owner("b"), Demand(percent=60))
    unlisted = shown(Ledger(), ("new", ids(B, 0)), mine, pods=[one])
    assert owners(unlisted).keys() == {ids(B, 0), ids(A, 0, 1)}


def test_a_booking_is_of_one_container_which_has_one() -> None:
    pods = (pod("a", "30"), pod("b", "60"))
    booked = after(NOTHING_HELD, ids(A, 0, 1), *pods)
    assert owners(shown(booked, ("b", ids(A, 1, 2)), pods=pods)) == {ids(A, 0, 1): (None, Demand(percent=60))}
    known = shown(booked, ("a", ids(A, 0, 1)), pods=pods)
    assert owners(shown(known, ("b", ids(A, 0, 1)), pods=pods)) == owners(known), "the kubelet gave them twice"
    # Its ids before a restart of the kubelet that lost its record, and those after it.
    one, other = pod("a", "30"), pod("b", "30")
    known = shown(after(NOTHING_HELD, ids(A, 0, 1), one), ("a", ids(A, 0, 1)), pods=[one])
    again = granted(known, SHARES, Wanted(demand=ALL, claims=claims([one, other], MEMORY)), ids(B, 0, 1), at=30.0)
    found = shown(again, ("a", ids(B, 0, 1)), pods=[one, other], taken=40.0)
    assert owners(found)[ids(B, 0, 1)] == (None, ALL)


def test_a_container_with_all_the_shares_of_a_node_is_booked_like_any_other() -> None:
    one = CoreShares.from_resource(offered(2))
    found = resolved(
        NOTHING_HELD,
        one,
        [Holder(namespace="ml", pod="a", container="main", resource=MEMORY, ids=tuple(one.device_of), since=START)],
        (),
        taken=20.0,
        pods={},
        recorded={},
    )
    assert [each.ids for each in found.bookings] == [ids(A, 0, 1)]


@cases(("seen", "known"), (9.0, False), (10.0, False), (10.1, True))
def test_who_was_no_candidate_is_known_by_its_name_only_if_seen_after_the_allocate(seen: float, known: bool) -> None:
    """One that was seen before is an earlier one with the same name."""
    booked = after(NOTHING_HELD, ids(A, 0, 1), at=10.0)
    late = pod("late", "30", seen=seen)
    [(found, _)] = owners(shown(booked, ("late", ids(A, 0, 1)), pods=[late])).values()
    assert found == (owner("late") if known else None)


@cases(
    ("known", "booked"),
    ({"acknowledged": True}, (owner("a"), Demand(percent=90))),
    ({"started": True}, (owner("a"), Demand(percent=90))),
    ({}, (None, ALL)),
)
def test_before_this_agent_a_container_had_its_shares_if_the_kubelet_has_admitted_its_pod(
    known: dict[str, bool], booked: tuple[Owner | None, Demand]
) -> None:
    one = pod("a", "90", **known)
    assert owners(shown(Ledger(), ("a", ids(A, 0, 1)), pods=[one])) == {ids(A, 0, 1): booked}


@cases(
    ("uid", "container", "booked"),
    ("uid-a", "main", (owner("a"), Demand(percent=30))),
    ("uid-earlier", "main", (None, ALL)),
    ("uid-a", "side", (None, ALL)),
)
def test_what_was_recorded_of_the_same_container_counts_and_of_another_not(
    uid: str, container: str, booked: tuple[Owner | None, Demand]
) -> None:
    of = ids(A, 0, 1)
    written = Recorded(owner=Owner(uid, "ml", "a", container), demand=Demand(percent=30))
    edited = pod("a", "90")
    first = shown(Ledger(), ("a", of), pods=[edited], recorded={of: written})
    assert owners(first) == {of: booked}
    later = shown(shown(Ledger(), ("a", of)), ("a", of), pods=[edited], recorded={of: written})
    assert owners(later) == {of: booked}, "also where the pods are known after the List"
