"""Which actions on the fleet are granted: what takes something from running pods, across all nodes. Pure.

A node proposes, nobody acts without a grant, and a grant stands in the record before it is given. The record is one
ConfigMap: whether the breaker is open, and the recent actions. What cannot be read counts as an open breaker, because
nobody knows what was done already.

Two things limit actions. The budget of a policy: so many actions in an hour, and so many of its nodes out of service at
one time. And the breaker: when more than a share of a policy's nodes fail within a few minutes, something else is wrong
than these devices, so all actions of the fleet stop until a person resumes them, or until a time that the policy gives.
Reports never stop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import Any

import orjson

MAX_ACTIONS = 200  # in the record; the oldest go first
RESUME = "nodedevices.io/resume-actions"  # annotation: RFC 3339, a time since the breaker opened
OPEN, CLOSED = "Open", "Closed"
HOUR = timedelta(hours=1)
MASS = 2  # nodes that fail together at least; one alone is no mass fault, however small the fleet
MAX_NAMES = 5  # of nodes, in a reason


@dataclass(frozen=True, slots=True, order=True)
class Action:
    """One proposal; equal ones are the same action, however often and after whatever restart it is proposed."""

    since: str  # RFC 3339, of the fault: a later fault is another action
    node: str
    kind: str  # what is done: Taint, Evict
    target: str  # to whom: the taint's effect, or the pod's namespace/name/uid
    reason: str  # of the fault


@dataclass(frozen=True, slots=True)
class Answer:
    granted: bool
    reason: str = ""  # why not, for people
    stopped: bool = False  # by the breaker


@dataclass(frozen=True, slots=True)
class Limits:
    """What one policy allows."""

    per_hour: int | None = None  # actions; None: as many as the record holds
    max_unavailable: int | None = None  # nodes; None: any number
    percent: int = 50  # of its nodes; more failing within the window are a mass fault
    window_seconds: int = 300
    reset_seconds: int | None = None  # the breaker closes after so many; None: a person closes it


@dataclass(frozen=True, slots=True)
class Pool:
    """The nodes whose section `faults` comes from one policy."""

    policy: str
    limits: Limits
    nodes: frozenset[str]
    out: frozenset[str] = frozenset()  # of these: out of service, by us or by somebody else
    faults: Mapping[str, frozenset[str]] = field(default_factory=dict)  # node -> since when its devices are Unhealthy


@dataclass(frozen=True, slots=True)
class Fleet:
    """The record."""

    breaker: str = CLOSED
    reason: str = ""  # why it is open, for people
    opened: str = ""  # when, RFC 3339
    until: str = ""  # when it closes by itself; "": when a person says so
    closed: str = ""  # when it closed last: a fault of before opens it no more
    resumed: str = ""  # the annotation that closed it last
    actions: tuple[tuple[Action, str], ...] = ()  # each with when it was granted; the newest last


@dataclass(frozen=True, slots=True)
class Decision:
    fleet: Fleet  # to be written before anything is granted
    granted: frozenset[Action] = frozenset()
    refused: Mapping[Action, str] = field(default_factory=dict)  # with why, for people

    def answers(self) -> dict[Action, Answer]:
        stopped = self.fleet.breaker == OPEN
        given = {action: Answer(granted=True) for action in self.granted}
        return given | {
            action: Answer(granted=False, reason=why, stopped=stopped) for action, why in self.refused.items()
        }


def decide(fleet: Fleet, proposals: Sequence[Action], now: datetime, pools: Sequence[Pool]) -> Decision:
    """Grant or refuse each, the oldest fault first. What the record has already is granted again, and not counted;
    while the breaker is open nothing is."""
    fleet = _timed_out(fleet, now)
    for pool in pools:
        if why := _mass_fault(pool, fleet, now):
            fleet = stopped(fleet, why, now, reset_seconds=pool.limits.reset_seconds)
    wanted = sorted(set(proposals))
    if fleet.breaker == OPEN:
        end = f"until {fleet.until}, or resume them with {RESUME}" if fleet.until else f"resume them with {RESUME}"
        why = f"actions are stopped since {fleet.opened}: {fleet.reason}; {end}"
        return Decision(fleet, refused=dict.fromkeys(wanted, why))
    pool_of = {node: pool for pool in pools for node in pool.nodes}
    known = {action for action, _ in fleet.actions}
    granted: set[Action] = set()
    refused: dict[Action, str] = {}
    for action in wanted:
        own = pool_of.get(action.node)
        if action in known:
            granted.add(action)
        elif own is None:
            refused[action] = "no policy that reacts to faults is active on this node any more"
        elif why := _exceeded(own, fleet, action.node, now):
            refused[action] = why
        else:
            fleet = replace(fleet, actions=(*fleet.actions, (action, now.isoformat()))[-MAX_ACTIONS:])
            granted.add(action)
    return Decision(fleet, frozenset(granted), refused)


def _exceeded(pool: Pool, fleet: Fleet, node: str, now: datetime) -> str:
    """Why the budget does not allow one more action on this node; empty: it does."""
    limits, recent = pool.limits, [action for action, at in fleet.actions if _within(at, now, HOUR)]
    if len(recent) >= MAX_ACTIONS:
        return f"{MAX_ACTIONS} actions within the last hour, in the whole fleet, are as many as the record holds"
    if limits.per_hour is not None and sum(action.node in pool.nodes for action in recent) >= limits.per_hour:
        return (
            f"the budget of policy {pool.policy} allows {limits.per_hour} actions an hour (perHour), and as many were "
            "granted within the last hour"
        )
    out = out_of_service(pool, fleet)
    if limits.max_unavailable is not None and node not in out and len(out) >= limits.max_unavailable:
        names = ", ".join(sorted(out)[:MAX_NAMES]) + (", ..." if len(out) > MAX_NAMES else "")
        return (
            f"the budget of policy {pool.policy} allows {limits.max_unavailable} nodes out of service "
            f"(maxUnavailable), and {len(out)} of its {len(pool.nodes)} nodes are{f': {names}' if out else ''}"
        )
    return ""


def out_of_service(pool: Pool, fleet: Fleet) -> frozenset[str]:
    """The pool's nodes that are out of service, or will be: an action for a fault that still lasts was granted."""
    return pool.out | {
        action.node
        for action, _ in fleet.actions
        if action.node in pool.nodes and action.since in pool.faults.get(action.node, ())
    }


def _mass_fault(pool: Pool, fleet: Fleet, now: datetime) -> str:
    limits, window = pool.limits, timedelta(seconds=pool.limits.window_seconds)
    closed = _time(fleet.closed)
    failing = sum(
        any(_within(since, now, window) and _after(since, closed) for since in faults)
        for faults in pool.faults.values()
    )
    if failing < MASS or failing * 100 <= limits.percent * len(pool.nodes):
        return ""
    return (
        f"{failing} of the {len(pool.nodes)} nodes of policy {pool.policy} failed within {limits.window_seconds} s, "
        f"which is more than {limits.percent} %"
    )


def stopped(fleet: Fleet, reason: str, now: datetime, *, reset_seconds: int | None = None) -> Fleet:
    """With an open breaker; one that is open stays as it is."""
    if fleet.breaker == OPEN:
        return fleet
    until = "" if reset_seconds is None else (now + timedelta(seconds=reset_seconds)).isoformat()
    return replace(fleet, breaker=OPEN, reason=reason, opened=now.isoformat(), until=until)


def resumed(fleet: Fleet, annotation: str, now: datetime) -> Fleet:
    """After a person's annotation: a time since the breaker opened. Each value closes it once."""
    said, opened = _time(annotation), _time(fleet.opened)
    if fleet.breaker == CLOSED or annotation == fleet.resumed or said is None or said > now:
        return fleet
    if opened is not None and said <= opened:
        return fleet
    return replace(_closed(fleet, now), resumed=annotation)


def _timed_out(fleet: Fleet, now: datetime) -> Fleet:
    """Closed, when it was opened until a time that has come."""
    until = _time(fleet.until)
    return _closed(fleet, now) if fleet.breaker == OPEN and until is not None and until <= now else fleet


def _closed(fleet: Fleet, now: datetime) -> Fleet:
    return replace(fleet, breaker=CLOSED, reason="", opened="", until="", closed=now.isoformat())


def to_data(fleet: Fleet) -> dict[str, str]:
    """The ConfigMap's data."""
    actions = [asdict(action) | {"at": at} for action, at in fleet.actions]
    return {key: getattr(fleet, key) for key in _TEXTS} | {"actions": orjson.dumps(actions).decode()}


def from_data(data: Mapping[str, Any]) -> Fleet | None:
    """The record of a ConfigMap's data. None: it is not one that `to_data` wrote."""
    try:
        texts = {key: data[key] for key in _TEXTS}
        actions = tuple((Action(*(it[key] for key in _ACTION)), it["at"]) for it in orjson.loads(data["actions"]))
    except (KeyError, TypeError, orjson.JSONDecodeError):
        return None
    values = [*texts.values(), *(text for action, at in actions for text in (*asdict(action).values(), at))]
    if texts["breaker"] not in {OPEN, CLOSED} or not all(isinstance(value, str) for value in values):
        return None
    return Fleet(**texts, actions=actions[-MAX_ACTIONS:])


_TEXTS = ("breaker", "reason", "opened", "until", "closed", "resumed")
_ACTION = tuple(each.name for each in fields(Action))


def _within(at: str, now: datetime, window: timedelta) -> bool:
    """Within the window; so is what cannot be read, and what is in the future after a clock was set back."""
    time = _time(at)
    return time is None or now - time < window


def _after(at: str, start: datetime | None) -> bool:
    time = _time(at)
    return time is None or start is None or time > start


def _time(text: str) -> datetime | None:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo is not None else None
