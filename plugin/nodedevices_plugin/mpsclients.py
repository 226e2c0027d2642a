"""Whose CUDA contexts are gone with an MPS daemon. Pure.

A client's contexts live in its daemon's server: when that ends they are lost, also where a new daemon answers a moment
later. So each client is remembered with the daemon that it came to (`Life.instance`, which the runner writes where no
client can), and compared at every step, in the state file across restarts. A daemon that answers nothing takes its
devices out of service and tells all its clients; once it is back they are as before where it is the same one, and told
to restart where it is another. New clients of the new daemon are well from the start. Nothing is said while nobody
knows: before the first answer of a run, or where the kubelet does not tell who holds what.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from nodedevices_plugin.model import HealthState, Holder, HoldersState, Holdings, Plan, Verdict
from nodedevices_plugin.resources.mps import Daemon as WantedDaemon

DOWN = "MpsDaemonDown"
RESTARTED = "MpsDaemonRestarted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """What is known of a daemon now. `answers` None: it has not been asked, is being started, or cannot be asked."""

    answers: bool | None = None
    instance: str = ""  # "": nobody says which process it is (NVIDIA's own, or an older runner)
    started: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A container with shares. `reason` "": nothing is known against its contexts."""

    instance: str = ""
    held: datetime | None = None  # Holder.since in this run of the agent; None: it is from the run before
    reason: str = ""
    since: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemon:
    """A daemon as it was last known. `down`: since when it does not answer."""

    instance: str = ""
    down: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mps:
    """All that is remembered: daemons by resource, clients by `key`."""

    daemons: Mapping[str, Daemon] = field(default_factory=dict)
    clients: Mapping[str, Client] = field(default_factory=dict)


def key(holder: Holder) -> str:
    return f"{holder.namespace}/{holder.pod}/{holder.container}/{holder.resource}"


def restored(mps: Mps) -> Mps:
    """After a start of the agent: since when a container holds its devices is told anew."""
    return replace(mps, clients={each: replace(client, held=None) for each, client in mps.clients.items()})


def follow(
    before: Mps, plan: Plan | None, holdings: Holdings, lives: Mapping[str, Life], *, not_ours: Set[str], now: datetime
) -> Mps:
    """What is known now. `not_ours`: resources that another plugin serves: their pods know no daemon of ours."""
    if plan is None:
        return before
    names = {each.name for each in plan.resources if each.sharing == "mps"} - not_ours
    daemons = {name: _daemon(before.daemons.get(name, Daemon()), lives.get(name, Life()), now) for name in names}
    known = holdings.state is HoldersState.SYNCED
    clients: dict[str, Client] = {}
    for holder in holdings.holders:
        if holder.resource in names:
            was = before.clients.get(key(holder))
            seen = before.daemons.get(holder.resource, Daemon()).instance
            clients[key(holder)] = _client(was, holder, lives.get(holder.resource, Life()), seen=seen, now=now)
    kept = {each: client for each, client in before.clients.items() if each not in clients and not known}
    return Mps(daemons=daemons, clients=dict(sorted((kept | clients).items())))


def _daemon(before: Daemon, life: Life, now: datetime) -> Daemon:
    if life.answers is None:
        return before
    if not life.answers:
        return replace(before, down=before.down or now)
    return Daemon(instance=life.instance)


def _client(was: Client | None, holder: Holder, life: Life, *, seen: str, now: datetime) -> Client:
    """`seen`: the daemon that answered before this step."""
    new = was is None or (was.held is not None and was.held != holder.since)
    client = Client(held=holder.since) if was is None or new else replace(was, held=holder.since)
    if life.answers is None:
        return client
    if not life.answers:
        return client if client.reason else replace(client, reason=DOWN, since=now)
    if client.reason == RESTARTED:
        return client
    if new:
        # One that is first listed just as the daemon is another may have come to the one before.
        came_before = seen not in {"", life.instance} and life.started is not None and holder.since < life.started
        other = came_before
    elif client.reason == DOWN:
        other = not life.instance or client.instance != life.instance
    else:
        other = "" not in {client.instance, life.instance} and client.instance != life.instance
    if other:
        return replace(client, reason=RESTARTED, since=life.started or now)
    return Client(instance=life.instance or client.instance, held=holder.since)


# --- what is told ----------------------------------------------------------------------------------------------------
def client_verdict(client: Client | None, resource: str, now: datetime) -> Verdict | None:
    """What happened to one client. None: nothing."""
    if client is None or not client.reason:
        return None
    since = client.since or now
    if client.reason == DOWN:
        return _verdict(DOWN, f"{_silent(resource)}; its clients cannot use the GPU", since, action="Inspect")
    when = since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    text = f"the MPS control daemon of {resource} was started anew at {when}; CUDA contexts from before are lost"
    return _verdict(RESTARTED, text, since, action="RestartApp")


def with_daemons(
    verdicts: Mapping[str, Verdict], mps: Mps, wanted: Sequence[WantedDaemon] | None
) -> Mapping[str, Verdict]:
    """The verdicts, with the devices whose daemon does not answer taken out: that is what the kubelet is told."""
    down: dict[str, Verdict] = {}
    for each in wanted or ():
        since = mps.daemons.get(each.resource, Daemon()).down
        if since is not None:
            text = f"{_silent(each.resource)}; its shares are withheld"
            down |= {gpu.id: _verdict(DOWN, text, since, action="Inspect") for gpu in each.gpus}
    fit = {each for each in down if each not in verdicts or verdicts[each].offered}
    return {**verdicts, **{each: down[each] for each in fit}} if fit else verdicts


def _silent(resource: str) -> str:
    return f"the MPS control daemon of {resource} does not answer (logs of nodedevices-mps say why)"


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
