"""The known health reasons, for rules that name one: a rule with a typo decides nothing, and is reported."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from fnmatch import filter as matching
from functools import lru_cache

from nodedevices_api.sections import HealthRule
from nodedevices_common.text import some

from nodedevices_plugin.health import levels, signals
from nodedevices_plugin.model import Unmatched
from nodedevices_plugin.vendors.faults import FaultSources

NAMED = 24  # in one message, which has room for some 500 characters


def known(vendors: FaultSources) -> tuple[str, ...]:
    """Return every reason that a device of these vendors can have."""
    own = dict.fromkeys(reason for vendor in vendors.values() for reason in vendor.reasons)
    return tuple(dict.fromkeys((*levels.REASONS, *signals.REASONS, *own)))


def unmatched(rules: Sequence[HealthRule], vendors: FaultSources) -> tuple[Unmatched, ...]:
    """Return a note for each pattern of `health.rules` that no reason matches, or that a rule may not change, and for
    each rule that counts what an earlier rule decides from the first time on."""
    every = known(vendors) if rules else ()
    patterns = (
        Unmatched(section="health", entry=f"rules[{number}].reasons {glob}", message=why)
        for number, rule in enumerate(rules)
        for glob in rule.reasons
        if (why := _why(glob, rule.state, every))
    )
    counting = (
        Unmatched(
            section="health",
            entry=f"rules[{number}].after.count {rule.after.count}",
            message=f"rules[{first}] comes before it and applies from the first time on; put this rule first",
        )
        for number, rule in enumerate(rules)
        if rule.after is not None and (first := _decided_by(rule, rules[:number], every)) is not None
    )
    return (*patterns, *counting)


def _decided_by(rule: HealthRule, earlier: Sequence[HealthRule], known: tuple[str, ...]) -> int | None:
    """Return the earlier rule that decides every reason of this one on every device; None: there is none."""
    about = _about(rule.reasons, known)
    for number, each in enumerate(earlier):
        if each.after is None and each.match is None and about and about <= _about(each.reasons, known):
            return number
    return None


@lru_cache(maxsize=256)  # called at every step
def _about(globs: tuple[str, ...], known: tuple[str, ...]) -> frozenset[str]:
    return frozenset(reason for glob in globs for reason in matching(known, glob))


@lru_cache(maxsize=4096)  # called at every step
def _why(glob: str, state: str, known: tuple[str, ...]) -> str:
    """Return why the pattern has no effect; empty: it has one."""
    about = matching(known, glob)
    if about and state != "Unhealthy" and levels.UNUSABLE.issuperset(about):
        return f"{', '.join(about)} is Unhealthy whatever a rule says: a pod could not use it"
    if about:
        return ""
    near = [reason for reason in known if matching([reason.lower()], glob.lower())]
    if near:
        return f"no such reason; upper and lower case count: {some(near, 1)} is the same but for the case"
    return f"no such reason; known reasons: {', '.join(_nearest(_folded(known), glob)[:NAMED])}"


def _nearest(reasons: Sequence[str], glob: str) -> list[str]:
    """Return the reasons, those first that look most like the pattern."""
    return sorted(reasons, key=lambda each: SequenceMatcher(None, each.lower(), glob.lower()).ratio(), reverse=True)


def _folded(known: Sequence[str]) -> list[str]:
    """Return the reasons, those of a series as one and first: Xid<number>."""
    folded = {re.sub(r"[0-9]+$", "<number>", reason) for reason in known}
    return sorted(folded, key=lambda reason: (not reason.endswith(">"), reason))
