"""NVIDIA's two variables for health checks, and Google's, as health rules."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct
from nodedevices_api.sections import MAX_REASONS, HealthRule

from nodedevices_plugin.vendors.nvidia.xids import MAX_XID

DISABLE_VARIABLE = "DP_DISABLE_HEALTHCHECKS"
ENABLE_VARIABLE = "DP_ENABLE_HEALTHCHECKS"
GOOGLE_VARIABLE = "XID_CONFIG"  # of Google's plugin, HealthCriticalXid of its ConfigMap: XIDs that are fatal, too
EVERY_XID = frozenset({"all", "xids"})
MAX_UNREAD = 16


class EnvironmentXids(Struct, frozen=True, kw_only=True):
    """The rules of NVIDIA's two variables: a node's own `health.rules`, which a policy's section replaces. `unread`:
    parts without a meaning."""

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
    then hears nothing), and `all` enabled makes every XID fatal. A part that is neither is dropped, and named in
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
    parts = [part.strip().lower() for part in text.split(",") if part.strip()]
    numbers = {part: int(part) for part in parts if re.fullmatch(r"0*[0-9]{1,4}", part, re.ASCII)}
    xids = {part: number for part, number in numbers.items() if 1 <= number <= MAX_XID}
    unread = tuple(part[:32] for part in parts if part not in xids and part not in EVERY_XID)
    return frozenset(xids.values()), any(part in EVERY_XID for part in parts), unread
