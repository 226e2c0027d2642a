"""The node's own NodeDevices as an input: its spec, and of its status what the agent takes up after a start: the
conditions, and the most devices that the node has had."""

from __future__ import annotations

from nodedevices_api.conditions import Condition
from nodedevices_common.confirming import CONFIRM
from nodedevices_common.raw import mapping, mappings
from nodedevices_common.times import zoned_time

from nodedevices_plugin.model import Cordon, MostSeen
from nodedevices_plugin.pipeline.requesting import SeenObject
from nodedevices_plugin.status.client import Object
from nodedevices_plugin.status.publisher import AGENT_CONDITIONS

MAX_MOST_SEEN = 16  # maxItems of status.mostSeen
MAX_UNSCHEDULABLE = 128  # maxItems of spec.unschedulable


def seen_object(item: Object | None) -> SeenObject:
    """Return the parts of the node's NodeDevices that the agent uses; a value of a wrong type counts as absent."""
    if item is None:
        return SeenObject()
    metadata, spec = mapping(item.get("metadata")), mapping(item.get("spec"))
    config = spec.get("config")
    generation = metadata.get("generation")
    return SeenObject(
        exists=True,
        generation=generation if isinstance(generation, int) else None,
        config=config if isinstance(config, dict) else None,
        config_hash=_text(spec.get("configHash")),
        config_name=_text(spec.get("configName")),
        unschedulable=tuple(
            Cordon(
                id=str(cordon["id"]),
                reason=_text(cordon.get("reason")) or "",
                until=zoned_time(cordon.get("until")),  # None also for what is no time: it stays out of service
                by=_text(cordon.get("by")) or "",
                since=zoned_time(cordon.get("since")),
            )
            for cordon in mappings(spec.get("unschedulable"))[:MAX_UNSCHEDULABLE]
            if "id" in cordon
        ),
        confirm=_text(mapping(metadata.get("annotations")).get(CONFIRM)) or "",
        most_seen=tuple(
            MostSeen(probe=probe, vendor=vendor, product_name=product, count=count)
            for seen in mappings(mapping(item.get("status")).get("mostSeen"))[:MAX_MOST_SEEN]
            if (probe := _text(seen.get("probe")))
            and (vendor := _text(seen.get("vendor")))
            and (product := _text(seen.get("productName")))
            and isinstance(count := seen.get("count"), int)
            and count > 0
        ),
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def older_conditions(item: Object | None, own: tuple[Condition, ...]) -> tuple[Condition, ...]:
    """Our conditions as the object had them before this start: their transition times go on."""
    listed = mappings(mapping((item or {}).get("status")).get("conditions"))
    found = {condition.type: condition for condition in own}
    for raw in listed:
        if raw.get("type") in AGENT_CONDITIONS:
            try:
                found[str(raw["type"])] = Condition.model_validate(raw)
            except ValueError:
                continue
    return tuple(found.values())
