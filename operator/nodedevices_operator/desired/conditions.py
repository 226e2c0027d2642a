"""Conditions about a node; what the operator does there (NodeDevices.status.actions), and ActionsSynced, their sum.

Stale: a NodeDevices may be out of date, by the operator's own monotonic clock.

NodeNotReady holds at once. AgentLost: the agent said that it was stopped (Ready=False/AgentStopped), and 15 s later it
still says so, time enough for the next one of a rolling update; or the Node is Ready, but for 60 s it shows allocatable
0 for every name that the plugin serves and calls healthy, which is what the kubelet does when a plugin ends.
HeartbeatOverdue: the heartbeat has not changed for 15 minutes, by our clock, whatever the node's clock says. They count
from the heartbeat's arrival, which the cache notes. After a restart of the operator the counting starts again, but a
verdict on the object stays until there is evidence against it.

ProblemReported and MaintenanceScheduled: what others say on its Node (the list is in
records/neighbours.py). They are shown and nothing follows from them: no device is withheld, no pod evicted, no Node
tainted. Each is there only while it is True, so that a Node of which nobody says anything costs no write.

Maintenance whose time has come is Due until it is Ongoing. A cloud that neither begins it within a day nor takes its
label away has forgotten it, and so does the condition.

The Node's nodedevices.io/Ready and nodedevices.io/DevicesHealthy: what the agent says of itself and of its
devices, unless that is out of date. What is known to be wrong stays shown while the node is stale; "all is well"
becomes Unknown then.

Ready is about the inventory, not about health: True when every probe has reported and the kubelet has the result, even
where a device has a fault. So a taint can wait for it on a node that joins with a failed GPU. An agent that restarts
keeps it True: a rolling update of the agents writes no Node. Devices that are expected and not there change neither:
they are the NodeDevices' ExpectedDevices alone.

XidCriticalError is written as Google's device plugin writes it, for those who alert on it. It is there while one of the
XIDs that plugin watches has come since the machine booted, and gone with the next boot: `reason` is a JSON object of
their numbers, `message` the boot id. A fault that is repaired without a reboot stays in it, so what the Node shows of
this boot is kept, whatever devices say now. Which XIDs belong to this boot the agent says (`health.xids`), and which
boot it is the kubelet; while they mean two boots, nothing is added. Its heartbeat is the time of the last change: one
each minute, as Google's plugin has it, would be a write each minute for every node with a fault.

An action about which nothing was decided stays as the object shows it, with the generation that it was decided for:
also in a new process, and while a NodeDevices is stale.

Types and reasons of metrics are those of the contract; any other, which only a lying agent writes, is left out or is
`Other`: what becomes a label is a closed set. A reason with numbers is a label without them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from nodedevices_api import conditions as names
from nodedevices_common import conditions
from nodedevices_common.conditions import MESSAGE_LIMIT, ConditionRecord
from nodedevices_common.text import clip, some
from nodedevices_common.times import seconds_between

from nodedevices_operator.records.neighbours import ReportRecord, Says
from nodedevices_operator.records.objects import ActionRecord, HeartbeatArrival, NodeDevicesRecord, NodeRecord

ConditionVerdict = tuple[str, str, str]  # status, reason, message

STOPPED_AFTER_SECONDS = 15.0
LOST_AFTER_SECONDS = 60.0
OVERDUE_AFTER_SECONDS = 15 * 60.0  # three heartbeats


# --- Stale -----------------------------------------------------------------------------------------------------------
class Staleness(Struct, frozen=True):
    status: str
    reason: str
    message: str
    wait: float  # seconds until the answer could change without any event


class Since(Struct, frozen=True):
    """Since when a sign of the agent's end is there; None: it is not."""

    none_allocatable: float | None = None  # every served name shows allocatable 0
    stopped: float | None = None  # the agent says that it was stopped


def judge(
    record: NodeDevicesRecord, node: NodeRecord | None, *, arrival: HeartbeatArrival, since: Since, now: float
) -> tuple[Staleness, Since]:
    """Return whether the record is stale, and since when the signs of it are there (to be given next time).

    All times are by the operator's monotonic clock.
    """
    shown = record.condition(names.STALE)
    standing = shown.reason if shown is not None and shown.status == "True" else ""
    said = record.condition(names.READY)
    nothing = node is not None and node.ready and _none_allocatable(record, node)
    ended = said is not None and said.reason == names.AGENT_STOPPED
    since = Since(
        none_allocatable=(now if since.none_allocatable is None else since.none_allocatable) if nothing else None,
        stopped=(now if since.stopped is None else since.stopped) if ended else None,
    )
    quiet = now - arrival.at
    if node is None or not node.ready:
        what = "the Node is not Ready" if node is not None else "there is no Node with this name"
        text = f"{what}; this status may be out of date"
        return Staleness("True", names.NODE_NOT_READY, text, OVERDUE_AFTER_SECONDS), since
    stopped_in = OVERDUE_AFTER_SECONDS
    if since.stopped is not None:
        stopped_in = STOPPED_AFTER_SECONDS - (now - since.stopped)
        if stopped_in <= 0 or standing == names.AGENT_LOST:
            text = "the agent was stopped and has not come back; check the nodedevices-agent pod on this node"
            return Staleness("True", names.AGENT_LOST, text, OVERDUE_AFTER_SECONDS), since
    if quiet >= OVERDUE_AFTER_SECONDS or (standing == names.HEARTBEAT_OVERDUE and arrival.first):
        text = "no heartbeat for 15 minutes; check the nodedevices-agent pod on this node"
        return Staleness("True", names.HEARTBEAT_OVERDUE, text, stopped_in), since
    overdue_in = OVERDUE_AFTER_SECONDS - quiet
    lost_in = OVERDUE_AFTER_SECONDS
    if since.none_allocatable is not None:
        lost_in = LOST_AFTER_SECONDS - (now - since.none_allocatable)
        if lost_in <= 0 or standing == names.AGENT_LOST:
            text = (
                "no device has been allocatable on the Node for a minute; check the nodedevices-agent pod on this node"
            )
            return Staleness("True", names.AGENT_LOST, text, overdue_in), since
    return Staleness("False", names.FRESH, "", min(overdue_in, stopped_in, lost_in)), since


def _none_allocatable(record: NodeDevicesRecord, node: NodeRecord) -> bool:
    """The kubelet shows none of what the agent says is healthy (and the agent says so of something). Names that DRA
    serves it never shows."""
    served = [it.name for it in record.resources if it.managed_by == "plugin" and it.healthy > 0]
    return bool(served) and all(node.allocatable.get(name, 0) == 0 for name in served)


# --- what others report ----------------------------------------------------------------------------------------------
NAMED = 5  # reports in a message
FORGOTTEN_SECONDS = 24 * 3600.0  # after its time


def problem_reported(reports: Iterable[ReportRecord]) -> ConditionVerdict | None:
    """Return the verdict of ProblemReported; its reason is the first monitor's. None: no monitor reports a problem."""
    found = [report for report in reports if report.says is Says.PROBLEM]
    return ("True", found[0].by, _listed(found)) if found else None


def maintenance_scheduled(reports: Iterable[ReportRecord], now: str) -> ConditionVerdict | None:
    """Return the verdict of MaintenanceScheduled; None: none is announced."""
    found = [(report, _wait(report, now)) for report in reports if report.says is not Says.PROBLEM]
    found = [(report, wait) for report, wait in found if wait is None or wait > -FORGOTTEN_SECONDS]
    if not found:
        return None
    due = any(wait is not None and wait <= 0 for _, wait in found)
    ongoing = any(report.says is Says.ONGOING for report, _ in found)
    reason = names.ONGOING if ongoing else names.DUE if due else names.SCHEDULED
    return "True", reason, _listed(report for report, _ in found)


def next_change(reports: Sequence[ReportRecord], now: str) -> float | None:
    """Return in how many seconds the verdict changes though the Node does not; None: never."""
    waits = [wait for report in reports if (wait := _wait(report, now)) is not None and wait > -FORGOTTEN_SECONDS]
    return min((wait if wait > 0 else wait + FORGOTTEN_SECONDS for wait in waits), default=None)


def _wait(report: ReportRecord, now: str) -> float | None:
    return seconds_between(now, report.at) if report.at else None


def _listed(reports: Iterable[ReportRecord]) -> str:
    return some((f"{report.by}: {report.text}" for report in reports), NAMED)


# --- on the Node -----------------------------------------------------------------------------------------------------
_RESTARTING = frozenset({names.AGENT_STOPPED, names.STARTING})


def node_conditions(
    record: NodeDevicesRecord, stale: Staleness, node: NodeRecord, *, now: str
) -> tuple[dict[str, Any], ...]:
    """The desired conditions of the Node; none of which the agent says nothing."""
    said = {
        names.NODE_READY: (_ready(record, stale, node.ready_condition), node.ready_condition),
        names.NODE_DEVICES_HEALTHY: (record.condition(names.DEVICES_HEALTHY), node.condition),
    }
    return tuple(
        _built(kind, condition, stale, shown, now) for kind, (condition, shown) in said.items() if condition is not None
    )


def _ready(record: NodeDevicesRecord, stale: Staleness, shown: ConditionRecord | None) -> ConditionRecord | None:
    said = record.condition(names.READY)
    restarting = said is not None and said.reason in _RESTARTING and stale.status != "True"
    return shown if restarting and shown is not None and shown.status == "True" else said


def _built(
    kind: str, said: ConditionRecord, stale: Staleness, shown: ConditionRecord | None, now: str
) -> dict[str, Any]:
    status, reason, message = said.status, said.reason, said.message
    if stale.status == "True" and status == "True":
        status, reason, message = "Unknown", stale.reason, stale.message
    return conditions.build(kind, status, reason, message, shown=shown, now=now)


WATCHED = frozenset({48, 63, 64, 79, 119, 120, 123, 140})  # container-engine-accelerators 992db81, health_checker.go


def xid_condition(record: NodeDevicesRecord, node: NodeRecord, *, now: str) -> dict[str, Any] | None:
    """The desired condition; None: no such XID has come since the boot."""
    boot = node.boot_id or record.boot_id
    if not boot:
        return None
    shown = node.xid_condition
    of_this_boot = shown is not None and (shown.status, shown.message) == ("True", boot)
    found = _numbers(shown.reason) if shown is not None and of_this_boot else frozenset()
    if record.boot_id == boot:
        found |= {xid for device in record.devices for part in device.parts for xid in part.health.xids}
    if not (numbers := sorted(str(xid) for xid in found & WATCHED)):  # as Go writes a map's keys
        return None
    reason = json.dumps(dict.fromkeys(numbers, True), separators=(",", ":"))
    before = shown if of_this_boot else None
    return {
        **conditions.build(names.XID_CRITICAL_ERROR, "True", reason, boot, shown=before, now=now),
        "lastHeartbeatTime": now,
    }


def _numbers(reason: str) -> frozenset[int]:
    """Return the XIDs in a reason; none where it is not one of these."""
    try:
        said = json.loads(reason)
    except (ValueError, RecursionError):
        return frozenset()
    keys = said if isinstance(said, dict) else {}
    return frozenset(xid for xid in WATCHED if str(xid) in keys)


# --- actions ---------------------------------------------------------------------------------------------------------
_WORDS = {names.ACTION_IDLE_PODS: "idle pods"}  # for people, where they differ from the name


def next_actions(
    shown: Sequence[ActionRecord], verdicts: Mapping[str, ConditionVerdict | None], generation: int
) -> tuple[ActionRecord, ...]:
    """The actions as the object shall show them. `verdicts`: of those about which something was decided, for this
    generation; None: the action is no longer needed."""
    found = {it.name: it for it in shown if it.name in names.ACTIONS and it.name not in verdicts}
    for name, verdict in verdicts.items():
        if verdict is not None:
            _, reason, message = verdict
            found[name] = ActionRecord(name, reason, clip(message, MESSAGE_LIMIT), generation)
    return tuple(found[name] for name in names.ACTIONS if name in found)


def summed_up(actions: Sequence[ActionRecord]) -> tuple[ConditionVerdict, int | None] | None:
    """The verdict of ActionsSynced with the generation that all of it is about; None: there is no action."""
    if not actions:
        return None
    generation = min((it.generation for it in actions if it.generation is not None), default=None)
    wrong = [it for it in actions if not it.in_sync]
    if not wrong:
        said = "; ".join(f"{_words(it)}: {it.message}" for it in actions if it.message)
        return ("True", names.IN_SYNC, said), generation
    reason = names.action_reason(wrong[0].name, wrong[0].reason)
    return ("False", reason, "; ".join(f"{_words(it)} {it.reason}: {it.message}" for it in wrong)), generation


def _words(action: ActionRecord) -> str:
    return _WORDS.get(action.name, action.name)


# --- for metrics -----------------------------------------------------------------------------------------------------
OTHER = "Other"
_TOO_FEW = re.compile(names.TOO_FEW.format(expected="[0-9]+", found="[0-9]+"))
_GOOD = {
    kind: "False" if kind in {names.STALE, names.PROBLEM_REPORTED, names.MAINTENANCE_SCHEDULED} else "True"
    for kind in names.REASONS
    if kind not in {names.ACTIONS_SYNCED, names.ACCEPTED, names.APPLIED, names.CONFLICTED, names.ROLLED_OUT}
}  # the last four are a DevicePolicy's


def node_problems(record: NodeDevicesRecord) -> Iterator[tuple[str, str]]:
    """Type and reason of each condition that has another status than the good one, at most one of a type; and of
    ActionsSynced the reason of each action that is not in sync."""
    seen: set[str] = set()
    for condition in record.conditions:
        good = _GOOD.get(condition.type)
        if good is None or condition.status == good or condition.type in seen:
            continue
        seen.add(condition.type)
        yield condition.type, _label(condition)
    for action in record.actions:
        if not action.in_sync:
            known = action.reason in names.ACTIONS.get(action.name, ())
            yield names.ACTIONS_SYNCED, names.action_reason(action.name, action.reason) if known else OTHER


def _label(problem: ConditionRecord) -> str:
    if problem.type == names.EXPECTED_DEVICES and _TOO_FEW.fullmatch(problem.reason):
        return "TooFew"  # for Expected8Found7 and all others with numbers
    known = {reason for reasons in names.REASONS[problem.type].values() for reason in reasons} - {names.TOO_FEW}
    return problem.reason if problem.reason in known else OTHER
