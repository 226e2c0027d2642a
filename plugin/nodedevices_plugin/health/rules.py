"""The rules and numbers of health: the section `health` of the policy or of the node itself, else the defaults; and
recovery actions.

A rule may be about some devices only (`match`), or about devices on which its reasons came so often (`after`). What is
decided about one device is decided by `for_device`, which leaves out the rules that do not apply to it; a partition has
its device's rules.

Whether a rule with `after` applies depends on the occurrences alone, not on the time: the window ends with the newest
of them. So a fault that such a rule made keeps its rule until it is over: for the window after its last occurrence, or
it would come back with the next one.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

from msgspec import Struct, field
from msgspec.structs import replace
from nodedevices_api.sections import DegradedRule, Health, HealthRule
from nodedevices_probe.protocol import DeviceFact

from nodedevices_plugin.model import Occurrences
from nodedevices_plugin.model.inventory import selects

SILENCE_SECONDS = 15.0  # how long the probe's last line counts (NVML can hang in the kernel)
WITHDRAW_SECONDS = 300.0  # of silence, counted from the last line, after which devices are no longer offered
CORRELATION_SECONDS = 10.0  # how long an XID may wait for its neighbours


class HealthRules(Struct, frozen=True, kw_only=True):
    """`rules`: states for some reasons; the first rule that matches decides. `occurrences`: for each device how often
    reasons came (health.history)."""

    rules: tuple[HealthRule, ...] = ()
    degraded: tuple[DegradedRule, ...] = ()  # readings that are too high (health.levels)
    hold_down_seconds: float = 300.0  # for reasons without a rule that counts
    occurrences: Mapping[str, tuple[Occurrences, ...]] = field(default_factory=dict)

    @classmethod
    def from_section(cls, health: Health) -> HealthRules:
        """Return the rules of a `health` section, of a policy or the node's own."""
        return cls(
            rules=health.rules,
            degraded=health.degraded,
            hold_down_seconds=float(health.hold_down_seconds),
        )

    def for_device(self, fact: DeviceFact | None) -> HealthRules:
        """Return the rules for this device; None: those for an event whose device is not known, which no rule about
        some devices concerns."""
        if all(rule.match is None and rule.after is None for rule in self.rules):
            return self
        applies = (rule for rule in self.rules if self._concerns(rule, fact) and self._is_met(rule, fact))
        return replace(self, rules=tuple(applies))

    @property
    def counting(self) -> bool:
        """True when a rule counts."""
        return any(rule.after is not None for rule in self.rules)

    def is_counted(self, reason: str, fact: DeviceFact) -> bool:
        """True when a rule about this device counts how often the reason comes."""
        return any(
            rule.after is not None and self._concerns(rule, fact) and _names(rule, reason) for rule in self.rules
        )

    def _concerns(self, rule: HealthRule, fact: DeviceFact | None) -> bool:
        return rule.match is None or (fact is not None and selects(rule.match, fact))

    def _is_met(self, rule: HealthRule, fact: DeviceFact | None) -> bool:
        """True when the reasons of the rule came so often, within the window that ends with the newest of them."""
        after = rule.after
        if after is None or fact is None:
            return after is None
        known = self.occurrences.get(fact.id, ())
        times = sorted(when for occurrences in known if _names(rule, occurrences.reason) for when in occurrences.times)
        if len(times) < after.count:
            return False
        return (times[-1] - times[-after.count]).total_seconds() <= after.window_seconds

    def rule(self, reason: str) -> HealthRule | None:
        """Return the rule for this reason; None: its usual meaning holds."""
        return next((rule for rule in self.rules if _names(rule, reason)), None)

    def names(self, reason: str) -> bool:
        """Return whether a rule names this reason itself, and not by a glob."""
        return any(reason in rule.reasons for rule in self.rules)

    def hold_down(self, reason: str) -> float:
        """Return for how many seconds after this fault no fault may occur before the device is Healthy again."""
        rule = self.rule(reason)
        if rule is None or rule.after is None:
            return self.hold_down_seconds
        return max(self.hold_down_seconds, float(rule.after.window_seconds))


def _names(rule: HealthRule, reason: str) -> bool:
    return any(fnmatchcase(reason, glob) for glob in rule.reasons)


# --- recovery actions: their order, how they are described to people, and what proves that they were done ------------
NO_ACTION = "None"

# Where a driver does not say what it requires: these are proven by the device having left and come
# back, the driver reloaded, or a new boot; everything else that requires something, by a new boot alone.
PROVEN_BY_RETURN = frozenset({"ResetDevice", "ResetBus", "DrainP2P", "DrainAndReset", "RecoverIMEXDomain", "Inspect"})

# `health.recoveryAction`, from the least to the most that it requires of people: the greater of two is shown.
ADVICE = {
    NO_ACTION: "",
    "RestartApp": "restart the application",
    "Inspect": "inspect the device",
    "DrainP2P": "end the workloads that use peer-to-peer access to it",
    "RecoverIMEXDomain": "recover its IMEX domain",
    "ResetDevice": "reset the device when its pods have ended",
    "DrainAndReset": "drain the node, then reset the device",
    "ResetBus": "reset its bus",
    "RebootNode": "reboot the node",
    "RebootSystem": "reboot the whole system",
    "Replace": "replace the device",
}
_RANK = {action: rank for rank, action in enumerate(ADVICE)}


def action_rank(action: str) -> int:
    """Return a number to compare actions by. An unknown action ranks highest; it is never taken for None."""
    return _RANK.get(action, len(_RANK))


def needs_no_action(action: str) -> bool:
    """True when the device itself needs nothing: restarting an application does not repair it."""
    return action in {NO_ACTION, "RestartApp"}


def advice(action: str) -> str:
    return ADVICE.get(action, "reboot the whole system")
