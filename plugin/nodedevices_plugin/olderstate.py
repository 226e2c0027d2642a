"""What versions before this one wrote into the state file in another way, as this one has it. Pure.

A configuration is read whole or not at all, and a node that forgets which one its pods were started by would wait for
the operator before it registers; so a section or field that was renamed is read under both names. What is odd is left
as it is: the reader says what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def as_written_now(document: Mapping[str, Any]) -> dict[str, Any]:
    """The whole document of a state file with the names that its parts have today."""
    result = dict(document)
    for part, within in (("applied", "sections"), ("spec", "config")):
        whole = document.get(part)
        if isinstance(whole, Mapping) and isinstance(sections := whole.get(within), Mapping):
            result[part] = {**whole, within: _sections(sections)}
    older = document.get("mps")  # when MPS was the only sharing mode with clients
    if "clients" not in document and isinstance(older, Mapping):
        result["clients"] = {"helpers": older.get("daemons", {}), "clients": older.get("clients", {})}
    return result


def _sections(sections: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(sections)
    if "mig" in result:
        result.setdefault("partitions", result.pop("mig"))
    return result
