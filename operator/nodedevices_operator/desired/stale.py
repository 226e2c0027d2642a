"""Whether a NodeDevices can still be believed: SCHEMA's Stale. Pure, with the operator's own monotonic clock.

NodeNotReady holds at once. AgentLost: the Node is Ready, but for 60 s it shows allocatable 0 for every name that the
plugin serves and calls healthy, which is what the kubelet does when a plugin dies. HeartbeatOverdue: the heartbeat has
not changed for 15 minutes, by our clock, whatever the node's clock says. They count from the heartbeat's arrival, which
the cache notes. After a restart of the operator the counting starts again, but a verdict that stands on the object
stays until there is evidence against it.
"""

from __future__ import annotations

from dataclasses import dataclass

from nodedevices_api import conditions as names

from nodedevices_operator.records.objects import Heard, NodeDevicesRecord, NodeRecord

LOST_AFTER_SECONDS = 60.0
OVERDUE_AFTER_SECONDS = 15 * 60.0  # three heartbeats


@dataclass(frozen=True, slots=True)
class Staleness:
    status: str
    reason: str
    message: str
    wait: float  # seconds until the answer could change without any event


def judge(
    record: NodeDevicesRecord, node: NodeRecord | None, *, heard: Heard, lost_since: float | None, now: float
) -> tuple[Staleness, float | None]:
    """Whether the record is stale, and since when every served name shows allocatable 0 (to be given next time).

    All times are by the operator's monotonic clock.
    """
    shown = record.condition(names.STALE)
    standing = shown.reason if shown is not None and shown.status == "True" else ""
    if node is None or not node.ready or not _none_allocatable(record, node):
        lost_since = None
    elif lost_since is None:
        lost_since = now
    quiet = now - heard.at
    if node is None or not node.ready:
        what = "the Node is not Ready" if node is not None else "there is no Node with this name"
        text = f"{what}; this status may be out of date"
        return Staleness("True", names.NODE_NOT_READY, text, OVERDUE_AFTER_SECONDS), lost_since
    if quiet >= OVERDUE_AFTER_SECONDS or (standing == names.HEARTBEAT_OVERDUE and heard.first):
        text = "no heartbeat for 15 minutes; check the nodedevices-agent pod on this node"
        return Staleness("True", names.HEARTBEAT_OVERDUE, text, OVERDUE_AFTER_SECONDS), lost_since
    overdue_in = OVERDUE_AFTER_SECONDS - quiet
    if lost_since is not None:
        lost_for = now - lost_since
        if lost_for >= LOST_AFTER_SECONDS or standing == names.AGENT_LOST:
            text = (
                "no device has been allocatable on the Node for a minute; check the nodedevices-agent pod on this node"
            )
            return Staleness("True", names.AGENT_LOST, text, overdue_in), lost_since
        return Staleness("False", names.FRESH, "", min(overdue_in, LOST_AFTER_SECONDS - lost_for)), lost_since
    return Staleness("False", names.FRESH, "", overdue_in), lost_since


def _none_allocatable(record: NodeDevicesRecord, node: NodeRecord) -> bool:
    """The kubelet shows none of what the agent says is healthy (and the agent says so of something)."""
    served = [it.name for it in record.resources if it.managed_by == "plugin" and it.healthy > 0]
    return bool(served) and all(node.allocatable.get(name, 0) == 0 for name in served)
