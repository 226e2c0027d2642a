"""One row for each node: is its agent well, are its devices, and what is free."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import Any

from nodedevices_api import conditions as names
from nodedevices_common.quantity import from_bytes, to_bytes
from nodedevices_common.raw import Raw, mapping, mappings, text
from nodedevices_common.table import NONE, Column, Kind, Row

from nodedevices_kubectl.views import facts
from nodedevices_kubectl.views.ages import age


def _resources(value: Any, now: datetime) -> str:
    cells = [f"{resource['name']}={NONE if resource['free'] is None else resource['free']}" for resource in value or ()]
    return ",".join(cells) or NONE


KIND = Kind(
    "Nodes",
    "nodes with devices",
    (
        Column("NAME", "name"),
        Column("STATUS", "status", tone=facts.tone),
        Column("MODEL", "model"),
        Column("DEVICES", "devices"),
        Column("HEALTHY", "healthy"),
        Column("HELD", "held"),
        Column("REASON", "reason"),
        Column("AGE", "created", age),
        Column("OUT-OF-SERVICE", "outOfService", wide=True),
        Column("ACTION", "recoveryAction", wide=True),
        Column("CONFIG", "config", wide=True),
        Column("WITHHELD", "withheld", wide=True),
        Column("FREE", "resources", _resources, wide=True),
        Column("MEM-FREE", "memoryFree", wide=True),
        Column("DRIVER", "driver", wide=True),
        Column("AGENT", "agent", wide=True),
    ),
)


def _state(item: Raw) -> tuple[str, list[str]]:
    """Whether what the object says can be trusted and the node offers devices, and the reasons why not."""
    stale, ready = facts.condition(item, names.STALE), facts.condition(item, names.READY)
    reasons = [text(stale.get("reason"))] if stale.get("status") == "True" else []
    if ready.get("status") != "True":
        reasons.append(text(ready.get("reason")))
    reasons = [reason for reason in reasons if reason]
    if stale.get("status") == "True":
        return "Stale", reasons
    words = {"True": "Ready", "False": "NotReady"}
    return words.get(text(ready.get("status")), "Unknown"), reasons


def _memory_free(status: Raw) -> str:
    """The free memory of resources whose shares are amounts of memory; a node has one such, as a rule."""
    found = []
    for resource in mappings(status.get("resources")):
        unit, free = text(resource.get("unit")), facts.number(resource.get("free"))
        if unit and free is not None:
            with suppress(ValueError):
                found.append(from_bytes(free * to_bytes(unit)))
    return ",".join(found)


def row(item: Raw) -> Row:
    status, reasons = _state(item)
    shown = facts.status_of(item)
    summary = mapping(shown.get("summary"))
    if worst := text(summary.get("reason")):
        reasons.append(worst)
    drivers = [text(driver.get("version")) for driver in mappings(shown.get("drivers"))]
    counts = {name: facts.number(summary.get(name)) for name in ("devices", "healthy", "degraded", "unhealthy", "held")}
    return Row(
        facts.name_of(item),
        {
            "name": facts.name_of(item),
            "status": status,
            "model": text(summary.get("model")),
            **counts,
            "unknown": facts.number(summary.get("unknown")),
            "outOfService": facts.number(summary.get("unschedulable")),
            "reason": ",".join(dict.fromkeys(reasons)),
            "message": text(summary.get("message")),
            "recoveryAction": facts.action_of(summary),
            "config": text(facts.condition(item, names.CONFIG_APPLIED).get("reason")),
            "withheld": text(summary.get("withheld")),
            "resources": [
                {
                    "name": text(resource.get("name")),
                    "capacity": facts.number(resource.get("capacity")),
                    "healthy": facts.number(resource.get("healthy")),
                    "allocated": facts.number(resource.get("allocated")),
                    "free": facts.number(resource.get("free")),
                }
                for resource in mappings(shown.get("resources"))
            ],
            "memoryFree": _memory_free(shown),
            "driver": ",".join(driver for driver in drivers if driver),
            "agent": text(mapping(shown.get("agent")).get("version")),
            "created": text(mapping(item.get("metadata")).get("creationTimestamp")),
        },
        key=facts.name_of(item),
    )
