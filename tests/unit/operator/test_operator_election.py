"""Who leads, by a Lease in memory and clocks that the test sets."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from nodedevices_operator.kube.election import LEASE_SECONDS, RENEW_SECONDS, Election, LostLeadershipError
from nodedevices_operator.kube.port import KubeError
from support.leases import LeaseServer
from support.virtual_loop import VirtualLoop

NAMESPACE = "nodedevices-system"
AT = datetime(2026, 11, 23, 9, 41, 7, tzinfo=UTC)
EDITS: list[dict[str, Any]] = [
    {},
    {"holderIdentity": "", "leaseDurationSeconds": LEASE_SECONDS},  # with 1 it is a Lease that was released
    {"leaseDurationSeconds": 1},
]
RELEASED = {"leaseDurationSeconds": 1, "renewTime": "2026-11-23T09:00:00.000000Z", "leaseTransitions": 4}


class Time:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def server() -> LeaseServer:
    return LeaseServer()


@pytest.fixture
def time() -> Time:
    return Time()


def candidate(server: LeaseServer, time: Time, name: str) -> Election:
    return Election(server, namespace=NAMESPACE, identity=name, clock=time, wall=lambda: AT)


async def lead(one: Election, time: Time) -> None:
    """Get the Lease, and wait until nobody else can be writing."""
    assert await one.attempt()
    for _ in range(2):
        time.seconds += LEASE_SECONDS / 2
        assert await one.attempt()
    assert one.may_write()


async def leader_and_standby(server: LeaseServer, time: Time) -> tuple[Election, Election]:
    a, b = candidate(server, time, "a"), candidate(server, time, "b")
    await lead(a, time)
    await b.attempt()
    return a, b


async def test_the_first_leads_and_the_second_stands_by(server: LeaseServer, time: Time) -> None:
    a, b = candidate(server, time, "a"), candidate(server, time, "b")
    await lead(a, time)
    assert not await b.attempt()
    assert (a.may_write(), b.may_write()) == (True, False)
    assert (a.problem, b.problem, b.leader) == ("", "", "a")
    assert server.spec() == {
        "holderIdentity": "a",
        "leaseDurationSeconds": LEASE_SECONDS,
        "acquireTime": "2026-11-23T09:41:07.000000Z",
        "renewTime": "2026-11-23T09:41:07.000000Z",
        "leaseTransitions": 0,
    }
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
    assert server.paths == {leases, f"{leases}/nodedevices-operator"}


async def test_a_lease_that_is_renewed_is_never_taken(server: LeaseServer, time: Time) -> None:
    a, b = candidate(server, time, "a"), candidate(server, time, "b")
    for _ in range(20):
        assert await a.attempt()
        assert not await b.attempt()
        time.seconds += RENEW_SECONDS - 1
        assert a.lost() == ""


async def test_a_lease_that_nobody_renews_is_taken_when_its_time_is_over(server: LeaseServer, time: Time) -> None:
    _, b = await leader_and_standby(server, time)
    time.seconds += LEASE_SECONDS - 0.1
    assert not await b.attempt()
    time.seconds += 0.2
    assert await b.attempt()
    assert server.spec()["holderIdentity"] == "b"
    assert server.spec()["leaseTransitions"] == 1


async def test_a_holder_that_was_stopped_may_not_write_and_learns_who_leads(server: LeaseServer, time: Time) -> None:
    a, b = await leader_and_standby(server, time)
    time.seconds += LEASE_SECONDS + 1
    assert not a.may_write()  # before it has sent anything
    await b.attempt()
    assert not await a.attempt()
    assert a.lost() == "b is the leader"


async def test_a_holder_stops_writing_before_another_can_take_the_lease(server: LeaseServer, time: Time) -> None:
    a, b = await leader_and_standby(server, time)
    server.refuses = KubeError("GET: no answer")
    time.seconds += RENEW_SECONDS
    assert not await a.attempt()
    assert not a.may_write()
    assert a.lost() == f"the Lease was not renewed for {RENEW_SECONDS:.0f} s: {a.problem}"
    server.refuses = None
    assert not await b.attempt()


async def test_one_failed_renewal_costs_nothing(server: LeaseServer, time: Time) -> None:
    a = candidate(server, time, "a")
    await a.attempt()
    server.refuses = KubeError("GET: 500", status=500)
    time.seconds += 2
    assert not await a.attempt()
    assert a.lost() == ""
    server.refuses = None
    assert await a.attempt()
    assert a.problem == ""


async def test_a_released_lease_is_taken_at_once(server: LeaseServer, time: Time) -> None:
    a, b = await leader_and_standby(server, time)
    await a.release()
    assert not a.may_write()
    assert "holderIdentity" not in server.spec()
    assert await b.attempt()


@pytest.mark.parametrize("after", [0.0, 0.01, 0.5, 0.99, 5.3])
def test_s14_a_leader_that_is_stopped_is_followed_within_two_seconds(server: LeaseServer, after: float) -> None:
    """Whenever between two tries of the other one it was."""

    async def hand_over() -> float:
        a, b = (
            Election(server, namespace=NAMESPACE, identity=each, clock=loop.time, wall=lambda: AT)
            for each in ("a", "b")
        )
        await a.acquire()
        keeping, standby = asyncio.create_task(a.keep()), asyncio.create_task(b.acquire())
        await asyncio.sleep(after)
        keeping.cancel()
        await a.release()
        released = loop.time()
        await standby
        assert b.may_write()
        return loop.time() - released

    with contextlib.closing(VirtualLoop()) as loop:
        assert loop.run_until_complete(hand_over()) <= 2.0


class SlowLeaseServer(LeaseServer):
    """Each answer takes `seconds`. A write lands when they are over, whether or not its sender still waits."""

    seconds = 0.0

    async def get(self, path: str) -> Mapping[str, Any]:
        await asyncio.sleep(self.seconds)
        return await super().get(path)

    async def create(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        return await self._later(partial(super().create, path, body))

    async def apply(self, path: str, body: Mapping[str, Any], manager: str, *, force: bool = True) -> Mapping[str, Any]:
        return await self._later(partial(super().apply, path, body, manager, force=force))

    async def _later(self, land: Callable[[], Coroutine[Any, Any, Mapping[str, Any]]]) -> Mapping[str, Any]:
        async def write() -> Mapping[str, Any]:
            await asyncio.sleep(self.seconds)
            return await land()

        writing = asyncio.create_task(write())
        writing.add_done_callback(lambda it: it.cancelled() or it.exception())  # perhaps none waits any more
        return await asyncio.shield(writing)


async def replica(server: LeaseServer, name: str, led: list[tuple[str, float]]) -> None:
    """Lead whenever it can, as a new process after each loss."""
    loop = asyncio.get_running_loop()
    for life in itertools.count():
        one = Election(server, namespace=NAMESPACE, identity=f"{name}{life}", clock=loop.time, wall=lambda: AT)
        watching = asyncio.create_task(may_write(one, led))
        with contextlib.suppress(LostLeadershipError):
            await one.acquire()
            await one.keep()
        watching.cancel()


async def may_write(one: Election, led: list[tuple[str, float]]) -> None:
    while True:
        if one.may_write():
            led.append((one.identity, round(asyncio.get_running_loop().time(), 1)))
        await asyncio.sleep(0.1)


def test_s12_a_lease_is_taken_and_kept_while_each_answer_takes_almost_four_seconds() -> None:
    async def scene() -> None:
        server, led = SlowLeaseServer(), list[tuple[str, float]]()
        server.seconds = 3.9
        _ = [asyncio.create_task(replica(server, name, led)) for name in "ab"]
        await asyncio.sleep(600)
        assert len({identity for identity, _ in led}) == 1
        assert len(led) > 10 * 500, "all the time, once it was taken"

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(scene())


def test_s12_while_each_answer_takes_five_seconds_none_leads_and_afterwards_one_does() -> None:
    async def scene() -> None:
        loop, server, led = asyncio.get_running_loop(), SlowLeaseServer(), list[tuple[str, float]]()
        _ = [asyncio.create_task(replica(server, name, led)) for name in "ab"]
        await asyncio.sleep(30)
        server.seconds, slow_from = 5.0, loop.time()
        await asyncio.sleep(300)
        server.seconds, fast_from = 0.0, loop.time()
        await asyncio.sleep(60)
        assert max(Counter(at for _, at in led).values()) == 1, "never two at once"
        assert [at for _, at in led if slow_from + RENEW_SECONDS < at < fast_from] == []
        assert any(fast_from < at < fast_from + LEASE_SECONDS + 5.0 for _, at in led)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(scene())


async def test_who_does_not_lead_releases_nothing(server: LeaseServer, time: Time) -> None:
    a, b = await leader_and_standby(server, time)
    await b.release()
    time.seconds += RENEW_SECONDS + 1
    await a.release()  # perhaps it is another's by now
    assert server.spec()["holderIdentity"] == "a"


async def test_a_renewal_whose_answer_is_lost_is_found_again(server: LeaseServer, time: Time) -> None:
    a = candidate(server, time, "a")
    server.loses_answers = True
    assert not await a.attempt()
    assert not a.may_write()
    server.loses_answers = False
    assert await a.attempt()


async def test_an_edit_by_hand_costs_a_try_and_not_the_leadership(server: LeaseServer, time: Time) -> None:
    a = candidate(server, time, "a")
    await a.attempt()
    server.stands(**server.spec(), labels="edited")
    time.seconds += 2
    assert await a.attempt()
    assert a.lost() == ""


async def test_who_makes_a_lease_that_was_deleted_writes_when_nobody_else_can(server: LeaseServer, time: Time) -> None:
    a, _ = await leader_and_standby(server, time)
    server.lease = None
    c = candidate(server, time, "c")  # it has just begun, and knows of no Lease
    assert await c.attempt()
    assert (a.may_write(), c.may_write()) == (True, False)
    time.seconds += LEASE_SECONDS / 2
    assert await c.attempt()
    assert not await a.attempt()
    assert a.lost() == "c is the leader"
    time.seconds += LEASE_SECONDS / 2
    assert await c.attempt()
    assert (a.may_write(), c.may_write()) == (False, True)


async def test_a_leader_whose_lease_was_deleted_leads_on_after_a_pause(server: LeaseServer, time: Time) -> None:
    """Perhaps another one has made it meanwhile, and it was deleted again."""
    a, _ = await leader_and_standby(server, time)
    server.lease = None
    assert await a.attempt()
    assert (a.may_write(), a.lost()) == (False, "")
    await lead(a, time)


@pytest.mark.parametrize("edit", [{"holderIdentity": ""}, {"leaseDurationSeconds": 1}])
async def test_who_takes_a_lease_that_a_person_has_edited_writes_when_its_holder_cannot_any_more(
    server: LeaseServer, time: Time, edit: dict[str, Any]
) -> None:
    a, b = await leader_and_standby(server, time)
    server.stands(**{**server.spec(), **edit})
    await b.attempt()
    time.seconds += 1.1
    assert await b.attempt()
    while a.may_write():
        assert not b.may_write()
        time.seconds += 1.0
        await b.attempt()
    await lead(b, time)


async def test_a_lease_that_was_released_before_its_time_is_not_free_at_once(server: LeaseServer, time: Time) -> None:
    a, _ = await leader_and_standby(server, time)
    server.lease = None
    b, c = candidate(server, time, "b2"), candidate(server, time, "c")
    assert await b.attempt()
    await b.release()
    assert await c.attempt()
    assert (a.may_write(), c.may_write()) == (True, False)


@pytest.mark.parametrize(
    "spec",
    [
        RELEASED,
        {},
        {"holderIdentity": "", "leaseDurationSeconds": -1, "leaseTransitions": "many"},
        {"holderIdentity": None, "renewTime": 5},
    ],
)
async def test_a_lease_without_a_holder_is_free(server: LeaseServer, time: Time, spec: dict[str, Any]) -> None:
    server.stands(**spec)
    assert await candidate(server, time, "a").attempt()


async def test_a_lease_for_ever_by_another_is_over_after_an_hour(server: LeaseServer, time: Time) -> None:
    server.stands(holderIdentity="x", leaseDurationSeconds=10**9)
    a = candidate(server, time, "a")
    assert not await a.attempt()
    time.seconds += 3601
    assert await a.attempt()


async def test_what_is_forbidden_says_what_to_install(server: LeaseServer, time: Time) -> None:
    server.refuses = KubeError("GET lease: 403 forbidden", status=403)
    a = candidate(server, time, "a")
    assert not await a.attempt()
    assert a.problem == (
        "cannot use Lease nodedevices-system/nodedevices-operator: GET lease: 403 forbidden; "
        "install the operator's RBAC (Role nodedevices-operator)"
    )


@pytest.mark.parametrize("seed", range(20))
async def test_never_may_two_write(server: LeaseServer, time: Time, seed: int) -> None:
    """Tries, pauses, releases, failing requests, lost answers, edits and deletions, in any order."""
    draw = random.Random(seed)
    candidates = [candidate(server, time, f"{name}{seed}") for name in "abc"]
    led: set[str] = set()
    for each in candidates:
        await each.attempt()
    for _ in range(1000):
        one = draw.choice(candidates)
        match draw.random():
            case chance if chance < 0.6:
                server.refuses = KubeError("no answer") if draw.random() < 0.1 else None
                server.loses_answers = draw.random() < 0.1
                await one.attempt()
                server.refuses, server.loses_answers = None, False
            case chance if chance < 0.65:
                await one.release()
            case chance if chance < 0.67 and server.lease is not None:
                server.stands(**{**server.spec(), **draw.choice(EDITS)})
            case chance if chance < 0.68:
                server.lease = None
            case _:
                time.seconds += draw.choice([0.1, 0.5, 1.0, 2.0, 4.0, RENEW_SECONDS, LEASE_SECONDS, 30.0])
        writers = [each.identity for each in candidates if each.may_write()]
        assert len(writers) <= 1, f"seed {seed}: {writers}"
        led.update(writers)
    assert len(led) == len(candidates)


async def test_a_lease_that_counts_no_further_is_taken_all_the_same(server: LeaseServer, time: Time) -> None:
    """The API server refuses more than an int32, and then no replica could lead until a person deletes the Lease."""
    server.stands(**RELEASED | {"leaseTransitions": 2**31 - 1})
    assert await candidate(server, time, "a").attempt()
    assert server.spec()["leaseTransitions"] == 2**31 - 1
