"""By what rules and numbers health is judged: `health` of the policy or of the node itself, and what neither sets."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from nodedevices_api.sections import DegradedRule, Health, HealthRule

SILENCE_SECONDS = 15.0  # SCHEMA: the probe's last line counts no longer than that (NVML can hang in the kernel)
CORRELATION_SECONDS = 10.0  # SCHEMA: how long an XID may wait for its neighbours


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthRules:
    """Seconds are seconds. `rules`: what some reasons mean here; the first that matches decides."""

    rules: tuple[HealthRule, ...] = ()
    degraded: tuple[DegradedRule, ...] = ()  # readings that are too high (health.signals)
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
            degraded=health.degraded,
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
