"""Leader election by a Lease (coordination.k8s.io/v1), with the rules of client-go's leaderelection.

The holder renews the Lease; a candidate that has seen it unchanged for the Lease's duration takes it over. Every write
has the Lease's resourceVersion, so of two that try at once one gets it. Times of other machines are never compared: a
renewal counts from the moment that this process saw it, on a clock that cannot be set and that goes on while the
machine is suspended.

The holder may write (`may_write`) for RENEW_SECONDS after it last *began* a renewal that succeeded. That is less than
LEASE_SECONDS, after which another candidate takes the Lease. So a process that was paused for longer sends nothing when
it goes on. What it had sent before may still arrive, and the next leader's first pass corrects it.

A Lease can be taken sooner where a person has deleted it, cleared its holder or edited its duration, and then the
holder of before may write until its last renewal is over. So whoever gets it writes nothing until LEASE_SECONDS have
passed since the last change by anybody else; what its holder has released is free at once, since it had ended before.

Where an answer of the API server takes longer than ANSWER_SECONDS, the Lease cannot be kept, and no replica leads. More
patience would need a longer Lease, and a leader that died would be followed later.

kubernetes.aio.leaderelection is not used: it measures by the wall clock, waits for an answer without a limit, ends when
a connection does, and never releases the Lease (kubernetes 36.0).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Self

import structlog
from msgspec import Struct
from nodedevices_common.errors import OperationError
from nodedevices_common.times import rfc3339

from nodedevices_operator.kube.port import JsonObject, Kube, KubeError
from nodedevices_operator.records.names import ELECTION, LEASE_NAME, leases, named

LEASE_SECONDS = 12  # without a renewal, and another takes it
RENEW_SECONDS = 9.0  # without a renewal, and its holder writes nothing more and ends
ANSWER_SECONDS = 4.0  # to one request; a renewal begins while the one before still counts, so less than half of RENEW
RETRY_SECONDS = 1.0  # between two tries of a candidate, and after a renewal that failed
KEEP_SECONDS = 2.0  # from the beginning of a renewal to the next one
JITTER = 0.2
MAX_LEASE_SECONDS = 3600  # whatever another one wrote
MAX_TRANSITIONS = (1 << 31) - 1  # an int32: the API server refuses more, and then none could ever lead
RELEASED_SECONDS = 1  # as client-go: the duration in a Lease that was released

log = structlog.get_logger()


def elapsed() -> float:
    """Seconds on a clock that also counts while the machine is suspended; where there is none, a monotonic one."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class LostLeadershipError(OperationError):
    """Another replica has the Lease, or may have it by now."""


class Lease(Struct, frozen=True, kw_only=True):
    """A Lease as it was read or written. `holder` empty: it was released."""

    uid: str
    resource_version: str
    holder: str
    seconds: int
    renewed: str
    acquired: str
    transitions: int

    @classmethod
    def read(cls, raw: JsonObject) -> Self:
        """Odd values count as absent: a Lease that cannot be understood is taken over when its time has passed."""
        metadata, spec = raw["metadata"], raw.get("spec") or {}
        seconds, transitions = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
        return cls(
            uid=metadata["uid"],
            resource_version=metadata["resourceVersion"],
            holder=str(spec.get("holderIdentity") or ""),
            seconds=min(seconds, MAX_LEASE_SECONDS) if isinstance(seconds, int) and seconds > 0 else LEASE_SECONDS,
            renewed=str(spec.get("renewTime") or ""),
            acquired=str(spec.get("acquireTime") or ""),
            transitions=transitions if isinstance(transitions, int) and transitions >= 0 else 0,
        )


class Election:
    """One candidate. `acquire`, then `keep` for as long as it leads, then `release`.

    `identity`: its name in the Lease; two candidates must not have the same, nor one before and after a restart.
    """

    def __init__(
        self,
        kube: Kube,
        *,
        namespace: str,
        identity: str,
        clock: Callable[[], float] = elapsed,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.identity = identity
        self.leader = ""  # as the Lease was last seen; empty: none, or not known
        self.problem = "waiting for the Lease to be read"  # why it is not known who leads; empty: it is
        self._kube = kube
        self._namespace = namespace
        self._clock = clock
        self._wall = wall
        self._seen: Lease | None = None
        self._seen_at = 0.0  # clock, when it was first seen so
        self._free_at = 0.0  # clock, from when on nobody else can be writing, if the Lease is ours
        self._renewed_at: float | None = None  # clock, when the last renewal that succeeded began; None: not the leader

    def may_write(self) -> bool:
        """True while no other replica can be the leader."""
        return self._holds() and self._clock() >= self._free_at

    def _holds(self) -> bool:
        """True while nobody else takes the Lease."""
        return self._renewed_at is not None and self._clock() < self._renewed_at + RENEW_SECONDS

    async def acquire(self) -> None:
        """Wait until this candidate leads. Requests that fail are tried again, and `problem` says why."""
        while not (await self.attempt() and self.may_write()):  # noqa: ASYNC110  each try is a request
            await asyncio.sleep(RETRY_SECONDS * random.uniform(1.0, 1.0 + JITTER))
        log.info("became the leader", identity=self.identity)

    async def keep(self) -> None:
        """Renew for ever. Raises LostLeadershipError when another one leads, or could by now."""
        next_at = (self._clock() if self._renewed_at is None else self._renewed_at) + KEEP_SECONDS
        while True:
            await asyncio.sleep(max(0.0, next_at - self._clock()))
            began = self._clock()
            await self.attempt()
            if why := self.lost():
                raise LostLeadershipError(why)
            next_at = began + (KEEP_SECONDS if not self.problem else RETRY_SECONDS)

    async def release(self) -> None:
        """Give the Lease up, if it is ours, so that another need not wait. Call it when nothing is written any more."""
        if not self._holds() or self._seen is None:
            return
        free = self.may_write()
        self._renewed_at = None
        try:
            async with asyncio.timeout(RETRY_SECONDS):
                await self._write(self._seen, "", free=free)
        except (KubeError, TimeoutError) as error:
            log.warning("failed to release the Lease", error=str(error) or type(error).__name__)
        else:
            log.info("released the Lease", identity=self.identity)

    def lost(self) -> str:
        """Why a candidate that has led leads no more, or perhaps; empty: it does."""
        if not self.problem and self.leader not in ("", self.identity):
            return f"{self.leader} is the leader"
        if self._holds():
            return ""
        why = self.problem or "the process was stopped meanwhile"
        return f"the Lease was not renewed for {RENEW_SECONDS:.0f} s: {why}"

    async def attempt(self) -> bool:
        """One try to get or renew it. Returns whether it was; where that is not known, `problem` says why."""
        try:
            renewed_at = await self._try()
        except (KubeError, TimeoutError) as error:
            forbidden = isinstance(error, KubeError) and error.forbidden
            action = "install the operator's RBAC (Role nodedevices-operator)" if forbidden else "retrying"
            why = str(error) or "no answer in time"
            problem = f"cannot use Lease {self._namespace}/{LEASE_NAME}: {why}; {action}"
            if problem != self.problem:  # once for each new kind, not once for each try
                log.warning("failed to use the Lease", error=why, action=action)
            self.problem = problem
            return False
        if self.problem and self._seen is not None and self.leader:
            log.info("the Lease is known", leader=self.leader)
        self.problem = ""
        if renewed_at is not None:
            self._renewed_at = renewed_at
        return renewed_at is not None

    async def _try(self) -> float | None:
        """Returns when the write began by which the Lease is ours now; None: it is not. KubeError and TimeoutError: not
        known."""
        ours = self._seen if self._seen is not None and self._seen.holder == self.identity else None
        if ours is not None and self._holds():
            renewed_at = await self._won(self._write(ours, self.identity))
            if renewed_at is not None:
                return renewed_at  # as a rule no one else has written it
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                lease = Lease.read(await self._kube.get(named(leases(self._namespace), LEASE_NAME)))
        except KubeError as error:
            if error.status != 404:
                raise
            self._free_at = self._clock() + LEASE_SECONDS
            renewed_at = await self._won(self._kube.create(leases(self._namespace), self._body(None, self.identity)))
            self._free_at = self._clock() + LEASE_SECONDS
            return renewed_at
        self._observe(lease)
        if lease.holder not in ("", self.identity) and self._clock() < self._seen_at + lease.seconds:
            return None
        if lease.holder != self.identity:
            released = not lease.holder and lease.seconds == RELEASED_SECONDS  # and no person has cleared it
            self._free_at = 0.0 if released else self._seen_at + LEASE_SECONDS
        elif not self._holds():  # it is ours by a write whose answer was lost
            self._free_at = self._clock() + LEASE_SECONDS
        return await self._won(self._write(lease, self.identity))

    async def _won(self, answer: Awaitable[JsonObject]) -> float | None:
        """Returns when this write began; None when another one has written before; a read shows who."""
        began = self._clock()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                self._observe(Lease.read(await answer))
        except KubeError as error:
            if error.status != 409:
                raise
            return None
        return began

    async def _write(self, lease: Lease, holder: str, *, free: bool = True) -> JsonObject:
        return await self._kube.apply(
            named(leases(self._namespace), LEASE_NAME), self._body(lease, holder, free=free), ELECTION
        )

    def _body(self, lease: Lease | None, holder: str, *, free: bool = True) -> JsonObject:
        """`free`: without a holder, whether another may write at once."""
        now = rfc3339(self._wall(), microseconds=True)
        kept = lease if lease is not None and lease.holder == holder else None
        taken = kept is None and bool(holder)
        spec: dict[str, Any] = {
            "leaseDurationSeconds": RELEASED_SECONDS if free and not holder else LEASE_SECONDS,
            "acquireTime": (kept.acquired if kept is not None else "") or now,
            "renewTime": now,
            "leaseTransitions": 0 if lease is None else min(lease.transitions + taken, MAX_TRANSITIONS),
        } | ({"holderIdentity": holder} if holder else {})
        metadata = {"name": LEASE_NAME, "namespace": self._namespace}
        if lease is not None:
            metadata |= {"uid": lease.uid, "resourceVersion": lease.resource_version}
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}

    def _observe(self, lease: Lease) -> None:
        if lease != self._seen:
            self._seen, self._seen_at = lease, self._clock()
        if lease.holder != self.leader:
            self.leader = lease.holder
            if self.leader and self.leader != self.identity:
                log.info("standing by, another replica is the leader", leader=self.leader)
