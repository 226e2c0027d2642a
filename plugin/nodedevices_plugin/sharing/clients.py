"""Finds the containers that lost their CUDA contexts when the MPS daemon of their resource ended.

A client's contexts are in the daemon's server: when that ends they are lost, also where a new daemon answers a moment
later. So each client is remembered with the daemon that it started with (`DaemonProcess.instance`), and compared at
every step, in the state file across restarts. A daemon that does not answer takes its devices out of service and marks
all its clients; once it is back they are as before where it is the same one, and have to restart where it is another
one. New clients of the new daemon are healthy. No verdict is given before the first answer of a run, or while the
holders are not known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime

from nodedevices_common.times import rfc3339

from nodedevices_plugin.model import HealthState, Holder, HoldersState, Holdings, Plan, Verdict
from nodedevices_plugin.sharing.daemons import DaemonProcess, has_daemon
from nodedevices_plugin.sharing.mps import DOWN, RESTARTED, MpsDaemon


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A container with shares. `reason` "": it has lost nothing, as far as is known; else mps.DOWN or RESTARTED."""

    instance: str = ""
    held: datetime | None = None  # Holder.since in this run of the agent; None: it is from the run before
    reason: str = ""
    since: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenDaemon:
    """A daemon as it was last known. `down`: since when it does not answer."""

    instance: str = ""
    down: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """All that is remembered: daemons by resource, which the state file calls helpers, and clients by `key`."""

    helpers: Mapping[str, SeenDaemon] = field(default_factory=dict)
    clients: Mapping[str, Client] = field(default_factory=dict)


def key(holder: Holder) -> str:
    return f"{holder.namespace}/{holder.pod}/{holder.container}/{holder.resource}"


def restored(before: Clients) -> Clients:
    """After a start of the agent: since when a container holds its devices is counted from then."""
    return replace(before, clients={who: replace(client, held=None) for who, client in before.clients.items()})


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
            was = before.clients.get(key(holder))
            seen = before.helpers.get(holder.resource, SeenDaemon()).instance
            process = processes.get(holder.resource, DaemonProcess())
            clients[key(holder)] = _client(was, holder, process, seen=seen, now=now)
    kept = {who: client for who, client in before.clients.items() if who not in clients and not known}
    return Clients(helpers=daemons, clients=dict(sorted((kept | clients).items())))


def _daemon(before: SeenDaemon, process: DaemonProcess, now: datetime) -> SeenDaemon:
    if process.answers is None:
        return before
    if not process.answers:
        return replace(before, down=before.down or now)
    return SeenDaemon(instance=process.instance)


def _client(was: Client | None, holder: Holder, process: DaemonProcess, *, seen: str, now: datetime) -> Client:
    """`seen`: the daemon that answered before this step."""
    new = was is None or (was.held is not None and was.held != holder.since)
    client = Client(held=holder.since) if was is None or new else replace(was, held=holder.since)
    if process.answers is None:
        return client
    if not process.answers:
        return client if client.reason else replace(client, reason=DOWN, since=now)
    if client.reason == RESTARTED:
        return client
    if new:
        # One that is first listed just as the daemon is another may have come to the one before.
        came_before = (
            seen not in {"", process.instance} and process.started is not None and holder.since < process.started
        )
        other = came_before
    elif client.reason == DOWN:
        other = not process.instance or client.instance != process.instance
    else:
        other = "" not in {client.instance, process.instance} and client.instance != process.instance
    if other:
        return replace(client, reason=RESTARTED, since=process.started or now)
    return Client(instance=process.instance or client.instance, held=holder.since)


# --- what is reported ------------------------------------------------------------------------------------------------
def client_verdict(client: Client | None, resource: str, now: datetime) -> Verdict | None:
    """Return the verdict on one client; None: it lost nothing."""
    if client is None or client.reason not in {DOWN, RESTARTED}:
        return None
    since = client.since or now
    if client.reason == DOWN:
        return _verdict(DOWN, f"{_silent(resource)}; its clients cannot use the GPU", since, action="Inspect")
    what = f"the MPS control daemon of {resource} was restarted at {rfc3339(since)}"
    return _verdict(RESTARTED, f"{what}; CUDA contexts from before are lost", since, action="RestartApp")


def with_daemons(
    verdicts: Mapping[str, Verdict], known: Clients, wanted: Sequence[MpsDaemon] | None
) -> Mapping[str, Verdict]:
    """Return the verdicts, with devices out of service while their daemon does not answer: as they are shown."""
    down: dict[str, Verdict] = {}
    for daemon in wanted or ():
        if (since := known.helpers.get(daemon.resource, SeenDaemon()).down) is not None:
            text = f"{_silent(daemon.resource)}; its shares are not offered"
            down |= {device: _verdict(DOWN, text, since, action="Inspect") for device in daemon.device_ids}
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
