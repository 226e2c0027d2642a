"""A row for each device, with what its agent measures: how busy it is, its memory, power and temperature.

The readings are the agent's metrics nodedevices_device_* (docs/metrics.md, Telemetry), by the device's id.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

from nodedevices_common.raw import Raw, text
from nodedevices_common.table import NONE, Column, Kind, Row, first_of

from nodedevices_kubectl.views import facts, lists

NO_AGENT = "its agent has no pod in this namespace"
NO_TELEMETRY = "its agent runs without --telemetry"
IDLE_BELOW = 0.01  # of the time
_NUMBER = r"-?[0-9]+(?:[.][0-9]+)?(?:e[+-]?[0-9]{1,2})?"  # neither NaN nor Inf
_LINE = re.compile(rf'^nodedevices_device_(\w+)\{{[^}}]*uuid="([^"]+)"[^}}]*\}} ({_NUMBER})$', re.MULTILINE)
METRICS = {  # nodedevices_device_*, and their fields here
    "utilization_ratio": "utilization",
    "memory_used_bytes": "memoryUsedBytes",
    "memory_bytes": "memoryBytes",
    "power_watts": "powerWatts",
    "temperature_celsius": "temperatureCelsius",
}
Readings = Mapping[str, Mapping[str, float]]  # by the device's id


def _amount(form: str, factor: float = 1) -> Callable[[Any, datetime], str]:
    return lambda value, now: NONE if value is None else form.format(value * factor)


KIND = Kind(
    "Top",
    "devices",
    (
        Column("NODE", "node"),
        Column("DEVICE", "device"),
        Column("UTIL", "utilization", _amount("{:.0f}%", 100)),
        Column("MEMORY-USED", "memoryUsedBytes", _amount("{:.1f}Gi", 1 / (1 << 30))),
        Column("MEMORY", "memoryBytes", _amount("{:.1f}Gi", 1 / (1 << 30))),
        Column("POWER", "powerWatts", _amount("{:.0f}W")),
        Column("TEMP", "temperatureCelsius", _amount("{:.0f}C")),
        Column("HELD-BY", "heldBy", first_of(lists.MOST_HOLDERS)),
        Column("REASON", "problem"),
        Column("MODEL", "model", wide=True),
        Column("ID", "id", wide=True),
    ),
    state="problem",
)


def readings(metrics: str) -> Readings:
    """Return what a text of metrics says of devices."""
    found: dict[str, dict[str, float]] = {}
    for name, device, value in _LINE.findall(metrics):
        if field := METRICS.get(name):
            found.setdefault(device, {})[field] = float(value)
    return found


def rows(item: Raw, known: Readings, problem: str, *, idle: bool = False) -> Iterator[Row]:
    """The node's devices; one row with the reason where nothing is known. `idle`: only those that pods hold and that
    compute nothing."""
    node = facts.name_of(item)
    problem = problem or ("" if any("utilization" in reading for reading in known.values()) else NO_TELEMETRY)
    if problem:
        yield Row(node, {"node": node, "problem": problem}, key=node)
        return
    held: dict[str, list[str]] = {}  # by device, with what pods hold of its partitions
    for unit in facts.units(item):
        held.setdefault(text(unit.device.get("id")), []).extend(facts.pods_of(unit.holders))
    for row in lists.device_rows(item):
        if row.fields["partitionOf"]:
            continue
        id_ = row.fields["id"]
        mine, pods = known.get(id_, {}), list(dict.fromkeys(held.get(id_, ())))
        if idle and (not pods or mine.get("utilization", 1.0) >= IDLE_BELOW):
            continue
        shown = {key: row.fields[key] for key in ("node", "device", "id", "model")}
        measured = {field: mine.get(field) for field in METRICS.values()}
        yield Row(row.name, {**shown, **measured, "heldBy": pods, "problem": ""}, key=row.key)
