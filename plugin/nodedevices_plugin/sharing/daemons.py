"""The MPS daemons that a plan needs: which are wanted, whether they answer, and which containers lost something when
one ended.

Shares of a resource that has an MPS daemon are offered while it answers and withheld while it does not, and its end is
the end of its clients' work: a change to or from MPS, or of what a daemon serves, waits for the pods that hold the
resource. A daemon admits no process to its GPUs but its clients', so it is not started while another pod holds one of
them, nor where another plugin offers them. host.mps_daemons does the I/O.

A client's CUDA contexts are in the daemon's server: when that ends they are lost, also where a new daemon answers a
moment later. So each client is remembered with the daemon that it started with (`DaemonProcess.instance`), and compared
at every step, in the state file across restarts. A daemon that does not answer takes its devices out of service and
marks all its clients; once it is back they are as before where it is the same one, and have to restart where it is
another one. New clients of the new daemon are healthy. No verdict is given before the first answer of a run, or while
the holders are not known.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence, Set
from datetime import datetime
from enum import StrEnum

from msgspec import Struct, field
from msgspec.structs import replace
from nodedevices_common.times import rfc3339

from nodedevices_plugin.model import (
    HealthState,
    Holder,
    HoldersState,
    Holdings,
    Inventory,
    OfferedResource,
    Plan,
    Verdict,
)
from nodedevices_plugin.sharing import mps


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

DaemonStatuses = Mapping[mps.DaemonKey, DaemonStatus]  # a daemon that is not in it has not been queried yet


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
    before: tuple[mps.MpsDaemon, ...] = ()
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


def wanted(plan: Plan, inventory: Inventory) -> tuple[mps.MpsDaemon, ...]:
    """The daemons that this plan needs, by resource name."""
    return tuple(
        mps.daemon(resource, inventory) for resource in plan.resources if resource.ids and has_daemon(resource)
    )


def silent(resource: OfferedResource, statuses: DaemonStatuses) -> str:
    """Return why a resource whose daemon is not ready cannot be offered."""
    enforcement = "" if resource.sharing.name == mps.NAME else ": enforcement"
    message = f"the control daemon of {resource.name} {_status(resource, statuses).message}"
    return f"{requested_by(resource)}{enforcement}: mps: {message}"


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
    running: Sequence[mps.MpsDaemon], wanted: Sequence[mps.MpsDaemon], used: Callable[[mps.MpsDaemon], bool]
) -> tuple[mps.MpsDaemon, ...]:
    """Return the running daemons that are no longer wanted, or with other limits, and that must stay because their end
    would end containers. `used`: whether containers hold, or may hold, shares of it."""
    keys = {daemon.key for daemon in wanted}
    return tuple(daemon for daemon in running if daemon.key not in keys and used(daemon))


def announced(coming: Sequence[mps.MpsDaemon], taken: Set[str]) -> tuple[mps.MpsDaemon, ...]:
    """Return the daemons, of which those only announce their GPUs that have not yet (`taken`).

    Where its GPUs are offered otherwise a daemon announces them first, and takes them when they are withheld: so a
    daemon that nobody starts withholds nothing.
    """
    return tuple(daemon if taken >= daemon.device_ids else replace(daemon, waits=True) for daemon in coming)


def kept_text(daemons: Sequence[mps.MpsDaemon]) -> str:
    """Return why they still run, for people."""
    return (
        f"{described(daemons)} runs on until the pods that hold its shares have ended; its devices go to no other pods "
        "until then"
    )


def described(daemons: Sequence[mps.MpsDaemon]) -> str:
    """Return what they are, for people."""
    return ", ".join(f"the MPS control daemon of {daemon.resource}" for daemon in daemons)


def _status(resource: OfferedResource, statuses: DaemonStatuses) -> DaemonStatus:
    if not resource.ids or not has_daemon(resource):
        return READY
    return statuses.get(mps.key(resource), NOT_QUERIED)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A container with shares. `reason` "": it has lost nothing, as far as is known; else mps.DOWN or mps.RESTARTED."""

    instance: str = ""
    held: datetime | None = None  # Holder.since in this run of the agent; None: it is from the run before
    reason: str = ""
    since: datetime | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SeenDaemon:
    """A daemon as it was last known. `down`: since when it does not answer."""

    instance: str = ""
    down: datetime | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """All that is remembered: daemons by resource, which the state file calls helpers, and clients by `client_key`."""

    helpers: Mapping[str, SeenDaemon] = dataclasses.field(default_factory=dict)
    clients: Mapping[str, Client] = dataclasses.field(default_factory=dict)


def client_key(holder: Holder) -> str:
    return f"{holder.namespace}/{holder.pod}/{holder.container}/{holder.resource}"


def restored(before: Clients) -> Clients:
    """After a start of the agent: since when a container holds its devices is counted from then."""
    return dataclasses.replace(
        before, clients={who: dataclasses.replace(client, held=None) for who, client in before.clients.items()}
    )


def follow(
    before: Clients,
    plan: Plan | None,
    holdings: Holdings,
    processes: Mapping[str, DaemonProcess],
    *,
    not_ours: Set[str],
    now: datetime,
) -> Clients:
    """Return the clients as they are known now. `not_ours`: resources that another plugin serves: their pods know no
    daemon of ours."""
    if plan is None:
        return before
    names = [resource.name for resource in plan.resources if resource.name not in not_ours and has_daemon(resource)]
    daemons = {
        name: _daemon(before.helpers.get(name, SeenDaemon()), processes.get(name, DaemonProcess()), now)
        for name in names
    }
    known = holdings.state is HoldersState.SYNCED
    clients: dict[str, Client] = {}
    for holder in holdings.holders:
        if holder.resource is not None and holder.resource in daemons:
            was = before.clients.get(client_key(holder))
            seen = before.helpers.get(holder.resource, SeenDaemon()).instance
            process = processes.get(holder.resource, DaemonProcess())
            clients[client_key(holder)] = _client(was, holder, process, seen=seen, now=now)
    kept = {who: client for who, client in before.clients.items() if who not in clients and not known}
    return Clients(helpers=daemons, clients=dict(sorted((kept | clients).items())))


def _daemon(before: SeenDaemon, process: DaemonProcess, now: datetime) -> SeenDaemon:
    if process.answers is None:
        return before
    if not process.answers:
        return dataclasses.replace(before, down=before.down or now)
    return SeenDaemon(instance=process.instance)


def _client(was: Client | None, holder: Holder, process: DaemonProcess, *, seen: str, now: datetime) -> Client:
    """`seen`: the daemon that answered before this step."""
    new = was is None or (was.held is not None and was.held != holder.since)
    client = Client(held=holder.since) if was is None or new else dataclasses.replace(was, held=holder.since)
    if process.answers is None:
        return client
    if not process.answers:
        return client if client.reason else dataclasses.replace(client, reason=mps.DOWN, since=now)
    if client.reason == mps.RESTARTED:
        return client
    if new:
        # One that is first listed just as the daemon is another may have come to the one before.
        other = seen not in {"", process.instance} and process.started is not None and holder.since < process.started
    elif client.reason == mps.DOWN:
        other = not process.instance or client.instance != process.instance
    else:
        other = "" not in {client.instance, process.instance} and client.instance != process.instance
    if other:
        return dataclasses.replace(client, reason=mps.RESTARTED, since=process.started or now)
    return Client(instance=process.instance or client.instance, held=holder.since)


# --- what is reported ------------------------------------------------------------------------------------------------
def client_verdict(client: Client | None, resource: str, now: datetime) -> Verdict | None:
    """Return the verdict on one client; None: it lost nothing."""
    if client is None or client.reason not in {mps.DOWN, mps.RESTARTED}:
        return None
    since = client.since or now
    if client.reason == mps.DOWN:
        return _verdict(mps.DOWN, f"{_silent(resource)}; its clients cannot use the GPU", since, action="Inspect")
    what = f"the MPS control daemon of {resource} was restarted at {rfc3339(since)}"
    return _verdict(mps.RESTARTED, f"{what}; CUDA contexts from before are lost", since, action="RestartApp")


def with_daemons(
    verdicts: Mapping[str, Verdict], known: Clients, wanted: Sequence[mps.MpsDaemon] | None
) -> Mapping[str, Verdict]:
    """Return the verdicts, with devices out of service while their daemon does not answer: as they are shown."""
    down: dict[str, Verdict] = {}
    for daemon in wanted or ():
        if (since := known.helpers.get(daemon.resource, SeenDaemon()).down) is not None:
            text = f"{_silent(daemon.resource)}; its shares are not offered"
            down |= {device: _verdict(mps.DOWN, text, since, action="Inspect") for device in daemon.device_ids}
    fit = {device for device in down if device not in verdicts or verdicts[device].offered}
    return {**verdicts, **{device: down[device] for device in fit}} if fit else verdicts


def _silent(resource: str) -> str:
    return f"the MPS control daemon of {resource} does not answer (see the logs of nodedevices-mps)"


def _verdict(reason: str, message: str, since: datetime, *, action: str) -> Verdict:
    return Verdict(
        state=HealthState.UNHEALTHY,
        reason=reason,
        message=message,
        since=since,
        offered=False,
        recovery_action=action,
        fault_domain="Node",
    )
