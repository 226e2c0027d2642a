"""The first half of a step: the state of the node and the wanted configuration, before decisions are made."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence, Set
from datetime import datetime, timedelta

from msgspec import Struct
from msgspec.structs import asdict, replace
from nodedevices_probe.protocol import ProbeEvent

from nodedevices_plugin.claims.records import with_names_of_claims
from nodedevices_plugin.gates.base import GateFacts
from nodedevices_plugin.health import history as stage_history, levels
from nodedevices_plugin.health.events import EventCursor, fresh_events
from nodedevices_plugin.health.machine import judge_all
from nodedevices_plugin.health.rules import HealthRules
from nodedevices_plugin.model import (
    Cordon,
    Given,
    Inventory,
    Plan,
    Verdict,
    served_by_others,
)
from nodedevices_plugin.pipeline import (
    access,
    inventory as stage_inventory,
    places as stage_places,
    probe_set as probe_sets,
)
from nodedevices_plugin.pipeline.configuration import RequestedConfig, SeenObject, request_config
from nodedevices_plugin.pipeline.confirm import Confirm, asked_since, follow_drained, read_confirm
from nodedevices_plugin.pipeline.foreign import DeviceIndex, held
from nodedevices_plugin.pipeline.holding import Holding, granted, holding_of, in_use, with_shares
from nodedevices_plugin.pipeline.lost import is_blind
from nodedevices_plugin.pipeline.routing import WaitingEvent, folded, of_this_boot, routed
from nodedevices_plugin.pipeline.state import SeenSpec
from nodedevices_plugin.pipeline.world import (
    Inputs,
    Known,
    RequestedFrom,
    World,
    chosen_file,
    clock_adjusted,
    good_files,
    together,
)
from nodedevices_plugin.settings.effective import Effective
from nodedevices_plugin.settings.flags import Local
from nodedevices_plugin.vendors.cdi import CdiEnvironment, SpecRequest
from nodedevices_plugin.vendors.faults import FaultSources


class _Start(Struct, frozen=True, kw_only=True):
    """What an assessment starts from: all but what the devices are now."""

    world: World  # before
    inputs: Inputs
    local: Local
    now: datetime
    monotonic: float
    vendors: FaultSources
    confirm: Confirm
    requested: RequestedConfig
    holding: Holding

    @property
    def confirmed(self) -> frozenset[str]:
        """Ids of devices that a person says were removed."""
        return self.confirm.removed.union(self.world.state.removals)

    @property
    def active(self) -> Effective | None:
        """The configuration in effect; None: there was none yet."""
        return self.world.active.effective if self.world.active.applied_once else None


class Assessment(_Start, frozen=True, kw_only=True):
    """The node as it is, and the wanted configuration: the input of every decision."""

    rules: HealthRules  # with how often reasons came on each device
    known: Known  # now
    events: tuple[ProbeEvent, ...]  # each with the device that it concerns
    judged: tuple[ProbeEvent, ...]  # the same as the probe has written them
    reported: tuple[ProbeEvent, ...]  # new in this line
    waiting: tuple[WaitingEvent, ...]  # of devices that are not known yet
    removals: frozenset[str]  # ids of devices that are confirmed as removed, and kept while a pod may hold them
    cordons: tuple[Cordon, ...]  # what people took out of service, also entries that are over
    drained: Mapping[str, datetime]  # of these, what can be taken out of the machine
    given_up: frozenset[str]  # ids of devices that people confirmed as removed, or took out of service
    spec: SeenSpec | None
    facts: GateFacts  # without what only the decision about the configuration brings

    @property
    def not_ours(self) -> frozenset[str]:
        """Names of the plan that another plugin serves to the kubelet; the ids that pods hold of them are not ours, and
        no change of ours takes them away."""
        return served_by_others(self.inputs.registrations)

    @property
    def devices(self) -> access.Devices:
        """The input for how containers get devices."""
        return access.Devices(
            inventory=self.known.inventory,
            existing=self.inputs.existing,
            cdi=self.inputs.cdi,
            mount_dirs=self.local.container_mount_dirs,
        )

    def with_cdi(self, environments: Mapping[str, CdiEnvironment]) -> Assessment:
        """Return the same with what CDI finds now, by vendor."""
        return replace(self, inputs=replace(self.inputs, cdi=environments))

    @property
    def uses_cdi(self) -> bool:
        """True when containers get devices by CDI name, or are to."""
        return access.uses_cdi(self.active) or access.uses_cdi(self.known.requested.effective)

    def program_requests(self) -> Mapping[str, SpecRequest]:
        """Return what vendors' programs have to make, so that nothing is refused or withheld because it is missing."""
        if self.known.inventory.line_monotonic is None:
            return {}
        return access.program_requests(self.active, self.known.requested.effective, self.devices)


def assess(
    world: World, inputs: Inputs, local: Local, *, now: datetime, monotonic: float, vendors: FaultSources | None = None
) -> Assessment:
    """Return the state of the node and the wanted configuration. `now`: the wall clock, which is shown; `monotonic`:
    the clock by which waiting is measured; `vendors`: the sources of faults; None: the registered ones."""
    world = clock_adjusted(world, now=now, monotonic=monotonic)
    inputs = replace(inputs, holdings=with_shares(inputs.holdings, inputs.dra))
    spec = _spec(world.state.spec, inputs.seen, standalone=local.standalone)
    requested, requested_from = _requested(world, inputs, local, spec)
    start = _Start(
        world=world,
        inputs=inputs,
        local=local,
        now=now,
        monotonic=monotonic,
        vendors=local.vendors.fault_sources() if vendors is None else vendors,
        confirm=read_confirm(world, inputs),
        requested=requested,
        holding=holding_of(world, inputs),
    )
    holding = start.holding
    probed = _probed(start)
    probes, probe_set, owned = probed.probes, probed.probe_set, _owned(start, probed.probes)
    inventory = together(owned, probe_set, complete=world.plan is not None or not probe_set.waits(probes, monotonic))
    inventory = with_names_of_claims(inventory, inputs.dra.records.values())
    new_events = (WaitingEvent(event=event, boot_id=probes[probed.source].boot_id) for event in probed.events)
    pending = (*of_this_boot(world.state.waiting, probes), *new_events)
    by_probe, too_early = routed([waiting.event for waiting in pending], probed.source, owned)
    used = in_use(inventory, world.plan, (start.active, requested.effective), holding)
    removals = start.confirmed & _gone(probes, probe_set)
    cordons = _cordons(start)
    cordons_now = tuple(cordon for cordon in cordons if cordon.holds(now))
    given_up = removals.union(cordon.id for cordon in cordons_now)
    asked = asked_since(world.known.asked, cordons_now, monotonic)
    parts = (*owned.items(), *(("", retired.inventory) for retired in probe_set.retired))
    judged = _judged(start, parts, by_probe, inventory, in_use=used, given_up=given_up)
    removed_probes = probe_sets.withheld(probe_set, probes)
    given_now, given, places = _places(start, owned, inventory, used=used)
    problems = (*probe_sets.problems(probe_set, removed_probes.keys(), inventory), *places.problems(inventory))
    if problems:
        inventory = replace(inventory, problems=(*inventory.problems, *problems))
    known = Known(
        inventory=inventory,
        index=DeviceIndex(inventory, vendors=local.vendors),
        probes=probes,
        owned=owned,
        probe_set=probe_set,
        verdicts=judged.verdicts,
        cursors=probed.cursors,
        shown=judged.shown,
        counts=judged.counts,
        asked=asked,
        given=given,
        given_now=given_now,
        allocated=max((allocate.monotonic for allocate in inputs.recent), default=world.known.allocated),
        kept_back=places.wait_for_holders or not holding.devices.isdisjoint((*removals, *probe_set.retired_devices)),
        listed=holding.listed,
        requested=requested,
        requested_from=requested_from,
    )
    return Assessment(
        **asdict(start),
        rules=judged.rules,
        known=known,
        events=tuple(event for events in by_probe.values() for event in events),
        judged=tuple(waiting.event for waiting in pending if waiting.event not in too_early),
        reported=probed.events,
        waiting=folded(waiting for waiting in pending if waiting.event in too_early),
        removals=removals,
        cordons=cordons,
        drained=follow_drained(
            world.state.drained,
            inventory,
            held=None if holding.held is None else holding.given,
            asked=asked,
            now=now,
            monotonic=monotonic,
        ),
        given_up=given_up,
        spec=spec,
        facts=_gate_facts(start, known, cordons_now, removed_probes, places),
    )


def _gate_facts(
    start: _Start,
    known: Known,
    cordons: tuple[Cordon, ...],
    removed_probes: Mapping[str, str],
    places: stage_places.Places,
) -> GateFacts:
    """`cordons`: those that hold now."""
    inputs, unconfirmed = start.inputs, start.holding.unconfirmed
    effective = start.active or start.requested.effective or start.world.active.effective
    index = known.index.under(effective.index_prefix)  # of the configuration in effect, or else of the wanted one
    return GateFacts(
        inventory=known.inventory,
        verdicts=known.verdicts,
        cordons=cordons,
        removed_probes=removed_probes,
        places=places.withheld,
        held=held(inputs.holdings, unconfirmed, index, known.given, inputs.dra),
        holdings=inputs.holdings,
        unconfirmed=unconfirmed,
        statuses=inputs.mps.statuses,
        taken=inputs.mps.taken,
        shown=frozenset(resource.name for resource in (start.world.plan or Plan()).resources if resource.ids),
        pods=inputs.pods,
    )


# --- how the devices are ---------------------------------------------------------------------------------------------
class _Judged(Struct, frozen=True, kw_only=True):
    rules: HealthRules
    verdicts: Mapping[str, Verdict]
    shown: Mapping[levels.LastingCondition, float]
    counts: Mapping[levels.CounterKey, levels.Count]


def _owned(start: _Start, probes: Mapping[str, Inventory]) -> dict[str, Inventory]:
    """Return each probe's devices without those that another one has, with what their configuration lacks."""
    owned = {}
    for name, part in stage_inventory.owned(probes).items():
        devices = access.Devices(inventory=part, existing=start.inputs.existing, cdi=start.inputs.cdi)
        missing = access.missing_nodes(start.active, start.requested.effective, devices)
        owned[name] = stage_inventory.with_missing_nodes(part, missing)
    return owned


def _judged(
    start: _Start,
    parts: Sequence[tuple[str, Inventory]],
    events: Mapping[str, Sequence[ProbeEvent]],
    inventory: Inventory,
    *,
    in_use: Callable[[str], bool],
    given_up: Set[str],
) -> _Judged:
    """Judge the devices of each of the `parts`, by name of their probe. `inventory`: all of them together."""
    world, vendors, now, monotonic = start.world, start.vendors, start.now, start.monotonic
    recovered = start.confirm.recovered
    rules = HealthRules.from_section(world.active.effective.sections.health)
    all_events = tuple(event for some in events.values() for event in some)
    history = stage_history.with_events(
        world.state.history, all_events, inventory, rules, vendors, now=now, recovered=recovered
    )
    rules = replace(rules, occurrences=history)
    shown: dict[levels.LastingCondition, float] = {}
    counts: dict[levels.CounterKey, levels.Count] = {}
    for _, part in parts:
        shown |= levels.follow(world.known.shown, part, rules, vendors, monotonic=monotonic)
        counts |= levels.follow_counters(world.known.counts, part, vendors, monotonic=monotonic)

    def judged(by: HealthRules) -> dict[str, Verdict]:
        verdicts: dict[str, Verdict] = {}
        for name, part in parts:
            verdicts |= judge_all(
                world.known.verdicts,
                part,
                events.get(name, ()),
                by,
                vendors,
                now=now,
                monotonic=monotonic,
                confirmed=recovered,
                shown=shown,
                counts=counts,
                in_use=in_use,
                blind=is_blind(part, given_up),
            )
        return verdicts

    verdicts = judged(rules)
    counted = stage_history.with_faults(history, world.known.verdicts, verdicts, inventory, now=now)
    rules = replace(rules, occurrences=counted)
    if rules.counting and counted != history:
        # A condition that begins is judged as one that was counted: else a rule that was met a month ago holds for it.
        verdicts = judged(rules)
    return _Judged(rules=rules, verdicts=verdicts, shown=shown, counts=counts)


def _places(
    start: _Start, owned: Mapping[str, Inventory], inventory: Inventory, *, used: Callable[[str], bool]
) -> tuple[Mapping[str, Given], Mapping[str, Given], stage_places.Places]:
    """Return what each part is given as now, what held ids were given, and the places that two parts have."""
    world, holding, vendors = start.world, start.holding, start.local.vendors
    now = stage_places.given_now(inventory, vendors, indices=world.active.effective.index_prefix is not None)
    new = granted(world, start.inputs)
    held_now = None if holding.held is None else [held_id for held_id in holding.held if held_id.key]
    given = stage_places.remembered(world.known.given, held_now, new, was=world.known.given_now, now=now)
    taken = stage_places.taken(
        owned,
        given.values(),
        held=holding.known_devices or frozenset(),
        offered={
            schedulable.device_id
            for resource in (world.plan.resources if world.plan else ())
            for schedulable in resource.ids
            if schedulable.healthy
        },
        used=used,
        vendors=vendors,
    )
    return now, given, taken


# --- what is wanted --------------------------------------------------------------------------------------------------
def _requested(
    world: World, inputs: Inputs, local: Local, spec: SeenSpec | None
) -> tuple[RequestedConfig, RequestedFrom]:
    """The wanted configuration, and what it was made of: made anew only where that has changed."""
    made_of = (chosen_file(inputs.file, inputs.files, spec, local), spec, inputs.device_files, good_files(world.active))
    if world.known.requested_from == made_of:
        return world.known.requested, made_of
    return request_config(local, *made_of), made_of


def _wanted_probes(start: _Start) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The probes that are to run, as configured, and which of them stand for `auto`."""
    requested, texts, auto = start.requested, start.world.known.probe_set.texts, start.world.known.probe_set.auto
    if requested.probes is None:
        return texts, auto
    return probe_sets.resolve(
        requested.probes,
        hardware=start.inputs.hardware,
        kept=probe_sets.started(texts, auto, start.world.known.probes),
        options=start.local.probe_options,
        files=requested.files.keys(),
    )


def _spec(saved: SeenSpec | None, seen: SeenObject | None, *, standalone: bool) -> SeenSpec | None:
    """The operator's latest configuration: the object's, else the last one known. A standalone node has none."""
    if standalone:
        return None
    if seen is None or seen.config is None:
        return saved
    return SeenSpec(config=seen.config, config_hash=seen.config_hash, config_name=seen.config_name or "")


def _cordons(start: _Start) -> tuple[Cordon, ...]:
    """Return what people took out of service: as in the object, else the last known entries. When the object is gone
    they stay: the publisher makes it again with these."""
    seen, before = start.inputs.seen, start.world.state.unschedulable
    if start.local.standalone:
        return ()
    if seen is None or not seen.exists:
        return before
    known = {cordon.id: cordon.since for cordon in before}
    return tuple(
        dataclasses.replace(cordon, since=cordon.since or known.get(cordon.id) or start.now)
        for cordon in seen.unschedulable
    )


# --- what the probes report ------------------------------------------------------------------------------------------
class _Probed(Struct, frozen=True, kw_only=True):
    """The devices of each probe, with this step's line. `source`: the probe that wrote the line; `events`: the line's
    events."""

    probes: Mapping[str, Inventory]
    probe_set: probe_sets.ProbeSet
    cursors: Mapping[str, EventCursor]
    source: str
    events: tuple[ProbeEvent, ...]


def _probed(start: _Start) -> _Probed:
    world, inputs, holding, now = start.world, start.inputs, start.holding, start.now
    texts, auto = _wanted_probes(start)
    effective = world.active.effective
    forget = effective.sections.health.forget_missing_seconds
    removed = (start.confirmed - holding.devices) | _taken_out(world.known.inventory, effective, holding.devices)
    drained = world.state.drained.keys() - holding.given
    given_up = {cordon.id for cordon in world.state.unschedulable if cordon.holds(now)}
    running, probe_set = probe_sets.changed(world.known.probes, world.known.probe_set, texts, start.monotonic, auto)
    source = inputs.source or next(iter(running))
    # That of a log stays: its probe may be taken away and come back.
    cursors = {
        name: cursor for name, cursor in world.known.cursors.items() if name in running or cursor.logged is not None
    }
    events: tuple[ProbeEvent, ...] = ()
    probes = dict(running)
    for name, before in running.items():
        if inputs.snapshot is not None and name == source:
            cursor = world.known.cursors.get(name, EventCursor())
            cursors[name], events = fresh_events(cursor, inputs.snapshot, now - timedelta(seconds=start.monotonic))
            probes[name] = stage_inventory.update(
                before,
                inputs.snapshot,
                now=now,
                monotonic=inputs.arrived,
                held_partitions=holding.parts,
                held_devices=holding.devices,
                removed=removed,
                forget_missing_seconds=forget,
            )
        # Where a probe is blind, it is no sign that a drained device was taken out.
        gone = removed if is_blind(probes[name], given_up) else removed | drained
        probes[name] = stage_inventory.release(probes[name], held_partitions=holding.parts, removed=gone)
    probe_set = probe_sets.kept(
        probe_set,
        probes,
        world.known.verdicts,
        held=holding.known_devices,
        now=now,
        monotonic=start.monotonic,
        removed=start.confirmed,
        forget_missing_seconds=forget,
        vendors=start.local.vendors,
    )
    return _Probed(probes=probes, probe_set=probe_set, cursors=cursors, source=source, events=events)


def _taken_out(inventory: Inventory, active: Effective, held: Set[str]) -> frozenset[str]:
    """Ids of devices that a device file described and that it does no longer, but for those that a pod holds."""
    every = (device.fact for device in inventory.devices if device.fact.id not in held)
    files, vendor_of = active.node.files, active.vendors.vendor_of
    return frozenset(fact.id for fact in every if not vendor_of(fact).described(fact, files))


def _gone(probes: Mapping[str, Inventory], probe_set: probe_sets.ProbeSet) -> frozenset[str]:
    """Ids of devices that are listed and not here: a confirmation of their removal may still be acted on."""
    missing = frozenset(device.fact.id for part in probes.values() for device in part.devices if not device.present)
    return missing.union(probe_set.retired_devices)
