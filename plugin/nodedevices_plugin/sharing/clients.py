"""Finds the containers that lost their state when the helper of their resource ended.

A client's state is kept in its helper (for MPS: its CUDA contexts in the daemon's server): when that ends it is lost,
also where a new helper answers a moment later. So each client is remembered with the helper that it started with
(`HelperProcess.instance`), and compared at every step, in the state file across restarts. A helper that does not answer
takes its devices out of service and marks all its clients; once it is back they are as before where it is the same one,
and have to restart where it is another one. New clients of the new helper are healthy. No verdict is
given before the first answer of a run, or while the holders are not known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime

from nodedevices_common.times import rfc3339

from nodedevices_plugin.model import HealthState, Holder, HoldersState, Holdings, Plan, Verdict
from nodedevices_plugin.sharing.base import Helper, HelperProcess, HelperTexts
from nodedevices_plugin.sharing.registry import SharingModes
from nodedevices_plugin.sharing.resources import helper_kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A container with shares. `reason` "": it has lost nothing, as far as is known; else one of its mode's
    HelperTexts."""

    instance: str = ""
    held: datetime | None = None  # Holder.since in this run of the agent; None: it is from the run before
    reason: str = ""
    since: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenHelper:
    """A helper as it was last known. `down`: since when it does not answer."""

    instance: str = ""
    down: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """All that is remembered: helpers by resource, clients by `key`."""

    helpers: Mapping[str, SeenHelper] = field(default_factory=dict)
    clients: Mapping[str, Client] = field(default_factory=dict)


def key(holder: Holder) -> str:
    return f"{holder.namespace}/{holder.pod}/{holder.container}/{holder.resource}"


def restored(before: Clients) -> Clients:
    """After a start of the agent: since when a container holds its devices is counted from then."""
    return replace(before, clients={each: replace(client, held=None) for each, client in before.clients.items()})


def follow(
    before: Clients,
    plan: Plan | None,
    holdings: Holdings,
    processes: Mapping[str, HelperProcess],
    *,
    not_ours: Set[str],
    now: datetime,
) -> Clients:
    """Return the clients as they are known now. `not_ours`: resources that another plugin serves: their pods know no
    helper of ours."""
    if plan is None:
        return before
    kinds = {each.name: helper_kind(each) for each in plan.resources if each.name not in not_ours}
    texts = {name: kind.texts for name, kind in kinds.items() if kind is not None}
    helpers = {
        name: _helper(before.helpers.get(name, SeenHelper()), processes.get(name, HelperProcess()), now)
        for name in texts
    }
    known = holdings.state is HoldersState.SYNCED
    clients: dict[str, Client] = {}
    for holder in holdings.holders:
        if holder.resource is not None and holder.resource in texts:
            was = before.clients.get(key(holder))
            seen = before.helpers.get(holder.resource, SeenHelper()).instance
            process = processes.get(holder.resource, HelperProcess())
            clients[key(holder)] = _client(was, holder, process, texts[holder.resource], seen=seen, now=now)
    kept = {each: client for each, client in before.clients.items() if each not in clients and not known}
    return Clients(helpers=helpers, clients=dict(sorted((kept | clients).items())))


def _helper(before: SeenHelper, process: HelperProcess, now: datetime) -> SeenHelper:
    if process.answers is None:
        return before
    if not process.answers:
        return replace(before, down=before.down or now)
    return SeenHelper(instance=process.instance)


def _client(
    was: Client | None, holder: Holder, process: HelperProcess, texts: HelperTexts, *, seen: str, now: datetime
) -> Client:
    """`seen`: the helper that answered before this step."""
    new = was is None or (was.held is not None and was.held != holder.since)
    client = Client(held=holder.since) if was is None or new else replace(was, held=holder.since)
    if process.answers is None:
        return client
    if not process.answers:
        return client if client.reason else replace(client, reason=texts.down, since=now)
    if client.reason == texts.restarted:
        return client
    if new:
        # One that is first listed just as the helper is another may have come to the one before.
        came_before = (
            seen not in {"", process.instance} and process.started is not None and holder.since < process.started
        )
        other = came_before
    elif client.reason == texts.down:
        other = not process.instance or client.instance != process.instance
    else:
        other = "" not in {client.instance, process.instance} and client.instance != process.instance
    if other:
        return replace(client, reason=texts.restarted, since=process.started or now)
    return Client(instance=process.instance or client.instance, held=holder.since)


# --- what is reported ------------------------------------------------------------------------------------------------
def client_verdict(client: Client | None, resource: str, now: datetime, modes: SharingModes) -> Verdict | None:
    """Return the verdict on one client; None: it lost nothing."""
    if client is None or (texts := modes.texts(client.reason)) is None:
        return None
    since = client.since or now
    if client.reason == texts.down:
        return _verdict(texts.down, f"{_silent(texts, resource)}; {texts.down_means}", since, action="Inspect")
    when = rfc3339(since)
    what = f"the {texts.title} {texts.program} of {resource} was restarted at {when}"
    return _verdict(texts.restarted, f"{what}; {texts.state} from before are lost", since, action="RestartApp")


def lost_texts(client: Client, modes: SharingModes) -> HelperTexts | None:
    """Return the texts for a client that lost its state with its helper; None for any other."""
    texts = modes.texts(client.reason)
    return texts if texts is not None and client.reason == texts.restarted else None


def log_message(client: Client, modes: SharingModes) -> str:
    """Return the log message for a client that has a reason."""
    texts = modes.texts(client.reason)
    return texts.log if texts is not None else "client without its helper"


def with_helpers(
    verdicts: Mapping[str, Verdict], known: Clients, wanted: Sequence[Helper] | None
) -> Mapping[str, Verdict]:
    """Return the verdicts, with devices out of service while their helper does not answer: as they are shown."""
    down: dict[str, Verdict] = {}
    for each in wanted or ():
        if (since := known.helpers.get(each.resource, SeenHelper()).down) is not None:
            texts = each.kind.texts
            text = f"{_silent(texts, each.resource)}; its shares are not offered"
            down |= {device: _verdict(texts.down, text, since, action="Inspect") for device in each.device_ids}
    fit = {each for each in down if each not in verdicts or verdicts[each].offered}
    return {**verdicts, **{each: down[each] for each in fit}} if fit else verdicts


def _silent(texts: HelperTexts, resource: str) -> str:
    hint = f" ({texts.hint})" if texts.hint else ""
    return f"the {texts.title} {texts.program} of {resource} does not answer{hint}"


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
