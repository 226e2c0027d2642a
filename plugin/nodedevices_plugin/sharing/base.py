"""The port of a sharing mode, and the values that pass through it.

A mode answers five questions: is it possible on this node (`check`), how many shares does each device have (`split`),
what does a container with a share get (`edits`), what does it need beside the kubelet (`helper`), and, with that, when
a change to it or from it must wait. The agent does the rest, the same for all modes: names, ids, health, occupancy,
the kubelet, reports.

A mode without a helper needs nothing but the kubelet, and a change of it does not wait: devices that pods hold in
another shape are withheld until these end (offering.occupancy). A mode with one has a program on the node for each
resource that it shares. Its shares are offered while that answers and withheld while it does not, and the end of the
program is the end of its clients' work: a change to or from the mode, or of what a helper serves, waits for the pods
that hold the resource.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Protocol, runtime_checkable

from msgspec import Struct, field
from nodedevices_api.sections import SharedResource
from nodedevices_common.quantity import from_bytes
from nodedevices_probe.protocol import DeviceFact

from nodedevices_plugin.model import (
    ContainerEdits,
    Grant,
    Inventory,
    MemoryShares,
    OfferedResource,
    PlanError,
    SharingFacts,
    Unit,
)
from nodedevices_plugin.model.optional import OptionalInterface

Settings = Mapping[str, str]  # what modes read of the node's flags, by the flag's name: {"mps-root": "/run/nvidia/mps"}


class NodeTraits(Struct, frozen=True, kw_only=True):
    """The facts that decide whether a mode is possible on a node, before any device is considered. `rules`: those of
    the configuration."""

    partition_strategy: str
    settings: Settings
    rules: Sequence[SharedResource]


class SplitRequest(Struct, frozen=True, kw_only=True):
    """The request of a configuration for one resource.

    place: the path of the rule, `sharing.resources[nvidia.com/gpu]`. units: those that the rule selects; none where the
    node has no such device, which is no error. rest: the resource's others, which stay whole. name: the name of the
    shares; renamed: whether that is a name of their own.
    """

    place: str
    rule: SharedResource
    units: Sequence[Unit]
    rest: Sequence[Unit]
    renamed: bool
    name: str


class Split(Struct, frozen=True, kw_only=True):
    """The number of shares of each unit, in the units' order. `sharing`: what stays with the resource, a record of the
    mode's own where it needs to know more later. `numa`: whether the kubelet is sent the NUMA nodes of shares."""

    counts: tuple[int, ...]
    sharing: SharingFacts
    numa: bool = True


@runtime_checkable
class SharesName(OptionalInterface, Protocol):
    """A mode with a name of its own for its shares, where the rule has none."""

    @property
    def shares_name(self) -> str: ...


@runtime_checkable
class AsksNode(OptionalInterface, Protocol):
    """A mode with shares that may need something that only the node's own flags allow."""

    def refusal(self, resource: OfferedResource, settings: Settings) -> PlanError | None:
        """Return why this node cannot give containers what they need for shares of the resource; None: it can."""
        ...


class SharingMode(Protocol):
    """One value of `sharing.strategy`. Frozen, without state: the agent keeps all state."""

    @property
    def name(self) -> str:
        """The value of `sharing.strategy`, shown as `sharing` in NodeDevices."""
        ...

    @property
    def helper(self) -> HelperKind | None:
        """The program that its shares need beside the kubelet; None: they need none, or what the rule's `enforcement`
        names."""
        ...

    def check(self, node: NodeTraits) -> None:
        """Raise PlanError where the mode is not possible on this node, or with these settings."""
        ...

    def split(self, request: SplitRequest) -> Split:
        """Return how often each unit is offered. Raises PlanError for a rule that is not possible with these units."""
        ...

    def edits(self, grant: Grant, settings: Settings) -> ContainerEdits:
        """Return what a container gets for shares of the resource, beside the devices themselves. `grant`: shares
        alone."""
        ...


# --- helpers ---------------------------------------------------------------------------------------------------------
class Helper(Protocol):
    """The program that one resource needs: a frozen value of the mode's own. Equal helpers need no change."""

    @property
    def mode(self) -> str:
        """The name of the mode."""
        ...

    @property
    def kind(self) -> HelperKind: ...

    @property
    def resource(self) -> str: ...

    @property
    def key(self) -> Hashable:
        """Tells it from one with other limits that still runs; the same as HelperKind.key of its resource."""
        ...

    @property
    def device_ids(self) -> Collection[str]:
        """The devices that are out of service while it does not answer."""
        ...


@runtime_checkable
class Announced(OptionalInterface, Protocol):
    """A helper that reserves its devices before it answers. Where these are offered otherwise it announces them first
    (HelperFacts.taken), and takes them when they are withheld: so a helper that nobody starts withholds nothing."""

    def announced(self) -> Helper:
        """Return it with devices that it must not take yet."""
        ...


class HelperTexts(Struct, frozen=True, kw_only=True):
    """The texts of a kind of helper in messages."""

    title: str  # of the mode, in a sentence: MPS
    program: str  # control daemon
    hint: str = ""  # what to check when it does not answer: see the logs of nodedevices-mps
    down: str  # a device's and a client's health reason while it does not answer: MpsDaemonDown
    down_means: str  # its clients cannot use the GPU
    restarted: str  # a client's health reason when another one answers: MpsDaemonRestarted
    state: str  # what its clients lose with it: CUDA contexts
    log: str  # a log message, always the same: MPS client without its daemon


class HelperKind(Protocol):
    """The agent's knowledge of a mode's helpers."""

    @property
    def texts(self) -> HelperTexts: ...

    @property
    def exclusive(self) -> bool:
        """True when its devices admit no process of a container that is not its client. Then it is not started while
        such a pod holds one of them, nor where another plugin offers them."""
        ...

    def key(self, resource: OfferedResource) -> Hashable:
        """Return what a query of it is about: the resource, and the limits that it is to have."""
        ...

    def most_clients(self, device: DeviceFact) -> int | None:
        """Return how many containers can use this device at one time, if each is one client; None: any number."""
        ...

    def wanted(self, resource: OfferedResource, inventory: Inventory) -> Helper:
        """The helper of this resource, with the devices that are there now."""
        ...


class HelperState(StrEnum):
    STARTING = "Starting"  # nothing is wrong yet
    SILENT = "Silent"  # it does not answer, or not as it should
    READY = "Ready"


class HelperAnswer(Struct, frozen=True, kw_only=True):
    """The result of querying a helper. message: why it is not ready, for people: it `is being started`."""

    state: HelperState
    message: str = ""


NOT_QUERIED = HelperAnswer(state=HelperState.STARTING, message="has not been queried yet")
BEING_STARTED = HelperAnswer(state=HelperState.STARTING, message="is being started")
READY = HelperAnswer(state=HelperState.READY)


class HelperProcess(Struct, frozen=True, kw_only=True):
    """The process of a helper. `answers` None: it has not been queried, is being started, or cannot be queried."""

    answers: bool | None = None
    instance: str = ""  # "": not known
    started: datetime | None = None


class HelperFacts(Struct, frozen=True, kw_only=True):
    """The known facts about the helpers, of all modes together.

    answers: by Helper.key; a helper that is not in it has not been queried yet. processes: by resource. before: those
    that the agent's run before this one wanted, and that run. taken: devices that helpers reserve to their clients, or
    are about to, whether they are wanted or being ended.
    """

    answers: Mapping[Hashable, HelperAnswer] = field(default_factory=dict)
    processes: Mapping[str, HelperProcess] = field(default_factory=dict)
    before: tuple[Helper, ...] = ()
    taken: frozenset[str] = frozenset()


class HelperManager(Protocol):
    """The I/O of a mode: gets its helpers to run, and queries them.

    Nothing here blocks the event loop. `facts` is replaced, never changed; the function that the manager was made with
    is called on the loop when it is another. The manager restarts no helper that serves running pods, unless the wanted
    ones changed.
    """

    @property
    def facts(self) -> HelperFacts: ...

    def want(self, helpers: tuple[Helper, ...] | None) -> None:
        """Run these from now on, and no others. None: not known yet, and running ones stay. May be called again and
        again with the same."""
        ...

    async def run(self) -> None:
        """Until cancelled."""
        ...


def device_ids(units: Iterable[Unit]) -> frozenset[str]:
    """Return the ids of their devices."""
    return frozenset(unit.device.fact.id for unit in units)


def by_replicas(mode: SharingMode, request: SplitRequest) -> Split:
    """The split of modes that offer every unit equally often. Raises PlanError."""
    replicas = request.rule.replicas
    if replicas is None:
        raise PlanError(f"{request.place}.replicas", "absent", f"{mode.name} needs replicas, 2 to 16384")
    return Split(counts=(replicas,) * len(request.units), sharing=SharingFacts(mode=mode, replicas=replicas))


def memory_shares(unit: int, units: Iterable[Unit]) -> MemoryShares:
    """Return the shares of a mode that shares amounts of `unit` bytes."""
    devices = {each.id: each.memory_bytes for each in units}
    return MemoryShares(unit=from_bytes(unit), unit_bytes=unit, devices=devices)


def merged(parts: Iterable[ContainerEdits]) -> ContainerEdits:
    """Return all of them together, in their order; what two of them contain is there once."""
    each = tuple(parts)
    return ContainerEdits(
        envs={name: value for part in each for name, value in part.envs.items()},
        mounts=tuple(dict.fromkeys(mount for part in each for mount in part.mounts)),
        devices=tuple(dict.fromkeys(node for part in each for node in part.devices)),
        annotations={name: value for part in each for name, value in part.annotations.items()},
        cdi_devices=tuple(dict.fromkeys(name for part in each for name in part.cdi_devices)),
    )
