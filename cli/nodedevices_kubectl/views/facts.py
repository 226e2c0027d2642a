"""Readers of a raw NodeDevices that several views use: conditions, devices with their partitions, holders; and times as
people read them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from nodedevices_api.conditions import IN_SYNC
from nodedevices_common.devices import grouped
from nodedevices_common.raw import Raw, mapping, mappings, text
from nodedevices_common.table import NONE, Tone
from nodedevices_common.times import zoned_time

AGENTS = "app.kubernetes.io/name=nodedevices,app.kubernetes.io/component=agent"  # labels of their pods

HEALTHY, DEGRADED, UNHEALTHY, UNKNOWN = "Healthy", "Degraded", "Unhealthy", "Unknown"
WORST = (UNHEALTHY, UNKNOWN, DEGRADED, HEALTHY)
_TONES: dict[str, Tone] = {
    **dict.fromkeys(("Unhealthy", "NotReady", "Unreachable", "Forbidden", "False", "broken"), "bad"),
    **dict.fromkeys(("Degraded", "Unknown", "Stale", "warning", "pending"), "warning"),
    **dict.fromkeys(("Healthy", "Ready", "True", "ok"), "good"),
}


def tone(cell: str) -> Tone | None:
    """Return the tone of a cell that begins with a word of health: `Healthy,OutOfService`."""
    return _TONES.get(cell.partition(",")[0])


def name_of(item: Raw) -> str:
    return text(mapping(item.get("metadata")).get("name"))


def version_of(item: Raw) -> str:
    return text(mapping(item.get("metadata")).get("resourceVersion"))


def namespaced(item: Raw) -> str:
    """Return namespace/name."""
    return f"{text(mapping(item.get('metadata')).get('namespace'))}/{name_of(item)}"


def last_time(event: Raw) -> str:
    """When it came last: where that is depends on who wrote it."""
    series = text(mapping(event.get("series")).get("lastObservedTime"))
    return series or text(event.get("lastTimestamp")) or text(event.get("eventTime"))


def status_of(item: Raw) -> Raw:
    return mapping(item.get("status"))


def condition(item: Raw, kind: str) -> Raw:
    """Return the condition of this type; an empty one where there is none."""
    for found in mappings(status_of(item).get("conditions")):
        if found.get("type") == kind:
            return found
    return {}


def not_in_sync(item: Raw) -> dict[str, Raw]:
    """Return the operator's actions that are not done, by name."""
    actions = mappings(status_of(item).get("actions"))
    return {text(action.get("name")): action for action in actions if action.get("reason") != IN_SYNC}


def drivers(item: Raw) -> str:
    """Return the drivers with their versions."""
    named = [
        (text(driver.get("name")), text(driver.get("version"))) for driver in mappings(status_of(item).get("drivers"))
    ]
    return ", ".join(" ".join(filter(None, pair)) for pair in named)


def action_of(health: Raw) -> str:
    """Return what would help; empty: nothing is to be done."""
    action = text(health.get("recoveryAction"))
    return "" if action == "None" else action


@dataclass(frozen=True, slots=True)
class Unit:
    """A device, or a partition of it."""

    raw: Raw
    device: Raw  # the physical one

    @property
    def is_partition(self) -> bool:
        return self.raw is not self.device

    @property
    def id(self) -> str:
        return text(self.raw.get("id"))

    @property
    def name(self) -> str:
        return text(self.raw.get("name")) or self.id

    @property
    def health(self) -> Raw:
        return mapping(self.raw.get("health"))

    @property
    def holders(self) -> list[Raw]:
        return mappings(self.raw.get("holders"))

    @property
    def out_of_service(self) -> str:
        return text(self.raw.get("unschedulable")) or text(self.device.get("unschedulable"))


def units(item: Raw) -> Iterator[Unit]:
    """Every device of the node, each followed by its partitions."""
    for parts in grouped(status_of(item).get("devices")):
        for part in parts:
            yield Unit(part, parts[0])


def health_for(holder: Raw, unit: Unit) -> Raw:
    """Return the health that decides for a holder: what happened to it alone, or else its device's."""
    return mapping(holder.get("health")) or unit.health


def pod_of(holder: Raw) -> str:
    return f"{text(holder.get('namespace'))}/{text(holder.get('pod'))}"


def pods_of(holders: Sequence[Raw]) -> list[str]:
    """Return the pods, each once, in their order."""
    return list(dict.fromkeys(map(pod_of, holders)))


# --- ages, as kubectl writes them (apimachinery's duration.HumanDuration): 5d3h ---------------------------------------
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_YEAR = 365 * _DAY


# Up to how many seconds an age is shown by which units: the larger, and the smaller where it matters.
_FORMS: tuple[tuple[float, int, int, str], ...] = (
    (2 * _MINUTE, 1, 1, "s"),
    (10 * _MINUTE, _MINUTE, 1, "ms"),
    (3 * _HOUR, _MINUTE, _MINUTE, "m"),
    (8 * _HOUR, _HOUR, _MINUTE, "hm"),
    (2 * _DAY, _HOUR, _HOUR, "h"),
    (8 * _DAY, _DAY, _HOUR, "dh"),
    (2 * _YEAR, _DAY, _DAY, "d"),
    (8 * _YEAR, _YEAR, _DAY, "yd"),
    (math.inf, _YEAR, _YEAR, "y"),
)


def duration(seconds: int) -> str:
    """Return two units at most, the smaller one only where it matters."""
    if seconds < 0:
        return "0s" if seconds >= -2 else "<invalid>"
    large, small, letters = next((large, small, letters) for end, large, small, letters in _FORMS if seconds < end)
    rest = seconds % large // small
    return f"{seconds // large}{letters[0]}" + (f"{rest}{letters[1]}" if rest else "")


def age(since: Any, now: datetime) -> str:
    """Return how long ago a time of an object was."""
    if not since:
        return NONE
    time = zoned_time(since)
    return "<unknown>" if time is None else duration(int((now - time).total_seconds()))


def reported(agent: Raw, now: datetime) -> str:
    """Return the agent's version, and when it was last heard of."""
    return f"{text(agent.get('version'))}, last heartbeat {age(agent.get('heartbeatTime'), now)} ago"
