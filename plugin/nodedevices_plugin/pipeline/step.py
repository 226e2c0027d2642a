"""One step of the agent: the latest of everything in, everything that follows from it out. Pure.

    probe's line -> inventory -> verdicts -> configuration and plan -> report

Level-based: a step may come at any time, any number of times, and with the same input gives the same result. Only the
world that it returns is remembered. Nothing here waits, logs or touches the outside; `agent` does, in the order that
matters: state file, then kubelet, then API server.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from nodedevices_api.conditions import CONFIG_INVALID, MISSING, WAITING_FOR_DAEMON, WAITING_FOR_HOLDERS
from nodedevices_probe.protocol import ProbeEvent, Snapshot

from nodedevices_plugin.health import notices, signals
from nodedevices_plugin.health.events import EventCursor, LoggedEvent, fresh_events, logged_events
from nodedevices_plugin.health.machine import clock_set, judge_all, next_deadline
from nodedevices_plugin.health.rules import HealthRules
from nodedevices_plugin.model import (
    Cordon,
    HoldersState,
    Holdings,
    Inventory,
    NodePods,
    Plan,
    RecentAllocate,
    Registration,
    Verdict,
    served_by_others,
)
from nodedevices_plugin.model.device_names import device_names
from nodedevices_plugin.pipeline import access, auto_probes
from nodedevices_plugin.pipeline import inventory as stage_inventory
from nodedevices_plugin.pipeline import places as stage_places
from nodedevices_plugin.pipeline import probe_set as probe_sets
from nodedevices_plugin.pipeline.access import Access
from nodedevices_plugin.pipeline.config_status import ConfigStatus, refusal
from nodedevices_plugin.pipeline.configuring import ActiveConfig, Node, configure
from nodedevices_plugin.pipeline.device_index import DeviceIndex
from nodedevices_plugin.pipeline.foreign import held, named, observe, remembered
from nodedevices_plugin.pipeline.in_use import in_use
from nodedevices_plugin.pipeline.lost import lost_devices
from nodedevices_plugin.pipeline.probe_set import SILENCE_SECONDS, ProbeSet
from nodedevices_plugin.pipeline.requesting import RequestedConfig, SeenObject, request_config
from nodedevices_plugin.pipeline.state import SeenSpec, State, to_save
from nodedevices_plugin.resources.changes import RECENT_SECONDS, not_listed
from nodedevices_plugin.resources.occupancy import Held, with_all
from nodedevices_plugin.settings.effective import Effective, from_saved, resolve, to_saved
from nodedevices_plugin.settings.file import FileOutcome
from nodedevices_plugin.settings.flags import Local
from nodedevices_plugin.settings.named import NamedFiles, choose
from nodedevices_plugin.settings.probes import DEFAULT, missing, read
from nodedevices_plugin.settings.problems import ConfigError
from nodedevices_plugin.sharing.base import Helper, HelperFacts
from nodedevices_plugin.sharing.clients import follow
from nodedevices_plugin.sharing.clients import restored as restored_clients
from nodedevices_plugin.vendors.cdi import CdiEnvironment, SpecRequest
from nodedevices_plugin.vendors.faults import FaultSource, FaultSources, source_of
from nodedevices_plugin.vendors.files import DeviceFiles
from nodedevices_plugin.vendors.registry import described, fault_sources

CLOCK_SET_SECONDS = 1.0  # less is a clock that is being slewed, or the scheduler between the two readings
FIRST_LIST_SECONDS = 5.0  # after the agent's start, in which its first offer waits for the kubelet's List or checkpoint
LIST_AGAIN_SECONDS = 5.0  # the agent's period for PodResources
MAX_RETIRED = 64
MAX_CONFIRM = 128  # entries of the annotation
RequestedFrom = tuple[FileOutcome, SeenSpec | None, DeviceFiles, Mapping[str, object]]
CONFIRM_VALUES = ("recovered", "removed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The latest of everything that comes from outside."""

    snapshot: Snapshot | None = None  # a line that no step has seen yet
    source: str = ""  # the probe that wrote it; "": the only one
    arrived: float = 0.0  # time.monotonic() when it came
    file: FileOutcome = field(default_factory=FileOutcome)
    files: NamedFiles | None = None  # in its place: a folder of them, where the agent has one
    device_files: DeviceFiles = field(default_factory=dict)
    seen: SeenObject | None = None  # None: not read from the API server (yet)
    holdings: Holdings
    recent: Sequence[RecentAllocate] = ()
    registrations: tuple[Registration, ...] = ()
    existing: frozenset[str] = frozenset()  # the node's optional device nodes (host.paths)
    helpers: HelperFacts = field(default_factory=HelperFacts)  # what sharing modes await
    cdi: Mapping[str, CdiEnvironment] = field(default_factory=dict)  # what CDI finds, by vendor
    pods: NodePods = field(default_factory=NodePods)  # of this node, while computing power is shared
    hardware: frozenset[str] | None = None  # built-in probes whose hardware was found; None: not known yet
    saved: Effective | None = None  # the configuration that the state file has; None: none, or it is not known
    unsaved_because: str = ""  # why the state file cannot be written


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What the agent knows. `plan` None: no good line yet, and nothing is registered."""

    inventory: Inventory  # of all probes together
    index: DeviceIndex = field(compare=False)  # of the inventory
    probes: Mapping[str, Inventory]  # of each probe that runs by its name, the first probe first
    probe_set: ProbeSet  # which run, and what those left that no longer do
    verdicts: Mapping[str, Verdict]
    cursors: Mapping[str, EventCursor] = field(default_factory=dict)  # by probe
    active: ActiveConfig
    plan: Plan | None = None
    observed: Plan | None = None  # what others offer the kubelet; None: this agent serves it
    holdings: Holdings  # by our own ids
    config: ConfigStatus = field(default_factory=ConfigStatus)
    helpers: tuple[Helper, ...] | None = None  # what sharing modes want to run; None: nobody knows yet
    access: Access = field(default_factory=Access)  # how containers get what they are granted
    state: State  # what the state file should say
    requested: RequestedConfig = field(default_factory=RequestedConfig)
    requested_from: tuple[FileOutcome, SeenSpec | None, DeviceFiles, Mapping[str, object]] | None = (
        None  # what `requested` was made of
    )
    confirm_problems: tuple[str, ...] = ()  # what of the annotation nodedevices.io/confirm was not understood
    confirm_spent: tuple[str, ...] = ()  # what of it was acted on, and its device is at fault again or still
    departed: Mapping[str, datetime] = field(default_factory=dict)  # partition -> since when it is gone
    above: signals.Above = field(default_factory=dict)  # readings that are too high, since when
    kept_back: bool = False  # whether what is held keeps devices out of their places, or listed (Assessment)
    lost: Mapping[str, str] = field(default_factory=dict)  # probes that see none of their devices, and why (lost)
    left: Mapping[str, int] = field(default_factory=dict)  # devices that were known at the start, by a probe of before
    listed: frozenset[RecentAllocate] = frozenset()  # Allocates that a List has shown: their pods may have ended since
    started: float  # time.monotonic()
    wall_offset: float  # seconds that the wall clock is ahead of time.monotonic()

    @property
    def confirm_waits(self) -> tuple[str, ...]:
        """For people: confirmations that are remembered, and will be acted on."""
        return tuple(f"{each}=removed: remembered; listed until no pod holds it" for each in self.state.removals)

    @property
    def waits_for_holders(self) -> bool:
        """Whether something is kept back because of what containers hold, or may hold."""
        waits = self.config.reason in {WAITING_FOR_HOLDERS, WAITING_FOR_DAEMON}
        return waits or self.kept_back or self.holdings.state is HoldersState.INCOMPLETE


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step's outcome, besides the world: what only has to be reported, and when to run the next step."""

    world: World
    owned: Mapping[str, Inventory]  # of each probe what is its own
    logged: tuple[LoggedEvent, ...] = ()
    xids: tuple[ProbeEvent, ...] = ()
    confirmed: tuple[str, ...] = ()  # entries of the annotation that this step acted on
    refused: str = ""
    deadline: float | None = None  # time.monotonic() when a step without news could change something
    silent: frozenset[str] = frozenset()  # probes without a good line for 15 s

    @property
    def probe_silent(self) -> bool:
        return bool(self.silent)


def begin(
    state: State,
    local: Local,
    *,
    now: datetime,
    monotonic: float,
    file: FileOutcome | None = None,
    files: NamedFiles | None = None,
    device_files: DeviceFiles | None = None,
    hardware: frozenset[str] | None = None,
) -> World:
    """The world after a start, before a probe has reported: what the state file remembers, and which probes run.
    `file`, `files`, `device_files`, `hardware`: as in Inputs."""
    active = ActiveConfig(effective=_own(local))
    if state.applied is not None:
        with contextlib.suppress(ConfigError):  # written by another version: the wanted configuration counts
            active = ActiveConfig(
                effective=from_saved(state.applied), applied_hash=state.applied_hash, applied_once=True
            )
    spec = None if local.standalone else state.spec
    requested = request_config(
        local, _file(file or FileOutcome(), files, spec, local), spec, device_files, _good_files(active)
    )
    if requested.probes is not None:
        kept = auto_probes.after_restart(state, hardware)
        texts, auto = auto_probes.stands_for(
            requested.probes, hardware=hardware, kept=kept, options=local.probe_options
        )
    elif texts := _usable(state.probes, local):
        auto = state.auto_probes
    else:
        texts, auto = DEFAULT, ()
    probes, probe_set = probe_sets.restored(state, texts, now=now, monotonic=monotonic, auto=auto)
    inventory = _together(probes, probe_set, complete=False)
    return World(
        inventory=inventory,
        index=DeviceIndex(inventory),
        probes=probes,
        probe_set=probe_set,
        verdicts=dict(state.verdicts),
        active=active,
        holdings=Holdings(state=HoldersState.UNAVAILABLE),
        left=probe_sets.left_by_others(state, probe_set),
        state=replace(state, clients=restored_clients(state.clients)),
        started=monotonic,
        wall_offset=now.timestamp() - monotonic,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Confirm:
    value: str
    recovered: frozenset[str] = frozenset()
    removed: frozenset[str] = frozenset()
    problems: tuple[str, ...] = ()

    @property
    def understood(self) -> tuple[str, ...]:
        confirmed = {"recovered": self.recovered, "removed": self.removed}
        return tuple(f"{device}={value}" for value, devices in confirmed.items() for device in sorted(devices))


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """The first half of a step: devices, verdicts and the wanted configuration, before anything is decided about it."""

    world: World  # before
    now: datetime
    monotonic: float
    rules: HealthRules
    vendors: FaultSources
    confirm: _Confirm
    cursors: Mapping[str, EventCursor]
    events: tuple[ProbeEvent, ...]
    inventory: Inventory
    index: DeviceIndex = field(compare=False)
    probes: Mapping[str, Inventory]
    owned: Mapping[str, Inventory]  # of each probe what is its own (inventory.owned)
    probe_set: ProbeSet
    kept_back: bool  # whether what is held keeps devices out of their places, or listed
    removals: frozenset[str]  # ids of devices that are confirmed as removed, and kept while somebody may hold them
    removed_probes: Mapping[str, str]  # devices of probes that were taken away -> why they go to no new pod
    places: Mapping[str, str]  # devices whose place is another's -> why they go to no new pod
    verdicts: Mapping[str, Verdict]
    above: signals.Above
    spec: SeenSpec | None
    requested: RequestedConfig
    requested_from: RequestedFrom
    listed: frozenset[RecentAllocate]  # which of the recent Allocates a List has shown
    unlisted: tuple[RecentAllocate, ...]  # and which may still be held unseen

    @property
    def active(self) -> Effective | None:
        """The configuration in effect; None: there was none yet."""
        return self.world.active.effective if self.world.active.applied_once else None

    @property
    def uses_cdi(self) -> bool:
        """Whether containers get devices by CDI name, or are to."""
        return access.uses_cdi(self.active) or access.uses_cdi(self.requested.effective)

    def program_requests(self, existing: Set[str], cdi: Mapping[str, CdiEnvironment]) -> Mapping[str, SpecRequest]:
        """What vendors' programs have to make, so that nothing is refused or withheld because it is missing."""
        if self.inventory.line_monotonic is None:
            return {}
        devices = access.Devices(inventory=self.inventory, existing=existing, cdi=cdi)
        return access.program_requests(self.active, self.requested.effective, devices)


def assess(
    world: World, inputs: Inputs, local: Local, *, now: datetime, monotonic: float, vendors: FaultSources | None = None
) -> Assessment:
    """What is the case now, and what is wanted. `now`: the wall clock, which is shown; `monotonic`: what waiting is
    measured by; `vendors`: whose faults are known; None: the registered ones'."""
    vendors = fault_sources() if vendors is None else vendors
    world = _clock_adjusted(world, now=now, monotonic=monotonic)
    effective = world.active.effective
    rules = HealthRules.from_section(effective.sections.health)
    forget = effective.sections.health.forget_missing_seconds
    confirm = _confirm(world, inputs)
    listed = _listed(world.listed, inputs)
    unlisted = not_listed(inputs.recent, listed, inputs.holdings)
    held_now = _held(inputs.holdings, unlisted, world.index.under(effective.index_prefix))
    held_devices, held_parts = _held_ids(held_now, world.inventory)
    confirmed = confirm.removed.union(world.state.removals)
    removed = (confirmed - held_devices) | _taken_out(world.inventory, effective, held_devices)
    spec = _spec(world.state.spec, inputs.seen, standalone=local.standalone)
    good = _good_files(world.active)
    requested_from = (_file(inputs.file, inputs.files, spec, local), spec, inputs.device_files, good)
    requested = world.requested if world.requested_from == requested_from else request_config(local, *requested_from)
    texts, auto = world.probe_set.texts, world.probe_set.auto
    if requested.probes is not None:
        kept = auto_probes.started(texts, auto, world.probes)
        texts, auto = auto_probes.stands_for(
            requested.probes, hardware=inputs.hardware, kept=kept, options=local.probe_options
        )
    running, probe_set = probe_sets.changed(world.probes, world.probe_set, texts, monotonic, auto)
    cursors, events = {name: world.cursors[name] for name in running if name in world.cursors}, tuple[ProbeEvent, ...]()
    probes = {}
    source = inputs.source or next(iter(running))
    for name, before in running.items():
        if inputs.snapshot is not None and name == source:
            cursors[name], events = fresh_events(world.cursors.get(name, EventCursor()), inputs.snapshot)
            probes[name] = stage_inventory.update(
                before,
                inputs.snapshot,
                now=now,
                monotonic=inputs.arrived,
                held_partitions=held_parts,
                held_devices=held_devices,
                removed=removed,
                forget_missing_seconds=forget,
            )
        else:
            probes[name] = stage_inventory.release(before, held_partitions=held_parts, removed=removed)
    probe_set = probe_sets.kept(
        probe_set,
        probes,
        world.verdicts,
        held=None if held_now is None else {each.device_id for each in held_now},
        now=now,
        monotonic=monotonic,
        removed=confirmed,
        forget_missing_seconds=forget,
    )
    owned = stage_inventory.owned(probes)
    complete = not probe_set.waits(probes, monotonic)
    inventory = _together(owned, probe_set, complete=complete or world.plan is not None)
    applied = effective if world.active.applied_once else None
    used = in_use(inventory, world.plan, (applied, requested.effective))
    verdicts: dict[str, Verdict] = {}
    above: dict[tuple[str, str, int], float] = {}
    for name, part in (*owned.items(), *(("", each.inventory) for each in probe_set.retired)):
        above |= signals.follow(world.above, part, rules, monotonic=monotonic)
        verdicts |= judge_all(
            world.verdicts,
            part,
            events if name == source else (),
            rules,
            vendors,
            now=now,
            monotonic=monotonic,
            confirmed=confirm.recovered,
            above=above,
            in_use=used,
        )
    removed_probes = probe_sets.withheld(probe_set, probes)
    problems = probe_sets.problems(probe_set, removed_probes.keys(), inventory) if removed_probes else ()
    places = stage_places.taken(
        owned,
        held=None if held_now is None else held_devices,
        offered=_on_offer(world.plan),
        used=used,
        indices=effective.index_prefix is not None,
    )
    problems = (*problems, *places.problems(inventory))
    if problems:
        inventory = replace(inventory, problems=(*inventory.problems, *problems))
    removals = confirmed & _gone(probes, probe_set)
    return Assessment(
        world=world,
        now=now,
        monotonic=monotonic,
        rules=rules,
        vendors=vendors,
        confirm=confirm,
        cursors=cursors,
        events=events,
        inventory=inventory,
        index=DeviceIndex(inventory),
        probes=probes,
        owned=owned,
        probe_set=probe_set,
        kept_back=places.wait_for_holders or not held_devices.isdisjoint((*removals, *probe_set.retired_devices)),
        removals=removals,
        removed_probes=removed_probes,
        places=places.withheld,
        verdicts=verdicts,
        above=above,
        spec=spec,
        requested=requested,
        requested_from=requested_from,
        listed=listed,
        unlisted=unlisted,
    )


def decide(of: Assessment, inputs: Inputs, local: Local) -> Step:
    """What follows: configuration, plan, what containers get, what is saved and reported."""
    world, now, monotonic, inventory, verdicts = of.world, of.now, of.monotonic, of.inventory, of.verdicts
    requested, spec = of.requested, of.spec
    active, plan, config, refused = world.active, world.plan, world.config, ""
    helpers = world.helpers
    awaits = _awaits(world, inputs, local, spec, monotonic)
    applied = active.effective if active.applied_once else None
    cordons = _cordons(world.state, inputs.seen, standalone=local.standalone, now=now)
    unlisted_until = _unlisted_until(world, inputs)
    if inventory.line_monotonic is not None:
        node = Node(
            inventory=inventory,
            verdicts=verdicts,
            holdings=inputs.holdings,
            unlisted=of.unlisted,
            index=of.index,
            held=held(inputs.holdings, of.unlisted, _index(active, requested, of.index)),
            last_plan=world.plan,
            offered=frozenset(world.state.offered),
            saved=inputs.saved,
            unsaved_because=inputs.unsaved_because,
            awaits=awaits,
            existing=inputs.existing,
            helpers=inputs.helpers,
            helpers_now=inputs.helpers.before if world.helpers is None else world.helpers,
            not_ours=served_by_others(inputs.registrations),
            vendors=of.vendors,
            cordons=tuple(each for each in cordons if each.holds(now)),
            removed_probes=of.removed_probes,
            places=of.places,
            cdi=inputs.cdi,
            mount_dirs=local.container_mount_dirs,
            pods=inputs.pods,
        )
        outcome = configure(active, requested, node, spec=spec, seen=inputs.seen, standalone=local.standalone)
        helpers, applied = outcome.helpers, outcome.to_save
        active, refused = outcome.active, outcome.refused
        plan = outcome.plan if monotonic >= unlisted_until else None
        config = replace(world.config, generation=outcome.status.generation) if outcome.saving else outcome.status
    elif requested.error is not None:
        refused_for = refusal(requested.field, requested.error)
        config = replace(
            config,
            reason=CONFIG_INVALID,
            message="; ".join(dict.fromkeys([requested.error, *(each.message for each in requested.others)])),
            refused=refused_for,
            others=requested.others,
            sources=requested.sources,
        )
        refused = requested.source
    observed: Plan | None = None
    if active.applied_once and active.effective.observing:
        others = of.index.under(active.effective.index_prefix)
        shared_by = active.effective.sections.sharing.strategy
        observed = observe(world.state.observed, inputs.holdings, others, strategy=shared_by)
    offered, retired = _offered(world.state, plan, observed, now)
    state = replace(
        to_save(world.state, inventory, verdicts),
        applied=to_saved(applied) if applied is not None else world.state.applied,
        applied_hash=active.applied_hash,
        spec=spec if not local.standalone else world.state.spec,
        offered=offered,
        observed=remembered(observed) if observed is not None else world.state.observed if plan is None else {},
        retired=retired,
        confirmed=of.confirm.value,
        removals=tuple(sorted(of.removals)),
        unschedulable=cordons,
        probes=of.probe_set.texts if inventory.line_monotonic is not None else world.state.probes,
        auto_probes=of.probe_set.auto if inventory.line_monotonic is not None else world.state.auto_probes,
        retired_devices=of.probe_set.retired_devices,
        notices=notices.follow(world.state.notices, of.events, inventory, of.rules, of.vendors, now=now),
        clients=follow(
            world.state.clients,
            plan if observed is None else Plan(),
            inputs.holdings,
            inputs.helpers.processes,
            not_ours=served_by_others(inputs.registrations),
            now=now,
        ),
    )
    devices = access.Devices(
        inventory=inventory, existing=inputs.existing, cdi=inputs.cdi, mount_dirs=local.container_mount_dirs
    )
    after = World(
        inventory=inventory,
        index=of.index,
        probes=of.probes,
        probe_set=of.probe_set,
        verdicts=verdicts,
        cursors=of.cursors,
        active=active,
        plan=plan,
        observed=observed,
        holdings=with_all(named(inputs.holdings, of.index.under(active.effective.index_prefix)), plan),
        config=config,
        helpers=helpers,
        access=access.access(active.effective, devices, plan) if plan is not None else Access(),
        state=state,
        requested=requested,
        requested_from=of.requested_from,
        confirm_problems=of.confirm.problems,
        confirm_spent=_spent(of.confirm.value, verdicts, of.removals),
        departed=_departed(world.departed, inventory, now),
        above=of.above,
        kept_back=of.kept_back,
        lost=lost_devices(
            of.owned,
            hardware=inputs.hardware or frozenset(),
            given_up={each.id for each in cordons if each.holds(now)} | of.removals,
            left=world.left,
        ),
        left=world.left,
        listed=of.listed,
        started=world.started,
        wall_offset=world.wall_offset,
    )
    silent_from = {
        name: (of.probe_set.since[name] if part.line_monotonic is None else part.line_monotonic) + SILENCE_SECONDS
        for name, part in of.probes.items()
    }
    parts = [*of.probes.values(), *(each.inventory for each in of.probe_set.retired)]
    deadlines = [
        *silent_from.values(),
        *(next_deadline(verdicts, part, of.rules, now=now, monotonic=monotonic, above=of.above) for part in parts),
        probe_sets.next_change(of.probe_set, monotonic),
        _recent_over(of.unlisted, monotonic),
        *(monotonic + (it.until - now).total_seconds() for it in cordons if it.until is not None and it.holds(now)),
        world.started + local.operator_wait_seconds if awaits else None,
        unlisted_until,
    ]
    return Step(
        world=after,
        owned=of.owned,
        logged=logged_events(of.events, of.rules, _owners(inventory, of.vendors), of.vendors),
        xids=tuple(event for event in of.events if event.xid is not None),
        confirmed=of.confirm.understood,
        refused=refused,
        deadline=min((each for each in deadlines if each is not None and each > monotonic), default=None),
        silent=frozenset(name for name, since in silent_from.items() if monotonic >= since),
    )


def _clock_adjusted(world: World, *, now: datetime, monotonic: float) -> World:
    """Times are kept by the wall clock, so that they can be saved and shown. Where it was set since the last step (NTP
    after a boot, a resumed virtual machine), what waits is moved along, so that it waits as long as it would have."""
    offset = now.timestamp() - monotonic
    by = offset - world.wall_offset
    if abs(by) < CLOCK_SET_SECONDS:
        return world
    moved = timedelta(seconds=by)
    return replace(
        world,
        wall_offset=offset,
        inventory=stage_inventory.clock_set(world.inventory, moved),
        probes={name: stage_inventory.clock_set(part, moved) for name, part in world.probes.items()},
        probe_set=probe_sets.clock_set(world.probe_set, moved),
        verdicts=clock_set(world.verdicts, moved),
    )


def _file(file: FileOutcome, files: NamedFiles | None, spec: SeenSpec | None, local: Local) -> FileOutcome:
    """The configuration file, or of a folder of them the one that applies."""
    if files is None:
        return file
    name = spec.config_name if spec is not None else ""
    return choose(files, name, default=local.default_config, fallbacks=local.fallback_strategies)


def _usable(texts: tuple[str, ...], local: Local) -> tuple[str, ...]:
    """Probes of the state file, if this version has them and has been given what they need; else none."""
    specs, problems = read(texts)
    return () if problems or missing(specs, local.probe_options) else texts


def _together(parts: Mapping[str, Inventory], probe_set: ProbeSet, *, complete: bool) -> Inventory:
    """All devices of the node."""
    retired = {f"retired {number}": each.inventory for number, each in enumerate(probe_set.retired)}
    return stage_inventory.together({**parts, **retired}, complete=complete)


def _good_files(active: ActiveConfig) -> Mapping[str, object]:
    """The contents of device files that are in effect."""
    return active.effective.node.files if active.applied_once else {}


def _own(local: Local) -> Effective:
    return resolve(local, None, None)


def _spec(saved: SeenSpec | None, seen: SeenObject | None, *, standalone: bool) -> SeenSpec | None:
    """The operator's latest configuration: the object's, else the last one known. A standalone node has none."""
    if standalone:
        return None
    if seen is None or seen.config is None:
        return saved
    return SeenSpec(config=seen.config, config_hash=seen.config_hash, config_name=seen.config_name or "")


def _cordons(state: State, seen: SeenObject | None, *, standalone: bool, now: datetime) -> tuple[Cordon, ...]:
    """What people took out of service: as in the object, else the last that is known. An object that is gone ends
    none: the publisher makes it again with these."""
    if standalone:
        return ()
    if seen is None or not seen.exists:
        return state.unschedulable
    known = {each.id: each.since for each in state.unschedulable}
    return tuple(replace(each, since=each.since or known.get(each.id) or now) for each in seen.unschedulable)


def _taken_out(inventory: Inventory, active: Effective, held: Set[str]) -> frozenset[str]:
    """Ids of devices that a device file described and that it does no longer, but for those that a pod holds."""
    every = (device.fact for device in inventory.devices if device.fact.id not in held)
    return frozenset(fact.id for fact in every if not described(fact, active.node.files))


def _gone(probes: Mapping[str, Inventory], probe_set: ProbeSet) -> frozenset[str]:
    """Ids of devices that are listed and not here: a confirmation of their removal may still be acted on."""
    missing = frozenset(each.fact.id for part in probes.values() for each in part.devices if not each.present)
    return missing.union(probe_set.retired_devices)


def _owners(inventory: Inventory, vendors: FaultSources) -> dict[str, FaultSource]:
    """Whose each device and each partition is, by id."""
    return {
        each: source_of(vendors, device.fact)
        for device in inventory.devices
        for each in (device.fact.id, *(part.id for part in device.fact.partitions))
    }


def _held(holdings: Holdings, unlisted: Sequence[RecentAllocate], index: DeviceIndex) -> tuple[Held, ...] | None:
    """What is held, or may be: an Allocate that no List has shown yet counts. None: before the first List nobody
    knows."""
    if holdings.state is not HoldersState.SYNCED and holdings.taken == 0.0:
        return None
    return held(holdings, unlisted, index)


def _held_ids(of: Sequence[Held] | None, inventory: Inventory) -> tuple[frozenset[str], frozenset[str]]:
    """Devices, and partitions, that are held; where nobody knows, every one that is listed."""
    if of is None:
        parts = frozenset(part.id for device in inventory.devices for part in device.fact.partitions)
        return frozenset(device.fact.id for device in inventory.devices), parts
    parts = frozenset(each.partition_id for each in of if each.partition_id is not None)
    return frozenset(each.device_id for each in of), parts


def _on_offer(plan: Plan | None) -> frozenset[str]:
    """Devices that new pods can get."""
    return frozenset(each.device_id for of in (plan.resources if plan else ()) for each in of.ids if each.healthy)


def _listed(before: frozenset[RecentAllocate], inputs: Inputs) -> frozenset[RecentAllocate]:
    """Which of the recent Allocates PodResources has shown. One that was shown and is gone is a pod that has ended.

    Only a List that was called afterwards shows it: an older one may show who had these ids before.
    """
    held = {(holder.resource, each) for holder in inputs.holdings.holders for each in holder.ids}
    return frozenset(
        each
        for each in inputs.recent
        if each in before
        or (inputs.holdings.taken > each.monotonic and {(each.resource, one) for one in each.ids} <= held)
    )


def _departed(before: Mapping[str, datetime], inventory: Inventory, now: datetime) -> dict[str, datetime]:
    gone = {part for device in inventory.devices for part in device.departed_partitions}
    return {part: before.get(part, now) for part in sorted(gone)}


def _offered(
    state: State, plan: Plan | None, observed: Plan | None, now: datetime
) -> tuple[tuple[str, ...], dict[str, datetime]]:
    """Names that the kubelet serves for us or others, and those that it no longer does, with since when."""
    if plan is None:
        return state.offered, dict(state.retired)
    offered = {each.name for each in plan.resources if each.ids or each.name in state.offered}
    offered |= {each.name for each in (observed or Plan()).resources}
    retired = {name: since for name, since in state.retired.items() if name not in offered}
    retired |= {name: now for name in state.offered if name not in offered}
    newest = sorted(retired.items(), key=lambda item: item[1])[-MAX_RETIRED:]
    return tuple(sorted(offered)), dict(sorted(newest))


def _recent_over(unlisted: Sequence[RecentAllocate], monotonic: float) -> float | None:
    """When the newest Allocate may no longer count: then, or with the next List after it."""
    if not unlisted:
        return None
    over = unlisted[-1].monotonic + RECENT_SECONDS
    return over if over > monotonic else monotonic + LIST_AGAIN_SECONDS


def _index(active: ActiveConfig, requested: RequestedConfig, index: DeviceIndex) -> DeviceIndex:
    effective = active.effective if active.applied_once else requested.effective or active.effective
    return index.under(effective.index_prefix)


def _awaits(world: World, inputs: Inputs, local: Local, spec: SeenSpec | None, monotonic: float) -> str:
    """Why a node that remembers no configuration must not register yet; empty: it may.

    Its first pods would pin whatever is offered to them: local settings before the policy has come, or ids beside
    those that pods of a forgotten configuration hold.
    """
    seconds = local.operator_wait_seconds
    if world.active.applied_once or monotonic >= world.started + seconds:
        return ""
    if not local.standalone and spec is None:
        what = "the operator's configuration of this node"
    elif inputs.holdings.state is not HoldersState.SYNCED and inputs.holdings.possible is None:
        what = "the kubelet's list of pods that hold devices"
    else:
        return ""
    return f"no saved configuration: the first registration waits for {what}, {seconds:.0f} s at most"


def _unlisted_until(world: World, inputs: Inputs) -> float:
    """Until when an agent that remembers its configuration offers nothing yet, by the monotonic clock.

    A device may be held under an id that is not in its plan, and only the kubelet knows: its List, or its checkpoint
    where List does not answer. Both are there milliseconds after the start; who cannot read either goes on without.
    """
    holdings, active = inputs.holdings, world.active
    known = holdings.state is HoldersState.SYNCED or holdings.taken > 0.0 or holdings.possible is not None
    first = world.plan is None and active.applied_once and not active.effective.observing
    return world.started + FIRST_LIST_SECONDS if first and not known else world.started


def _confirm(world: World, inputs: Inputs) -> _Confirm:
    """A person's confirmation on the object, acted on once per value: `<id>=recovered|removed[,...]`."""
    done = world.state.confirmed
    ready = inputs.snapshot is not None or world.inventory.line_monotonic is not None
    if inputs.seen is None or not inputs.seen.exists or inputs.seen.confirm == done or not ready:
        return _Confirm(value=done, problems=world.confirm_problems)
    value = inputs.seen.confirm
    known = {device.fact.id for device in world.inventory.devices}
    known |= {part.id for device in world.inventory.devices for part in device.fact.partitions}
    by_name = {name: id_ for id_, name in device_names(world.inventory).items()}
    confirmed: dict[str, set[str]] = {outcome: set() for outcome in CONFIRM_VALUES}
    problems = []
    for entry in _entries(value):
        device, _, outcome = entry.partition("=")
        if outcome not in confirmed or not device:
            problems.append(f"{entry[:120]}: give <device id>=recovered or <device id>=removed")
        elif device not in known:
            hint = f"give its id, {by_name[device]}" if device in by_name else "this node has no such device"
            problems.append(f"{device[:96]}: {hint}")
        else:
            confirmed[outcome].add(device)
    return _Confirm(
        value=value,
        recovered=frozenset(confirmed["recovered"]),
        removed=frozenset(confirmed["removed"]),
        problems=tuple(problems),
    )


def _spent(value: str, verdicts: Mapping[str, Verdict], removals: Set[str]) -> tuple[str, ...]:
    """The entries that were acted on, and that a person may be giving again in vain: the same value is no news.
    `removals`: ids of devices whose removal is still to be acted on."""
    spent = []
    for entry in _entries(value):
        device, _, outcome = entry.partition("=")
        verdict = verdicts.get(device)
        if verdict is None:
            continue
        if outcome == "removed" and device in removals:
            continue
        missing = verdict.reason == MISSING
        if missing if outcome == "removed" else any(not each.confirmed for each in verdict.faults):
            why = f"already acted on once; the device still has or again has a fault ({verdict.reason})"
            spent.append(f"{entry}: {why}; to confirm again, remove the annotation first")
    return tuple(spent)


def _entries(value: str) -> list[str]:
    return [each.strip() for each in value.split(",") if each.strip()][:MAX_CONFIRM]
