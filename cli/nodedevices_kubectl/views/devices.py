"""One row for each device and partition: what it is, is it well and since when, who holds it, what would help."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nodedevices_common.raw import Raw, mapping, text
from nodedevices_common.table import Column, Kind, Row, first_of

from nodedevices_kubectl.views import facts
from nodedevices_kubectl.views.ages import age

MOST_SHOWN = 3  # pods in a cell; -o wide and -o json have all


KIND = Kind(
    "Devices",
    "devices",
    (
        Column("NODE", "node"),
        Column("DEVICE", "device"),
        Column("MODEL", "model"),
        Column("HEALTH", "health", tone=facts.tone),
        Column("REASON", "reason"),
        Column("SINCE", "since", age),
        Column("ACTION", "recoveryAction"),
        Column("HELD-BY", "heldBy", first_of(MOST_SHOWN)),
        Column("INDEX", "index", wide=True),
        Column("PROFILE", "profile", wide=True),
        Column("MEMORY", "memory", wide=True),
        Column("PCI", "pciBusID", wide=True),
        Column("NUMA", "numaNode", wide=True),
        Column("OUT-OF-SERVICE", "outOfService", wide=True),
        Column("ID", "id", wide=True),
    ),
    state="health",
)


@dataclass(frozen=True, slots=True)
class Filter:
    """Which devices are wanted. `namespace`: held by a pod of it; empty: any. `model`: a part of the product name."""

    namespace: str = ""
    unhealthy: bool = False
    model: str = ""

    def takes(self, fields: dict[str, Any]) -> bool:
        if self.namespace and not any(pod.partition("/")[0] == self.namespace for pod in fields["heldBy"]):
            return False
        if self.unhealthy and fields["state"] == facts.HEALTHY:
            return False
        return self.model.lower() in fields["model"].lower()


def rows(item: Raw, wanted: Filter = Filter()) -> Iterator[Row]:
    """The wanted devices of one node, each followed by its partitions."""
    node = facts.name_of(item)
    for unit in facts.units(item):
        fields = _fields(node, unit)
        if wanted.takes(fields):
            yield Row(f"{node}/{unit.name}", fields, key=f"{node}/{unit.id}")


def _fields(node: str, unit: facts.Unit) -> dict[str, Any]:
    attributes, health = mapping(unit.device.get("attributes")), unit.health
    state = text(health.get("state")) or facts.UNKNOWN
    return {
        "node": node,
        "device": unit.name,
        "id": unit.id,
        "partitionOf": facts.Unit(unit.device, unit.device).name if unit.is_partition else "",
        "type": text(unit.device.get("type")),
        "index": facts.number(unit.device.get("index")),
        "vendor": text(attributes.get("vendor")),
        "model": text(attributes.get("productName")),
        "profile": text(unit.raw.get("profile")),
        "memory": text(mapping(unit.raw.get("capacity")).get("memory")),
        "pciBusID": text(attributes.get("pciBusID")),
        "numaNode": facts.number(attributes.get("numaNode")),
        "health": f"{state},{_service(unit)}" if unit.out_of_service else state,
        "state": state,
        "reason": text(health.get("reason")),
        "message": text(health.get("message")),
        "since": text(health.get("since")),
        "recoveryAction": facts.action_of(health),
        "outOfService": unit.out_of_service,
        "drainedSince": text(unit.device.get("drainedSince")),
        "heldBy": facts.pods_of(unit.holders),
    }


def _service(unit: facts.Unit) -> str:
    return "Drained" if unit.device.get("drainedSince") else "OutOfService"
