"""What a DryRun policy would change on one node, for people: sections, and what is done about faults. Pure.

Pods are those that NodeDevices names as holders: whether one belongs to a DaemonSet, or has the annotation that keeps
it, is not checked. The budget is left aside: it is the fleet's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import orjson
from nodedevices_api.errors import parse
from nodedevices_api.sections import Faults

from nodedevices_operator.desired.configuration import Trial
from nodedevices_operator.desired.consequences import evictions, stronger, tainting
from nodedevices_operator.records.objects import NodeDevicesRecord, TaintRecord

MAX_PODS = 5  # named


def preview(trial: Trial, record: NodeDevicesRecord, taints: Sequence[TaintRecord]) -> str:
    """Empty: nothing would change. `taints` are those of our key that the Node has."""
    if trial.misfit:
        return f"would not fit together with the other policies: {trial.misfit}"
    parts = [f"would change {', '.join(trial.changes)}"] if trial.changes else []
    if trial.faults is not None:
        section = _section(orjson.dumps(trial.faults))
        wanted = tainting(record, section, taints)
        if wanted is not None and stronger(wanted.taint, taints):
            parts.append(f"would taint the Node {wanted.taint.effect} for {wanted.reason}")
        pods = sorted(f"{due.holding.holder.namespace}/{due.holding.holder.pod}" for due in evictions(record, section))
        more = f" and {len(pods) - MAX_PODS} more" if len(pods) > MAX_PODS else ""
        if pods:
            parts.append(f"would evict {', '.join(pods[:MAX_PODS])}{more}")
    return ", ".join(parts)


@lru_cache(64)
def _section(text: bytes) -> Faults:
    return parse(Faults, orjson.loads(text))
