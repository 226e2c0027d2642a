"""Which containers lost something when the helper of their resource ended. Pure.

A client's work lives in its helper (for MPS: its CUDA contexts in the daemon's server): when that ends it is lost, also
where a new helper answers a moment later. So each client is remembered with the helper that it came to
(`Life.instance`), and compared at every step, in the state file across restarts. A helper that does not answer takes
its devices out of service and tells all its clients; once it is back they are as before where it is the same one, and
told to restart where it is another. New clients of the new helper are well from the start. Nothing is said while nobody
knows: before the first answer of a run, or where the kubelet does not tell who holds what.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from nodedevices_plugin.model import HealthState, Holder, HoldersState, Holdings, Plan, Verdict
from nodedevices_plugin.sharing.base import Helper, Life, Words
from nodedevices_plugin.sharing.registry import by_strategy, helper_kind, helper_kinds


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A container with shares. `reason` "": it has lost nothing, as far as is known; else one of its mode's Words."""

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
    """After a start of the agent: since when a container holds its devices is told anew."""
    return replace(before, clients={each: replace(client, held=None) for each, client in before.clients.items()})


def follow(
    before: Clients,
    plan: Plan | None,
    holdings: Holdings,
    lives: Mapping[str, Life],
    *,
    not_ours: Set[str],
    now: datetime,
) -> Clients:
    """What is known now. `not_ours`: resources that another plugin serves: their pods know no helper of ours."""
    if plan is None:
        return before
    kinds = {each.name: helper_kind(each) for each in plan.resources if each.name not in not_ours}
    words = {name: kind.words for name, kind in kinds.items() if kind is not None}
    helpers = {name: _helper(before.helpers.get(name, SeenHelper()), lives.get(name, Life()), now) for name in words}
    known = holdings.state is HoldersState.SYNCED
    clients: dict[str, Client] = {}
    for holder in holdings.holders:
        if holder.resource is not None and holder.resource in words:
            was = before.clients.get(key(holder))
            seen = before.helpers.get(holder.resource, SeenHelper()).instance
            life = lives.get(holder.resource, Life())
            clients[key(holder)] = _client(was, holder, life, words[holder.resource], seen=seen, now=now)
    kept = {each: client for each, client in before.clients.items() if each not in clients and not known}
    return Clients(helpers=helpers, clients=dict(sorted((kept | clients).items())))


def _helper(before: SeenHelper, life: Life, now: datetime) -> SeenHelper:
    if life.answers is None:
        return before
    if not life.answers:
        return replace(before, down=before.down or now)
    return SeenHelper(instance=life.instance)


def _client(was: Client | None, holder: Holder, life: Life, words: Words, *, seen: str, now: datetime) -> Client:
    """`seen`: the helper that answered before this step."""
    new = was is None or (was.held is not None and was.held != holder.since)
    client = Client(held=holder.since) if was is None or new else replace(was, held=holder.since)
    if life.answers is None:
        return client
    if not life.answers:
        return client if client.reason else replace(client, reason=words.down, since=now)
    if client.reason == words.restarted:
        return client
    if new:
        # One that is first listed just as the helper is another may have come to the one before.
        came_before = seen not in {"", life.instance} and life.started is not None and holder.since < life.started
        other = came_before
    elif client.reason == words.down:
        other = not life.instance or client.instance != life.instance
    else:
        other = "" not in {client.instance, life.instance} and client.instance != life.instance
    if other:
        return replace(client, reason=words.restarted, since=life.started or now)
    return Client(instance=life.instance or client.instance, held=holder.since)


# --- what is reported ------------------------------------------------------------------------------------------------
def client_verdict(client: Client | None, resource: str, now: datetime) -> Verdict | None:
    """What happened to one client. None: nothing."""
    if client is None or (words := _words(client.reason)) is None:
        return None
    since = client.since or now
    if client.reason == words.down:
        return _verdict(words.down, f"{_silent(words, resource)}; {words.down_means}", since, action="Inspect")
    when = since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    what = f"the {words.title} {words.program} of {resource} was restarted at {when}"
    return _verdict(words.restarted, f"{what}; {words.state} from before are lost", since, action="RestartApp")


def lost_words(client: Client) -> Words | None:
    """Of a client that lost its work with the helper that it came to; None for any other."""
    words = _words(client.reason)
    return words if words is not None and client.reason == words.restarted else None


def log_message(client: Client) -> str:
    """For a client that has a reason."""
    words = _words(client.reason)
    return words.log if words is not None else "client without its helper"


def with_helpers(
    verdicts: Mapping[str, Verdict], known: Clients, wanted: Sequence[Helper] | None
) -> Mapping[str, Verdict]:
    """The verdicts, with the devices whose helper does not answer taken out: that is what is shown of them."""
    down: dict[str, Verdict] = {}
    for each in wanted or ():
        since, kind = known.helpers.get(each.resource, SeenHelper()).down, by_strategy(each.mode).helper
        if since is not None and kind is not None:
            words = kind.words
            text = f"{_silent(words, each.resource)}; its shares are not offered"
            down |= {device: _verdict(words.down, text, since, action="Inspect") for device in each.device_ids}
    fit = {each for each in down if each not in verdicts or verdicts[each].offered}
    return {**verdicts, **{each: down[each] for each in fit}} if fit else verdicts


def _words(reason: str) -> Words | None:
    """Of the mode that has this reason."""
    return next((kind.words for kind in helper_kinds() if reason in {kind.words.down, kind.words.restarted}), None)


def _silent(words: Words, resource: str) -> str:
    hint = f" ({words.hint})" if words.hint else ""
    return f"the {words.title} {words.program} of {resource} does not answer{hint}"


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
