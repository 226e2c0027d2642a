"""The rules and numbers of health: the section `health` of the policy or of the node itself, else the defaults.

A rule may be about some devices only (`match`). What is decided about one device is decided by `for_device`, which
leaves out the rules about others; a partition has its device's rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from nodedevices_api.sections import DegradedRule, Health, HealthRule
from nodedevices_probe.protocol import DeviceFact

from nodedevices_plugin.model.selection import selects

SILENCE_SECONDS = 15.0  # how long the probe's last line counts (NVML can hang in the kernel)
CORRELATION_SECONDS = 10.0  # how long an XID may wait for its neighbours


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthRules:
    """`rules`: states for some reasons; the first rule that matches decides. `near`: for each device the types of the
    others on its PCIe root (matching.near_types), those of other probes among them."""

    rules: tuple[HealthRule, ...] = ()
    degraded: tuple[DegradedRule, ...] = ()  # readings that are too high (health.signals)
    hold_down_seconds: float = 300.0  # for reasons without a rule that sets it
    silence_seconds: float = SILENCE_SECONDS
    withdraw_after_seconds: float = 300.0  # of silence, counted from the last line
    correlation_seconds: float = CORRELATION_SECONDS
    near: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @classmethod
    def from_section(cls, section: Health | None) -> HealthRules:
        """Return the rules of a `health` section, of a policy or the node's own; None: the defaults."""
        health = section or Health()
        return cls(
            rules=health.rules,
            degraded=health.degraded,
            hold_down_seconds=float(health.hold_down_seconds),
            withdraw_after_seconds=float(health.probe.withdraw_after_seconds),
        )

    def for_device(self, fact: DeviceFact | None) -> HealthRules:
        """Return the rules for this device; None: those for an event whose device is not known, which no rule about
        some devices concerns."""
        if all(rule.match is None for rule in self.rules):
            return self
        return replace(self, rules=tuple(rule for rule in self.rules if self._concerns(rule, fact)))

    def _concerns(self, rule: HealthRule, fact: DeviceFact | None) -> bool:
        if rule.match is None or fact is None:
            return rule.match is None
        return selects(rule.match, fact, self.near)

    def rule(self, reason: str) -> HealthRule | None:
        """Return the rule for this reason; None: its usual meaning holds."""
        return next((rule for rule in self.rules if any(fnmatchcase(reason, glob) for glob in rule.reasons)), None)

    def hold_down(self, reason: str) -> float:
        """Return for how many seconds after this fault no fault may occur before the device is Healthy again."""
        rule = self.rule(reason)
        if rule is None or rule.hold_down_seconds is None:
            return self.hold_down_seconds
        return float(rule.hold_down_seconds)
