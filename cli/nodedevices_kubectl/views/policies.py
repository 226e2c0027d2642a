"""Rows and text about policies: which policy supplies each part of a node's configuration, which others it overrides,
and whether it is in effect there; and what a changed policy would do, by node and in words."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from nodedevices_api import conditions as names
from nodedevices_common.observing import SERVED, observes, without_effect
from nodedevices_common.raw import Raw, mapping, mappings, number, text
from nodedevices_common.table import NONE, Column, Kind, Row, Tone, first_of
from nodedevices_common.text import clip, place_of

from nodedevices_kubectl.views import facts

MOST_OF_VALUE = 60  # characters in a cell; -o wide, json and yaml have all of it
APPLIED = "applied"
# The actions of what the operator does by itself; the agent applies all other sections.
_OPERATOR: Mapping[str, tuple[str, ...]] = {
    "capacity": ("capacity",),
    "labels": ("labels",),
    "faults": ("taint", names.ACTION_EVICTIONS),
    "idle": ("idlePods",),
}


def _short(value: Any, now: datetime) -> str:
    return clip(_json(value, now), MOST_OF_VALUE)


def _json(value: Any, now: datetime) -> str:
    return NONE if value is None else json.dumps(value, separators=(", ", ": "))


EXPLAIN_KIND = Kind(
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


def explained(item: Raw, policies: Mapping[str, Raw]) -> Iterator[Row]:
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
                "priority": number(by.get("priority")),
                "generation": number(by.get("generation")),
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
        applied = facts.condition(item, names.CONFIG_APPLIED)
        found = applied if applied.get("status") != "True" else {}
    if found:
        return text(found.get("reason")) or facts.UNKNOWN
    spec, applied_hash = mapping(item.get("spec")), facts.status_of(item).get("appliedConfigHash")
    if section not in _OPERATOR and spec.get("configHash") != applied_hash:
        return "Pending"
    return "NoEffect" if observes(facts.status_of(item)) and section in SERVED else APPLIED


def explained_in_words(item: Raw, policies: Mapping[str, Raw]) -> Iterator[str]:
    """What the table cannot say, as sentences."""
    node, spec, status = facts.name_of(item), mapping(item.get("spec")), facts.status_of(item)
    configuration = mapping(status.get("configuration"))
    if not mapping(spec.get("config")):
        resolved = "config" in spec
        yield f"{node}: no policy sets anything." if resolved else f"{node}: the operator has not resolved it yet."
    sources = [source for source in map(str, _list(configuration.get("sources"))) if source != "policy"]
    yield f"{node}: settings that no policy sets come from: {', '.join([*sources, 'defaults'])}."
    for kind in (names.POLICY_RESOLVED, names.CONFIG_APPLIED):
        found = facts.condition(item, kind)
        if found.get("status") != "True" and found:
            yield f"{node}: {kind} is {found.get('status')} ({text(found.get('reason'))}): {text(found.get('message'))}"
    for note in mappings(configuration.get("unmatched")):
        entry = place_of(text(note.get("section")), text(note.get("entry")))
        yield f"{node}: {entry} has no effect on it: {text(note.get('message'))}"
    if observes(status):
        yield from (f"{node}: {said}" for _, said in without_effect(mapping(spec.get("config"))))
    for policy in mappings(spec.get("policies")):
        name, mine = text(policy.get("name")), number(policy.get("generation"))
        newest = number(mapping(mapping(policies.get(name)).get("metadata")).get("generation"))
        if newest is not None and mine is not None and mine < newest:
            yield f"{node}: policy {name} is at generation {newest}, this node at {mine}: the roll-out runs or waits."
    if change := mapping(spec.get("change")):
        by = ", ".join(map(str, _list(change.get("policies"))))
        yield f"{node}: a change of {text(change.get('time'))} ({by}) is still watched."


# --- a dry run -------------------------------------------------------------------------------------------------------
MOST_SAID = 5  # nodes of which it is said why
MOST_PODS = 3
_TONES: Mapping[str, Tone] = {
    "Refused": "bad",
    "Waits": "bad",
    "HoldsBack": "warning",
    "Acts": "warning",
    "TakesNames": "warning",
    "Uncertain": "warning",
    "Changes": "good",
}
_MEANINGS = {
    "Refused": "keep what is in effect",
    "Waits": "wait for pods before anything changes",
    "HoldsBack": "keep devices from new pods until their pods have ended",
    "Acts": "evict pods, or set a taint",
    "TakesNames": "give no device to new pods that request it by its name",
    "Uncertain": "have pods that may hold what changes",
    "Changes": "change at once",
}


def _ids(value: Any, now: datetime) -> str:
    return ",".join(map(_change, value or ())) or NONE


def _change(resource: Mapping[str, Any]) -> str:
    api = f" by {resource['by']}" if resource["formerly"] else ""
    return f"{resource['name']}:{resource['before']}->{resource['after']}{api}"


DRY_RUN_KIND = Kind(
    "PolicyDryRun",
    "nodes that would change",
    (
        Column("NODE", "node"),
        Column("EFFECT", "effect", tone=_TONES.get),
        Column("SECTIONS", "sections"),
        Column("IDS", "resources", _ids),
        Column("PODS", "pods", first_of(MOST_PODS)),
        Column("POLICIES", "policies", wide=True),
        Column("HELD-BACK", "heldBack", wide=True),
        Column("MESSAGE", "message", wide=True),
    ),
    state="effect",
)


def words(policies: Sequence[Mapping[str, Any]], rows: Sequence[Row], total: int) -> Iterator[str]:
    """What the table cannot say: of each policy, and of the nodes with the most to say."""
    for policy in policies:
        yield _about(policy, total)
    counts = Counter(str(row.fields["effect"]) for row in rows)
    for effect, meaning in _MEANINGS.items():
        if counts[effect]:
            yield f"{counts[effect]} node{'' if counts[effect] == 1 else 's'} would {meaning} ({effect})."
    said = [
        row for row in rows if row.fields["unmatched"] or (row.fields["effect"] != "Changes" and row.fields["message"])
    ]
    for row in said[:MOST_SAID]:
        yield f"  {row.fields['node']}: {row.fields['message']}"
    if len(said) > MOST_SAID:
        yield f"  and {len(said) - MOST_SAID} more nodes: -o wide shows each"


def _about(policy: Mapping[str, Any], total: int) -> str:
    name, how = policy["name"], policy["change"]
    if policy["refusal"]:
        return f"policy {name} would be refused: {policy['refusal']}"
    if how == "unchanged":
        return f"policy {name} is already so: nothing would change."
    was, will = policy["selectsNow"], policy["selects"]
    report = "; its mode is DryRun: this shows what Enforce would do" if policy["dryRun"] else ""
    selects = f"it selects {will} of {total} nodes" + (f", now {was}" if was != will and how != "created" else "")
    if how == "deleted":
        selects = f"it selects {was} of {total} nodes now"
    elif not will:
        selects += ": its spec.nodeSelector matches no node with devices"
    return f"policy {name} would be {how}: {selects}{report}."
