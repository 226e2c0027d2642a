"""Grants of actions on the fleet: of all that takes something from running pods, across all nodes.

A node proposes, no action is done without a grant, and a grant is in the record before it is given. The record is one
ConfigMap: whether the breaker is open, the recent actions, and which nodes are out of service by them. What cannot be
read counts as an open breaker, because it is not known what was done already.

Two things limit actions. The budget of a policy: so many actions in an hour, and so many of its nodes out of service at
one time. And the breaker: when more than a share of a policy's nodes fail within a few minutes, something else is wrong
than these devices, so all actions of the fleet stop until a person resumes them. Reports never stop.

A mass fault is seen in the faults themselves, whatever is proposed for them and whenever: those whose arrivals lie
close together by the operator's monotonic clock, or whose times lie close together by the nodes' own. Neither compares
one machine's clock with another's present, so that a long grace, an operator that was away, or a clock that is wrong
hides none. Those that are there when the breaker closes are answered for, and never open it again: these very ones, by
node and time, whatever a node's clock says later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Literal, TypeVar

import orjson
from msgspec import Struct, convert, field
from msgspec.structs import asdict, replace
from nodedevices_api import conditions as names
from nodedevices_common.confirming import CONFIRM, NAMED, OF_RECORD, Entry, read
from nodedevices_common.text import some
from nodedevices_common.times import rfc3339, zoned_time

MAX_ACTIONS = 200  # in the record; the oldest go first
MAX_MAP_BYTES = 400 << 10  # of each of the record's maps; the oldest go first. A ConfigMap holds 1 MiB
MAX_IDS = 16  # of one node, in the record
OPEN: Final = "Open"
CLOSED: Final = "Closed"
TAINT, EVICT = "Taint", "Evict"  # kinds of an Action
HOUR = timedelta(hours=1)
CLOCKS_DIFFER = timedelta(minutes=1)  # how far ahead of ours the clock of a person who resumes may be
WINDOW_SECONDS = 300  # in which nodes fail together
MASS = 2  # nodes that fail together at least; one alone is no mass fault, however small the fleet
MAX_NAMES = 5  # of nodes, in a reason
HOW = "kubectl nodedevices confirm actions resumed"  # a person closes the breaker

T = TypeVar("T")
FaultsByNode = Mapping[str, Mapping[str, str]]  # node -> id of what is at fault -> since when, by the node's clock
Arrivals = Mapping[str, Mapping[tuple[str, str], float | None]]  # node -> id, since -> when it was first seen, in
# seconds by the operator's monotonic clock; None: it was there when the operator began


class Action(Struct, frozen=True, order=True):
    """One proposal; equal ones are the same action, however often and after whatever restart it is proposed."""

    since: str  # RFC 3339, of the fault: a later fault is another action
    node: str
    kind: str  # what is done
    target: str  # to whom: the taint's effect, or the pod's namespace/name/uid
    reason: str  # of the fault


class ActionAnswer(Struct, frozen=True):
    granted: bool
    reason: str = ""  # why not, for people
    stopped: bool = False  # by the breaker


class PolicyLimits(Struct, frozen=True):
    """Limits that one policy sets."""

    per_hour: int | None = None  # actions; None: as many as the record holds
    max_unavailable: int | None = None  # nodes; None: any number
    percent: int = 50  # of its nodes; more failing within the window are a mass fault


class Pool(Struct, frozen=True):
    """The nodes whose section `faults` comes from one policy."""

    policy: str
    limits: PolicyLimits
    nodes: frozenset[str]
    out: frozenset[str] = frozenset()  # of these: out of service, by us or by another client
    coming: frozenset[str] = frozenset()  # those that the policy is to supply, where it does not yet
    acts: bool = True  # whether it taints or evicts for any fault

    @property
    def all(self) -> frozenset[str]:
        """The nodes that a percentage is of."""
        return self.nodes | self.coming


class Survey(Struct, frozen=True):
    """The fleet as it is now."""

    pools: Sequence[Pool] = ()
    faults: FaultsByNode = field(default_factory=dict)  # of all nodes, whatever their policy
    unclear: Mapping[str, frozenset[str]] = field(default_factory=dict)  # node -> ids whose state is not known now
    silent: frozenset[str] = frozenset()  # nodes that say nothing of their devices
    out: frozenset[str] = frozenset()  # nodes out of service, whatever their policy
    others: frozenset[str] = frozenset()  # nodes that are in no pool

    @property
    def nodes(self) -> frozenset[str]:
        """All nodes that there are."""
        return self.others.union(*(pool.nodes for pool in self.pools))

    def at_fault(self, node: str, ids: Iterable[str]) -> bool:
        """True when any of these is at fault, as far as is known."""
        now = self.faults.get(node, {}).keys() | self.unclear.get(node, frozenset())
        return node in self.silent or any(id_ in now for id_ in ids)


class Fleet(Struct, frozen=True):
    """The record."""

    breaker: Literal["Open", "Closed"] = CLOSED
    reason: str = ""  # why it is open, for people
    opened: str = ""  # when, RFC 3339
    cause: str = ""  # the condition's reason
    closed: str = ""  # when it closed last
    resumed: str = ""  # the entry of the annotation that closed it last
    place: str = ""  # namespace/name of the record that this one is, or goes on from
    actions: tuple[tuple[Action, str], ...] = ()  # each with when it was granted; the newest last
    answered: Mapping[str, str] = field(
        default_factory=dict
    )  # node -> since when there was what was at fault when the breaker closed last: times, with spaces in between
    unavailable: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict
    )  # node that was acted upon -> what was at fault then; as long as any of it is


class Claims(Struct, frozen=True):
    """Claims of the policies' own status about the record."""

    elsewhere: str = ""  # namespace/name of another one than this operator's
    stopped: bool = False  # whether any says that the breaker is open


class Decision(Struct, frozen=True):
    fleet: Fleet  # to be written before anything is granted
    answers: Mapping[Action, ActionAnswer] = field(default_factory=dict)


def arrivals(before: Arrivals | None, faults: FaultsByNode, at: float) -> Arrivals:
    """Return when each of the faults was first seen. `before`: as of the last call; None: there was none, and it is not
    known for how long they have been there."""
    if before is None:
        return {node: dict.fromkeys(its.items()) for node, its in faults.items()}
    found = {}
    for node, its in faults.items():
        known = before.get(node, {})
        same = known.keys() == its.items()
        found[node] = known if same else {fault: known.get(fault, at) for fault in its.items()}
    return found


def decide(fleet: Fleet, proposals: Sequence[Action], now: datetime, survey: Survey, seen: Arrivals) -> Decision:
    """Grant or refuse each, the oldest fault first. What the record has already is granted again, and not counted;
    while the breaker is open nothing is."""
    fleet = judged(_still_there(fleet, survey), survey, seen, now)
    if not proposals:
        return Decision(fleet)
    wanted = sorted(set(proposals))
    if fleet.breaker == OPEN:
        answer = ActionAnswer(granted=False, reason=why_stopped(fleet), stopped=True)
        return Decision(fleet, dict.fromkeys(wanted, answer))
    pool_of = {node: pool for pool in survey.pools for node in pool.nodes}
    known = {action for action, _ in fleet.actions}
    budgets = _Budgets(fleet, now, survey)
    answers: dict[Action, ActionAnswer] = {}
    for action in wanted:
        own, why = pool_of.get(action.node), ""
        if action not in known:
            why = "no policy that reacts to faults is active on this node any more"
            why = why if own is None else budgets.exceeded(own, action.node)
            if not why:
                fleet = _acted(fleet, action, now, survey.faults)
                budgets = _Budgets(fleet, now, survey)
        answers[action] = ActionAnswer(granted=not why, reason=why)
    return Decision(fleet, answers)


def would_answer(
    fleet: Fleet,
    pool: Pool,
    actions: Sequence[Action],
    *,
    now: datetime,
    survey: Survey,
    seen: Arrivals,
) -> Mapping[Action, ActionAnswer]:
    """Return the answers if the policy of this pool were enforced, in the place of others on its nodes. Nothing is
    granted."""
    others = [
        replace(other, nodes=other.nodes - pool.nodes, coming=other.coming - pool.nodes, out=other.out - pool.nodes)
        for other in survey.pools
    ]
    tried = replace(survey, pools=[*others, replace(pool, out=survey.out & pool.nodes)])
    decision = decide(fleet, actions, now, tried, seen)
    if decision.fleet.breaker == OPEN and fleet.breaker != OPEN:
        why = f"all actions would be stopped, {decision.fleet.reason}"
        return dict.fromkeys(actions, ActionAnswer(granted=False, reason=why, stopped=True))
    return decision.answers


def why_stopped(fleet: Fleet, refusal: str = "") -> str:
    """Return why nothing is granted while the breaker is open, and how a person resumes actions. `refusal`: why the
    annotation does not."""
    text = f"actions are stopped since {fleet.opened}: {fleet.reason}; until a person resumes them: {HOW}"
    return f"{text}; {refusal}" if refusal else text


def _acted(fleet: Fleet, action: Action, now: datetime, faults: FaultsByNode) -> Fleet:
    """Return the record with the action, and with its node out of service until what is at fault there is well
    again."""
    its = faults.get(action.node, {})
    ids = [id_ for id_, since in its.items() if since == action.since] or list(its)
    actions = (*fleet.actions, (action, now.isoformat()))[-MAX_ACTIONS:]
    if not ids:
        return replace(fleet, actions=actions)
    both = tuple(sorted({*fleet.unavailable.get(action.node, ()), *ids}))[:MAX_IDS]
    others = {node: its for node, its in fleet.unavailable.items() if node != action.node}
    return replace(fleet, actions=actions, unavailable=_newest(others | {action.node: both}))


def _newest(entries: Mapping[str, T]) -> dict[str, T]:
    """Return as many of the entries as a map of the record may have, the last of them."""
    kept, left = [], MAX_MAP_BYTES
    for node, value in reversed([*entries.items()]):
        left -= len(orjson.dumps({node: value}))
        if left < 0:
            break
        kept.append((node, value))
    return dict(reversed(kept))


def _still_there(fleet: Fleet, survey: Survey) -> Fleet:
    """Return the record without the nodes that there are no more, and without those out of service where all that was
    acted upon is well again. One that is in no pool now says nothing of that."""
    if not fleet.unavailable and not fleet.answered:
        return fleet
    nodes, others = survey.nodes, survey.others
    lasting = {
        node: ids
        for node, ids in fleet.unavailable.items()
        if node in nodes and (node in others or survey.at_fault(node, ids))
    }
    answered = {node: times for node, times in fleet.answered.items() if node in nodes}
    return replace(fleet, unavailable=lasting, answered=answered)


class _Budgets:
    """Budgets that are left beside these actions; each policy's is worked out once, however many are proposed."""

    def __init__(self, fleet: Fleet, now: datetime, survey: Survey) -> None:
        self._fleet = fleet
        self._survey = survey
        self._recent = [action.node for action, at in fleet.actions if _within(at, now, HOUR)]
        # By a pool's identity: why no node may be acted upon ("": some may), nodes out of service, why no more may be.
        self._known: dict[int, tuple[str, frozenset[str], str]] = {}

    def exceeded(self, pool: Pool, node: str) -> str:
        """Return why the budget does not allow one more action on this node; empty: it does."""
        if id(pool) not in self._known:
            out = out_of_service(pool, self._fleet, self._survey)
            self._known[id(pool)] = self._why_used(pool), out, _why_full(pool, out)
        used, out, full = self._known[id(pool)]
        return used or ("" if node in out else full)

    def _why_used(self, pool: Pool) -> str:
        limits = pool.limits
        if len(self._recent) >= MAX_ACTIONS:
            return f"{MAX_ACTIONS} actions within the last hour, in the whole fleet: the record can hold no more"
        if limits.per_hour is not None and sum(node in pool.nodes for node in self._recent) >= limits.per_hour:
            return (
                f"the budget of policy {pool.policy} allows {limits.per_hour} actions an hour (perHour), and as many "
                "were granted within the last hour"
            )
        return ""


def _why_full(pool: Pool, out: frozenset[str]) -> str:
    """Return why no other node than these may go out of service; empty: one may."""
    most = pool.limits.max_unavailable
    if most is None or len(out) < most:
        return ""
    listed = some(sorted(out), MAX_NAMES)
    return (
        f"the budget of policy {pool.policy} allows {most} nodes out of service (maxUnavailable), and {len(out)} of "
        f"its {len(pool.all)} nodes are{f': {listed}' if out else ''}"
    )


def out_of_service(pool: Pool, fleet: Fleet, survey: Survey) -> frozenset[str]:
    """Return the pool's nodes that are out of service, or will be: an action was granted, and what it was for is still
    at fault, whatever the fault is called by now."""
    return pool.out | {
        node for node, ids in fleet.unavailable.items() if node in pool.nodes and survey.at_fault(node, ids)
    }


# --- the breaker -----------------------------------------------------------------------------------------------------
def judged(fleet: Fleet, survey: Survey, seen: Arrivals, now: datetime) -> Fleet:
    """Return the record, with an open breaker where there is a mass fault, and a policy that would act."""
    if fleet.breaker == OPEN or not any(pool.acts for pool in survey.pools):
        return fleet
    for pool in survey.pools:
        if why := _mass_fault(pool, fleet, survey.faults, seen):
            return stopped(fleet, names.MASS_FAULT, why, now)
    return fleet


def _mass_fault(pool: Pool, fleet: Fleet, faults: FaultsByNode, seen: Arrivals) -> str:
    percent, nodes = pool.limits.percent, pool.all
    arrived: list[tuple[float, str]] = []
    began: list[tuple[float, str]] = []
    for node in nodes:
        if (its := faults.get(node)) is None:
            continue
        answered, known = fleet.answered.get(node, "").split(), seen.get(node, {})
        for since, at in set(zip(its.values(), map(known.get, its.items()), strict=True)):
            if since in answered:
                continue
            time = zoned_time(since)
            if time is not None:
                began.append((time.timestamp(), node))
            if at is not None:
                arrived.append((at, node))
    failing = max(_most_at_once(times, WINDOW_SECONDS) for times in (arrived, began))
    if failing < MASS or failing * 100 <= percent * len(nodes):
        return ""
    return (
        f"{failing} of the {len(nodes)} nodes of policy {pool.policy} failed within {WINDOW_SECONDS} s, "
        f"which is more than {percent} %"
    )


def _most_at_once(times: Iterable[tuple[float, str]], window: float) -> int:
    """Return how many different nodes there are at most in any stretch of time that is shorter than the window."""
    ordered = sorted(times)
    inside: Counter[str] = Counter()
    most = first = 0
    for at, node in ordered:
        inside[node] += 1
        while at - ordered[first][0] >= window:
            gone = ordered[first][1]
            inside[gone] -= 1
            if not inside[gone]:
                del inside[gone]
            first += 1
        most = max(most, len(inside))
    return most


def stopped(fleet: Fleet, cause: str, reason: str, now: datetime) -> Fleet:
    """With an open breaker; one that is open stays as it is."""
    if fleet.breaker == OPEN:
        return fleet
    return replace(fleet, breaker=OPEN, cause=cause, reason=reason, opened=rfc3339(now))


def checked(fleet: Fleet, claims: Claims, where: str, now: datetime, *, lost: bool) -> Fleet:
    """With an open breaker where this record cannot be all that was done: policies name another one, or this one is
    `lost` and they say that it was open. `where` is this one's place."""
    if claims.elsewhere not in {"", fleet.place}:
        namespace, _, name = claims.elsewhere.rpartition("/")
        why = (
            f"earlier actions are recorded in ConfigMap {name} of namespace {namespace} (the policies' "
            f"status.actionsRecord), not in {where}; copy that record there before the operator starts, or continue "
            "without it"
        )
        return stopped(fleet, names.RECORD_MISSING, why, now)
    if lost and claims.stopped:
        why = f"ConfigMap {where} is gone, and the policies say that actions were stopped"
        return stopped(fleet, names.RECORD_MISSING, why, now)
    return fleet if claims.elsewhere or fleet.place == where else replace(fleet, place=where)


def resumed(fleet: Fleet, annotation: str, now: datetime, faults: FaultsByNode) -> Fleet:
    """After a person's annotation: an entry with a time since the breaker opened. Each entry closes it once, and what
    is at fault now is answered for."""
    entry = next((entry for entry in _new(fleet, annotation)[0] if not _untimely(fleet, entry, now)), None)
    if entry is None:
        return fleet
    answered = _newest({node: " ".join(sorted(set(its.values()))) for node, its in faults.items() if its})
    closed = replace(fleet, breaker=CLOSED, cause="", reason="", opened="", closed=rfc3339(now))
    return replace(closed, resumed=str(entry), answered=answered)


def refusal(fleet: Fleet, annotation: str, now: datetime) -> str:
    """Why this annotation does not close the open breaker, and what would be right; empty: it does, or there is nothing
    new in it."""
    entries, problems = _new(fleet, annotation)
    untimely = [_untimely(fleet, entry, now) for entry in entries]
    if not all(untimely):
        return ""
    wrong = [f"{entry}: {why}" for entry, why in zip(entries, untimely, strict=True)] + problems
    right = "give the time now, as `date -u +%FT%TZ` prints it"
    return f"annotation {CONFIRM} is refused: {some(wrong, NAMED)}; {right}" if wrong else ""


def _new(fleet: Fleet, annotation: str) -> tuple[list[Entry], list[str]]:
    """The entries that may close the open breaker, and what is wrong with others."""
    if fleet.breaker == CLOSED or not annotation:
        return [], []
    return read(annotation, OF_RECORD, done=fleet.resumed)


def _untimely(fleet: Fleet, entry: Entry, now: datetime) -> str:
    said, opened = zoned_time(entry.what), zoned_time(fleet.opened)
    if said is None or said > now + CLOCKS_DIFFER:
        return "it is in the future by the operator's clock"
    if opened is not None and said < opened:
        return f"it is before {fleet.opened}, when actions were stopped"
    return ""


def to_data(fleet: Fleet) -> dict[str, str]:
    """Return the ConfigMap's data."""
    data = asdict(fleet) | {"actions": [asdict(action) | {"at": at} for action, at in fleet.actions]}
    return data | {key: orjson.dumps(data[key]).decode() for key in _JSON}


def from_data(data: Mapping[str, Any]) -> Fleet | None:
    """The record of a ConfigMap's data. None: it is not one that `to_data` wrote."""
    try:
        given = {key: orjson.loads(data[key]) if key in _JSON else data[key] for key in Fleet.__struct_fields__}
        given["actions"] = [(it, it["at"]) for it in given["actions"]][-MAX_ACTIONS:]
        return convert(given, Fleet)
    except (KeyError, TypeError, ValueError):
        return None


_JSON = ("actions", "answered", "unavailable")


def _within(at: str, now: datetime, window: timedelta) -> bool:
    """Within the window; so is what cannot be read, and what is in the future after a clock was set back."""
    time = zoned_time(at)
    return time is None or now - time < window
