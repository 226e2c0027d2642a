"""Who leads, by a Lease in memory and clocks that the test sets."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from nodedevices_operator.kube.election import LEASE_SECONDS, RENEW_SECONDS, Election
from nodedevices_operator.kube.port import KubeError

NAMESPACE = "nodedevices-system"
AT = datetime(2026, 11, 23, 9, 41, 7, tzinfo=UTC)
RELEASED = {"leaseDurationSeconds": 1, "renewTime": "2026-11-23T09:00:00.000000Z", "leaseTransitions": 4}


class LeaseServer:
    """The API server's part: one Lease, with optimistic locking. `fails`: what the next requests end with; a write that
    `loses_answers` lands, and its sender does not learn of it."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.fails: KubeError | None = None
        self.loses_answers = False
        self.version = 0

    def spec(self) -> Mapping[str, Any]:
        assert self.lease is not None
        spec: Mapping[str, Any] = self.lease["spec"]
        return spec

    def put(self, **spec: Any) -> None:
        self.version += 1
        self.lease = {"metadata": {"uid": "u", "resourceVersion": str(self.version)}, "spec": spec}

    async def get(self, path: str) -> Mapping[str, Any]:
        self._fail()
        if self.lease is None:
            raise KubeError("GET: 404", status=404)
        return copy.deepcopy(self.lease)

    async def create(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        self._fail()
        if self.lease is not None:
            raise KubeError("POST: 409", status=409)
        return self._stored(body)

    async def apply(self, path: str, body: Mapping[str, Any], manager: str, *, force: bool = True) -> Mapping[str, Any]:
        self._fail()
        if self.lease is None or body["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise KubeError("PATCH: 409", status=409)
        return self._stored(body)

    def _fail(self) -> None:
        if self.fails is not None:
            raise self.fails

    def _stored(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        self.put(**body["spec"])
        if self.loses_answers:
            raise KubeError("PATCH: no answer")
        assert self.lease is not None
        return copy.deepcopy(self.lease)


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


async def leader_and_standby(server: LeaseServer, time: Time) -> tuple[Election, Election]:
    a, b = candidate(server, time, "a"), candidate(server, time, "b")
    await a.attempt()
    await b.attempt()
    return a, b


async def test_the_first_leads_and_the_second_stands_by(server: LeaseServer, time: Time) -> None:
    a, b = candidate(server, time, "a"), candidate(server, time, "b")
    assert await a.attempt()
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


async def test_a_lease_that_is_renewed_is_never_taken(server: LeaseServer, time: Time) -> None:
    a, b = candidate(server, time, "a"), candidate(server, time, "b")
    for _ in range(20):
        assert await a.attempt()
        assert not await b.attempt()
        time.seconds += RENEW_SECONDS - 1
        assert a.lost() == ""


async def test_a_lease_that_nobody_renews_is_taken_when_its_time_has_passed_and_not_before(
    server: LeaseServer, time: Time
) -> None:
    _, b = await leader_and_standby(server, time)
    time.seconds += LEASE_SECONDS - 0.1
    assert not await b.attempt()
    time.seconds += 0.2
    assert await b.attempt()
    assert server.spec()["holderIdentity"] == "b"
    assert server.spec()["leaseTransitions"] == 1


async def test_a_holder_that_was_stopped_and_goes_on_may_not_write_and_learns_who_leads(
    server: LeaseServer, time: Time
) -> None:
    a, b = await leader_and_standby(server, time)
    time.seconds += LEASE_SECONDS + 1
    assert not a.may_write()  # before it has sent anything
    await b.attempt()
    assert not await a.attempt()
    assert a.lost() == "b is the leader"


async def test_a_holder_stops_writing_before_another_can_take_the_lease(server: LeaseServer, time: Time) -> None:
    a, b = await leader_and_standby(server, time)
    server.fails = KubeError("GET: no answer")
    time.seconds += RENEW_SECONDS
    assert not await a.attempt()
    assert not a.may_write()
    assert a.lost() == f"the Lease was not renewed for {RENEW_SECONDS:.0f} s: {a.problem}"
    server.fails = None
    assert not await b.attempt()


async def test_one_failed_renewal_costs_nothing(server: LeaseServer, time: Time) -> None:
    a = candidate(server, time, "a")
    await a.attempt()
    server.fails = KubeError("GET: 500", status=500)
    time.seconds += 2
    assert not await a.attempt()
    assert a.lost() == ""
    server.fails = None
    assert await a.attempt()
    assert a.problem == ""


async def test_a_released_lease_is_taken_at_once(server: LeaseServer, time: Time) -> None:
    a, b = await leader_and_standby(server, time)
    await a.release()
    assert not a.may_write()
    assert "holderIdentity" not in server.spec()
    assert await b.attempt()


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
    server.put(**server.spec(), labels="edited")
    time.seconds += 2
    assert await a.attempt()
    assert a.lost() == ""


async def test_a_lease_that_was_deleted_is_made_again_by_its_holder_and_by_no_other_before_its_time(
    server: LeaseServer, time: Time
) -> None:
    a, b = await leader_and_standby(server, time)
    server.lease = None
    assert not await b.attempt()
    time.seconds += 2
    assert await a.attempt()
    server.lease = None
    time.seconds += LEASE_SECONDS
    assert await b.attempt()


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
    server.put(**spec)
    assert await candidate(server, time, "a").attempt()


async def test_a_lease_for_ever_by_another_is_over_after_an_hour(server: LeaseServer, time: Time) -> None:
    server.put(holderIdentity="x", leaseDurationSeconds=10**9)
    a = candidate(server, time, "a")
    assert not await a.attempt()
    time.seconds += 3601
    assert await a.attempt()


async def test_what_is_forbidden_says_what_to_install(server: LeaseServer, time: Time) -> None:
    server.fails = KubeError("GET lease: 403 forbidden", status=403)
    a = candidate(server, time, "a")
    assert not await a.attempt()
    assert a.problem == (
        "cannot use Lease nodedevices-system/nodedevices-operator: GET lease: 403 forbidden; "
        "install the operator's RBAC (Role nodedevices-operator)"
    )


@pytest.mark.parametrize("seed", range(20))
async def test_never_may_two_write(server: LeaseServer, time: Time, seed: int) -> None:
    """Tries, pauses, releases, failing requests, lost answers and edits, in any order."""
    draw = random.Random(seed)
    candidates = [candidate(server, time, f"{name}{seed}") for name in "abc"]
    led: set[str] = set()
    for each in candidates:
        await each.attempt()
    for _ in range(400):
        one = draw.choice(candidates)
        match draw.random():
            case chance if chance < 0.6:
                server.fails = KubeError("no answer") if draw.random() < 0.1 else None
                server.loses_answers = draw.random() < 0.1
                await one.attempt()
                server.fails, server.loses_answers = None, False
            case chance if chance < 0.65:
                await one.release()
            case chance if chance < 0.67 and server.lease is not None:
                server.put(**server.spec())
            case _:
                time.seconds += draw.choice([0.1, 0.5, 1.0, 2.0, 4.0, RENEW_SECONDS, LEASE_SECONDS, 30.0])
        writers = [each.identity for each in candidates if each.may_write()]
        assert len(writers) <= 1, f"seed {seed}: {writers}"
        led.update(writers)
    assert len(led) == len(candidates)
