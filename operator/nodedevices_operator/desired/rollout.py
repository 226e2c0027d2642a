"""The staged roll-out of a change of policies: to some nodes at a time, and no further while one of them is worse off.

Staged are the sections that agents act on, since these decide what a node offers; what the operator does by itself
(faults, capacity, labels) has limits of its own and comes to every node at once. The state is on the nodes, so that
an operator that starts anew goes on: `spec.config` and `spec.policies` say what a node has, and `spec.change`, written
with a change and taken back when the node has shown that it lost nothing, that it is watched.

A node has taken a change when its agent has applied it, SETTLE_SECONDS have gone by, and as many devices as before are
accounted for: offered, excluded by a policy, or out of service. That time is needed since the status that says that a
change is applied comes before the one that shows what it did: devices are judged anew after it, a new probe reports
after it, and an agent that has written much writes seconds later.

A node is worse off when its agent refuses the change, when devices are missing for LOSS_SECONDS, or when its Node is
not Ready. While one is, the rest of that policy's nodes wait; a changed policy, a person's word or the node's recovery
goes on. Pods that hold devices in an earlier shape stop nothing.

What has nothing to lose, or no way to show it, gets its configuration at once and is not watched: a node that joins,
one that offers nothing, whose Node is not Ready, whose agent is silent or refuses what it has already.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Set

from msgspec import Struct, field
from msgspec.structs import replace
from nodedevices_api import conditions as names
from nodedevices_api.devicepolicy import Rollout
from nodedevices_common.confirming import CONFIG_ACCEPTED, CONFIRM, NAMED, OF_POLICY, ROLLOUT_RESUMED, read, says
from nodedevices_common.text import some
from nodedevices_common.times import seconds_between

from nodedevices_operator.desired.configuration import (
    MAX_POLICIES,
    Configuration,
    config_hash,
    understood,
    within_limit,
)
from nodedevices_operator.records.objects import ChangeRecord, NodeDevicesRecord, NodeRecord, PolicyRecord, PolicyRef
from nodedevices_operator.records.shared import shared

STAGED = ("serving", "resources", "sharing", "partitions", "injection", "health", "discovery", "expect")
SETTLE_SECONDS = 10.0  # an agent's next status comes within 5 s (its token bucket), and probes report every few seconds
STARTING_SECONDS = 15.0  # after which an agent gives up what a probe of before found, and waits no more for a new one
LOSS_SECONDS = 30.0  # names register, probes start and other plugins take over within seconds
REFUSED = (names.CONFIG_INVALID, names.REGISTRATION_REJECTED)  # of ConfigApplied, and does not pass by itself
USUAL = Rollout()


class Standing(Struct, frozen=True):
    """One node in the roll-outs of its policies."""

    members: frozenset[str] = frozenset()  # policies that supply a staged section here, or shall
    pending: Mapping[str, frozenset[str]] = field(default_factory=dict)  # sections to change, with whose change it is
    under_way: frozenset[str] = frozenset()  # policies whose change is watched here
    worse_off: str = ""  # why it is worse off than before that change
    free: bool = False  # it gets its configuration at once
    again: float | None = None  # seconds after which to look again


class RolloutWatch(Struct, frozen=True):
    """Times, by its monotonic clock, at which this operator saw what a node shows of its change. Another one sees it
    anew."""

    config_hash: str
    applied: float
    started: float  # no probe is waited for any more
    starting: bool = False  # one is

    def remaining(self, clock: float) -> float:
        """Seconds until what the change did shows; none are left at 0 or less."""
        return self.started + SETTLE_SECONDS - clock


class RolloutState(Struct, frozen=True):
    """One policy's roll-out."""

    waiting: int = 0  # nodes
    under_way: tuple[str, ...] = ()  # the first of them
    under_way_count: int = 0
    worse_off: tuple[tuple[str, str], ...] = ()  # nodes, each with why
    resumed: bool = False  # a person said that it goes on
    refused: str = ""  # what is wrong with how they said it

    @property
    def stopped(self) -> bool:
        return bool(self.worse_off) and not self.resumed

    @property
    def done(self) -> bool:
        return not self.waiting and (not self.under_way_count or self.resumed)


def standing(
    record: NodeDevicesRecord,
    node: NodeRecord,
    wanted: Configuration,
    *,
    pause_seconds: float,
    settle_seconds: float,
    now: str,
) -> Standing:
    """`pause_seconds`: of the policies whose change is under way, since it was written; `settle_seconds`: from now."""
    before, after = suppliers(record.policies, record.config), suppliers(wanted.policies, wanted.config)
    pending = {
        section: frozenset(filter(None, (before.get(section), after.get(section))))
        for section in STAGED
        if (record.config or {}).get(section) != wanted.config.get(section)
    }
    members = shared((*before.values(), *after.values()))
    if record.change is None:
        return Standing(members=members, pending=pending, free=_free(record, node))
    watched = frozenset(record.change.policies)
    worse_off, again = _judge(
        record, node, record.change, pause_seconds=pause_seconds, settle_seconds=settle_seconds, now=now
    )
    done = again is None and not worse_off
    return Standing(
        members=members | watched,
        pending=pending,
        under_way=frozenset() if done else watched,
        worse_off=worse_off,
        again=again or None,
    )


def suppliers(refs: tuple[PolicyRef, ...], config: Mapping[str, object] | None) -> dict[str, str]:
    """Return the policy that supplies each staged section."""
    return {
        section: ref.name for ref in refs for section in ref.sections if section in STAGED and section in (config or {})
    }


def _free(record: NodeDevicesRecord, node: NodeRecord) -> bool:
    applied = record.condition(names.CONFIG_APPLIED)
    return (
        record.config is None
        or not record.summary.offered
        or not node.ready
        or record.is_true(names.STALE)
        or (applied is not None and applied.reason in REFUSED)
    )


def accounted(record: NodeDevicesRecord) -> int:
    """Devices that are offered, or are not because people or a policy say so."""
    it = record.summary
    return (it.offered or 0) + it.excluded + it.unschedulable


def watch(record: NodeDevicesRecord, before: RolloutWatch | None, clock: float) -> RolloutWatch | None:
    """Return what is remembered of a node that is watched; None: nothing, as its agent has not applied the change."""
    if record.change is None or not _applied(record):
        return None
    if before is None or before.config_hash != record.config_hash:
        before = RolloutWatch(record.config_hash, applied=clock, started=clock)
    starting = record.probe_starting and clock - before.applied < STARTING_SECONDS
    return replace(before, started=clock, starting=starting) if starting or before.starting else before


def _applied(record: NodeDevicesRecord) -> bool:
    """True when the agent has applied what the object says, as far as pods let it."""
    applied = record.condition(names.CONFIG_APPLIED)
    if applied is None or record.observed_generation < record.generation:
        return False
    return applied.reason == names.WAITING_FOR_HOLDERS or (
        applied.status == "True" and record.applied_hash == record.config_hash
    )


def _judge(
    record: NodeDevicesRecord,
    node: NodeRecord,
    change: ChangeRecord,
    *,
    pause_seconds: float,
    settle_seconds: float,
    now: str,
) -> tuple[str, float | None]:
    """Why it is worse off, or the seconds after which to look again (0: when something happens); neither: it has taken
    the change."""
    if says(record.confirm, CONFIG_ACCEPTED, record.config_hash):
        return "", None
    if not node.ready:
        return "its Node is not Ready", 0.0
    applied = record.condition(names.CONFIG_APPLIED)
    current = record.observed_generation >= record.generation
    if applied is not None and current and applied.status == "False" and applied.reason in REFUSED:
        return applied.message or applied.reason, 0.0
    if applied is None or not _applied(record):
        return "", 0.0
    held = applied.reason == names.WAITING_FOR_HOLDERS
    age = seconds_between(change.time, now)
    age = math.inf if age is None else age
    lost = change.devices - accounted(record) - (record.summary.held if held else 0)
    if record.summary.offered is None or lost > 0:
        if age < LOSS_SECONDS:
            return "", LOSS_SECONDS - age
        return f"{lost} of {change.devices} devices are no longer offered", 0.0
    more = max(pause_seconds - age, settle_seconds)
    return ("", more) if more > 0 else ("", None)


def next_change(record: NodeDevicesRecord, standing: Standing, held: Set[str], now: str) -> ChangeRecord | None:
    """spec.change, where the sections `held` stay and the others that are pending change now."""
    going = frozenset[str]().union(*(policies for section, policies in standing.pending.items() if section not in held))
    watched = record.change if standing.under_way else None
    if not going or (standing.free and watched is None):
        return watched
    return ChangeRecord(
        time=now,
        devices=max(accounted(record), watched.devices if watched is not None else 0),
        policies=tuple(sorted(going | standing.under_way))[:MAX_POLICIES],
    )


def held_back(wanted: Configuration, record: NodeDevicesRecord, held: Set[str], why: str) -> Configuration:
    """The configuration where these sections stay as they are, with who supplies them. `held` are sections of
    `pending`."""
    if not held:
        return wanted
    before = record.config or {}
    config = {name: value for name, value in wanted.config.items() if name not in held}
    config |= {name: before[name] for name in sorted(held) if name in before}
    waits = frozenset(
        name
        for refs, some in ((record.policies, before), (wanted.policies, wanted.config))
        for section, name in suppliers(refs, some).items()
        if section in held
    )
    refs = _references(wanted, record, held)
    if understood(config).misfit:  # what stays does not go with the rest: all of it waits
        config, refs = dict(before), record.policies
    return replace(
        wanted,
        config=config,
        config_hash=config_hash(config, wanted.config_name),
        policies=refs,
        message=f"{wanted.message}; {why}",
        held=waits,
    )


def _references(wanted: Configuration, record: NodeDevicesRecord, held: Set[str]) -> tuple[PolicyRef, ...]:
    """A policy of which a section stays is there with the generation that the section is of."""
    found = {
        ref.name: dataclasses.replace(ref, sections=tuple(section for section in ref.sections if section not in held))
        for ref in wanted.policies
    }
    for ref in record.policies:
        kept = tuple(section for section in ref.sections if section in held)
        if kept:
            new = found.get(ref.name)
            found[ref.name] = dataclasses.replace(ref, sections=(*kept, *(new.sections if new is not None else ())))
    return within_limit(sorted(found.values(), key=lambda ref: -ref.priority))


def most_nodes(policy: PolicyRecord | None, nodes: int) -> int:
    """Return how many nodes of so many take a change at one time. A policy that is deleted goes by the built-in
    default."""
    most = _rollout(policy).max_nodes
    return max(1, -(-int(most.removesuffix("%")) * nodes // 100)) if isinstance(most, str) else most


def pause_of(policy: PolicyRecord | None) -> int:
    return _rollout(policy).pause_seconds


def _rollout(policy: PolicyRecord | None) -> Rollout:
    rollout = policy.spec.rollout if policy is not None and policy.spec is not None else None
    return rollout if rollout is not None else USUAL


def resumed(policy: PolicyRecord | None) -> bool:
    """True when a person said that this generation goes on."""
    return policy is not None and says(policy.confirm, ROLLOUT_RESUMED, str(policy.generation))


def wrong_word(policy: PolicyRecord) -> str:
    """Return what is wrong with the annotation. An entry for an earlier generation is used up."""
    if not policy.confirm:
        return ""
    entries, problems = read(policy.confirm, OF_POLICY)
    right = ROLLOUT_RESUMED.entry(str(policy.generation))
    problems += [
        f"{entry}: the policy has no such generation yet: give {right}"
        for entry in entries
        if int(entry.what) > policy.generation
    ]
    return f"annotation {CONFIRM}: {some(problems, NAMED)}" if problems else ""
