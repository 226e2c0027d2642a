"""What several views read of a raw NodeDevices: its conditions, its devices with their partitions, their holders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from nodedevices_api.conditions import IN_SYNC
from nodedevices_common.devices import grouped
from nodedevices_common.raw import Raw, mapping, mappings, text
from nodedevices_common.table import Tone

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


def namespaced(item: Raw) -> tuple[str, str]:
    metadata = mapping(item.get("metadata"))
    return text(metadata.get("namespace")), text(metadata.get("name"))


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


def number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


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
