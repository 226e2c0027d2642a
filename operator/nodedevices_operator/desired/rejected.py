"""The choice of rejected pods to delete, and when.

A pod without devices of ours is left alone: the kubelet's message has to name, in full, a resource that the node's
NodeDevices offers as shares by memory. Thirty seconds are for clients that read the pod's status, and for its
controller, which counts it (a Job's backoffLimit).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta

from nodedevices_common.times import zoned_time

from nodedevices_operator.records.objects import NodeDevicesRecord
from nodedevices_operator.records.rejected import RejectedPod

BY_MEMORY = "memory"  # status.resources[].sharing
GRACE = timedelta(seconds=30)


def shares_by_memory(record: NodeDevicesRecord) -> tuple[str, ...]:
    """The resources that the node offers as shares by memory."""
    return tuple(each.name for each in record.resources if each.sharing == BY_MEMORY)


def named(message: str, resources: Sequence[str]) -> str | None:
    """The first of the resources whose full name is in the message: example.com/gpu is not in example.com/gpu-mem."""
    return next((each for each in resources if _whole(each).search(message)), None)


def remaining(pod: RejectedPod, now: datetime) -> float:
    """Seconds until it may be deleted; 0: now. A time that cannot be read is long ago."""
    since = zoned_time(pod.since)
    return 0.0 if since is None else max(0.0, (since + GRACE - now).total_seconds())


def _whole(name: str) -> re.Pattern[str]:
    """The name where neither end goes on; the full stop of a sentence may follow."""
    return re.compile(rf"(?<![\w./-]){re.escape(name)}(?![\w/-]|\.\w)")
