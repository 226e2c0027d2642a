"""The port of a sharing mode, and the values that pass through it.

A mode derives from `SharingMode`, whose methods are the defaults, and answers three questions: is it possible on this
node (`check`), how many shares does each device have (`split`), and what does a container with a share get (`edits`).
The agent does the rest, the same for all modes: names, ids, health, occupancy, the kubelet, reports.

A mode needs nothing but the kubelet, and a change of it does not wait: devices that pods hold in another shape are
withheld until these end (offering.occupancy). MPS alone needs a program on the node: sharing.daemons.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, cast

from msgspec import Struct
from nodedevices_api.sections import SharedResource

from nodedevices_plugin.model import ContainerEdits, Grant, OfferedResource, PlanError, SharingFacts, Unit


class Settings(Struct, frozen=True, kw_only=True):
    """The node's flags that modes read. `mps_root`: the MPS root on the host. `mount_dirs`: directories of the host
    that a policy may mount."""

    mps_root: str = ""
    mount_dirs: tuple[str, ...] = ()


NO_SETTINGS = Settings()


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


class SharingMode(Struct, frozen=True):
    """One value of `sharing.strategy`. Frozen, without state: the agent keeps all state."""

    name: ClassVar[str]  # the value of `sharing.strategy`, shown as `sharing` in NodeDevices
    shares_name: ClassVar[str] = ""  # the resource name of its shares where a rule gives none; empty: the devices' own

    def check(self, settings: Settings, rules: Sequence[SharedResource], *, partition_strategy: str) -> None:
        """Raise PlanError where the mode is not possible on a node with these settings, before any device is
        considered. `rules`: those of the configuration."""

    def split(self, request: SplitRequest) -> Split:
        """Return how often each unit is offered. Raises PlanError for a rule that is not possible with these units."""
        return Split(counts=(1,) * len(request.units), sharing=SharingFacts(mode=self))

    def edits(self, grant: Grant, settings: Settings) -> ContainerEdits:
        """Return what a container gets for shares of the resource, beside the devices themselves. `grant`: shares
        alone."""
        return ContainerEdits()

    def refusal(self, resource: OfferedResource, settings: Settings) -> PlanError | None:
        """Return why this node cannot give containers what they need for shares of the resource; None: it can."""
        return None


def mode_of(resource: OfferedResource) -> SharingMode | None:
    """Return the mode of a shared resource, which is part of it; None: its devices are handed out whole."""
    return cast("SharingMode | None", resource.sharing.mode)


def device_ids(units: Iterable[Unit]) -> frozenset[str]:
    """Return the ids of their devices."""
    return frozenset(unit.device.fact.id for unit in units)


def by_replicas(mode: SharingMode, request: SplitRequest) -> Split:
    """The split of modes that offer every unit equally often. Raises PlanError."""
    replicas = request.rule.replicas
    if replicas is None:
        raise PlanError(f"{request.place}.replicas", "absent", f"{mode.name} needs replicas, 2 to 16384")
    return Split(counts=(replicas,) * len(request.units), sharing=SharingFacts(mode=mode, replicas=replicas))


def merged(parts: Iterable[ContainerEdits]) -> ContainerEdits:
    """Return all of them together, in their order; what two of them contain is there once."""
    every = tuple(parts)
    return ContainerEdits(
        envs={name: value for part in every for name, value in part.envs.items()},
        mounts=tuple(dict.fromkeys(mount for part in every for mount in part.mounts)),
        devices=tuple(dict.fromkeys(node for part in every for node in part.devices)),
        annotations={name: value for part in every for name, value in part.annotations.items()},
        cdi_devices=tuple(dict.fromkeys(name for part in every for name in part.cdi_devices)),
    )
