"""One step of the agent: from the latest inputs to everything that follows from them.

    probe's line -> inventory -> verdicts -> configuration and plan -> report

Level-based: a step may come at any time, any number of times, and with the same input gives the same result. Only the
world that it returns is remembered. Nothing here waits, logs or touches the outside; `agent` does, in the order that
matters: state file, then kubelet, then API server.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace
from nodedevices_api.conditions import CONFIG_INVALID
from nodedevices_probe.protocol import ProbeEvent

from nodedevices_plugin.granting.conflicts import Comparison, conflicts, held_twice
from nodedevices_plugin.health.events import LoggedEvent, logged_events
from nodedevices_plugin.health.history import follow_notices
from nodedevices_plugin.health.machine import next_deadline
from nodedevices_plugin.health.rules import SILENCE_SECONDS
from nodedevices_plugin.model import (
    Api,
    HoldersState,
    Holdings,
    MostSeen,
    Plan,
    RecentAllocate,
    Uses,
    facts_by_id,
    tenure_key,
)
from nodedevices_plugin.offering.occupancy import RECENT_SECONDS, with_all
from nodedevices_plugin.pipeline import access, expected, idle, lost, probe_set as probe_sets
from nodedevices_plugin.pipeline.assess import Assessment
from nodedevices_plugin.pipeline.configuration import ActiveConfig
from nodedevices_plugin.pipeline.configuring import Configured, awaits, configure
from nodedevices_plugin.pipeline.foreign import DeviceIndex, held, named, observe, remembered
from nodedevices_plugin.pipeline.state import State, to_save
from nodedevices_plugin.pipeline.world import Known, World
from nodedevices_plugin.settings.effective import Effective, to_saved
from nodedevices_plugin.sharing.daemons import follow
from nodedevices_plugin.sharing.registry import SHARED
from nodedevices_plugin.vendors.faults import CODED

FIRST_LIST_SECONDS = 5.0  # after the agent's start, in which its first offer waits for the kubelet's List or checkpoint
LIST_AGAIN_SECONDS = 5.0  # the agent's period for PodResources
UNSURE_SECONDS = 1.0  # between two looks for the List that confirms the one before: equal ones wake no step
MAX_RETIRED = 64


class Step(Struct, frozen=True, kw_only=True):
    """A step's outcome, besides the world: what only has to be reported, and when to run the next step."""

    world: World
    logged: tuple[LoggedEvent, ...] = ()
    xids: tuple[ProbeEvent, ...] = ()
    addressed: tuple[ProbeEvent, ...] = ()  # that name a PCI address: lines of the kernel's log
    confirmed: tuple[str, ...] = ()  # entries of the annotation that this step acted on
    refused: str = ""
    deadline: float | None = None  # time.monotonic() when a step without news could change something
    silent: frozenset[str] = frozenset()  # probes without a good line for 15 s


def decide(assessed: Assessment) -> Step:
    """Return what follows from the assessment: configuration, plan, access for containers, state to save, facts to
    report."""
    world, inputs, known = assessed.world, assessed.inputs, assessed.known
    inventory, now, monotonic = known.inventory, assessed.now, assessed.monotonic
    first_offer_from = _first_offer_from(assessed)
    configured = _configured(assessed)
    active = configured.active
    plan = configured.plan if inventory.line_monotonic is None or monotonic >= first_offer_from else None
    index = known.index.under(active.effective.index_prefix)
    observed: Plan | None = None
    if active.applied_once and active.effective.observing:
        observed = observe(world.state.observed, inputs.holdings, index, mode=active.effective.sharing_mode)
    allocations = _compared(assessed, index, observed or plan)
    holdings = with_all(named(inputs.holdings, index, known.given), plan)
    uses = idle.follow(
        world.uses,
        inventory,
        holdings,
        saved=world.state.tenures,
        lines={name: part.line_monotonic for name, part in known.probes.items()},
        after_seconds=active.effective.sections.idle.after_seconds,
        now=now,
        monotonic=monotonic,
    )
    state = _state(
        assessed,
        active=active,
        applied=configured.to_save,
        plan=plan,
        observed=observed,
        uses=uses,
        holdings=holdings,
    )
    judged_from = expected.judged_from(known.probes, known.probe_set.since)
    given = access.access(active.effective, assessed.devices, plan) if plan is not None else access.Access()
    after = replace(
        world,
        known=known,
        active=active,
        plan=plan,
        observed=observed,
        holdings=holdings,
        config=configured.status,
        daemons=configured.daemons,
        access=given,
        conflicts=conflicts(plan, holdings.holders, given.containers) if observed is None else {},
        state=state,
        confirm_problems=assessed.confirm.problems,
        departed={part: world.departed.get(part, now) for part in sorted(inventory.departed_partitions)},
        lost=lost.lost_devices(
            known.owned, hardware=inputs.hardware or frozenset(), given_up=assessed.given_up, left=world.left
        ),
        expected=_expected(active, assessed, state.most_seen or (), judged_from),
        allocations=allocations,
        uses=uses,
    )
    silent_from = _silent_from(known)
    deadlines = (
        *silent_from.values(),
        *_judging_deadlines(assessed),
        world.started + assessed.local.operator_wait_seconds if awaits(assessed) else None,
        first_offer_from,
        judged_from,
        monotonic + UNSURE_SECONDS if allocations.unsure else None,
    )
    return Step(
        world=after,
        logged=logged_events(assessed.judged, assessed.rules, facts_by_id(known.inventory), assessed.vendors),
        xids=tuple(event for event in assessed.events if event.kind == CODED and event.xid is not None),
        addressed=tuple(event for event in assessed.reported if event.pci_bus_id),
        confirmed=assessed.confirm.understood,
        refused=configured.refused,
        deadline=min((when for when in deadlines if when is not None and when > monotonic), default=None),
        silent=frozenset(name for name, since in silent_from.items() if monotonic >= since),
    )


def _configured(assessed: Assessment) -> Configured:
    """Return what is in effect from now on; before the first line of a probe that is what was."""
    world, known, requested = assessed.world, assessed.known, assessed.known.requested
    if known.inventory.line_monotonic is not None:
        return configure(assessed)
    status = world.config
    if requested.refused is not None:
        status = replace(
            status,
            reason=CONFIG_INVALID,
            message="; ".join(dict.fromkeys(wrong.message for wrong in (requested.refused, *requested.others))),
            refused=requested.refused,
            others=requested.others,
            sources=requested.sources,
        )
    return Configured(
        active=world.active,
        to_save=world.active.effective if world.active.applied_once else None,
        plan=world.plan,
        status=status,
        refused=requested.source if requested.refused is not None else "",
        daemons=world.daemons,
    )


def _state(
    assessed: Assessment,
    *,
    active: ActiveConfig,
    applied: Effective | None,
    plan: Plan | None,
    observed: Plan | None,
    uses: Uses | None,
    holdings: Holdings,
) -> State:
    """Return the state to save. `applied`: the configuration that it is to have."""
    world, known, inputs, now = assessed.world, assessed.known, assessed.inputs, assessed.now
    offered, retired = _offered(world.state, plan, observed, now)
    return dataclasses.replace(
        to_save(world.state, known.inventory, known.verdicts),
        applied=to_saved(applied) if applied is not None else world.state.applied,
        applied_hash=active.applied_hash,
        spec=assessed.spec if not assessed.local.standalone else world.state.spec,
        offered=offered,
        observed=remembered(observed) if observed is not None else world.state.observed if plan is None else {},
        retired=retired,
        confirmed=assessed.confirm.value,
        removals=tuple(sorted(assessed.removals)),
        unschedulable=assessed.cordons,
        drained=assessed.drained,
        probes=known.probe_set.texts if known.inventory.line_monotonic is not None else world.state.probes,
        auto_probes=known.probe_set.auto if known.inventory.line_monotonic is not None else world.state.auto_probes,
        retired_devices=known.probe_set.retired_devices,
        most_seen=_most_seen(assessed),
        notices=follow_notices(
            world.state.notices, assessed.events, known.inventory, assessed.rules, assessed.vendors, now=now
        ),
        history=assessed.rules.occurrences,
        cursors=known.cursors,
        waiting=assessed.waiting,
        given={key: given for key, given in known.given.items() if given != known.given_now.get(given.part_id)},
        held_since=_held_since(world.state.held_since, inputs.holdings),
        tenures=idle.tenures(uses, world.state.tenures, active.effective.sections.idle.after_seconds),
        clients=follow(
            world.state.clients,
            plan if observed is None else Plan(),
            inputs.holdings,
            inputs.mps.processes,
            not_ours=assessed.not_ours,
            now=now,
        ),
        lost_contexts=lost.follow(
            world.state.lost_contexts,
            known.inventory,
            known.verdicts,
            holdings,
            assessed.vendors,
            boot_id=world.state.boot_id,
        ),
    )


def _held_since(before: Mapping[str, datetime], holdings: Holdings) -> Mapping[str, datetime]:
    """Return since when each container holds its devices; of a pod whose uid is not known it would be a guess."""
    now = {
        tenure_key(holder.uid, holder.container, holder.resource): holder.since
        for holder in holdings.holders
        if holder.uid
    }
    return now if holdings.known else {**before, **now}


def _compared(assessed: Assessment, index: DeviceIndex, plan: Plan | None) -> Comparison:
    """Compare the kubelet's allocations with the holders that it lists: each complete List once."""
    world, holdings = assessed.world, assessed.inputs.holdings
    before = world.allocations
    if holdings.state is not HoldersState.SYNCED or holdings.taken == before.taken:
        return before
    every = replace(holdings, holders=(*holdings.holders, *holdings.forgotten), possible=None)
    latest = held_twice(
        held(every, (), index, dra=assessed.inputs.dra),
        by_nature={resource.name for resource in (plan or Plan()).resources if resource.sharing.name == SHARED},
        departed=world.known.inventory.departed_partitions,
    )
    return before.after(latest, holdings.taken)


def _expected(
    active: ActiveConfig, assessed: Assessment, remembered: Sequence[MostSeen], judged_from: float
) -> tuple[expected.Count, ...] | None:
    """By the policy where it says what the node should have, else by what the node has had."""
    entries, known = active.effective.sections.expect, assessed.known
    if assessed.monotonic < judged_from:
        return None if entries else ()
    return (
        expected.count(entries, known.owned)
        if entries
        else expected.lacking(remembered, known.inventory, known.owned.keys())
    )


def _most_seen(assessed: Assessment) -> tuple[MostSeen, ...] | None:
    """None: neither the state file nor the node's object has said yet what it had."""
    world, known, before = assessed.world, assessed.known, assessed.world.state.most_seen
    if before is None and assessed.inputs.seen is not None:
        before = assessed.inputs.seen.most_seen
    if before is None and assessed.local.standalone:
        before = ()
    if before is None or known.inventory.line_monotonic is None:
        return world.state.most_seen
    return expected.follow_most_seen(
        before,
        world.known.inventory,
        known.inventory,
        removed=assessed.confirm.removed.union(world.state.removals, world.state.drained),
        all_removed=assessed.confirm.all_removed,
    )


def _silent_from(known: Known) -> dict[str, float]:
    """Return by probe when it counts as silent unless a line comes; time.monotonic()."""
    since = known.probe_set.since
    return {
        name: (since[name] if part.line_monotonic is None else part.line_monotonic) + SILENCE_SECONDS
        for name, part in known.probes.items()
    }


def _judging_deadlines(assessed: Assessment) -> Iterator[float | None]:
    """Yield when the assessment may change without any news; time.monotonic()."""
    known, now, monotonic = assessed.known, assessed.now, assessed.monotonic
    yield probe_sets.next_change(known.probe_set, monotonic)
    yield _recent_over(assessed.facts.unconfirmed, monotonic)
    for cordon in assessed.facts.cordons:
        if cordon.until is not None:
            yield monotonic + (cordon.until - now).total_seconds()
    for part in (*known.probes.values(), *(retired.inventory for retired in known.probe_set.retired)):
        yield next_deadline(known.verdicts, part, assessed.rules, now=now, monotonic=monotonic, shown=known.shown)


def _offered(
    state: State, plan: Plan | None, observed: Plan | None, now: datetime
) -> tuple[tuple[str, ...], dict[str, datetime]]:
    """Return the names that the kubelet serves for us or others, and those that it no longer does, with since when."""
    if plan is None:
        return state.offered, dict(state.retired)
    served = plan.by(Api.DEVICE_PLUGIN).resources
    offered = {
        resource.name for resource in served if resource.ids or resource.retained or resource.name in state.offered
    }
    offered |= {resource.name for resource in (observed or Plan()).resources}
    retired = {name: since for name, since in state.retired.items() if name not in offered}
    retired |= {name: now for name in state.offered if name not in offered}
    newest = sorted(retired.items(), key=lambda item: item[1])[-MAX_RETIRED:]
    return tuple(sorted(offered)), dict(sorted(newest))


def _recent_over(unconfirmed: Sequence[RecentAllocate], monotonic: float) -> float | None:
    """Return when the newest Allocate may no longer count: then, or with the next List after it."""
    if not unconfirmed:
        return None
    over = unconfirmed[-1].monotonic + RECENT_SECONDS
    return over if over > monotonic else monotonic + LIST_AGAIN_SECONDS


def _first_offer_from(assessed: Assessment) -> float:
    """Return the time before which an agent that remembers its configuration offers nothing; time.monotonic().

    A device may be held under an id that is not in its plan, and only the kubelet knows: its List, or its checkpoint
    where List does not answer. Both are there milliseconds after the start; who cannot read either goes on without.
    """
    world, holdings, active = assessed.world, assessed.inputs.holdings, assessed.world.active
    known = holdings.were_known or holdings.possible is not None
    first = world.plan is None and active.applied_once and not active.effective.observing
    return world.started + FIRST_LIST_SECONDS if first and not known else world.started
