"""The faults of a device, its notices, the verdict on it, and how often each reason came."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum


class HealthState(StrEnum):
    """Values of `health.state` of a device."""

    HEALTHY = "Healthy"
    DEGRADED = "Degraded"  # reported, still offered
    UNHEALTHY = "Unhealthy"  # not offered
    UNKNOWN = "Unknown"  # not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """What a fault is where no rule of a policy is about it. `state` HEALTHY: none, a rule alone makes it one."""

    state: HealthState
    action: str
    domain: str
    repair: str = ""  # the action that ends it where a rule makes it Unhealthy and `action` is none


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that is wrong with a device, kept until the evidence says that it is over.

    An XID is an edge: it is remembered here and, with the verdict, in the state file. A reading (lost, ECC, ...) is a
    level: `last_seen` is None while it lasts, and the time of the first line without it afterwards.

    `state`, `action` and `fault_domain` are what the policy's rules make of it now; `usual` is what they are made of.
    """

    reason: str  # Xid79, FallenOffBus, Missing, RowRemapFailure, ...; one fault a reason
    # DEGRADED or UNHEALTHY; UNKNOWN: not listed by a probe that lists nothing; HEALTHY: a rule ignores it
    state: HealthState
    message: str  # what happened, without what to do
    action: str  # recoveryAction that the table requires
    fault_domain: str  # Application | Device | Node
    since: datetime
    last_seen: datetime | None = None  # newest evidence, from which the hold-down counts; None: still evident
    boot_id: str  # of the boot in which it was last seen
    xid: int | None = None
    neighbours: tuple[int, ...] = ()  # XIDs that came within the correlation window of this one
    instance: str = ""  # the probe's process that reported the event which began it, and its number there; "": no event
    sequence: int = -1
    elsewhere: bool = False  # another probe reported it: the device's driver may not know of it
    # Since the event the device left (lost or not listed), or the driver required an action, or has repaired it.
    left: bool = False
    driver_reloaded: bool = False  # the driver was unloaded since
    confirmed: bool = False  # a person said that it is over (nodedevices.io/confirm)
    usual: Usual


@dataclass(frozen=True, slots=True, kw_only=True)
class Cordon:
    """A device or partition that people took out of service (NodeDevices `spec.unschedulable`): it goes to no new pod,
    and pods that have it run on."""

    id: str
    reason: str
    until: datetime | None = None  # from then on it is over; None: until it is removed
    by: str = ""  # who took it out of service, where it is said
    since: datetime | None = None  # as it is said, else when this agent saw it first

    def holds(self, now: datetime) -> bool:
        return self.until is None or now < self.until


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """An event that came and changed no state, with its repeats; the device stays in service."""

    code: str  # as a health reason: Xid31
    partition: str = ""  # the one that it was about; empty: the whole device, or it is not known
    message: str
    since: datetime  # of the first
    time: datetime  # of the newest that `count` covers
    count: int
    counted: datetime  # when `count` last changed
    newest: datetime  # of all
    repeats: int = 0  # that came since, and are added later (health.history)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is known about one physical device (or one partition, where it differs from its GPU).

    `offered` says whether the kubelet is sent Healthy: true for Healthy and Degraded, and for Unknown until it is
    withdrawn. `since` belongs to (state, reason) and is never bumped by a repeat. A verdict with faults goes into the
    state file; without them there is nothing to remember.
    """

    state: HealthState
    reason: str  # "" when Healthy; Xid79, FallenOffBus, Missing, RowRemapFailure, ProbeSilent, ...
    message: str
    since: datetime
    offered: bool
    xid: int | None = None
    recovery_action: str = "None"
    fault_domain: str | None = None  # Application | Device | Node
    faults: tuple[Fault, ...] = ()  # worst first; what recovery is judged by, not published
    ignored: tuple[Fault, ...] = ()  # what rules ignore, for when they no longer do


def with_each_fault(verdict: Verdict, changed: Callable[[Fault], Fault]) -> Verdict:
    """Return the verdict with each of its faults changed, also those that rules ignore."""
    return replace(verdict, faults=tuple(map(changed, verdict.faults)), ignored=tuple(map(changed, verdict.ignored)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """Ten days, by the number of such periods since 1970; `first`: when the reason came first within it."""

    number: int
    first: datetime
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What the status says, and since when it does."""

    count: int
    first: datetime
    last: datetime
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrences:
    """One reason on one device. `periods`: oldest first. `times`: the newest occurrences by themselves, oldest first,
    for rules that count them. `last`: the newest. `is_fault`: it has been a fault of the device, not only an error of a
    program."""

    reason: str
    periods: tuple[Period, ...]
    last: datetime
    shown: Shown
    times: tuple[datetime, ...] = ()
    is_fault: bool = False

    @property
    def count(self) -> int:
        return sum(period.count for period in self.periods)
