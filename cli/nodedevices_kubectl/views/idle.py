"""A row for each device that a container holds and does not use, as its agent says (`holders[].idle`)."""

from __future__ import annotations

from collections.abc import Iterator

from nodedevices_common.raw import Raw, mapping, text
from nodedevices_common.table import Column, Kind, Row

from nodedevices_kubectl.views import facts
from nodedevices_kubectl.views.ages import age

UNKNOWN = "Unknown"

KIND = Kind(
    "Idle",
    "devices that are held and not used",
    (
        Column("NAMESPACE", "namespace"),
        Column("POD", "pod"),
        Column("NODE", "node"),
        Column("DEVICE", "device"),
        Column("MODEL", "model"),
        Column("IDLE", "idle"),
        Column("FOR", "since", age),
        Column("HELD-FOR", "heldSince", age, wide=True),
        Column("CONTAINER", "container", wide=True),
        Column("ID", "id", wide=True),
    ),
    state="idle",
)


def rows(item: Raw, namespace: str = "", *, unknown: bool = False) -> Iterator[Row]:
    """Those of one node. `namespace` empty: all. `unknown`: also those of which it is not known."""
    node = facts.name_of(item)
    for unit in facts.units(item):
        for holder in unit.holders:
            word, where = text(holder.get("idle")), text(holder.get("namespace"))
            if not word or (word == UNKNOWN and not unknown) or (namespace and where != namespace):
                continue
            fields = {
                "namespace": where,
                "pod": text(holder.get("pod")),
                "container": text(holder.get("container")),
                "node": node,
                "device": unit.name,
                "id": unit.id,
                "model": text(mapping(unit.device.get("attributes")).get("productName")),
                "idle": word,
                "since": text(holder.get("idleSince")),
                "heldSince": text(holder.get("since")),
            }
            key = f"{facts.pod_of(holder)}/{fields['container']}@{node}/{unit.id}"
            yield Row(f"pod/{fields['pod']}", fields, key=key)
