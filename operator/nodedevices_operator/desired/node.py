"""The Node conditions nodedevices.io/Ready and nodedevices.io/DevicesHealthy: what the agent says of itself and of its
devices, unless that is out of date. What is known to be wrong stays shown while the node is stale; "all is well"
becomes Unknown then.

Ready is about the inventory, not about health: True when every probe has reported and the kubelet has the result, even
where a device has a fault. So a taint can wait for it on a node that joins with a failed GPU. An agent that restarts
keeps it True: a rolling update of the agents writes no Node.

Devices that are expected and not there change neither: they are the NodeDevices' ExpectedDevices alone.
"""

from __future__ import annotations

from typing import Any

from nodedevices_api import conditions as names
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
    return tuple(_built(kind, each, stale, shown, now) for kind, (each, shown) in said.items() if each is not None)


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
