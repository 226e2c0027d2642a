"""Tells which devices are in a resource: in one that is offered, or that a configuration names.

A condition of a device that is in no resource may be no fault of the node (vendors.faults.FaultCondition.unused). A
requested configuration counts beside the one in effect, so that a NIC without a link is not offered in the step that
names it. One that is not possible with these devices offers nothing, and does not count: a mistake in a policy is no
fault of the devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, partial

from nodedevices_plugin.model import Inventory, Plan
from nodedevices_plugin.offering.shape import fitting, named_units
from nodedevices_plugin.pipeline.active import plan_settings
from nodedevices_plugin.settings.effective import Effective


def in_use(
    inventory: Inventory, plan: Plan | None, configurations: Iterable[Effective | None]
) -> Callable[[str], bool]:
    """Return a function that tells by a device's id whether it is in a resource. `plan`: the one in effect."""

    @cache
    def found() -> frozenset[str]:
        ids = {
            schedulable.device_id
            for resource in (plan.resources if plan is not None else ())
            for schedulable in (*resource.ids, *resource.retained)
        }
        for effective in configurations:
            if effective is not None:
                named, misfit = fitting(inventory, partial(named_units, settings=plan_settings(effective)))
                if named is not None and misfit is None:
                    ids |= {unit.device.fact.id for some in named.values() for unit in some}
        return frozenset(ids)

    return lambda device_id: device_id in found()
