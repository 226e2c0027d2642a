"""Kubernetes' conditions as they are shown and as they are written: how one moves on, and when two are the same.

lastTransitionTime moves only with the status, so that an equal condition is an equal value and costs no write. Times
stay text, as the API server gives them. The model of the contract (nodedevices_api.conditions) keeps to the same rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from nodedevices_common.raw import At, Interned, reader
from nodedevices_common.text import clip

MESSAGE_LIMIT: Final = 1024  # characters


@dataclass(frozen=True, slots=True)
class ConditionRecord:
    """A condition as an object shows it."""

    type: Interned
    status: Interned
    reason: Interned = ""
    message: Interned = ""
    since: Annotated[Interned, At("lastTransitionTime")] = ""
    generation: Annotated[int | None, At("observedGeneration")] = None


read = reader(ConditionRecord)  # from an object's status.conditions


def build(
    kind: str,
    status: str,
    reason: str,
    message: str,
    *,
    shown: ConditionRecord | None,
    now: str,
    generation: int | None = None,
) -> dict[str, Any]:
    """A condition to be written, after the one that is shown."""
    unchanged = shown is not None and (shown.type, shown.status) == (kind, status)
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": clip(message, MESSAGE_LIMIT),
        "lastTransitionTime": shown.since or now if shown is not None and unchanged else now,
    } | ({} if generation is None else {"observedGeneration": generation})


def same(shown: ConditionRecord | None, wanted: Mapping[str, Any] | None) -> bool:
    """True when an object shows the condition already, times aside; None: there is none, or there shall be none."""
    if shown is None or wanted is None:
        return shown is None and wanted is None
    said = (shown.status, shown.reason, shown.message)
    return said == (wanted["status"], wanted["reason"], wanted["message"]) and (
        "observedGeneration" not in wanted or shown.generation == wanted["observedGeneration"]
    )
