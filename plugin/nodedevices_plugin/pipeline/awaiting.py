"""The helpers that the sharing modes of a plan await before their shares are offered, and the pods that these wait for.

A mode with helpers (package sharing) has a program for each resource that it shares. This is where a plan meets the
node: which helpers are wanted, whether they answer, and whether they may be started under the pods that are there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set

from msgspec import Struct

from nodedevices_plugin.model import Holder, Holdings, Inventory, Offer, OfferedResource, Plan
from nodedevices_plugin.offering.changes import ChangeDecision, unnamed_text, wait, waiting_for
from nodedevices_plugin.pipeline.device_index import DeviceIndex
from nodedevices_plugin.pipeline.foreign import offered_text, other_plugins
from nodedevices_plugin.sharing.base import Helper, HelperFacts
from nodedevices_plugin.sharing.helpers import (
    exclusive,
    helpers,
    requested_by,
    shares,
    silent,
    starting,
    unanswered,
)
from nodedevices_plugin.sharing.resources import helper_kind, runs


class Awaited(Struct, frozen=True, kw_only=True):
    """The helpers that one plan awaits. `why`: which helper is not ready, and its answer; empty: all are.

    `unanswered`: the resources with helpers that are not ready. `starting`: these are only being started.
    """

    mode: str  # the mode whose helper is not ready
    field: str  # where the configuration requests it
    why: str
    starting: bool
    unanswered: tuple[OfferedResource, ...]
    helpers: tuple[Helper, ...]


def awaited(plan: Plan, inventory: Inventory, holdings: Holdings, facts: HelperFacts, not_ours: Set[str]) -> Awaited:
    """Return what this plan awaits. `not_ours`: resources that another plugin serves: its pods are no clients of a
    helper of ours.

    But a helper that runs stays while pods hold its shares: they may be its clients, from before that plugin came.
    """
    held = {(resource, each) for resource, ids in holdings.held for each in ids}

    def in_use(resource: OfferedResource) -> bool:
        runs = not unanswered(Plan(resources=(resource,)), facts.answers)
        return runs and (not holdings.known or any((resource.name, each.id) in held for each in resource.ids))

    ours = Plan(resources=tuple(each for each in plan.resources if each.name not in not_ours or in_use(each)))
    missing = unanswered(ours, facts.answers)
    return Awaited(
        mode=runs(missing[0]) if missing else "",
        field=requested_by(missing[0]) if missing else "",
        why=silent(ours, facts.answers),
        starting=starting(ours, facts.answers),
        unanswered=missing,
        helpers=helpers(ours, inventory),
    )


def known_clients(plan: Plan, inventory: Inventory, facts: HelperFacts) -> frozenset[tuple[str, str]]:
    """Return resource and id of the shares with an unchanged helper since the agent's run before this one: pods that
    hold them are its clients."""
    same = {each.resource for each in helpers(plan, inventory) if each in facts.before}
    return shares(Plan(resources=tuple(each for each in plan.resources if each.name in same)))


def may_start(
    missing: Sequence[OfferedResource], holdings: Holdings, index: DeviceIndex, *, clients: Collection[tuple[str, str]]
) -> ChangeDecision:
    """Decide whether the helpers of these resources may be started: an exclusive one not while pods that are not its
    clients hold its devices. `clients`: resource and id of the shares whose pods are known to be its clients."""
    shared = [each for each in missing if exclusive(each)]
    if not shared:
        return ChangeDecision(apply=True)
    what = _waits(shared)
    if not holdings.known:
        return wait((), f"{what}: it is not known which pods hold devices ({holdings.unknown_because})")
    devices = {one.device_id for each in shared for one in each.ids}

    def beside(holder: Holder | Offer, id_: str) -> bool:
        if holder.resource is None:
            unit = index.claimed(id_)
        else:
            unit, _ = index.unit(holder.resource, id_) or (None, None)
        return unit is not None and unit.device_id in devices and (holder.resource, id_) not in clients

    holders = tuple(each for each in holdings.holders if any(beside(each, id_) for id_ in each.ids))
    if holders:
        return wait(holders, f"{what} until these pods have ended: {waiting_for(holders)}")
    for unnamed in holdings.possible or ():
        if any(beside(unnamed, id_) for id_ in unnamed.ids):
            return wait((), f"{what} until {unnamed_text(unnamed)}")
    return ChangeDecision(apply=True)


def may_begin(
    missing: Sequence[OfferedResource], wanted: Plan, holdings: Holdings, index: DeviceIndex
) -> ChangeDecision:
    """Decide the same where nothing is registered yet: not while another plugin offers these devices.

    The guard would find that plugin only when the helpers answer. Where the kubelet does not answer, no plugin is
    assumed.
    """
    shared = [each for each in missing if exclusive(each)]
    offers = {
        each.resource: each
        for resource in shared
        for each in other_plugins(resource.name, wanted, holdings.offered or (), index, own=())
    }
    if why := offered_text(tuple(offers.values())):
        return wait((), f"{_waits(shared)}: {why}")
    return ChangeDecision(apply=True)


def _waits(shared: Sequence[OfferedResource]) -> str:
    kind = helper_kind(shared[0])
    by = kind.texts.title if kind is not None else shared[0].sharing.name
    return f"sharing {', '.join(each.name for each in shared)} by {by} waits"
