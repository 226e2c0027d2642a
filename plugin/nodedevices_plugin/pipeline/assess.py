"""The first half of a step: the state of the node and the wanted configuration, before decisions are made."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence, Set
from datetime import datetime, timedelta
from functools import partial

from msgspec import Struct
from msgspec.structs import replace
from nodedevices_probe.protocol import ProbeEvent

from nodedevices_plugin.health import history as stage_history
from nodedevices_plugin.health import lasting, rates
from nodedevices_plugin.health.events import EventCursor, fresh_events
from nodedevices_plugin.health.machine import judge_all
from nodedevices_plugin.health.rules import HealthRules
from nodedevices_plugin.model import (
    Cordon,
    Given,
    HoldersState,
    Holdings,
    Inventory,
    Plan,
    RecentAllocate,
    Verdict,
    held_key,
)
from nodedevices_plugin.offering.changes import not_listed
from nodedevices_plugin.offering.nearness import near
from nodedevices_plugin.offering.occupancy import HeldId
from nodedevices_plugin.pipeline import access, auto_probes
from nodedevices_plugin.pipeline import drained as stage_drained
from nodedevices_plugin.pipeline import inventory as stage_inventory
from nodedevices_plugin.pipeline import places as stage_places
from nodedevices_plugin.pipeline import probe_set as probe_sets
from nodedevices_plugin.pipeline.confirm import Confirm, read_confirm
from nodedevices_plugin.pipeline.device_index import DeviceIndex
from nodedevices_plugin.pipeline.foreign import held
from nodedevices_plugin.pipeline.in_use import in_use
from nodedevices_plugin.pipeline.lost import is_blind
from nodedevices_plugin.pipeline.probe_set import ProbeSet
from nodedevices_plugin.pipeline.requesting import RequestedConfig, SeenObject, request_config
from nodedevices_plugin.pipeline.routing import WaitingEvent, folded, of_this_boot, routed
from nodedevices_plugin.pipeline.state import SeenSpec, State
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
from nodedevices_plugin.vendors.registry import Vendors


class Assessment(Struct, frozen=True, kw_only=True):
    """Devices, verdicts and the wanted configuration."""

    world: World  # before
    now: datetime
    monotonic: float
    rules: HealthRules
    vendors: FaultSources
    confirm: Confirm
    history: stage_history.History  # how often reasons came on each device
    known: Known  # now
    events: tuple[ProbeEvent, ...]  # each with the device that it concerns
    judged: tuple[ProbeEvent, ...]  # the same as the probe has written them
    reported: tuple[ProbeEvent, ...]  # new in this line
    waiting: tuple[WaitingEvent, ...]  # of devices that are not known yet
    removals: frozenset[str]  # ids of devices that are confirmed as removed, and kept while a pod may hold them
    cordons: tuple[Cordon, ...]  # what people took out of service, also entries that are over
    drained: Mapping[str, datetime]  # of these, what can be taken out of the machine
    given_up: frozenset[str]  # ids of devices that people confirmed as removed, or took out of service
    removed_probes: Mapping[str, str]  # devices of probes that were taken away -> why they go to no new pod
    places: Mapping[str, str]  # devices and partitions at the place of another one -> why they go to no new pod
    spec: SeenSpec | None
    unconfirmed: tuple[RecentAllocate, ...]  # Allocates that no List has shown: their ids may be held unseen

    @property
    def active(self) -> Effective | None:
        """The configuration in effect; None: there was none yet."""
        return self.world.active.effective if self.world.active.applied_once else None

    @property
    def cordons_now(self) -> tuple[Cordon, ...]:
        """What people took out of service, as far as that holds now."""
        return tuple(cordon for cordon in self.cordons if cordon.holds(self.now))

    @property
    def uses_cdi(self) -> bool:
        """True when containers get devices by CDI name, or are to."""
        return access.uses_cdi(self.active) or access.uses_cdi(self.known.requested.effective)

    def program_requests(self, existing: Set[str], cdi: Mapping[str, CdiEnvironment]) -> Mapping[str, SpecRequest]:
        """Return what vendors' programs have to make, so that nothing is refused or withheld because it is missing."""
        if self.known.inventory.line_monotonic is None:
            return {}
        devices = access.Devices(inventory=self.known.inventory, existing=existing, cdi=cdi)
        return access.program_requests(self.active, self.known.requested.effective, devices)


def assess(
    world: World, inputs: Inputs, local: Local, *, now: datetime, monotonic: float, vendors: FaultSources | None = None
) -> Assessment:
    """Return the state of the node and the wanted configuration. `now`: the wall clock, which is shown; `monotonic`:
    the clock by which waiting is measured; `vendors`: the sources of faults; None: the registered ones."""
    vendors = local.vendors.fault_sources() if vendors is None else vendors
    world = clock_adjusted(world, now=now, monotonic=monotonic)
    effective = world.active.effective
    confirm = read_confirm(world, inputs)
    confirmed = confirm.removed.union(world.state.removals)
    spec = _spec(world.state.spec, inputs.seen, standalone=local.standalone)
    requested, requested_from = _requested(world, inputs, local, spec)
    holding = _holding(world, inputs)
    probed = _probed(
        world,
        inputs,
        *_wanted_probes(world, inputs, local, requested),
        holding=holding,
        confirmed=confirmed,
        now=now,
        monotonic=monotonic,
        vendors=local.vendors,
    )
    probes, probe_set = probed.probes, probed.probe_set
    applied = effective if world.active.applied_once else None
    owned = {}
    for name, part in stage_inventory.owned(probes).items():
        devices = access.Devices(inventory=part, existing=inputs.existing, cdi=inputs.cdi)
        missing = access.missing_nodes(applied, requested.effective, devices)
        owned[name] = stage_inventory.with_missing_nodes(part, missing)
    complete = not probe_set.waits(probes, monotonic)
    inventory = together(owned, probe_set, complete=complete or world.plan is not None)
    rules = replace(HealthRules.from_section(effective.sections.health), near=near(inventory))
    new = (WaitingEvent(event=event, boot_id=probes[probed.source].boot_id) for event in probed.events)
    pending = (*of_this_boot(world.state.waiting, probes), *new)
    by_probe, too_early = routed([waiting.event for waiting in pending], probed.source, owned)
    events = tuple(each for some in by_probe.values() for each in some)
    history = stage_history.with_events(
        world.state.history,
        events,
        inventory,
        rules,
        vendors,
        now=now,
        recovered=confirm.recovered,
    )
    rules = replace(rules, occurrences=history)
    used = in_use(inventory, world.plan, (applied, requested.effective))
    removals = confirmed & _gone(probes, probe_set)
    cordons = _cordons(world.state, inputs.seen, standalone=local.standalone, now=now)
    given_up = removals.union(each.id for each in cordons if each.holds(now))
    asked = stage_drained.asked_since(world.known.asked, cordons, now=now, monotonic=monotonic)
    drained = stage_drained.follow(
        world.state.drained,
        inventory,
        cordons,
        held=holding.known_devices,
        asked=asked,
        now=now,
        monotonic=monotonic,
    )
    every = (*owned.items(), *(("", each.inventory) for each in probe_set.retired))
    shown: dict[lasting.LastingCondition, float] = {}
    counts: dict[rates.CounterKey, rates.Count] = {}
    for _, part in every:
        shown |= lasting.follow(world.known.shown, part, rules, vendors, monotonic=monotonic)
        counts |= rates.follow(
            world.known.counts, part, vendors, silence_seconds=rules.silence_seconds, monotonic=monotonic
        )

    def judged(by: HealthRules) -> dict[str, Verdict]:
        verdicts: dict[str, Verdict] = {}
        for name, part in every:
            verdicts |= judge_all(
                world.verdicts,
                part,
                by_probe.get(name, ()),
                by,
                vendors,
                now=now,
                monotonic=monotonic,
                confirmed=confirm.recovered,
                shown=shown,
                counts=counts,
                in_use=used,
                blind=is_blind(part, given_up),
            )
        return verdicts

    verdicts = judged(rules)
    counted = stage_history.with_faults(history, world.verdicts, verdicts, inventory, now=now)
    if rules.counting and counted != history:
        # A condition that begins is judged as one that was counted: else a rule that was met a month ago holds for it.
        rules = replace(rules, occurrences=counted)
        verdicts = judged(rules)
    history = counted
    removed_probes = probe_sets.withheld(probe_set, probes)
    given_now = stage_places.given_now(inventory, local.vendors, indices=effective.index_prefix is not None)
    given = stage_places.remembered(
        world.known.given, holding.held, _granted(world, inputs), was=world.known.given_now, now=given_now
    )
    places = stage_places.taken(
        owned,
        given.values(),
        held=holding.known_devices or frozenset(),
        offered=_on_offer(world.plan),
        used=used,
        vendors=local.vendors,
    )
    problems = (*probe_sets.problems(probe_set, removed_probes.keys(), inventory), *places.problems(inventory))
    if problems:
        inventory = replace(inventory, problems=(*inventory.problems, *problems))
    known = Known(
        inventory=inventory,
        index=DeviceIndex(inventory, vendors=local.vendors),
        probes=probes,
        owned=owned,
        probe_set=probe_set,
        verdicts=verdicts,
        cursors=probed.cursors,
        shown=shown,
        counts=counts,
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
        world=world,
        now=now,
        monotonic=monotonic,
        rules=rules,
        vendors=vendors,
        confirm=confirm,
        history=history,
        known=known,
        events=events,
        judged=tuple(waiting.event for waiting in pending if waiting.event not in too_early),
        reported=probed.events,
        waiting=folded(waiting for waiting in pending if waiting.event in too_early),
        removals=removals,
        cordons=cordons,
        drained=drained,
        given_up=given_up,
        removed_probes=removed_probes,
        places=places.withheld,
        spec=spec,
        unconfirmed=holding.unconfirmed,
    )


# --- what is wanted --------------------------------------------------------------------------------------------------
def _requested(
    world: World, inputs: Inputs, local: Local, spec: SeenSpec | None
) -> tuple[RequestedConfig, RequestedFrom]:
    """The wanted configuration, and what it was made of: made anew only where that has changed."""
    made_of = (chosen_file(inputs.file, inputs.files, spec, local), spec, inputs.device_files, good_files(world.active))
    if world.known.requested_from == made_of:
        return world.requested, made_of
    return request_config(local, *made_of), made_of


def _wanted_probes(
    world: World, inputs: Inputs, local: Local, requested: RequestedConfig
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The probes that are to run, as configured, and which of them stand for `auto`."""
    texts, auto = world.probe_set.texts, world.probe_set.auto
    if requested.probes is None:
        return texts, auto
    kept = auto_probes.started(texts, auto, world.probes)
    return auto_probes.resolve(requested.probes, hardware=inputs.hardware, kept=kept, options=local.probe_options)


def _spec(saved: SeenSpec | None, seen: SeenObject | None, *, standalone: bool) -> SeenSpec | None:
    """The operator's latest configuration: the object's, else the last one known. A standalone node has none."""
    if standalone:
        return None
    if seen is None or seen.config is None:
        return saved
    return SeenSpec(config=seen.config, config_hash=seen.config_hash, config_name=seen.config_name or "")


def _cordons(state: State, seen: SeenObject | None, *, standalone: bool, now: datetime) -> tuple[Cordon, ...]:
    """Return what people took out of service: as in the object, else the last known entries. When the object is gone
    they stay: the publisher makes it again with these."""
    if standalone:
        return ()
    if seen is None or not seen.exists:
        return state.unschedulable
    known = {each.id: each.since for each in state.unschedulable}
    return tuple(
        dataclasses.replace(each, since=each.since or known.get(each.id) or now) for each in seen.unschedulable
    )


# --- holders ---------------------------------------------------------------------------------------------------------
class _Holding(Struct, frozen=True, kw_only=True):
    """The held ids before this step's line. `held` None: not known before the first List; then every device and
    partition counts as held."""

    held: tuple[HeldId, ...] | None
    devices: frozenset[str]
    parts: frozenset[str]  # partitions
    listed: frozenset[RecentAllocate]
    unconfirmed: tuple[RecentAllocate, ...]

    @property
    def known_devices(self) -> frozenset[str] | None:
        """Devices that are held; None: not known."""
        return None if self.held is None else self.devices


def _holding(world: World, inputs: Inputs) -> _Holding:
    listed = _listed(world.known.listed, inputs)
    unconfirmed = not_listed(inputs.recent, listed, inputs.holdings)
    index = world.known.index.under(world.active.effective.index_prefix)
    held_now = _held(inputs.holdings, unconfirmed, index, world.known.given)
    devices, parts = _held_ids(held_now, world.inventory)
    return _Holding(held=held_now, devices=devices, parts=parts, listed=listed, unconfirmed=unconfirmed)


def _held(
    holdings: Holdings, unconfirmed: Sequence[RecentAllocate], index: DeviceIndex, given: Mapping[str, Given]
) -> tuple[HeldId, ...] | None:
    """Return what is held, or may be: an Allocate that no List has shown yet counts. None: not known before the first
    List."""
    if holdings.state is not HoldersState.SYNCED and holdings.taken == 0.0:
        return None
    return held(holdings, unconfirmed, index, given)


def _granted(world: World, inputs: Inputs) -> frozenset[str]:
    """Return the keys of ids that were granted since the last step."""
    new = (allocate for allocate in inputs.recent if allocate.monotonic > world.known.allocated)
    return frozenset(held_key(allocate.resource, id_) for allocate in new for id_ in allocate.ids)


def _held_ids(held: Sequence[HeldId] | None, inventory: Inventory) -> tuple[frozenset[str], frozenset[str]]:
    """Return the devices, and the partitions, that are held; where that is not known, every one that is listed."""
    if held is None:
        parts = frozenset(part.id for device in inventory.devices for part in device.fact.partitions)
        return frozenset(device.fact.id for device in inventory.devices), parts
    parts = frozenset(each.partition_id for each in held if each.partition_id is not None)
    return frozenset(each.device_id for each in held), parts


def _listed(before: frozenset[RecentAllocate], inputs: Inputs) -> frozenset[RecentAllocate]:
    """Return the recent Allocates that PodResources has shown. When one was shown and is gone, its pod has ended.

    Only a List that was called afterwards shows it: an older one may show earlier holders of these ids.
    """
    held = {(holder.resource, each) for holder in inputs.holdings.holders for each in holder.ids}
    return frozenset(
        each
        for each in inputs.recent
        if each in before
        or (inputs.holdings.taken > each.monotonic and {(each.resource, one) for one in each.ids} <= held)
    )


def _on_offer(plan: Plan | None) -> frozenset[str]:
    """Devices that new pods can get."""
    return frozenset(
        each.device_id for resource in (plan.resources if plan else ()) for each in resource.ids if each.healthy
    )


# --- what the probes report ------------------------------------------------------------------------------------------
class _Probed(Struct, frozen=True, kw_only=True):
    """The devices of each probe, with this step's line. `source`: the probe that wrote the line; `events`: the line's
    events."""

    probes: Mapping[str, Inventory]
    probe_set: ProbeSet
    cursors: Mapping[str, EventCursor]
    source: str
    events: tuple[ProbeEvent, ...]


def _probed(
    world: World,
    inputs: Inputs,
    texts: tuple[str, ...],
    auto: tuple[str, ...],
    *,
    holding: _Holding,
    confirmed: frozenset[str],
    now: datetime,
    monotonic: float,
    vendors: Vendors,
) -> _Probed:
    """`texts`, `auto`: the probes that are to run. `confirmed`: ids of devices that a person says were removed."""
    effective = world.active.effective
    forget = effective.sections.health.forget_missing_seconds
    removed = (confirmed - holding.devices) | _taken_out(world.inventory, effective, holding.devices)
    drained = world.state.drained.keys() - holding.devices
    given_up = {each.id for each in world.state.unschedulable if each.holds(now)}
    running, probe_set = probe_sets.changed(world.probes, world.probe_set, texts, monotonic, auto)
    source = inputs.source or next(iter(running))
    # That of a log stays: its probe may be taken away and come back.
    cursors = {name: each for name, each in world.known.cursors.items() if name in running or each.logged is not None}
    events: tuple[ProbeEvent, ...] = ()
    probes = {}
    for name, before in running.items():
        if inputs.snapshot is None or name != source:
            gone = removed if is_blind(before, given_up) else removed | drained
            probes[name] = stage_inventory.release(before, held_partitions=holding.parts, removed=gone)
            continue
        cursor = world.known.cursors.get(name, EventCursor())
        cursors[name], events = fresh_events(cursor, inputs.snapshot, now - timedelta(seconds=monotonic))
        updated = partial(
            stage_inventory.update,
            before,
            inputs.snapshot,
            now=now,
            monotonic=inputs.arrived,
            held_partitions=holding.parts,
            held_devices=holding.devices,
            forget_missing_seconds=forget,
        )
        probes[name] = updated(removed=removed)
        if drained and not is_blind(probes[name], given_up):  # else it is no sign that one was taken out
            probes[name] = updated(removed=removed | drained)
    probe_set = probe_sets.kept(
        probe_set,
        probes,
        world.verdicts,
        held=holding.known_devices,
        now=now,
        monotonic=monotonic,
        removed=confirmed,
        forget_missing_seconds=forget,
        vendors=vendors,
    )
    return _Probed(probes=probes, probe_set=probe_set, cursors=cursors, source=source, events=events)


def _taken_out(inventory: Inventory, active: Effective, held: Set[str]) -> frozenset[str]:
    """Ids of devices that a device file described and that it does no longer, but for those that a pod holds."""
    every = (device.fact for device in inventory.devices if device.fact.id not in held)
    return frozenset(fact.id for fact in every if not active.vendors.described(fact, active.node.files))


def _gone(probes: Mapping[str, Inventory], probe_set: ProbeSet) -> frozenset[str]:
    """Ids of devices that are listed and not here: a confirmation of their removal may still be acted on."""
    missing = frozenset(each.fact.id for part in probes.values() for each in part.devices if not each.present)
    return missing.union(probe_set.retired_devices)
