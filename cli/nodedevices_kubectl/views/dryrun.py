"""What a changed policy would do to nodes: a row for each node that it concerns, and words about the policies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from nodedevices_common.table import NONE, Column, Kind, Row, Tone, first_of

MOST_SAID = 5  # nodes of which it is said why
MOST_PODS = 3
_TONES: Mapping[str, Tone] = {
    "Refused": "bad",
    "Waits": "bad",
    "HoldsBack": "warning",
    "Acts": "warning",
    "Uncertain": "warning",
    "Changes": "good",
}
_MEANINGS = {
    "Refused": "keep what is in effect",
    "Waits": "wait for pods before anything changes",
    "HoldsBack": "keep devices from new pods until their pods have ended",
    "Acts": "evict pods, or set a taint",
    "Uncertain": "have pods that may hold what changes",
    "Changes": "change at once",
}


def _ids(value: Any, now: datetime) -> str:
    return ",".join(f"{resource['name']}:{resource['before']}->{resource['after']}" for resource in value or ()) or NONE


KIND = Kind(
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


def row_of(fields: Mapping[str, Any]) -> Row:
    return Row(str(fields["node"]), fields, key=str(fields["node"]))


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
