"""Devices that containers would get by a CDI name without the driver's libraries (vendors.cdi_libraries)."""

from __future__ import annotations

from nodedevices_api.withheld import NO_CDI_SPECIFICATION

from nodedevices_plugin.gates.base import Check, GateFacts
from nodedevices_plugin.model import Blocked, ListedAs, OfferedResource, Plan, SchedulableId


def libraries(shape: Plan, facts: GateFacts) -> Check | None:
    """A resource that the kubelet has not been sent, and that has no usable id, is not registered."""
    if not facts.libraries:
        return None
    unshown = {
        resource.name
        for resource in shape.resources
        if resource.name not in facts.shown and all(_why(each, facts) for each in resource.ids)
    }

    def check(resource: OfferedResource, each: SchedulableId) -> Blocked | None:
        why = _why(each, facts)
        listed_as = ListedAs.NOT_LISTED if resource.name in unshown else ListedAs.UNHEALTHY
        return Blocked(reason=NO_CDI_SPECIFICATION, message=why, listed_as=listed_as) if why else None

    return check


def _why(each: SchedulableId, facts: GateFacts) -> str | None:
    for missing in facts.libraries:
        if each.device_id in missing.devices and each.part_id not in missing.elsewhere:
            return missing.why
    return None
