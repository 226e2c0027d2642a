"""Decides when the agent writes its status; time is an argument.

A write happens when the status differs from the written one, when a heartbeat is due, or when another writer changed
our fields; never otherwise. A token bucket bounds the writes of one node: bursts of five, then one per five seconds.
The last token is kept for a device's change of state, so that a flood of holder changes cannot delay a fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct
from nodedevices_common.backoff import Backoff

BURST = 5
REFILL_SECONDS = 5.0
HEARTBEAT_SECONDS = 300.0
HEARTBEAT_JITTER = 0.1
REPAIR_SECONDS = 10.0  # two writers that fight over a field must not do it at the bucket's speed
# An object that is deleted again and again right after its creation (its Node is gone, a script cleans up) comes back
# with back-off. A person may delete it twice and see it back at once.
RECREATE_FREELY = 2
RECREATE_BACKOFF = Backoff(initial_seconds=60.0, max_seconds=300.0, jitter=0.0)
# While the object keeps vanishing: the Node may have been created again, and the token names the new one within
# minutes.
OWNER_SECONDS = 10.0


class WriteBucket:
    """BURST tokens at most, one more per REFILL_SECONDS. `now` is monotonic seconds."""

    def __init__(self, *, now: float) -> None:
        self._full_at = now

    def wait(self, now: float, *, keep: int = 0) -> float:
        """Seconds until a token can be taken that leaves `keep` others; 0 when one can be taken now."""
        missing = 1 + keep - BURST + max(0.0, self._full_at - now) / REFILL_SECONDS
        return 0.0 if missing <= 1e-9 else missing * REFILL_SECONDS

    def take(self, now: float) -> None:
        self._full_at = max(self._full_at, now) + REFILL_SECONDS


class Write(StrEnum):
    """A request to the API server; of a write of the status its cause, which is the metric's label."""

    NOTHING = "nothing"
    OWNER = "owner"  # none: which Node the token names is not known, or may have changed
    CREATE = "create"  # the object is not there, or its owner is not this Node
    DEVICE = "device"  # the status: a device's state or reason, which may take the last token
    CHANGE = "change"
    REPAIR = "repair"
    HEARTBEAT = "heartbeat"
    STOP = "stop"  # the agent ends: at once, and once


class Situation(Struct, kw_only=True):
    """The publisher's knowledge, which it keeps up to date. Times are monotonic seconds."""

    wanted: Mapping[str, Any] | None = None  # status without heartbeatTime; None: nothing to say yet
    may_create: bool = True  # False: a node that never had a device gets no object
    listed: bool = False  # the API server has said whether the object is there
    exists: bool = False
    owner_known: bool = False  # since the object last vanished or a write was refused
    owner_read_at: float | None = None
    owner_seconds: float = OWNER_SECONDS
    owner_wrong: bool = False
    written: Mapping[str, Any] | None = None  # what we last wrote successfully, without heartbeatTime
    written_at: float | None = None
    heartbeat_seconds: float = HEARTBEAT_SECONDS
    drifted: bool = False  # our fields in the object are not what we wrote
    repaired_at: float | None = None
    created_at: float | None = None
    recreations: int = 0  # how often in a row the object vanished soon after it was created


def devices_key(status: Mapping[str, Any] | None) -> tuple[Any, ...]:
    """Return every device's and partition's state and reason: a change of these must not wait for other changes."""
    healths = ((device["id"], device.get("health") or {}) for device in (status or {}).get("devices", ()))
    return tuple((id_, health.get("state"), health.get("reason")) for id_, health in healths)


def next_write(situation: Situation, bucket: WriteBucket, now: float) -> tuple[Write, float | None]:
    """Return the next write and the seconds until it may be done; None: until something changes. It takes no token; the
    publisher does, when it writes."""
    wanted = situation.wanted
    if wanted is None or not situation.listed or not (situation.exists or situation.may_create):
        return Write.NOTHING, None
    if not situation.owner_known:
        return Write.OWNER, 0.0
    if not situation.exists or situation.owner_wrong:
        create = max(bucket.wait(now), _recreate_wait(situation, now))
        if not situation.exists and situation.owner_read_at is not None:
            read_owner_in = situation.owner_read_at + situation.owner_seconds - now
            if read_owner_in < create:
                return Write.OWNER, max(0.0, read_owner_in)
        return Write.CREATE, create
    written = situation.written
    if written is None or devices_key(written) != devices_key(wanted):
        return Write.DEVICE, bucket.wait(now)
    if written != wanted:
        return Write.CHANGE, bucket.wait(now, keep=1)
    if situation.drifted:
        since = REPAIR_SECONDS if situation.repaired_at is None else now - situation.repaired_at
        return Write.REPAIR, max(bucket.wait(now, keep=1), REPAIR_SECONDS - since)
    due = (situation.written_at or 0.0) + situation.heartbeat_seconds - now
    return Write.HEARTBEAT, max(due, bucket.wait(now, keep=1))


def _recreate_wait(situation: Situation, now: float) -> float:
    again = situation.recreations - RECREATE_FREELY
    if situation.exists or situation.created_at is None or again <= 0:
        return 0.0
    return max(0.0, situation.created_at + RECREATE_BACKOFF.after(again) - now)
