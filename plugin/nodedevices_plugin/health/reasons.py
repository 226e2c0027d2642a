"""Which health reasons there are, for rules that name one: a typo in a rule decides nothing, and is said. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import filter as matching
from functools import lru_cache

from nodedevices_api.sections import HealthRule

from nodedevices_plugin.health import events, levels
from nodedevices_plugin.health.rules import MAX_XID
from nodedevices_plugin.model import Unmatched

XIDS = tuple(f"Xid{number}" for number in range(1, MAX_XID + 1))
KNOWN = (*XIDS, *sorted(events.REASONS | levels.REASONS))
NAMED = 24  # in one message


def unmatched(rules: Sequence[HealthRule]) -> tuple[Unmatched, ...]:
    """A note for each pattern of `health.rules` that no reason of any device matches, or that may not be so ruled."""
    return tuple(
        Unmatched(section="health", entry=f"rules[{number}].reasons {glob}", message=why)
        for number, rule in enumerate(rules)
        for glob in rule.reasons
        if (why := _why(glob, rule.state))
    )


@lru_cache(maxsize=4096)  # asked at every step
def _why(glob: str, state: str) -> str:
    """Empty: it decides something."""
    about = matching(KNOWN, glob)
    if about and state != "Unhealthy" and levels.UNUSABLE.issuperset(about):
        return f"{', '.join(about)} is Unhealthy whatever a rule says: there is nothing that a pod could use"
    if about:
        return ""
    near = [reason for reason in KNOWN if matching([reason.lower()], glob.lower())]
    if near:
        more = f" and {len(near) - 1} more" if len(near) > 1 else ""
        return f"no such reason; upper and lower case count: {near[0]}{more} differs in nothing else"
    others = [reason for reason in KNOWN if reason not in XIDS][:NAMED]
    return f"no such reason; there are: Xid1 to Xid{MAX_XID}, {', '.join(others)}"
