"""What versions before this one wrote into the state file in another way, as this one has it. Pure.

A configuration is read whole or not at all, and a node that forgets which one its pods were started by would wait for
the operator before it registers; so a section or field that was renamed is read under both names. What is odd is left
as it is: the reader says what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nodedevices_plugin.health.rules import MAX_REASONS


def as_written_now(document: Mapping[str, Any]) -> dict[str, Any]:
    """The whole document of a state file with the names that its parts have today."""
    result = dict(document)
    for part, within in (("applied", "sections"), ("spec", "config")):
        whole = document.get(part)
        if isinstance(whole, Mapping) and isinstance(sections := whole.get(within), Mapping):
            node = whole.get("node")
            result[part] = {**whole, within: _sections(sections, node if isinstance(node, Mapping) else {})}
    older = document.get("mps")  # when MPS was the only sharing mode with clients
    if "clients" not in document and isinstance(older, Mapping):
        result["clients"] = {"helpers": older.get("daemons", {}), "clients": older.get("clients", {})}
    return result


def _sections(sections: Mapping[str, Any], node: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(sections)
    if isinstance(health := sections.get("health"), Mapping):
        result["health"] = _health(health, node)
    if "mig" in result:
        result.setdefault("partitions", result.pop("mig"))
    return result


def _health(health: Mapping[str, Any], node: Mapping[str, Any]) -> dict[str, Any]:
    """XIDs as rules by reason. `node` had what of NVIDIA's variables no list could say."""
    result = dict(health)
    lists = [(result.pop("fatalXids", None), "Unhealthy"), (result.pop("ignoreXids", None), "Ignored")]
    rules = [
        {"reasons": [f"Xid{number}" for number in xids[first : first + MAX_REASONS]], "state": state}
        for xids, state in lists
        if isinstance(xids, list)
        for first in range(0, len(xids), MAX_REASONS)
    ]
    every = [(node.get("fatal_all_xids"), "Unhealthy"), (node.get("ignore_all_xids"), "Ignored")]
    rules += [{"reasons": ["Xid*"], "state": state} for said, state in every if said is True]
    return {**result, "rules": rules} if rules else result
