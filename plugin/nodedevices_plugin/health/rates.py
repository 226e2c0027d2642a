"""Counters that rise too fast: conditions of a device by its vendor's limits (FaultSource.counter_limits).

`follow` keeps of each counter its value, and by how much it has risen within the window, in at most PARTS + 1 parts;
of one that stands still nothing more than its value. It begins anew with the first line, after a probe's silence, after
lines that did not have the counter, and after a restart of the agent: what a counter rose by meanwhile may have come
slowly, so none of it counts. A counter that is lower than before was set back, by a person or by a driver that was
loaded again: what came before is over.

A condition is evident while the counter has risen by more than the limit within the window. It is over when it has
not, and unreadable until a whole window is known: a fault lasts through a restart of the agent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import IntEnum

from msgspec import Struct
from nodedevices_probe.protocol import DeviceFact, DriverState

from nodedevices_plugin.model import Inventory, InventoryDevice
from nodedevices_plugin.vendors.faults import CounterLimit, FaultCondition, FaultSource, FaultSources, source_of

PARTS = 12  # of a window: a rise counts for up to a twelfth of it less than the whole
CounterKey = tuple[str, str, str]  # device, reason, counter


class Count(Struct, frozen=True, kw_only=True):
    """Times are those of time.monotonic()."""

    value: int
    known_from: float  # all that it has risen by since then is known
    risen: tuple[tuple[float, int], ...] = ()  # since when, by how much; oldest first
    over_since: float | None = None  # since when it has been over the limit


Counts = Mapping[CounterKey, Count]


class _Seen(IntEnum):
    """What a counter says of its limit; of several counters with the same reason the greatest counts."""

    ABSENT = 0
    BELOW = 1
    UNCLEAR = 2
    ABOVE = 3


_EVIDENT = {_Seen.ABSENT: None, _Seen.BELOW: False, _Seen.UNCLEAR: None, _Seen.ABOVE: True}


def follow(
    before: Counts, inventory: Inventory, vendors: FaultSources, *, silence_seconds: float, monotonic: float
) -> dict[CounterKey, Count]:
    """Return the counters of these devices after the line in effect."""
    driver, came = inventory.driver, inventory.line_monotonic
    if driver is None or driver.state is not DriverState.LOADED or came is None:
        return {}
    if monotonic - came >= silence_seconds:
        return {}
    found = {}
    for device in inventory.devices:
        readings = device.fact.readings
        if not readings.counters or not device.present or readings.lost or readings.error is not None:
            continue
        for limit in source_of(vendors, device.fact).counter_limits:
            if (value := readings.counters.get(limit.counter)) is not None:
                key = _key(device.fact, limit)
                found[key] = _count(before.get(key), value, limit, came)
    return found


def conditions(
    device: InventoryDevice, vendor: FaultSource, counts: Counts, *, monotonic: float
) -> tuple[FaultCondition, ...]:
    """Return a condition for each reason of the vendor's limits, evident or not."""
    by_reason: dict[str, tuple[_Seen, CounterLimit]] = {}
    for limit in vendor.counter_limits:
        seen = _seen(counts.get(_key(device.fact, limit)), limit, monotonic)
        known = by_reason.get(limit.reason)
        if known is None or seen > known[0]:
            by_reason[limit.reason] = (seen, limit)
    return tuple(
        FaultCondition(
            reason=limit.reason,
            state=limit.state,
            message=limit.message,
            evident=_EVIDENT[seen],
            action=limit.action,
            ends_by_itself=True,
            unused=limit.unused,
        )
        for seen, limit in by_reason.values()
    )


def _key(fact: DeviceFact, limit: CounterLimit) -> CounterKey:
    return fact.id, limit.reason, limit.counter


def _count(before: Count | None, value: int, limit: CounterLimit, came: float) -> Count:
    if before is None:
        return Count(value=value, known_from=came)
    if value < before.value:
        return Count(value=value, known_from=-math.inf)
    if value == before.value and not before.risen:
        return before
    risen = [rise for rise in before.risen if rise[0] > came - limit.window_seconds]
    if value > before.value:
        if risen and came - risen[-1][0] < limit.window_seconds / PARTS:
            since, by = risen.pop()
            risen.append((since, by + value - before.value))
        else:
            risen.append((came, value - before.value))
    is_over = sum(by for _, by in risen) > limit.limit
    since_over = came if before.over_since is None else before.over_since
    return Count(
        value=value, known_from=before.known_from, risen=tuple(risen), over_since=since_over if is_over else None
    )


def _seen(count: Count | None, limit: CounterLimit, monotonic: float) -> _Seen:
    if count is None:
        return _Seen.ABSENT
    if count.over_since is not None:
        return _Seen.ABOVE if monotonic - count.over_since >= limit.for_seconds else _Seen.UNCLEAR
    stopped = limit.most is not None and count.value >= limit.most
    return _Seen.UNCLEAR if stopped or monotonic - count.known_from < limit.window_seconds else _Seen.BELOW
