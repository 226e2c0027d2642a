"""The node's own NodeDevices as an input: what its spec says, and which conditions it had before this start."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from nodedevices_api.conditions import Condition

from nodedevices_plugin.model import CONFIRM, Cordon
from nodedevices_plugin.pipeline.requesting import SeenObject
from nodedevices_plugin.status.client import Object
from nodedevices_plugin.status.publisher import AGENT_CONDITIONS

MAX_UNSCHEDULABLE = 128  # SCHEMA


def seen_object(item: Object | None) -> SeenObject:
    """What matters of the node's NodeDevices; whatever is not of the right type counts as absent."""
    if item is None:
        return SeenObject()
    metadata, spec = _mapping(item.get("metadata")), _mapping(item.get("spec"))
    config = spec.get("config")
    generation = metadata.get("generation")
    cordoned = spec.get("unschedulable")
    return SeenObject(
        exists=True,
        generation=generation if isinstance(generation, int) else None,
        config=config if isinstance(config, dict) else None,
        config_hash=_text(spec.get("configHash")),
        config_name=_text(spec.get("configName")),
        unschedulable=tuple(
            Cordon(
                id=str(each["id"]),
                reason=_text(each.get("reason")) or "",
                until=_time(each.get("until")),
                by=_text(each.get("by")) or "",
                since=_time(each.get("since")),
            )
            for each in (cordoned if isinstance(cordoned, list) else ())[:MAX_UNSCHEDULABLE]
            if isinstance(each, dict) and "id" in each
        ),
        confirm=_text(_mapping(metadata.get("annotations")).get(CONFIRM)) or "",
    )


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _time(value: object) -> datetime | None:
    """None also for what is no time: a device whose end of service cannot be read stays out of it."""
    try:
        time = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return time if time is not None and time.tzinfo is not None else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def older_conditions(item: Object | None, own: tuple[Condition, ...]) -> tuple[Condition, ...]:
    """Our conditions as the object had them before this start: their transition times go on."""
    listed = _mapping((item or {}).get("status")).get("conditions")
    found = {each.type: each for each in own}
    for raw in listed if isinstance(listed, list) else ():
        if isinstance(raw, dict) and raw.get("type") in AGENT_CONDITIONS:
            try:
                found[str(raw["type"])] = Condition.model_validate(raw)
            except ValueError:
                continue
    return tuple(found.values())
