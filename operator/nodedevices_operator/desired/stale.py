"""The condition Stale: a NodeDevices may be out of date, by the operator's own monotonic clock.

NodeNotReady holds at once. AgentLost: the agent said that it was stopped (Ready=False/AgentStopped), and 15 s later it
still says so, time enough for the next one of a rolling update; or the Node is Ready, but for 60 s it shows allocatable
0 for every name that the plugin serves and calls healthy, which is what the kubelet does when a plugin ends.
HeartbeatOverdue: the heartbeat has not changed for 15 minutes, by our clock, whatever the node's clock says. They count
from the heartbeat's arrival, which the cache notes. After a restart of the operator the counting starts again, but a
verdict on the object stays until there is evidence against it.
"""

from __future__ import annotations

from msgspec import Struct
from nodedevices_api import conditions as names

from nodedevices_operator.records.objects import HeartbeatArrival, NodeDevicesRecord, NodeRecord

STOPPED_AFTER_SECONDS = 15.0
LOST_AFTER_SECONDS = 60.0
OVERDUE_AFTER_SECONDS = 15 * 60.0  # three heartbeats


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
    nothing = node is not None and node.ready and _none_allocatable(record, node)
    since = Since(
        none_allocatable=_from(since.none_allocatable, now) if nothing else None,
        stopped=_from(since.stopped, now) if _stopped(record) else None,
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


def _from(since: float | None, now: float) -> float:
    return now if since is None else since


def _stopped(record: NodeDevicesRecord) -> bool:
    ready = record.condition(names.READY)
    return ready is not None and ready.reason == names.AGENT_STOPPED


def _none_allocatable(record: NodeDevicesRecord, node: NodeRecord) -> bool:
    """The kubelet shows none of what the agent says is healthy (and the agent says so of something)."""
    served = [it.name for it in record.resources if it.managed_by == "plugin" and it.healthy > 0]
    return bool(served) and all(node.allocatable.get(name, 0) == 0 for name in served)
