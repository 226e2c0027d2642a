"""Shares that need an MPS daemon: one that is not ready, and devices that one keeps to itself."""

from __future__ import annotations

from nodedevices_api.withheld import HELPER_IN_USE, HELPER_NOT_READY

from nodedevices_plugin.gates.base import Check, GateFacts
from nodedevices_plugin.model import Blocked, ListedAs, OfferedResource, Plan, SchedulableId
from nodedevices_plugin.sharing.daemons import described, has_daemon, not_ready, reserved

TAKEN = "an MPS daemon is being started or ended, and reserves the device"


def daemon_not_ready(shape: Plan, facts: GateFacts) -> Check | None:
    """A resource that the kubelet has been sent stays listed: for an id that is dropped, the kubelet goes on showing
    Healthy to the pods that have it. A resource that it has not been sent is not registered before the daemon is
    ready."""
    blocked = {
        each.name: Blocked(
            reason=HELPER_NOT_READY,
            message=why,
            listed_as=ListedAs.UNHEALTHY if each.name in facts.shown else ListedAs.NOT_LISTED,
        )
        for each in shape.resources
        if (why := not_ready(each, facts.statuses))
    }

    def check(resource: OfferedResource, each: SchedulableId) -> Blocked | None:
        return blocked.get(resource.name)

    return check if blocked else None


def daemon_in_use(shape: Plan, facts: GateFacts) -> Check | None:
    """A daemon with running clients stays although it is not wanted any more, and admits no other process to its
    devices. The ids that its clients hold are kept, but not for the next pod."""
    devices = reserved(facts.staying)
    if not devices:
        return None
    in_use = facts.in_use()
    pods = tuple(dict.fromkeys(each.holder for each in facts.held if each.device_id in devices and each.holder))
    message = described(facts.staying)
    theirs = Blocked(reason=HELPER_IN_USE, message=message, waits_for=pods)
    kept = Blocked(reason=HELPER_IN_USE, message=message, waits_for=pods, listed_as=ListedAs.KEPT_FOR_HOLDER)

    def check(resource: OfferedResource, each: SchedulableId) -> Blocked | None:
        if each.device_id not in devices:
            return None
        return kept if (resource.name, each.id) in in_use else theirs

    return check


def daemon_taken(shape: Plan, facts: GateFacts) -> Check | None:
    """A daemon reserves its devices before it answers, and until it has ended: those are offered as its shares alone.
    What a pod holds otherwise stays as it is."""
    if not facts.taken:
        return None
    otherwise = {resource.name for resource in shape.resources if not has_daemon(resource)}
    in_use = facts.in_use()
    blocked = Blocked(reason=HELPER_IN_USE, message=TAKEN)

    def check(resource: OfferedResource, each: SchedulableId) -> Blocked | None:
        if each.device_id not in facts.taken or resource.name not in otherwise:
            return None
        return None if (resource.name, each.id) in in_use else blocked

    return check
