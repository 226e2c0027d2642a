"""A node, or one of its devices, on a screen as `kubectl describe` writes it: sections of names with values, and of
small tables under their titles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from nodedevices_common.raw import Raw, mapping, mappings, text
from nodedevices_common.table import NONE, Column, Row, TableText, as_text, bold, first_of
from nodedevices_common.text import printable

from nodedevices_kubectl.views import facts, lists


@dataclass(frozen=True, slots=True)
class Section:
    """`pairs` under no title, or a table under one."""

    title: str = ""
    pairs: Sequence[tuple[str, str]] = ()
    columns: tuple[Column, ...] = ()
    rows: Sequence[Row] = ()


MOST_EVENTS = 20
_INDENT = "  "


def _plain(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name.upper(), name) for name in names)


_EVENTS = (*_plain("type", "reason"), Column("LAST", "last", facts.age), *_plain("message"))
_CONDITIONS = (
    *_plain("type", "status", "reason"),
    Column("SINCE", "lastTransitionTime", facts.age),
    *_plain("message"),
)
_ACTIONS = _plain("name", "reason", "message")
_PROBES = (*_plain("name", "state", "devices"), Column("SINCE", "since", facts.age), *_plain("message"))
_DEVICES = (
    *_plain("device"),
    Column("HEALTH", "health", tone=facts.tone),
    *_plain("reason"),
    Column("SINCE", "since", facts.age),
    Column("ACTION", "recoveryAction"),
    Column("HELD-BY", "heldBy", first_of(lists.MOST_HOLDERS)),
    *_plain("id"),
)
_RESOURCES = (
    *_plain("name", "sharing"),
    Column("IDS", "capacity"),
    *_plain("healthy"),
    Column("HELD", "allocated"),
    *_plain("free", "withheld"),
)
_POLICIES = (Column("POLICY", "name"), *_plain("priority", "generation"), Column("SUPPLIES", "sections"))
_HOLDERS = (
    *_plain("namespace", "pod", "container", "resource", "shares", "memory"),
    Column("HELD-FOR", "since", facts.age),
)
_IDLE = (*_plain("idle"), Column("IDLE-FOR", "idleSince", facts.age))
_NOTICES = (*_plain("code", "count"), Column("LAST", "time", facts.age), *_plain("message"))
_HISTORY = (
    *_plain("reason", "count"),
    Column("FIRST", "first", facts.age),
    Column("LAST", "last", facts.age),
    *_plain("fault"),
)
_COUNTS = (
    ("healthy", "healthy"),
    ("degraded", "of them degraded"),
    ("unhealthy", "unhealthy"),
    ("unknown", "unknown"),
    ("held", "held"),
    ("outOfService", "out of service"),
)


def node(item: Raw, now: datetime, events: Sequence[Raw] | None = None) -> Iterator[Section]:
    """`events`: about the node's NodeDevices; None: they cannot be read."""
    fields = lists.node_row(item).fields
    status = facts.status_of(item)
    agent = mapping(status.get("agent"))
    spent = [f"{fields[key]} {word}" for key, word in _COUNTS if fields[key]]
    pairs = [
        ("Name", fields["name"]),
        ("Status", fields["status"]),
        ("Model", fields["model"]),
        ("Devices", as_text(fields["devices"], now) + (f": {', '.join(spent)}" if spent else "")),
        ("Drivers", facts.drivers(item)),
        ("Agent", facts.reported(agent, now) if agent else ""),
        ("Summary", fields["message"]),
    ]
    yield Section(pairs=[(name, value or NONE) for name, value in pairs])
    yield Section("Conditions", columns=_CONDITIONS, rows=_rows(mappings(status.get("conditions"))))
    if actions := mappings(status.get("actions")):
        yield Section("Actions", columns=_ACTIONS, rows=_rows(actions))
    yield Section("Probes", columns=_PROBES, rows=_rows(mappings(status.get("probes"))))
    yield Section("Devices", columns=_DEVICES, rows=list(lists.device_rows(item)))
    resources = [{**resource, "withheld": _withheld(resource)} for resource in mappings(status.get("resources"))]
    yield Section("Resources", columns=_RESOURCES, rows=_rows(resources))
    yield Section("Policies", columns=_POLICIES, rows=_rows(mappings(mapping(item.get("spec")).get("policies"))))
    if events is not None:
        last = sorted(({**event, "last": facts.last_time(event)} for event in events), key=lambda event: event["last"])
        yield Section("Events", columns=_EVENTS, rows=_rows(last[-MOST_EVENTS:]))


def device(item: Raw, unit: facts.Unit, now: datetime) -> Iterator[Section]:
    fields = next(row.fields for row in lists.device_rows(item) if row.fields["id"] == unit.id)
    attributes, health = mapping(unit.device.get("attributes")), unit.health
    extra = {**mapping(attributes.get("extra")), **mapping(mapping(unit.raw.get("attributes")).get("extra"))}
    xids = health.get("xids")
    pairs = [
        ("Node", fields["node"]),
        ("Device", fields["device"]),
        ("ID", fields["id"]),
        ("Partition of", fields["partitionOf"]),
        ("Profile", fields["profile"]),
        ("Type", fields["type"]),
        ("Model", fields["model"]),
        ("Index", fields["index"]),
        ("Memory", fields["memory"]),
        ("PCI address", fields["pciBusID"]),
        ("PCIe root", text(attributes.get("pcieRoot"))),
        ("NUMA node", fields["numaNode"]),
        ("Firmware", text(attributes.get("firmware"))),
        *((key, _attribute(value)) for key, value in sorted(extra.items())),
        ("Health", f"{fields['health']} for {facts.age(fields['since'], now)}"),
        ("Reason", fields["reason"]),
        ("Message", fields["message"]),
        ("What helps", fields["recoveryAction"]),
        ("XIDs since boot", ", ".join(map(str, xids)) if isinstance(xids, list) else ""),
        ("Out of service", fields["outOfService"]),
        ("Excluded by", text(unit.raw.get("excluded"))),
    ]
    yield Section(pairs=[(name, str(value)) for name, value in pairs if value not in (None, "")])
    idle = _IDLE if any(holder.get("idle") for holder in unit.holders) else ()
    yield Section("Holders", columns=(*_HOLDERS, *idle), rows=_rows(unit.holders))
    if notices := mappings(unit.raw.get("notices")):
        yield Section("Notices", columns=_NOTICES, rows=_rows(notices))
    if history := mappings(unit.raw.get("history")):
        yield Section("History", columns=_HISTORY, rows=_rows(history))
    if parts := [row for row in lists.device_rows(item) if row.fields["partitionOf"] == fields["device"]]:
        yield Section("Partitions", columns=_DEVICES, rows=parts)


def _rows(items: Sequence[Mapping[str, Any]]) -> list[Row]:
    return [Row("", item) for item in items]


def _withheld(resource: Raw) -> str:
    return ",".join(
        f"{withheld.get('reason')}={withheld.get('count')}" for withheld in mappings(resource.get("withheld"))
    )


def _attribute(value: Any) -> str:
    """An attribute has one of string, int, bool, version."""
    found = next(iter(mapping(value).values()), "")
    return str(found).lower() if isinstance(found, bool) else str(found)


def lines(sections: Iterable[Section], now: datetime, *, colours: bool) -> Iterator[str]:
    sections = list(sections)
    width = max((len(name) for section in sections for name, _ in section.pairs), default=0) + 1
    for section in sections:
        for name, value in section.pairs:
            yield f"{f'{name}:':<{width}}{_INDENT}{printable(value)}"
        if not section.title:
            continue
        if not section.rows:
            yield f"{bold(section.title + ':', colours=colours)} <none>"
            continue
        yield bold(f"{section.title}:", colours=colours)
        for line in TableText(section.columns, colours=colours, headers=True).lines(section.rows, now):
            yield _INDENT + line
