"""The Node condition XidCriticalError, as Google's device plugin writes it, for those who alert on it.

It is there while one of the XIDs that plugin watches has come since the machine booted, and gone with the next boot:
`reason` is a JSON object of their numbers, `message` the boot id. A fault that is repaired without a reboot stays in
it, so what the Node shows of this boot is kept, whatever devices say now. Which XIDs belong to this boot the agent says
(`health.xids`), and which boot it is the kubelet; while they mean two boots, nothing is added.

Its heartbeat is the time of the last change: one each minute, as Google's plugin has it, would be a write each minute
for every node with a fault.
"""

from __future__ import annotations

import json
from typing import Any

from nodedevices_api.conditions import XID_CRITICAL_ERROR
from nodedevices_common import conditions

from nodedevices_operator.records.objects import NodeDevicesRecord, NodeRecord

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
    numbers = sorted(str(each) for each in found & WATCHED)  # as Go writes a map's keys
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
    return frozenset(each for each in WATCHED if str(each) in keys)
