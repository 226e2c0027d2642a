"""The Node conditions nodedevices.io/Ready and nodedevices.io/DevicesHealthy: what the agent says of itself and of its
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
"""

from __future__ import annotations

import json
from typing import Any

from nodedevices_api import conditions as names
from nodedevices_api.conditions import XID_CRITICAL_ERROR
from nodedevices_common import conditions
from nodedevices_common.conditions import ConditionRecord

from nodedevices_operator.desired.stale import Staleness
from nodedevices_operator.records.objects import NodeDevicesRecord, NodeRecord

_RESTARTING = frozenset({names.AGENT_STOPPED, names.STARTING})


def node_conditions(
    record: NodeDevicesRecord, stale: Staleness, node: NodeRecord, *, wanted: bool, now: str
) -> tuple[dict[str, Any], ...]:
    """The desired conditions of the Node; none where the policy says so, and none of which the agent says nothing."""
    if not wanted:
        return ()
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
    numbers = sorted(str(xid) for xid in found & WATCHED)  # as Go writes a map's keys
    if not numbers:
        return None
    reason = json.dumps(dict.fromkeys(numbers, True), separators=(",", ":"))
    previous = shown if of_this_boot else None
    made = conditions.build(XID_CRITICAL_ERROR, "True", reason, boot, shown=previous, now=now)
    return made | {"lastHeartbeatTime": now}


def _numbers(reason: str) -> frozenset[int]:
    """Return the XIDs in a reason; none where it is not one of these."""
    try:
        said = json.loads(reason)
    except (ValueError, RecursionError):
        return frozenset()
    keys = said if isinstance(said, dict) else {}
    return frozenset(xid for xid in WATCHED if str(xid) in keys)
