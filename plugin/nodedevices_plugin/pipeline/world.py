"""The inputs of a step, the facts that it knows, and the world that is remembered between two steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import msgspec
from msgspec.structs import replace
from nodedevices_api.conditions import WAITING_FOR_DAEMON, WAITING_FOR_HOLDERS
from nodedevices_probe.protocol import Snapshot

from nodedevices_plugin.claims.records import DraFacts
from nodedevices_plugin.granting.conflicts import Comparison, Conflicts
from nodedevices_plugin.health import history, levels
from nodedevices_plugin.health.events import EventCursor
from nodedevices_plugin.health.machine import clock_set
from nodedevices_plugin.model import (
    Given,
    HoldersState,
    Holdings,
    Inventory,
    NodePods,
    Plan,
    RecentAllocate,
    Registration,
    Uses,
    Verdict,
)
from nodedevices_plugin.pipeline import idle, inventory as stage_inventory, probe_set as probe_sets
from nodedevices_plugin.pipeline.access import Access
from nodedevices_plugin.pipeline.configuration import (
    ActiveConfig,
    ConfigStatus,
    RequestedConfig,
    SeenObject,
    request_config,
)
from nodedevices_plugin.pipeline.expected import Count
from nodedevices_plugin.pipeline.foreign import DeviceIndex
from nodedevices_plugin.pipeline.places import given_now
from nodedevices_plugin.pipeline.state import SeenSpec, State
from nodedevices_plugin.settings.effective import Effective, resolve, understood
from nodedevices_plugin.settings.file import FileOutcome, NamedFiles, choose
from nodedevices_plugin.settings.flags import Local
from nodedevices_plugin.settings.probes import DEFAULT, missing, read
from nodedevices_plugin.sharing.daemons import MpsFacts, restored as restored_clients
from nodedevices_plugin.sharing.mps import MpsDaemon
from nodedevices_plugin.vendors.base import DeviceFiles
from nodedevices_plugin.vendors.cdi import CdiEnvironment

CLOCK_SET_SECONDS = 1.0  # less is a clock that is being slewed, or the scheduler between the two readings
RequestedFrom = tuple[FileOutcome, SeenSpec | None, DeviceFiles, Mapping[str, object]]


class Inputs(msgspec.Struct, frozen=True, kw_only=True):
    """The latest of everything that comes from outside."""

    snapshot: Snapshot | None = None  # a line that no step has seen yet
    source: str = ""  # the probe that wrote it; "": the only one
    arrived: float = 0.0  # time.monotonic() when it came
    file: FileOutcome = msgspec.field(default_factory=FileOutcome)
    files: NamedFiles | None = None  # in its place: a folder of them, where the agent has one
    device_files: DeviceFiles = msgspec.field(default_factory=dict)
    seen: SeenObject | None = None  # None: not read from the API server (yet)
    holdings: Holdings
    recent: Sequence[RecentAllocate] = ()
    registrations: tuple[Registration, ...] = ()
    existing: frozenset[str] = frozenset()  # the node's optional device nodes (host.machine)
    mps: MpsFacts = msgspec.field(default_factory=MpsFacts)
    cdi: Mapping[str, CdiEnvironment] = msgspec.field(default_factory=dict)  # what CDI finds, by vendor
    pods: NodePods = msgspec.field(default_factory=NodePods)  # of this node, while computing power is shared
    hardware: frozenset[str] | None = None  # built-in probes with hardware that was found; None: not known yet
    dra: DraFacts = msgspec.field(default_factory=DraFacts)
    saved: Effective | None = None  # the configuration that the state file has; None: none, or it is not known
    unsaved_because: str = ""  # why the state file cannot be written


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The facts that a step knows before decisions are made; the next step starts with them."""

    inventory: Inventory  # of all probes together
    index: DeviceIndex = field(compare=False)  # of the inventory
    probes: Mapping[str, Inventory]  # of each probe that runs by its name, the first probe first
    owned: Mapping[str, Inventory]  # each probe's own devices (inventory.owned)
    probe_set: probe_sets.ProbeSet  # the running ones, and the devices of those that no longer run
    verdicts: Mapping[str, Verdict]
    cursors: Mapping[str, EventCursor] = field(default_factory=dict)  # by probe
    shown: levels.Lasting = field(default_factory=dict)  # conditions that have to last to be faults, since when
    counts: levels.Counts = field(default_factory=dict)  # what counters have risen by lately
    asked: Mapping[str, float] = field(default_factory=dict)  # of what is out of service, since when (drained)
    given: Mapping[str, Given] = field(default_factory=dict)  # with each held id (places)
    given_now: Mapping[str, Given] = field(default_factory=dict)  # with each device and partition, were it granted
    allocated: float = 0.0  # time.monotonic() of the newest Allocate
    kept_back: bool = False  # True when held devices keep others out of their places, or listed
    listed: frozenset[RecentAllocate] = frozenset()  # Allocates that a List has shown: their pods may have ended since
    requested: RequestedConfig = field(default_factory=RequestedConfig)
    requested_from: RequestedFrom | None = None  # what `requested` was made of


class World(msgspec.Struct, frozen=True, kw_only=True):
    """The agent's knowledge between two steps. `plan` None: no good line yet, and nothing is registered."""

    known: Known  # by the last step
    active: ActiveConfig
    plan: Plan | None = None
    observed: Plan | None = None  # what others offer the kubelet; None: this agent serves it
    holdings: Holdings  # by our own ids
    config: ConfigStatus = msgspec.field(default_factory=ConfigStatus)
    daemons: tuple[MpsDaemon, ...] | None = None  # MPS daemons that are wanted; None: not known yet
    access: Access = msgspec.field(default_factory=Access)  # how containers get what they are granted
    conflicts: Conflicts = msgspec.field(default_factory=dict)  # containers of which two resources set one variable
    state: State  # what the state file should say
    confirm_problems: tuple[str, ...] = ()  # parts of the annotation nodedevices.io/confirm that were not understood
    departed: Mapping[str, datetime] = msgspec.field(default_factory=dict)  # partition -> since when it is gone
    lost: Mapping[str, str] = msgspec.field(
        default_factory=dict
    )  # probes that see none of their devices, and why (lost)
    expected: tuple[Count, ...] | None = ()  # by `expect`; None: not all probes have reported yet
    allocations: Comparison = msgspec.field(default_factory=Comparison)  # with the holders that the kubelet lists
    uses: Uses | None = None  # of held devices; None: no policy asks for it (idle)
    left: Mapping[str, int] = msgspec.field(default_factory=dict)  # by probe of before: its devices known at the start
    started: float  # time.monotonic()
    wall_offset: float  # seconds that the wall clock is ahead of time.monotonic()

    @property
    def confirm_waits(self) -> tuple[str, ...]:
        """For people: confirmations that are remembered, and will be acted on."""
        return tuple(f"{removal}=removed: remembered; listed until no pod holds it" for removal in self.state.removals)

    @property
    def waits_for_holders(self) -> bool:
        """True when something is withheld because of ids that containers hold, or may hold."""
        waits = self.config.reason in {WAITING_FOR_HOLDERS, WAITING_FOR_DAEMON}
        return waits or self.known.kept_back or self.holdings.state is HoldersState.INCOMPLETE


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
    active = ActiveConfig(effective=resolve(local, None, None))
    if (applied := understood(state.applied, local.modes, local.vendors)[0]) is not None:  # else the wanted one counts
        active = ActiveConfig(effective=applied, applied_hash=state.applied_hash, applied_once=True)
    spec = None if local.standalone else state.spec
    requested = request_config(
        local, chosen_file(file or FileOutcome(), files, spec, local), spec, device_files, good_files(active)
    )
    if requested.probes is not None:
        texts, auto = probe_sets.resolve(
            requested.probes,
            hardware=hardware,
            kept=probe_sets.after_restart(state, hardware),
            options=local.probe_options,
            files=requested.files.keys(),
        )
    else:
        texts, auto = (state.probes, state.auto_probes) if _are_usable(state.probes, local) else (DEFAULT, ())
    probes, probe_set = probe_sets.restored(state, texts, now=now, monotonic=monotonic, auto=auto)
    inventory = together(probes, probe_set, complete=False)
    return World(
        known=Known(
            inventory=inventory,
            index=DeviceIndex(inventory, vendors=local.vendors),
            probes=probes,
            owned=stage_inventory.owned(probes),
            probe_set=probe_set,
            verdicts=dict(state.verdicts),
            cursors=dict(state.cursors),
            given=dict(state.given),
            given_now=given_now(inventory, local.vendors, indices=active.effective.index_prefix is not None),
        ),
        active=active,
        holdings=Holdings(state=HoldersState.UNAVAILABLE),
        left=probe_sets.left_by_others(state, probe_set),
        state=dataclasses.replace(state, clients=restored_clients(state.clients)),
        started=monotonic,
        wall_offset=now.timestamp() - monotonic,
    )


def clock_adjusted(world: World, *, now: datetime, monotonic: float) -> World:
    """Times are kept by the wall clock, so that they can be saved and shown. Where it was set since the last step (NTP
    after a boot, a resumed virtual machine), what waits is moved along, so that it waits as long as it would have."""
    offset = now.timestamp() - monotonic
    by = offset - world.wall_offset
    if abs(by) < CLOCK_SET_SECONDS:
        return world
    moved = timedelta(seconds=by)
    known = dataclasses.replace(
        world.known,
        inventory=stage_inventory.clock_set(world.known.inventory, moved),
        probes={name: stage_inventory.clock_set(part, moved) for name, part in world.known.probes.items()},
        probe_set=probe_sets.clock_set(world.known.probe_set, moved),
        verdicts=clock_set(world.known.verdicts, moved),
    )
    booted = datetime.fromtimestamp(world.wall_offset, UTC)  # time.monotonic() counts from the boot on
    until = now - moved
    state = dataclasses.replace(
        world.state, history=history.clock_set(world.state.history, moved, booted=booted, until=until)
    )
    uses = idle.clock_set(world.uses, moved, booted=booted, until=until)
    return replace(world, wall_offset=offset, known=known, state=state, uses=uses)


def chosen_file(file: FileOutcome, files: NamedFiles | None, spec: SeenSpec | None, local: Local) -> FileOutcome:
    """The configuration file, or of a folder of them the one that applies."""
    if files is None:
        return file
    name = spec.config_name if spec is not None else ""
    return choose(files, name, default=local.default_config, fallbacks=local.fallback_strategies)


def _are_usable(texts: tuple[str, ...], local: Local) -> bool:
    """True for probes of the state file, if this version has them and has been given what they need."""
    specs, problems = read(texts)
    return bool(texts) and not problems and not missing(specs, local.probe_options)


def together(parts: Mapping[str, Inventory], probe_set: probe_sets.ProbeSet, *, complete: bool) -> Inventory:
    """All devices of the node."""
    retired = {f"retired {number}": probe.inventory for number, probe in enumerate(probe_set.retired)}
    return stage_inventory.together({**parts, **retired}, complete=complete)


def good_files(active: ActiveConfig) -> Mapping[str, object]:
    """The contents of device files that are in effect."""
    return active.effective.node.files if active.applied_once else {}
