"""The book of computing power, one rule at a time: from when on it knows what is held, what it says before a start and
what it shows. test_core_shares.py has whole stories."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from nodedevices_common.pod_requests import Demand
from nodedevices_plugin.cores.book import Allocated, CoreBook, Start
from nodedevices_plugin.cores.ledger import Owner, Recorded
from nodedevices_plugin.model import (
    AllocationError,
    CoresHeld,
    Holder,
    HoldersState,
    Holdings,
    NodePod,
    NodePods,
    Offer,
    OfferedResource,
    PodContainer,
)
from support.cases import cases
from support.cores import MEMORY, offered
from support.facts import START, gpu_id
from support.there import there

A, B = gpu_id(0), gpu_id(1)
RESOURCE = offered(8, 8)
EVERY = [each.id for each in RESOURCE.ids]
OTHER_UNIT = replace(RESOURCE, ids=tuple(replace(each, id=each.id.replace("1Gi", "2Gi")) for each in RESOURCE.ids))
BEGUN = 100.0  # when the agent was started


def ids(device: str, *numbers: int, unit: str = "1Gi") -> tuple[str, ...]:
    return tuple(f"{device}::{unit}.{each}" for each in numbers)


def pod(name: str, cores: str | None = None, size: int = 2, uid: str = "", **more: Any) -> NodePod:
    container = PodContainer(name="main", requests={MEMORY: size}, cores=cores, started=more.pop("started", False))
    return NodePod(uid=uid or f"uid-{name}", namespace="ml", name=name, containers=(container,), **more)


def holder(name: str, of: tuple[str, ...], resource: str = MEMORY) -> Holder:
    return Holder(namespace="ml", pod=name, container="main", resource=resource, ids=of, since=START)


def record(name: str, **other: str) -> Recorded:
    known = {"uid": f"uid-{name}", "namespace": "ml", "pod": name, "container": "main"} | other
    return Recorded(owner=Owner(**known), demand=Demand(percent=30))


def holdings(
    *holders: Holder, taken: float, state: HoldersState = HoldersState.SYNCED, possible: tuple[Offer, ...] = ()
) -> Holdings:
    return Holdings(state=state, holders=holders, taken=taken, possible=possible)


class Books:
    """The book at a time that only the test moves."""

    def __init__(self, *resources: OfferedResource) -> None:
        self.now = BEGUN
        self.book = CoreBook(clock=lambda: self.now)
        self.book.use(resources or (RESOURCE,))

    def knows_what_is_held(self) -> None:
        self.now += 10
        self.book.observe(holdings(taken=self.now))

    def pods(self, *pods: NodePod) -> None:
        self.book.observe_pods(NodePods(pods=pods))

    def granted(self, of: tuple[str, ...]) -> int | None:
        self.now += 1
        return self.book.grant(MEMORY, of)

    def shows(self, *holders: Holder, after: float = 1.0, **more: Any) -> None:
        self.now += after
        self.book.observe(holdings(*holders, taken=self.now, **more))

    def start(self, of: tuple[str, ...]) -> Start:
        return self.book.start(MEMORY, of)

    def left(self) -> dict[str, int]:
        """What each device has left for one more pod, or 100 where its pod is not known."""
        room = there(self.book.prefer(MEMORY, [], (), 1))
        return dict(room.left)


@pytest.fixture
def books() -> Books:
    made = Books()
    made.knows_what_is_held()
    return made


# --- which resources --------------------------------------------------------------------------------------------------
def test_where_computing_power_is_not_shared_nothing_is_asked_and_nothing_booked() -> None:
    whole = replace(RESOURCE, sharing=replace(RESOURCE.sharing, cores=False))
    for books in (Books(whole), Books(replace(RESOURCE, name="example.com/other"))):
        assert books.book.knows(MEMORY, 2)
        assert books.book.prefer(MEMORY, EVERY, (), 2) is None
        assert books.book.grant(MEMORY, ids(A, 0)) is None
        assert books.start(ids(A, 0)) == Start()
    assert Books(whole).book.held() == CoresHeld()


def test_a_resource_that_is_no_longer_shared_is_forgotten_and_begins_anew(books: Books) -> None:
    books.pods(pod("a", "30"))
    books.granted(ids(A, 0, 1))
    books.book.use(())
    assert books.book.knows(MEMORY, 2)
    assert (books.book.held(), books.book.allocated()) == (CoresHeld(), ())
    books.book.use((RESOURCE,))
    assert books.left() == {A: 0, B: 0}, "what was held meanwhile is not known"
    assert books.book.knows(MEMORY, 2), "the pods are"
    assert not books.book.knows(MEMORY, 3)


def test_a_gpu_that_comes_has_all_of_its_computing_power(books: Books) -> None:
    books.book.use((offered(8, 8, 8),))
    assert books.left() == {A: 100, B: 100, gpu_id(2): 100}


# --- from when on it is known what is held ----------------------------------------------------------------------------
@cases(
    ("taken", "state", "left"),
    (BEGUN + 0.5, HoldersState.SYNCED, 0),
    (BEGUN + 0.6, HoldersState.SYNCED, 100),
    (BEGUN + 60.0, HoldersState.INCOMPLETE, 0),
)
def test_after_a_start_a_gpu_is_full_until_a_complete_list_could_show_every_earlier_allocate(
    taken: float, state: HoldersState, left: int
) -> None:
    """Half a second: the kubelet records an Allocate some milliseconds after its answer."""
    books = Books()
    books.book.observe(holdings(taken=taken, state=state))
    assert books.left() == {A: left, B: left}


def test_a_list_older_than_what_the_kubelet_called_free_completes_nothing() -> None:
    books = Books()
    books.now += 10
    books.book.prefer(MEMORY, [*ids(A, *range(2, 8))], (), 2)
    books.book.observe(holdings(taken=books.now))
    assert books.left() == {A: 0, B: 0}
    books.shows(holder("a", ids(A, 0, 1)))
    books.pods(pod("a", "30", acknowledged=True))
    assert books.left() == {A: 70, B: 100}


GONE = pod("web-0", "90", uid="gone", finished=True, seen=200.0)
NEW = pod("web-0", "30", uid="new", seen=105.0)


@pytest.mark.parametrize("order", [(GONE, NEW), (NEW, GONE)])
def test_of_two_pods_of_one_name_the_unfinished_has_the_shares(books: Books, order: tuple[NodePod, NodePod]) -> None:
    books.pods(*order)
    books.granted(ids(A, 0, 1))
    books.shows(holder("web-0", ids(A, 0, 1)))
    assert books.book.held().devices[A] == 30
    assert [each.owner for each in books.book.allocated()] == [Owner("new", "ml", "web-0", "main")]


# --- ids that are offered no more -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("later", "still"),
    [
        ({"after": 0.4}, 30),
        ({"after": 0.5}, 0),
        ({"after": 60.0, "state": HoldersState.UNAVAILABLE}, 30),
        ({"after": 60.0, "possible": (Offer(resource=MEMORY, ids=ids(A, 0, 1)),)}, 30),
        ({"after": 60.0, "possible": (Offer(resource="example.com/other", ids=ids(A, 0, 1)),)}, 0),
    ],
)
def test_a_booking_of_an_earlier_unit_of_memory_ends_when_a_list_could_show_it_and_nothing_does(
    books: Books, later: dict[str, Any], still: int
) -> None:
    """The kubelet never calls such ids free."""
    books.pods(pod("a", "30"))
    books.granted(ids(A, 0, 1))
    books.book.use((OTHER_UNIT,))
    books.shows(**later)
    assert books.left() == {A: 100 - still, B: 100}


def test_what_is_written_down_for_a_container_stays_when_its_gpu_is_no_longer_offered(books: Books) -> None:
    books.pods(pod("a", "30"))
    books.granted(ids(B, 0, 1))
    books.shows(holder("a", ids(B, 0, 1)))
    assert [each.cores for each in books.book.allocated()] == [30]
    books.book.use((offered(8),))
    books.shows(holder("a", ids(B, 0, 1)), after=60.0)
    assert books.book.allocated() == ()


def test_a_booking_that_no_list_shows_ends_with_the_change_of_the_unit_of_memory(books: Books) -> None:
    books.pods(pod("a", "30"))
    books.granted(ids(A, 0, 1))
    books.shows(after=60.0)
    books.book.use((OTHER_UNIT,))
    assert books.left() == {A: 100, B: 100}


def test_a_booking_of_offered_ids_ends_by_no_list(books: Books) -> None:
    books.pods(pod("a", "30"))
    books.granted(ids(A, 0, 1))
    books.shows(after=60.0)
    assert books.left()[A] == 70


def test_a_held_id_of_an_earlier_unit_keeps_its_booking_and_its_container_starts_again(books: Books) -> None:
    books.pods(pod("a", "30"))
    books.granted(ids(A, 0, 1))
    books.book.use((OTHER_UNIT,))
    books.shows(holder("a", ids(A, 0, 1)), after=60.0)
    assert books.left()[A] == 70
    assert books.start(ids(A, 0, 1)) == Start(), "what is written down for it stays"
    assert books.book.allocated() == (), "and no other amount of memory takes its place"
    assert books.book.held().devices == {A: 0, B: 0}, "shown are the shares that are offered"
    books.pods(pod("a", "30"), pod("b", "20", size=1))
    books.granted(ids(B, 0, unit="2Gi"))
    assert books.book.held().devices == {A: 0, B: 20}


# --- an Allocate ------------------------------------------------------------------------------------------------------
def test_an_allocate_is_refused_where_the_gpu_has_not_what_is_needed(books: Books) -> None:
    books.pods(pod("a", "70"), pod("b", "40", size=3))
    assert books.granted(ids(A, 0, 1)) == 70
    with pytest.raises(
        AllocationError, match=r"does not have 40 % of its computing power free; it has 30 %\. Delete the pod"
    ):
        books.granted(ids(A, 2, 3, 4))
    assert books.granted(ids(B, 2, 3, 4)) == 40
    books.pods(pod("wrong", "many", size=4))
    with pytest.raises(AllocationError, match="'many'"):
        books.granted(ids(B, 4, 5, 6, 7))


def test_what_an_init_container_had_is_not_free_for_another_and_is_for_its_pod(books: Books) -> None:
    books.pods(pod("a", "60"), pod("b", "70"))
    books.granted(ids(A, 0, 1))
    free = [each for each in EVERY if each not in ids(A, 0, 1)]
    mine = there(books.book.prefer(MEMORY, [*free, *ids(A, 0, 1)], ids(A, 0, 1), 2))
    assert dict(mine.left) == {A: 100, B: 100}
    other = there(books.book.prefer(MEMORY, free, (), 2))
    assert dict(other.left) == {A: 30, B: 100}


# --- a start ----------------------------------------------------------------------------------------------------------
def test_a_container_starts_when_it_is_known_with_its_own_demand(books: Books) -> None:
    books.pods(pod("a", "30"), pod("b", "60"))
    books.granted(ids(A, 0, 1))
    waits = books.start(ids(A, 0, 1))
    assert (waits.wait, waits.allocated) == (True, None)
    assert waits.refusal.endswith(
        "which pod these shares are for (the kubelet does not list them yet); the kubelet tries again"
    )
    books.shows(holder("a", ids(A, 0, 1)))
    assert books.start(ids(A, 0, 1)) == Start(
        allocated=Allocated(
            resource=MEMORY,
            device=A,
            ids=frozenset(ids(A, 0, 1)),
            owner=Owner("uid-a", "ml", "a", "main"),
            demand=Demand(percent=30),
            cores=30,
            memory_mib=2048,
            memory_total_mib=8192,
        )
    )


def test_a_container_with_all_shares_that_there_are_starts_with_its_own_demand() -> None:
    books = Books(offered(2))
    books.knows_what_is_held()
    books.pods(pod("a", "30"))
    books.granted(ids(A, 0, 1))
    books.shows(holder("a", ids(A, 0, 1)))
    allocated = there(books.start(ids(A, 0, 1)).allocated)
    assert allocated.cores == 30


def test_why_a_container_waits_is_what_the_kubelet_or_the_api_server_answers(books: Books) -> None:
    books.pods(pod("a", "30"), pod("b", "60"))
    books.granted(ids(A, 0, 1))
    books.book.observe_pods(NodePods(pods=(pod("a", "30"), pod("b", "60"), pod("c")), problem="API server: 503"))
    assert "(API server: 503)" in books.start(ids(A, 0, 1)).refusal
    books.book.observe(Holdings(state=HoldersState.UNAVAILABLE, message="no socket", taken=books.now))
    assert "(no socket)" in books.start(ids(A, 0, 1)).refusal


def test_one_that_all_of_a_gpu_is_booked_for_may_start_and_is_told_more_when_it_is_known(books: Books) -> None:
    books.granted(ids(A, 0, 1))
    unknown = Allocated(resource=MEMORY, device=A, ids=frozenset(ids(A, 0, 1)), memory_mib=2048, memory_total_mib=8192)
    assert books.start(ids(A, 0, 1)) == Start(wait=True, allocated=unknown)


def test_a_container_whose_own_request_cannot_be_met_does_not_start_unless_it_has_started(books: Books) -> None:
    wrong = pod("wrong", "many")
    books.granted(ids(A, 0, 1))
    books.pods(replace(wrong, seen=books.now + 1), pod("other", "30"))
    books.shows(holder("wrong", ids(A, 0, 1)), after=2.0)
    assert "'many'" in books.start(ids(A, 0, 1)).refusal
    books.pods(replace(pod("wrong", "many", started=True), seen=books.now), pod("other", "30"))
    assert books.start(ids(A, 0, 1)).refusal == ""


def test_a_container_that_needs_more_than_is_left_does_not_start_unless_it_has_started(books: Books) -> None:
    books.pods(pod("small", "10"))
    books.granted(ids(A, 0, 1))  # in truth of one that is not known yet
    large = pod("large", "95", seen=books.now + 1)
    books.pods(pod("small", "10"), large, pod("third", "50", size=3))
    books.granted(ids(A, 2, 3, 4))
    books.shows(holder("large", ids(A, 0, 1)), holder("third", ids(A, 2, 3, 4)), after=2.0)
    assert "does not have 95 % of its computing power free; it has 50 %" in books.start(ids(A, 0, 1)).refusal
    books.pods(
        pod("small", "10"), replace(pod("large", "95", started=True), seen=large.seen), pod("third", "50", size=3)
    )
    assert books.start(ids(A, 0, 1)).refusal == ""


def test_an_init_container_starts_with_what_a_container_of_its_pod_took_over(books: Books) -> None:
    books.pods(pod("a", "30"))
    books.granted(ids(A, 0, 1))
    books.granted(ids(B, 0))
    started = books.start(ids(A, 0, 1, 2))
    assert started == Start(
        allocated=Allocated(
            resource=MEMORY, device=A, ids=frozenset(ids(A, 0, 1, 2)), memory_mib=3072, memory_total_mib=8192
        )
    )


# --- after a start of the agent ---------------------------------------------------------------------------------------
def test_a_container_that_was_recorded_starts_again_before_anything_is_known() -> None:
    books = Books()
    books.book.remember({frozenset(ids(A, 0, 1)): record("a")})
    assert books.start(ids(A, 0, 1)) == Start(wait=True), "more may be known in a moment"
    books.pods(pod("a", "90"))
    assert books.start(ids(A, 0, 1)) == Start()
    books.pods(pod("a", "90", finished=True), pod("b"))
    assert "not known which pod" in books.start(ids(A, 0, 1)).refusal, "its pod has ended: they are another's"
    books.pods(pod("b"), pod("a", uid="another"))
    assert "not known which pod" in books.start(ids(A, 0, 1)).refusal
    books.pods(pod("b"), pod("a", "90"))
    assert books.start(ids(A, 0, 1)) == Start(), "one of several pods"
    assert "not known which pod" in books.start(ids(A, 2, 3)).refusal


def test_one_that_was_recorded_and_is_listed_starts_with_what_is_written_and_more_may_be_known_in_a_moment() -> None:
    books = Books()
    books.book.remember({frozenset(ids(A, 0, 1)): record("a", uid="uid-a")})
    books.pods(pod("a", "90"))
    books.shows(holder("not-seen", ids(A, 0, 1)))
    assert books.start(ids(A, 0, 1)) == Start(wait=True)


@cases(
    ("listed", "stays"),
    ((), True),
    ((holder("other", ids(B, 0, 1)),), True),
    ((holder("a", ids(A, 0, 1)),), True),
    ((holder("b", ids(A, 0, 1)),), False),
)
def test_without_the_api_server_a_record_stays_unless_another_is_shown(listed: tuple[Holder, ...], stays: bool) -> None:
    books = Books()
    books.book.remember({frozenset(ids(A, 0, 1)): record("a")})
    books.shows(*listed, after=2.0)
    start = books.start(ids(A, 0, 1))
    assert (start.refusal, start.allocated is None) == ("", stays)


def test_records_that_are_read_late_still_say_whose_the_ids_are() -> None:
    books = Books()
    books.pods(pod("a", "90"))
    books.shows(holder("a", ids(A, 0, 1)), after=2.0)
    assert books.left()[A] == 0
    books.book.remember({frozenset(ids(A, 0, 1)): record("a")})
    assert books.left()[A] == 70
    assert books.start(ids(A, 0, 1)).allocated is not None


# --- what is shown ----------------------------------------------------------------------------------------------------
def test_shown_is_what_each_device_and_each_known_container_has(books: Books) -> None:
    books.pods(pod("a", "30"), pod("b", None, size=3), pod("c", "20", size=1))
    for of in (ids(B, 0), ids(A, 0, 1), ids(A, 2, 3, 4)):
        books.granted(of)
    books.shows(holder("a", ids(A, 0, 1)), holder("b", ids(A, 2, 3, 4)))
    assert books.book.held() == CoresHeld(
        devices={A: 68, B: 0},  # 30 and 37.5, rounded up; an Allocate that a younger List does not show is over
        holders={("ml", "a", "main", MEMORY): 30, ("ml", "b", "main", MEMORY): 38},
    )
    assert [(each.device, each.cores) for each in books.book.allocated()] == [(A, 30), (A, 38)]


def test_an_allocate_that_no_list_could_show_yet_is_shown_on_its_device_alone(books: Books) -> None:
    books.pods(pod("a", "30"))
    books.granted(ids(A, 0, 1))
    assert books.book.held() == CoresHeld(devices={A: 30, B: 0})
    books.book.observe(holdings(taken=books.now))
    assert books.book.held().devices[A] == 30
    books.shows()
    assert books.book.held().devices[A] == 0


def test_a_pod_that_has_finished_has_nothing_and_one_of_its_name_does(books: Books) -> None:
    books.pods(pod("a", "30"), pod("b", "20", size=1))
    books.granted(ids(A, 0, 1))
    books.granted(ids(A, 2))
    listed = (holder("a", ids(A, 0, 1)), holder("b", ids(A, 2)))
    books.shows(*listed)
    books.pods(pod("a", "30", finished=True), pod("b", "20", size=1))
    assert books.book.held() == CoresHeld(devices={A: 20, B: 0}, holders={("ml", "b", "main", MEMORY): 20})
    books.pods(pod("a", "30", uid="another", finished=True), pod("b", "20", size=1))
    assert books.book.held().devices[A] == 50
    books.pods(pod("b", "20", size=1))
    assert books.book.held().devices[A] == 50, "deleted by force, and its container runs on"


def test_a_holder_whose_pod_is_not_known_is_shown_on_its_device_alone(books: Books) -> None:
    books.granted(ids(A, 0, 1))
    books.shows(holder("unseen", ids(A, 0, 1)))
    assert books.book.held() == CoresHeld(devices={A: 100, B: 0})


def test_more_than_all_is_shown_as_all(books: Books) -> None:
    books.granted(ids(A, 0, 1))
    books.pods(pod("a", "95", seen=books.now + 1), pod("b", "90", size=3))
    books.book.observe(holdings(holder("x", ids(A, 2, 3, 4)), holder("a", ids(A, 0, 1)), taken=books.now + 2))
    assert books.book.held().devices[A] == 100
