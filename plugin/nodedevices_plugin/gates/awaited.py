"""Ids that wait for another program: shares for their MPS daemon, or devices that one keeps to itself; devices that
containers would get by a CDI name, for a specification with the driver's libraries (vendors.cdi); shares of
computing power, for the pods that could request them, since an Allocate names none. What is held stays as it is.
"""

from __future__ import annotations

from nodedevices_api.withheld import HELPER_IN_USE, HELPER_NOT_READY, NO_CDI_SPECIFICATION, PODS_UNKNOWN

from nodedevices_plugin.gates.base import Check, GateFacts
from nodedevices_plugin.model import Blocked, ListedAs, OfferedResource, Plan, SchedulableId
from nodedevices_plugin.sharing.daemons import described, has_daemon, not_ready, reserved

TAKEN = "an MPS daemon is starting or ending, and reserves the device"


def daemon_not_ready(shape: Plan, facts: GateFacts) -> Check | None:
    """A resource that the kubelet has been sent stays listed: for an id that is dropped, the kubelet goes on showing
    Healthy to the pods that have it. A resource that it has not been sent is not registered before the daemon is
    ready."""
    blocked = {
        resource.name: Blocked(
            reason=HELPER_NOT_READY,
            message=why,
            listed_as=ListedAs.UNHEALTHY if resource.name in facts.shown else ListedAs.NOT_LISTED,
        )
        for resource in shape.resources
        if (why := not_ready(resource, facts.statuses))
    }

    def check(resource: OfferedResource, schedulable: SchedulableId) -> Blocked | None:
        return blocked.get(resource.name)

    return check if blocked else None


def daemon_in_use(shape: Plan, facts: GateFacts) -> Check | None:
    """A daemon with running clients stays although it is not wanted any more, and admits no other process to its
    devices. The ids that its clients hold are kept, but not for the next pod."""
    devices = reserved(facts.staying)
    if not devices:
        return None
    in_use = facts.in_use()
    pods = tuple(
        dict.fromkeys(held_id.holder for held_id in facts.held if held_id.device_id in devices and held_id.holder)
    )
    message = described(facts.staying)
    theirs = Blocked(reason=HELPER_IN_USE, message=message, waits_for=pods)
    kept = Blocked(reason=HELPER_IN_USE, message=message, waits_for=pods, listed_as=ListedAs.KEPT_FOR_HOLDER)

    def check(resource: OfferedResource, schedulable: SchedulableId) -> Blocked | None:
        if schedulable.device_id not in devices:
            return None
        return kept if (resource.name, schedulable.id) in in_use else theirs

    return check


def daemon_taken(shape: Plan, facts: GateFacts) -> Check | None:
    """A daemon reserves its devices before it answers, and until it has ended: those are offered as its shares alone.
    What a pod holds otherwise stays as it is."""
    if not facts.taken:
        return None
    otherwise = {resource.name for resource in shape.resources if not has_daemon(resource)}
    in_use = facts.in_use()
    blocked = Blocked(reason=HELPER_IN_USE, message=TAKEN)

    def check(resource: OfferedResource, schedulable: SchedulableId) -> Blocked | None:
        if schedulable.device_id not in facts.taken or resource.name not in otherwise:
            return None
        return None if (resource.name, schedulable.id) in in_use else blocked

    return check


def libraries(shape: Plan, facts: GateFacts) -> Check | None:
    """A resource that the kubelet has not been sent, and that has no usable id, is not registered."""
    if not facts.libraries:
        return None
    unshown = {
        resource.name
        for resource in shape.resources
        if resource.name not in facts.shown and all(_why(id_, facts) for id_ in resource.ids)
    }

    def check(resource: OfferedResource, schedulable: SchedulableId) -> Blocked | None:
        why = _why(schedulable, facts)
        listed_as = ListedAs.NOT_LISTED if resource.name in unshown else ListedAs.UNHEALTHY
        return Blocked(reason=NO_CDI_SPECIFICATION, message=why, listed_as=listed_as) if why else None

    return check


def _why(schedulable: SchedulableId, facts: GateFacts) -> str | None:
    for missing in facts.libraries:
        if schedulable.device_id in missing.devices and schedulable.part_id not in missing.elsewhere:
            return missing.why
    return None


def pods_unknown(shape: Plan, facts: GateFacts) -> Check | None:
    if facts.pods.pods is not None or not any(resource.sharing.cores for resource in shape.resources):
        return None
    in_use = facts.in_use()
    blocked = Blocked(reason=PODS_UNKNOWN, message=f"this node's pods are not known: {facts.pods.problem}")

    def check(resource: OfferedResource, schedulable: SchedulableId) -> Blocked | None:
        return blocked if resource.sharing.cores and (resource.name, schedulable.id) not in in_use else None

    return check
