"""The Node condition nodedevices.io/DevicesHealthy: what the agent says of its devices, unless that is out of date.

Devices that a policy expects and that are not there make it False, where no fault of those that are does. What is known
to be wrong stays shown while the node is stale; "all is well" becomes Unknown then.
"""

from __future__ import annotations

from typing import Any

from nodedevices_api import conditions as names
from nodedevices_common import conditions
from nodedevices_common.conditions import ConditionRecord

from nodedevices_operator.desired.stale import Staleness
from nodedevices_operator.records.objects import NodeDevicesRecord


def node_condition(
    record: NodeDevicesRecord, stale: Staleness, *, wanted: bool, previous: ConditionRecord | None, now: str
) -> dict[str, Any] | None:
    """The desired condition of the Node; None: none of ours (the policy says so, or the agent is silent)."""
    said = record.condition(names.DEVICES_HEALTHY)
    if not wanted or said is None:
        return None
    expected = record.condition(names.EXPECTED_DEVICES)
    if said.status == "True" and expected is not None and expected.status == "False":
        said = expected
    status, reason, message = said.status, said.reason, said.message
    if stale.status == "True" and status == "True":
        status, reason, message = "Unknown", stale.reason, stale.message
    return conditions.build(names.NODE_DEVICES_HEALTHY, status, reason, message, shown=previous, now=now)
