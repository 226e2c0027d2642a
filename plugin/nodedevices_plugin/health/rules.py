"""By what numbers health is judged: `health` of the policy, NVIDIA's variables, and what neither sets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from nodedevices_api.sections import Health, HealthRule

DISABLE_VARIABLE = "DP_DISABLE_HEALTHCHECKS"
ENABLE_VARIABLE = "DP_ENABLE_HEALTHCHECKS"
EVERY_XID = frozenset({"all", "xids"})
MAX_XID = 1023
MAX_REASONS = 64  # sections.HealthRule
MAX_UNREAD = 16

SILENCE_SECONDS = 15.0  # SCHEMA: after that the probe's word no longer counts (an NVML call can hang in the kernel)
CORRELATION_SECONDS = 10.0  # SCHEMA: how long an XID may wait for its neighbours


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthRules:
    """Seconds are seconds. `rules`: what some reasons mean here; the first that matches decides."""

    rules: tuple[HealthRule, ...] = ()
    hold_down_seconds: float = 300.0  # for reasons whose rule has none
    silence_seconds: float = SILENCE_SECONDS
    withdraw_after_seconds: float = 300.0  # of silence, counted from the last line
    correlation_seconds: float = CORRELATION_SECONDS

    @classmethod
    def from_section(cls, section: Health | None) -> HealthRules:
        """The rules of a policy's (or the node's own) `health` section; None: the built-in defaults."""
        health = section or Health()
        return cls(
            rules=health.rules,
            hold_down_seconds=float(health.hold_down_seconds),
            withdraw_after_seconds=float(health.probe.withdraw_after_seconds),
        )

    def rule(self, reason: str) -> HealthRule | None:
        """The rule that decides what this reason means; None: it means what it usually does."""
        return next((rule for rule in self.rules if any(fnmatchcase(reason, glob) for glob in rule.reasons)), None)

    def hold_down(self, reason: str) -> float:
        """For how long, after the newest evidence of it, no fault may come before the device is Healthy again."""
        rule = self.rule(reason)
        if rule is None or rule.hold_down_seconds is None:
            return self.hold_down_seconds
        return float(rule.hold_down_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentXids:
    """What NVIDIA's two variables ask for: a node's own `health.rules`, which a policy's section replaces. `unread`:
    words that say nothing."""

    ignore: frozenset[int] = frozenset()
    fatal: frozenset[int] = frozenset()
    ignore_all: bool = False
    fatal_all: bool = False
    unread: tuple[str, ...] = ()

    def rules(self) -> tuple[HealthRule, ...]:
        """The same as rules: a fatal XID outranks an ignored one, and a number outranks "all"."""
        return (
            *(HealthRule(reasons=some, state="Unhealthy") for some in _reasons(self.fatal)),
            *(HealthRule(reasons=some, state="Ignored") for some in _reasons(self.ignore)),
            *([HealthRule(reasons=("Xid*",), state="Unhealthy")] if self.fatal_all else []),
            *([HealthRule(reasons=("Xid*",), state="Ignored")] if self.ignore_all else []),
        )


def _reasons(xids: frozenset[int]) -> Iterator[tuple[str, ...]]:
    reasons = [f"Xid{number}" for number in sorted(xids)]
    return (tuple(reasons[first : first + MAX_REASONS]) for first in range(0, len(reasons), MAX_REASONS))


def rules_from_environment(disable: str, enable: str) -> EnvironmentXids:
    """The documented meaning of DP_DISABLE_HEALTHCHECKS and DP_ENABLE_HEALTHCHECKS: XIDs by comma, `all` or `xids`.

    What is enabled outranks what is disabled: `all` disabled and 48,79 enabled means only these two (NVIDIA's plugin
    then hears nothing), and `all` enabled makes every XID fatal. A word that is neither is dropped, and told in
    `unread`, for one typing error must not switch the checks off.
    """
    ignore, ignore_all, unread = _words(disable)
    fatal, fatal_all, also_unread = _words(enable)
    return EnvironmentXids(
        ignore=frozenset() if fatal_all else ignore - fatal,
        fatal=fatal,
        ignore_all=ignore_all and not fatal_all,
        fatal_all=fatal_all,
        unread=(unread + also_unread)[:MAX_UNREAD],
    )


def _words(text: str) -> tuple[frozenset[int], bool, tuple[str, ...]]:
    words = [word.strip().lower() for word in text.split(",") if word.strip()]
    numbers = {word: int(word) for word in words if re.fullmatch(r"0*[0-9]{1,4}", word, re.ASCII)}
    xids = {word: number for word, number in numbers.items() if 1 <= number <= MAX_XID}
    unread = tuple(word[:32] for word in words if word not in xids and word not in EVERY_XID)
    return frozenset(xids.values()), any(word in EVERY_XID for word in words), unread
