"""Where each part of a node's configuration comes from: which policy supplies it, which others it overrides, and
whether it is in effect there."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from nodedevices_common.observing import SERVED, observes, without_effect
from nodedevices_common.raw import Raw, mapping, mappings, text
from nodedevices_common.table import NONE, Column, Kind, Row
from nodedevices_common.text import clip, place_of

from nodedevices_kubectl.views import facts

MOST_OF_VALUE = 60  # characters in a cell; -o wide, json and yaml have all of it
APPLIED = "applied"
# The actions of what the operator does by itself; the agent applies all other sections.
_OPERATOR: Mapping[str, tuple[str, ...]] = {
    "capacity": ("capacity",),
    "labels": ("labels",),
    "faults": ("taint", facts.ACTION_EVICTIONS),
    "idle": ("idlePods",),
}


def _short(value: Any, now: datetime) -> str:
    return clip(_json(value, now), MOST_OF_VALUE)


def _json(value: Any, now: datetime) -> str:
    return NONE if value is None else json.dumps(value, separators=(", ", ": "))


KIND = Kind(
    "Configuration",
    "sections that policies set",
    (
        Column("NODE", "node"),
        Column("SECTION", "section"),
        Column("POLICY", "policy"),
        Column("PRIORITY", "priority"),
        Column("GENERATION", "generation"),
        Column("STATE", "state", tone=lambda cell: "good" if cell == APPLIED else "warning"),
        Column("OVERRIDES", "overrides"),
        Column("VALUE", "value", _short),
        Column("WHOLE-VALUE", "value", _json, wide=True),
    ),
)


def rows(item: Raw, policies: Mapping[str, Raw]) -> Iterator[Row]:
    """A row for each section that policies set on this node. `policies`: by name, where they can be read."""
    node, spec = facts.name_of(item), mapping(item.get("spec"))
    selecting = mappings(spec.get("policies"))
    for section, value in sorted(mapping(spec.get("config")).items()):
        by: Raw = next((policy for policy in selecting if section in _list(policy.get("sections"))), {})
        name = text(by.get("name"))
        others = [text(policy.get("name")) for policy in selecting if policy is not by]
        overrides = [other for other in others if section in mapping(mapping(policies.get(other)).get("spec"))]
        yield Row(
            f"{node}/{section}",
            {
                "node": node,
                "section": section,
                "policy": name,
                "priority": facts.number(by.get("priority")),
                "generation": facts.number(by.get("generation")),
                "state": _state(item, section),
                "overrides": overrides,
                "value": value,
            },
            key=f"{node}/{section}",
        )


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _state(item: Raw, section: str) -> str:
    configuration = mapping(facts.status_of(item).get("configuration"))
    if any(refusal.get("section") == section for refusal in mappings(configuration.get("refusals"))):
        return "refused"
    if section in _OPERATOR:
        wrong = facts.not_in_sync(item)
        found = next((wrong[action] for action in _OPERATOR[section] if action in wrong), {})
    else:
        applied = facts.condition(item, facts.CONFIG_APPLIED)
        found = applied if applied.get("status") != "True" else {}
    if found:
        return text(found.get("reason")) or facts.UNKNOWN
    spec, applied_hash = mapping(item.get("spec")), facts.status_of(item).get("appliedConfigHash")
    if section not in _OPERATOR and spec.get("configHash") != applied_hash:
        return "Pending"
    return "NoEffect" if observes(facts.status_of(item)) and section in SERVED else APPLIED


def words(item: Raw, policies: Mapping[str, Raw]) -> Iterator[str]:
    """What the table cannot say, as sentences."""
    node, spec, status = facts.name_of(item), mapping(item.get("spec")), facts.status_of(item)
    configuration = mapping(status.get("configuration"))
    if not mapping(spec.get("config")):
        resolved = "config" in spec
        yield f"{node}: no policy sets anything." if resolved else f"{node}: the operator has not resolved it yet."
    sources = [source for source in map(str, _list(configuration.get("sources"))) if source != "policy"]
    yield f"{node}: settings that no policy sets come from: {', '.join([*sources, 'defaults'])}."
    for kind in (facts.POLICY_RESOLVED, facts.CONFIG_APPLIED):
        found = facts.condition(item, kind)
        if found.get("status") != "True" and found:
            yield f"{node}: {kind} is {found.get('status')} ({text(found.get('reason'))}): {text(found.get('message'))}"
    for note in mappings(configuration.get("unmatched")):
        entry = place_of(text(note.get("section")), text(note.get("entry")))
        yield f"{node}: {entry} has no effect on it: {text(note.get('message'))}"
    if observes(status):
        yield from (f"{node}: {said}" for _, said in without_effect(mapping(spec.get("config"))))
    for policy in mappings(spec.get("policies")):
        name, mine = text(policy.get("name")), facts.number(policy.get("generation"))
        newest = facts.number(mapping(mapping(policies.get(name)).get("metadata")).get("generation"))
        if newest is not None and mine is not None and mine < newest:
            yield f"{node}: policy {name} is at generation {newest}, this node at {mine}: the roll-out runs or waits."
    if change := mapping(spec.get("change")):
        by = ", ".join(map(str, _list(change.get("policies"))))
        yield f"{node}: a change of {text(change.get('time'))} ({by}) is still watched."
