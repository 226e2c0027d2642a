"""The configuration in effect."""

from __future__ import annotations

from msgspec import Struct

from nodedevices_plugin.offering.shape import PlanSettings
from nodedevices_plugin.settings.effective import Effective


class ActiveConfig(Struct, frozen=True, kw_only=True):
    """The configuration in effect. `applied_once`: its plan was made, in this run or before the last restart.

    Until then it is the node's own settings without the file: devices are judged by it, and nothing is offered.
    """

    effective: Effective
    applied_hash: str | None = None
    applied_once: bool = False

    @property
    def needs_offers(self) -> bool:
        """True when other plugins' offers matter: for foreign.observe, take_over and awaiting.may_begin."""
        return self.effective.observing or not self.applied_once

    @property
    def excluded(self) -> tuple[str, ...]:
        """`resources.exclude`; nothing is kept back from what other plugins offer."""
        resources = self.effective.sections.resources
        return tuple(resources.exclude) if self.applied_once and not self.effective.observing and resources else ()


def plan_settings(effective: Effective) -> PlanSettings:
    """Return what of a configuration decides which ids are offered."""
    return PlanSettings.from_sections(
        effective.sections,
        resource_prefix=effective.resource_prefix,
        modes=effective.node.sharing_modes,
        vendors=effective.values,
        sharing_modes=effective.modes,
    )
