"""Which actions on the fleet are granted: what takes something from running pods, across all nodes. Pure.

A node proposes, nobody acts without a grant, and a grant stands in the record before it is given. The record is one
ConfigMap: whether the breaker is open (nothing is granted until a person resumes) and the recent actions. What cannot
be read counts as an open breaker, because nobody knows what was done already.
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
WINDOW = timedelta(hours=1)


@dataclass(frozen=True, slots=True, order=True)
class Action:
    """One proposal; equal ones are the same action, however often and after whatever restart it is proposed."""

    since: str  # RFC 3339, of the fault: a later fault is another action
    node: str
    kind: str  # what is done: Evict, ...
    target: str  # to whom: the pod's namespace/name/uid, or the node
    reason: str  # of the fault


@dataclass(frozen=True, slots=True)
class Limits:
    per_hour: int  # at most MAX_ACTIONS; more wait
    at_once: int  # more proposals than this that wait for a grant open the breaker: a mass fault stops actions


@dataclass(frozen=True, slots=True)
class Fleet:
    """The record."""

    breaker: str = CLOSED
    reason: str = ""  # why it is open, for people
    opened: str = ""  # when, RFC 3339
    resumed: str = ""  # the annotation that closed it last
    actions: tuple[tuple[Action, str], ...] = ()  # each with when it was granted; the newest last


@dataclass(frozen=True, slots=True)
class Decision:
    fleet: Fleet  # to be written before anything is granted
    granted: frozenset[Action] = frozenset()
    refused: Mapping[Action, str] = field(default_factory=dict)  # with why, for people


def decide(fleet: Fleet, proposals: Sequence[Action], now: datetime, limits: Limits) -> Decision:
    """Grant or refuse each, the oldest fault first. What the record has already is granted again, and not counted."""
    known = {action for action, _ in fleet.actions}
    fresh = sorted(set(proposals) - known)
    if len(fresh) > limits.at_once:
        fleet = stopped(fleet, f"{len(fresh)} actions proposed at once, {limits.at_once} are allowed", now)
    granted = set(proposals) & known
    refused: dict[Action, str] = {}
    most = min(limits.per_hour, MAX_ACTIONS)
    for action in fresh:
        if fleet.breaker == OPEN:
            refused[action] = f"actions are stopped since {fleet.opened}: {fleet.reason}; resume them with {RESUME}"
        elif sum(_recent(at, now) for _, at in fleet.actions) >= most:
            refused[action] = f"{most} actions within the last hour are as many as are allowed"
        else:
            fleet = replace(fleet, actions=(*fleet.actions, (action, now.isoformat()))[-MAX_ACTIONS:])
            granted.add(action)
    return Decision(fleet, frozenset(granted), refused)


def stopped(fleet: Fleet, reason: str, now: datetime) -> Fleet:
    """With an open breaker; one that is open stays as it is."""
    return replace(fleet, breaker=OPEN, reason=reason, opened=now.isoformat()) if fleet.breaker == CLOSED else fleet


def resumed(fleet: Fleet, annotation: str, now: datetime) -> Fleet:
    """After a person's word: a time since the breaker opened. Each value closes it once."""
    said, opened = _time(annotation), _time(fleet.opened)
    if fleet.breaker == CLOSED or annotation == fleet.resumed or said is None or said > now:
        return fleet
    if opened is not None and said <= opened:
        return fleet
    return replace(fleet, breaker=CLOSED, reason="", opened="", resumed=annotation)


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


_TEXTS = ("breaker", "reason", "opened", "resumed")
_ACTION = tuple(each.name for each in fields(Action))


def _recent(at: str, now: datetime) -> bool:
    """Within the window; so is what cannot be read, and what lies in the future after a clock was set back."""
    time = _time(at)
    return time is None or now - time < WINDOW


def _time(text: str) -> datetime | None:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo is not None else None
