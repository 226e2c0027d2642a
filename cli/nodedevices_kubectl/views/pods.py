"""One row for each pod that holds devices on a node: which ones, and are they well."""

from __future__ import annotations

from collections.abc import Iterator

from nodedevices_common.raw import Raw, text
from nodedevices_common.table import Column, Kind, Row, first_of

from nodedevices_kubectl.views import facts
from nodedevices_kubectl.views.ages import age

MOST_SHOWN = 4


KIND = Kind(
    "Pods",
    "pods that hold devices",
    (
        Column("NAMESPACE", "namespace"),
        Column("POD", "pod"),
        Column("NODE", "node"),
        Column("DEVICES", "devices", first_of(MOST_SHOWN)),
        Column("HEALTH", "health", tone=facts.tone),
        Column("REASON", "reason"),
        Column("ACTION", "recoveryAction"),
        Column("HELD-FOR", "since", age),
        Column("RESOURCES", "resources", wide=True),
        Column("CONTAINERS", "containers", wide=True),
        Column("SHARES", "shares", wide=True),
        Column("IDS", "ids", wide=True),
    ),
    state="health",
)


def rows(item: Raw, namespace: str = "") -> Iterator[Row]:
    """The pods of one node, by namespace and name. `namespace` empty: all."""
    held: dict[tuple[str, str], list[tuple[facts.Unit, Raw]]] = {}
    for unit in facts.units(item):
        for holder in unit.holders:
            pod = text(holder.get("namespace")), text(holder.get("pod"))
            if not namespace or pod[0] == namespace:
                held.setdefault(pod, []).append((unit, holder))
    for pod, what in sorted(held.items(), key=lambda pair: pair[0]):
        yield _row(facts.name_of(item), pod, what)


def _row(node: str, pod: tuple[str, str], held: list[tuple[facts.Unit, Raw]]) -> Row:
    healths = [facts.health_for(holder, unit) for unit, holder in held]
    worst = min(healths, key=lambda health: _rank(text(health.get("state"))), default={})
    shares = [number for _, holder in held if (number := facts.number(holder.get("shares"))) is not None]
    return Row(
        f"pod/{pod[1]}",
        {
            "namespace": pod[0],
            "pod": pod[1],
            "node": node,
            "devices": list(dict.fromkeys(unit.name for unit, _ in held)),
            "ids": list(dict.fromkeys(unit.id for unit, _ in held)),
            "health": text(worst.get("state")) or facts.UNKNOWN,
            "reason": text(worst.get("reason")),
            "message": text(worst.get("message")),
            "recoveryAction": facts.action_of(worst),
            "resources": sorted({text(holder.get("resource")) or text(holder.get("claim")) for _, holder in held}),
            "containers": sorted({text(holder.get("container")) for _, holder in held}),
            "shares": sum(shares) if shares else None,
            "since": min((text(holder.get("since")) for _, holder in held), default=""),
        },
        key=f"{pod[0]}/{pod[1]}@{node}",
    )


def _rank(state: str) -> int:
    return facts.WORST.index(state) if state in facts.WORST else facts.WORST.index(facts.UNKNOWN)
