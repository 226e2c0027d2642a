"""The MPS daemons that a plan awaits before their shares are offered, and the pods that these wait for.

This is where a plan meets the node: which daemons are wanted, whether they answer, and whether they may be started
under the pods that are there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set

from msgspec import Struct

from nodedevices_plugin.model import Holder, Holdings, Inventory, Offer, OfferedResource, Plan
from nodedevices_plugin.offering.changes import ChangeDecision, unnamed_text, wait, waiting_for
from nodedevices_plugin.pipeline.device_index import DeviceIndex
from nodedevices_plugin.pipeline.foreign import offered_text, other_plugins
from nodedevices_plugin.sharing import daemons
from nodedevices_plugin.sharing.daemons import MpsFacts
from nodedevices_plugin.sharing.mps import MpsDaemon


class Awaited(Struct, frozen=True, kw_only=True):
    """The MPS daemons that one plan awaits. `why`: which one is not ready, and its status; empty: all are.

    `unanswered`: the resources with daemons that are not ready. `starting`: these are only being started.
    """

    field: str  # where the configuration requests it
    why: str
    starting: bool
    unanswered: tuple[OfferedResource, ...]
    daemons: tuple[MpsDaemon, ...]


def awaited(plan: Plan, inventory: Inventory, holdings: Holdings, facts: MpsFacts, not_ours: Set[str]) -> Awaited:
    """Return what this plan awaits. `not_ours`: resources that another plugin serves: its pods are no clients of a
    daemon of ours.

    But a daemon that runs stays while pods hold its shares: they may be its clients, from before that plugin came.
    """
    held = {(resource, id_) for resource, ids in holdings.held for id_ in ids}

    def in_use(resource: OfferedResource) -> bool:
        runs = not daemons.unanswered(Plan(resources=(resource,)), facts.statuses)
        return runs and (
            not holdings.known or any((resource.name, schedulable.id) in held for schedulable in resource.ids)
        )

    ours = Plan(
        resources=tuple(resource for resource in plan.resources if resource.name not in not_ours or in_use(resource))
    )
    missing = daemons.unanswered(ours, facts.statuses)
    return Awaited(
        field=daemons.requested_by(missing[0]) if missing else "",
        why=daemons.silent(ours, facts.statuses),
        starting=daemons.starting(ours, facts.statuses),
        unanswered=missing,
        daemons=daemons.wanted(ours, inventory),
    )


def known_clients(plan: Plan, inventory: Inventory, facts: MpsFacts) -> frozenset[tuple[str, str]]:
    """Return resource and id of the shares with an unchanged daemon since the agent's run before this one: pods that
    hold them are its clients."""
    same = {daemon.resource for daemon in daemons.wanted(plan, inventory) if daemon in facts.before}
    return daemons.client_ids(Plan(resources=tuple(resource for resource in plan.resources if resource.name in same)))


def may_start(
    missing: Sequence[OfferedResource], holdings: Holdings, index: DeviceIndex, *, clients: Collection[tuple[str, str]]
) -> ChangeDecision:
    """Decide whether the daemons of these resources may be started: not while pods that are not their clients hold
    their devices. `clients`: resource and id of the shares whose pods are known to be clients."""
    if not missing:
        return ChangeDecision(apply=True)
    what = _waits(missing)
    if not holdings.known:
        return wait((), f"{what}: it is not known which pods hold devices ({holdings.unknown_because})")
    devices = {schedulable.device_id for resource in missing for schedulable in resource.ids}

    def beside(holder: Holder | Offer, id_: str) -> bool:
        if holder.resource is None:
            unit = index.claimed(id_)
        else:
            unit, _ = index.unit(holder.resource, id_) or (None, None)
        return unit is not None and unit.device_id in devices and (holder.resource, id_) not in clients

    holders = tuple(holder for holder in holdings.holders if any(beside(holder, id_) for id_ in holder.ids))
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

    The guard would find that plugin only when the daemons answer. Where the kubelet does not answer, no plugin is
    assumed.
    """
    offers = {
        plugin.resource: plugin
        for resource in missing
        for plugin in other_plugins(resource.name, wanted, holdings.offered or (), index, own=())
    }
    if why := offered_text(tuple(offers.values())):
        return wait((), f"{_waits(missing)}: {why}")
    return ChangeDecision(apply=True)


def _waits(shared: Sequence[OfferedResource]) -> str:
    return f"sharing {', '.join(resource.name for resource in shared)} by MPS waits"
