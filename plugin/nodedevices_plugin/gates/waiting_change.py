"""Ids that a change which waits for pods will take away: unless held, they go to no new pod, so that it does not wait
for more and more of them."""

from __future__ import annotations

from nodedevices_api.withheld import CHANGE_WAITS

from nodedevices_plugin.gates.base import Check, GateFacts
from nodedevices_plugin.model import Blocked, OfferedResource, Plan, SchedulableId
from nodedevices_plugin.offering.changes import bound_to, held_as

MESSAGE = "a change of the configuration takes it away, and waits"


def waiting_change(shape: Plan, facts: GateFacts) -> Check | None:
    if facts.change is None:
        return None
    kept = {(name, *each) for name, ids in held_as(facts.change.shape).items() for each in ids}
    bound = {each.name: bound_to(each) for each in shape.resources}
    in_use = facts.in_use()
    blocked = Blocked(reason=CHANGE_WAITS, message=MESSAGE, waits_for=facts.change.waits_for)

    def check(resource: OfferedResource, each: SchedulableId) -> Blocked | None:
        stays = (resource.name, each.id, bound[resource.name]) in kept or (resource.name, each.id) in in_use
        return None if stays else blocked

    return check
