"""Conditions of a NodeDevices that are not as they should be, for metrics.

Types and reasons are those of the contract; any other, which only a lying agent writes, is left out or is `Other`: what
becomes a label is a closed set.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nodedevices_api.conditions import ACCEPTED, APPLIED, CONFLICTED, REASONS, ROLLED_OUT, STALE
from nodedevices_common.conditions import ConditionRecord

OTHER = "Other"
_GOOD = {
    kind: "False" if kind == STALE else "True"
    for kind in REASONS
    if kind not in {ACCEPTED, APPLIED, CONFLICTED, ROLLED_OUT}
}  # those four are a DevicePolicy's


def node_problems(conditions: Iterable[ConditionRecord]) -> Iterator[tuple[str, str]]:
    """Type and reason of each that has another status than the good one; at most one of a type."""
    seen: set[str] = set()
    for each in conditions:
        good = _GOOD.get(each.type)
        if good is None or each.status == good or each.type in seen:
            continue
        seen.add(each.type)
        known = {reason for reasons in REASONS[each.type].values() for reason in reasons}
        yield each.type, each.reason if each.reason in known else OTHER
