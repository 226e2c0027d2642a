"""Notices: events that changed no device's state, kept for the question "was it the code, or the GPU?".

Examples: a program's own error (XID 31), a contained memory error, the clean-up after a killed process. Events that a
policy's rules ignore leave none. Each is kept for a day after its last event, a few for each device, the newest first.

A program may fail a thousand times a second. The first of its errors is shown at once; repeats are added up, and shown
once a minute, so that a flood costs a write of the status a minute.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from nodedevices_api.bounds import INT32_MAX
from nodedevices_common.text import clip
from nodedevices_probe.protocol import MAX_MESSAGE, ProbeEvent

from nodedevices_plugin.health.actions import advice
from nodedevices_plugin.health.events import effect, occurred, told
from nodedevices_plugin.health.rules import HealthRules
from nodedevices_plugin.model import Inventory, InventoryDevice, Notice, devices_by_id
from nodedevices_plugin.vendors.faults import Effect, FaultSources, Meaning, meaning_of, source_of

KEPT = timedelta(days=1)  # after it came last
SHOWN_AGAIN = timedelta(seconds=60)  # repeats of a notice
MAX_KEPT = 16  # of one device; fewer are shown

Notices = Mapping[str, tuple[Notice, ...]]  # by device, the newest first


def follow(
    before: Notices,
    events: Sequence[ProbeEvent],
    inventory: Inventory,
    rules: HealthRules,
    vendors: FaultSources,
    *,
    now: datetime,
) -> dict[str, tuple[Notice, ...]]:
    """Return the notices of every device after these events. `events`: those that were not judged before."""
    devices = {device.fact.id: device for device in inventory.devices}
    owners = devices_by_id(inventory)
    found = {
        own: {(notice.code, notice.partition): notice for notice in before[own]} for own in devices if own in before
    }
    for event in events:
        named = event.device_id or ""
        device = owners.get(named)
        if device is None:
            continue
        meaning = meaning_of(source_of(vendors, device.fact), event)
        if meaning is None or not _noticed(meaning, rules.for_device(device.fact)):
            continue
        of_device = found.setdefault(device.fact.id, {})
        part = _partition(event, device)
        when = occurred(event, now)
        known = of_device.get((meaning.reason, part))
        of_device[meaning.reason, part] = (
            _new(meaning, part, when, event, now)
            if known is None
            else replace(known, repeats=known.repeats + event.count, newest=max(known.newest, when))
        )
    kept = {own: _kept(notices.values(), now) for own, notices in found.items()}
    return {own: notices for own, notices in kept.items() if notices}


def _noticed(meaning: Meaning, rules: HealthRules) -> bool:
    kind = effect(meaning, rules)
    return kind is Effect.NOTICE or (kind is Effect.UNDECIDED and not meaning.may_be_unhealthy)


def _partition(event: ProbeEvent, device: InventoryDevice) -> str:
    """Return the partition that the event names; empty: none."""
    for part in device.fact.partitions:
        same_instance = event.gi is not None and part.gi == event.gi and event.ci in {None, part.ci}
        if part.id == event.device_id or same_instance:
            return part.id
    return ""


def _new(meaning: Meaning, partition: str, when: datetime, event: ProbeEvent, now: datetime) -> Notice:
    message = clip("; ".join(filter(None, (told(meaning, event), advice(meaning.action)))), MAX_MESSAGE)
    return Notice(
        code=meaning.reason,
        partition=partition,
        message=message,
        since=when,
        time=when,
        count=min(event.count, INT32_MAX),
        counted=now,
        newest=when,
    )


def _kept(notices: Iterable[Notice], now: datetime) -> tuple[Notice, ...]:
    settled = (_settled(notice, now) for notice in notices if abs(now - notice.newest) < KEPT)
    return tuple(
        sorted(settled, key=lambda notice: (-notice.time.timestamp(), notice.code, notice.partition))[:MAX_KEPT]
    )


def _settled(notice: Notice, now: datetime) -> Notice:
    """Show the notice's repeats when it is time, or when its time is in the future: the clock was set back."""
    if notice.repeats and not timedelta(0) <= now - notice.counted < SHOWN_AGAIN:
        count = min(notice.count + notice.repeats, INT32_MAX)
        return replace(notice, count=count, time=min(notice.newest, now), counted=now, repeats=0)
    return notice
