"""The MPS daemons that a plan needs: which are wanted, and whether they answer.

Shares of a resource that has an MPS daemon are offered while it answers and withheld while it does not, and its end is
the end of its clients' work: a change to or from MPS, or of what a daemon serves, waits for the pods that hold the
resource. A daemon admits no process to its GPUs but its clients', so it is not started while another pod holds one of
them, nor where another plugin offers them. host.mps_daemons does the I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from datetime import datetime
from enum import StrEnum

from msgspec import Struct, field
from msgspec.structs import replace

from nodedevices_plugin.model import Inventory, OfferedResource, Plan
from nodedevices_plugin.sharing import mps
from nodedevices_plugin.sharing.mps import DaemonKey, MpsDaemon


class DaemonState(StrEnum):
    STARTING = "Starting"  # nothing is wrong yet
    SILENT = "Silent"  # it does not answer, or not as it should
    READY = "Ready"


class DaemonStatus(Struct, frozen=True, kw_only=True):
    """The result of querying a daemon. message: why it is not ready, for people: it `is being started`."""

    state: DaemonState
    message: str = ""


NOT_QUERIED = DaemonStatus(state=DaemonState.STARTING, message="has not been queried yet")
BEING_STARTED = DaemonStatus(state=DaemonState.STARTING, message="is being started")
READY = DaemonStatus(state=DaemonState.READY)

DaemonStatuses = Mapping[DaemonKey, DaemonStatus]  # a daemon that is not in it has not been queried yet


class DaemonProcess(Struct, frozen=True, kw_only=True):
    """The process of a daemon. `answers` None: it has not been queried, is being started, or cannot be queried."""

    answers: bool | None = None
    instance: str = ""  # "": not known
    started: datetime | None = None


class MpsFacts(Struct, frozen=True, kw_only=True):
    """The known facts about the MPS daemons.

    processes: by resource. before: the daemons that the agent's run before this one wanted. taken: devices that daemons
    reserve to their clients, or are about to, whether they are wanted or being ended.
    """

    statuses: DaemonStatuses = field(default_factory=dict)
    processes: Mapping[str, DaemonProcess] = field(default_factory=dict)
    before: tuple[MpsDaemon, ...] = ()
    taken: frozenset[str] = frozenset()


def has_daemon(resource: OfferedResource) -> bool:
    """True when an MPS daemon runs the processes of containers with this resource: it is shared by MPS, or MPS enforces
    its shares.

    Two plans may have the same ids; a pod that holds one goes on only where this is the same, too.
    """
    return isinstance(resource.sharing.enforced_by or resource.sharing.mode, mps.Mps)


def requested_by(resource: OfferedResource) -> str:
    """The field of the configuration by which it has a daemon."""
    return "sharing.strategy" if resource.sharing.name == mps.NAME else "sharing.resources"


def wanted(plan: Plan, inventory: Inventory) -> tuple[MpsDaemon, ...]:
    """The daemons that this plan needs, by resource name."""
    return tuple(
        mps.daemon(resource, inventory) for resource in plan.resources if resource.ids and has_daemon(resource)
    )


def silent(plan: Plan, statuses: DaemonStatuses) -> str:
    """Return why a resource of this plan cannot be offered: its daemon is not ready. Empty: all of them are."""
    for resource in plan.resources:
        status = _status(resource, statuses)
        if status.state is not DaemonState.READY:
            enforcement = "" if resource.sharing.name == mps.NAME else ": enforcement"
            return f"{requested_by(resource)}{enforcement}: mps: the control daemon of {resource.name} {status.message}"
    return ""


def unanswered(plan: Plan, statuses: DaemonStatuses) -> tuple[OfferedResource, ...]:
    """The resources of this plan that need a daemon which is not ready: one that may still have to be started."""
    return tuple(resource for resource in plan.resources if _status(resource, statuses).state is not DaemonState.READY)


def starting(plan: Plan, statuses: DaemonStatuses) -> bool:
    """True when the daemons that are not ready are only being started: nothing has to be corrected yet."""
    return all(_status(resource, statuses).state is not DaemonState.SILENT for resource in plan.resources)


def client_ids(plan: Plan) -> frozenset[tuple[str, str]]:
    """Return resource and id of each share with pods that are a daemon's clients."""
    return frozenset(
        (resource.name, schedulable.id)
        for resource in plan.resources
        if has_daemon(resource)
        for schedulable in resource.ids
    )


def not_ready(resource: OfferedResource, statuses: DaemonStatuses) -> str:
    """Return why the daemon that its shares need cannot be used; empty: it can, or there is none."""
    status = _status(resource, statuses)
    return "" if status.state is DaemonState.READY else f"MPS control daemon {status.message}"


def still_used(
    running: Sequence[MpsDaemon], wanted: Sequence[MpsDaemon], used: Callable[[MpsDaemon], bool]
) -> tuple[MpsDaemon, ...]:
    """Return the running daemons that are no longer wanted, or with other limits, and that must stay because their end
    would end containers. `used`: whether containers hold, or may hold, shares of it."""
    keys = {daemon.key for daemon in wanted}
    return tuple(daemon for daemon in running if daemon.key not in keys and used(daemon))


def announced(coming: Sequence[MpsDaemon], taken: Set[str]) -> tuple[MpsDaemon, ...]:
    """Return the daemons, of which those only announce their GPUs that have not yet (`taken`).

    Where its GPUs are offered otherwise a daemon announces them first, and takes them when they are withheld: so a
    daemon that nobody starts withholds nothing.
    """
    return tuple(daemon if taken >= daemon.device_ids else replace(daemon, waits=True) for daemon in coming)


def reserved(daemons: Sequence[MpsDaemon]) -> frozenset[str]:
    """Return the devices that these daemons reserve to their clients."""
    return frozenset(id_ for daemon in daemons for id_ in daemon.device_ids)


def kept_text(daemons: Sequence[MpsDaemon]) -> str:
    """Return why they still run, for people."""
    return (
        f"{described(daemons)} runs on until the pods that hold its shares have ended; its devices go to no other pods "
        "until then"
    )


def described(daemons: Sequence[MpsDaemon]) -> str:
    """Return what they are, for people."""
    return ", ".join(f"the MPS control daemon of {daemon.resource}" for daemon in daemons)


def _status(resource: OfferedResource, statuses: DaemonStatuses) -> DaemonStatus:
    if not resource.ids or not has_daemon(resource):
        return READY
    return statuses.get(mps.key(resource), NOT_QUERIED)
