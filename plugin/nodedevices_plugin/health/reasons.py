"""The known health reasons, for rules that name one: a rule that decides nothing, such as one with a typo, is
reported."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from fnmatch import filter as matching
from functools import lru_cache

from nodedevices_api.sections import FaultRule, HealthRule
from nodedevices_common.text import some
from nodedevices_probe.protocol import Readings

from nodedevices_plugin.health import levels
from nodedevices_plugin.model import Unmatched
from nodedevices_plugin.sharing import mps
from nodedevices_plugin.vendors.faults import FaultCondition, FaultSources

NAMED = 24  # in one message, which has room for some 500 characters


def known(vendors: FaultSources) -> tuple[str, ...]:
    """Return every reason that a device of these vendors can have."""
    own = dict.fromkeys(reason for vendor in vendors.values() for reason in vendor.every_reason())
    return tuple(dict.fromkeys((*levels.REASONS, *levels.SIGNAL_REASONS, *own)))


def unmatched(rules: Sequence[HealthRule], vendors: FaultSources) -> tuple[Unmatched, ...]:
    """Return a note for each pattern of `health.rules` that no reason matches, that a rule may not change, or that
    switches no reason on, and for each rule that never applies, because an earlier one does, or because it counts
    readings that a later one ignores."""
    every = known(vendors) if rules else ()
    # Those that are no faults before a rule names them.
    opt_in = frozenset(condition.reason for condition in (_read(vendors) if rules else ()) if condition.opt_in)
    off = opt_in.difference(*(rule.reasons for rule in rules if rule.after is None))
    patterns = (
        Unmatched(section="health", entry=f"rules[{number}].reasons {glob}", message=why)
        for number, rule in enumerate(rules)
        for glob in rule.reasons
        if (why := _why(glob, rule.state, every) or _never_on(glob, every, off))
    )
    about = [_about(rule.reasons, every) for rule in rules]
    readings = _of_readings(vendors) if any(rule.after for rule in rules) else frozenset()
    notes = [_behind(number, rules, about, opt_in) for number in range(len(rules))]
    notes += [_uncounted(number, rules, about, readings) for number in range(len(rules))]
    return (*patterns, *(note for note in notes if note is not None))


def unmatched_faults(rules: Sequence[FaultRule], vendors: FaultSources) -> tuple[Unmatched, ...]:
    """Return a note for each reason of `faults.rules` that neither a device nor a holder can have."""
    every = (*known(vendors), mps.DOWN, mps.RESTARTED) if rules else ()
    return tuple(
        Unmatched(section="faults", entry=f"rules[{number}].reasons {reason}", message=why)
        for number, rule in enumerate(rules)
        for reason in rule.reasons or ()
        if (why := _why(reason, "Unhealthy", every))
    )


def _of_readings(vendors: FaultSources) -> frozenset[str]:
    """Return the reasons that are conditions of readings, but for those of which no rule makes nothing."""
    own = {condition.reason for condition in _read(vendors)}
    own |= {limit.reason for vendor in vendors.values() for limit in vendor.counter_limits}
    return frozenset(own.union(levels.REASONS, levels.SIGNAL_REASONS) - levels.UNUSABLE)


def _read(vendors: FaultSources) -> list[FaultCondition]:
    """Return the conditions that readings can show."""
    nothing, sources = Readings(), {id(vendor): vendor for vendor in vendors.values()}  # each once
    return [*levels.pcie_link(nothing), *(found for vendor in sources.values() for found in vendor.read(nothing))]


def _never_on(glob: str, known: tuple[str, ...], off: frozenset[str]) -> str:
    """Return why a pattern about reasons that no rule switches on has no effect; empty: it is about others."""
    if not matching(off, glob) or not (about := _about((glob,), known)) <= off:
        return ""
    return f"{some(sorted(about), 3)}: no fault unless a rule without after names the reason, not by a pattern"


def _behind(
    number: int, rules: Sequence[HealthRule], about: Sequence[frozenset[str]], opt_in: frozenset[str]
) -> Unmatched | None:
    """Return the note on a rule that never applies, because an earlier one applies whenever it could; None: it may.
    `about`: of each rule the reasons that there are."""
    rule, own, after = rules[number], about[number], rules[number].after
    names = opt_in.intersection(rule.reasons) if after is None else frozenset()  # it may be what switches these on
    for first, other in enumerate(rules[:number]):
        if not own or other.match is not None:
            continue
        if other.after is None and own <= about[first] and names.issubset(other.reasons):
            if after is None:
                entry, why = f"state {rule.state}", "decides all of its reasons; remove this rule, or put it first"
            else:
                entry, why = f"after.count {after.count}", "applies from the first time on; put this rule first"
        elif (
            other.after is not None
            and after is not None
            and own == about[first]
            and other.after.count <= after.count
            and other.after.window_seconds >= after.window_seconds
        ):
            entry, why = f"after.count {after.count}", "applies whenever this one would; put this rule first"
        else:
            continue
        return Unmatched(
            section="health", entry=f"rules[{number}].{entry}", message=f"rules[{first}] comes before it and {why}"
        )
    return None


def _uncounted(
    number: int, rules: Sequence[HealthRule], about: Sequence[frozenset[str]], readings: frozenset[str]
) -> Unmatched | None:
    """Return the note on a rule that counts nothing: a reading that is ignored begins no fault."""
    rule, own = rules[number], about[number]
    if rule.after is None or not own or not own <= readings:
        return None
    for later, other in enumerate(rules[number + 1 :], start=number + 1):
        if other.after is None and (other.match is None or other.match == rule.match) and own <= about[later]:
            if other.state != "Ignored":
                return None
            ignores = f"rules[{later}] ignores everything that this rule counts"
            why = f"{ignores}, and ignored readings are not counted; set Degraded there"
            return Unmatched(section="health", entry=f"rules[{number}].after.count {rule.after.count}", message=why)
    return None


@lru_cache(maxsize=256)  # called at every step
def _about(globs: tuple[str, ...], known: tuple[str, ...]) -> frozenset[str]:
    return frozenset(reason for glob in globs for reason in matching(known, glob))


@lru_cache(maxsize=4096)  # called at every step
def _why(glob: str, state: str, known: tuple[str, ...]) -> str:
    """Return why the pattern has no effect; empty: it has one."""
    about = matching(known, glob)
    if about and state != "Unhealthy" and levels.UNUSABLE.issuperset(about):
        return f"{', '.join(about)} is always Unhealthy, whatever a rule says: no pod could use the device"
    if about:
        return ""
    near = [reason for reason in known if matching([reason.lower()], glob.lower())]
    if near:
        return f"no such reason; case matters: {some(near, 1)} differs only in case"
    nearest = sorted(
        _folded(known),
        key=lambda reason: SequenceMatcher(None, reason.lower(), glob.lower()).ratio(),
        reverse=True,
    )
    return f"no such reason; known reasons: {', '.join(nearest[:NAMED])}"


def _folded(known: Sequence[str]) -> list[str]:
    """Return the reasons, those of a series as one and first: Xid<number>."""
    folded = {re.sub(r"[0-9]+$", "<number>", reason) for reason in known}
    return sorted(folded, key=lambda reason: (not reason.endswith(">"), reason))
