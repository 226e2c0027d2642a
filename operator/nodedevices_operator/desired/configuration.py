"""One node's configuration: the merge rule, and what this version understands of a stored one.

Policies are sorted by (priority descending, creation ascending, name); for each section the first that sets it supplies
the whole section. What cannot be used changes nothing: a policy that is edited into something refused goes on with what
it supplies to this node already (the node's own spec remembers it, so a restart does not lose it), and a combination
that makes no sense keeps the node's last good configuration. Both are said on the node and on the policy.

NodeDevices.spec.config may have been written by a newer operator, or by hand. What is not understood is no reason to
take anything back: each section is read by itself, without the fields that are not known. By a section of which
something was left out only what is information is written (marks on pods, conditions); the rest of what it has led to
stays as it stands, since the field that is missing may have been the one that limits it.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from operator import attrgetter
from typing import Any

import orjson
from msgspec import Struct, field, structs
from nodedevices_api import conditions as names
from nodedevices_api.base import to_dict, wire_name
from nodedevices_api.defaults import Resolved, with_defaults
from nodedevices_api.errors import explain, parse
from nodedevices_api.sections import SECTION_NAMES, Sections
from nodedevices_common.errors import InputError
from pydantic import ValidationError

from nodedevices_operator.records.objects import PolicyRecord, PolicyRef
from nodedevices_operator.records.shared import MAX_CONFIGS

WHERE = "config"
WIRE_SECTIONS = tuple(wire_name(name) for name in SECTION_NAMES)


# --- what is understood ----------------------------------------------------------------------------------------------
class Understood(Struct, frozen=True):
    """`problems`: what was left out, a line each; empty: nothing."""

    sections: Resolved
    partly: frozenset[str] = frozenset()  # sections of which something was left out
    problems: tuple[str, ...] = ()
    misfit: str = ""  # why the sections cannot be combined; then none of them is acted by


def understood(config: Mapping[str, Any]) -> Understood:
    """Return what can be used of these sections, with the built-in defaults."""
    return _understood(orjson.dumps(config))


@lru_cache(MAX_CONFIGS)
def _understood(dumped: bytes) -> Understood:
    config = orjson.loads(dumped)
    try:
        return Understood(with_defaults(parse(Sections, config, WHERE)))
    except InputError:
        pass
    kept: dict[str, Any] = {}
    partly: set[str] = set()
    problems: list[str] = []
    for name, given in config.items():
        section, lines = _without_unknown_fields(name, given)
        problems += lines
        if name in WIRE_SECTIONS and lines:
            partly.add(name)
        if section is not None:
            kept[name] = section
    try:
        sections = with_defaults(parse(Sections, kept, WHERE))
    except InputError as error:
        return Understood(with_defaults(Sections()), frozenset(WIRE_SECTIONS), tuple(problems), str(error))
    return Understood(sections, frozenset(partly), tuple(problems))


def _without_unknown_fields(name: str, given: object) -> tuple[object, list[str]]:
    """The section without fields that are not known, or None where it cannot be read even so; and what is wrong."""
    section = {name: copy.deepcopy(given)}
    lines: list[str] = []
    for _ in range(2):  # with the unknown fields, and without them
        try:
            Sections.model_validate(section, by_alias=True, by_name=False)
        except ValidationError as error:
            lines += explain(error, Sections, WHERE)
            details = error.errors()
            unknown = [detail["loc"] for detail in details if detail["type"] == "extra_forbidden"]
            if len(unknown) < len(details) or not all(_removed(section, place) for place in unknown):
                return None, lines
        else:
            return section.get(name), lines
    return None, lines


def _removed(tree: Any, place: tuple[int | str, ...]) -> bool:
    """True when it could be taken out."""
    *way, last = place
    try:
        for part in way:
            tree = tree[part]
        del tree[last]
    except (KeyError, IndexError, TypeError):
        return False
    return True


# --- the merge rule --------------------------------------------------------------------------------------------------
CONFIG_NAME_LABEL = "nvidia.com/device-plugin.config"
HASH_DIGITS = 16
MAX_POLICIES = 32  # spec.policies


class PolicyOutcome(Struct, frozen=True):
    """How one policy fares on this node."""

    supplies: tuple[str, ...] = ()
    overridden: tuple[str, ...] = ()  # sections that a stronger policy supplies
    conflicts: tuple[str, ...] = ()  # names of the older policies of the same priority that won
    failed: bool = False  # part of a combination that makes no sense
    generation: int = 0  # of the policy that is in effect here


class DryRun(Struct, frozen=True):
    """A DryRun policy as it would be for this node, if it were enforced."""

    supplies: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()  # names of the older policies of the same priority that would win
    changes: tuple[str, ...] = ()  # the sections that would be others than now
    misfit: str = ""  # why it could not take effect beside the other policies
    faults: Mapping[str, Any] | None = None  # the section `faults`, where it would supply that
    now: Mapping[str, Any] = field(default_factory=dict)  # the node's whole configuration without it
    then: Mapping[str, Any] = field(default_factory=dict)  # and with it


class Configuration(Struct, frozen=True):
    config: Mapping[str, Any]
    config_name: str
    config_hash: str
    policies: tuple[PolicyRef, ...]
    status: str  # of PolicyResolved
    reason: str
    message: str
    outcomes: Mapping[str, PolicyOutcome] = field(default_factory=dict)
    dry_runs: Mapping[str, DryRun] = field(default_factory=dict)  # of DryRun policies
    held: frozenset[str] = frozenset()  # policies whose change waits for its turn here (desired.rollout)


def resolve(
    labels: Mapping[str, str],
    policies: Sequence[PolicyRecord],
    before: Mapping[str, Any] | None = None,
    refs_before: tuple[PolicyRef, ...] = (),
) -> Configuration:
    """The node's configuration. `policies` are all there are, in any order; `labels` are the Node's; `before` and
    `refs_before` are its spec's config and policies now, None: it was never resolved."""
    contenders, refused = _candidates(labels, policies, before or {}, refs_before)
    config, outcomes, conflicts = _merge(contenders)
    dry_runs = {
        policy.name: _dry_run(policy, contenders, config)
        for policy in policies
        if policy.dry_run and policy.spec is not None and policy.selects(labels)
    }
    problems = list(refused)
    refs = within_limit(PolicyRef(it.name, it.generation, it.priority, outcomes[it.name].supplies) for it in contenders)
    read = understood(config)  # a section that stays in effect may be of a newer version
    problems += read.problems
    if misfit := read.misfit:
        problems.insert(0, f"the policies {', '.join(c.name for c in contenders)} cannot be combined: {misfit}")
        outcomes = {name: structs.replace(it, failed=True, generation=0) for name, it in outcomes.items()}
        config, refs = dict(before or {}), refs_before
    if problems:
        status, reason = "False", names.POLICY_INVALID
        message = "; ".join([*problems, *conflicts, "the previous configuration stays in effect"])
    elif conflicts:
        status, reason, message = "False", names.CONFLICT, "; ".join(conflicts)
    elif not contenders:
        status, reason, message = "True", names.NO_POLICY, "no DevicePolicy selects this node"
    else:
        given = [f"{section} from {ref.name}" for ref in refs for section in ref.sections]
        status, reason, message = "True", names.RESOLVED, ", ".join(given)
    name = labels.get(CONFIG_NAME_LABEL, "")
    return Configuration(
        config=config,
        config_name=name,
        config_hash=config_hash(config, name),
        policies=refs,
        status=status,
        reason=reason,
        message=message,
        outcomes=outcomes,
        dry_runs=dry_runs,
    )


def config_hash(config: Mapping[str, Any], config_name: str) -> str:
    """Return what the agent echoes when this configuration is in effect there; covers both parts, in canonical JSON."""
    canonical = orjson.dumps({"config": config, "configName": config_name}, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(canonical).hexdigest()[:HASH_DIGITS]


def _candidates(
    labels: Mapping[str, str],
    policies: Sequence[PolicyRecord],
    config: Mapping[str, Any],
    refs: tuple[PolicyRef, ...],
) -> tuple[list[PolicyRecord], list[str]]:
    """Return the policies that take part, strongest first, and a line for each that is selected but refused."""
    before = {ref.name: ref for ref in refs}
    found: list[PolicyRecord] = []
    refused: list[str] = []
    for policy in policies:
        if policy.dry_run:
            continue
        if policy.paused:
            if (last := before.get(policy.name)) is not None:
                found.append(_as_it_is(policy, last, config))
            continue
        if policy.spec is not None:
            if policy.selects(labels):
                found.append(policy)
            continue
        last = before.get(policy.name)
        if not (policy.selects(labels) or (policy.selector is None and last is not None)):
            continue
        line = f"policy {policy.name} is not accepted ({policy.refusal})"
        if last is not None:
            line += f", generation {last.generation} stays in effect"
            kept = _kept(last, config)
            found.append(replace(policy, generation=last.generation, priority=last.priority, sections=kept))
        refused.append(line)
    found.sort(key=attrgetter("rank"))
    return found, sorted(refused)


def _kept(last: PolicyRef, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the node has of a policy."""
    return {name: config[name] for name in last.sections if name in config}


def _as_it_is(policy: PolicyRecord, last: PolicyRef, config: Mapping[str, Any]) -> PolicyRecord:
    """A paused policy as the node has it. It counts as that of now where it has brought all that it sets, but for what
    a stronger policy supplies."""
    kept = _kept(last, config)
    whole = all(
        means_the_same(name, section, kept[name]) if name in kept else name in config
        for name, section in policy.sections.items()
    )
    generation = policy.generation if whole and kept.keys() <= policy.sections.keys() else last.generation
    return replace(policy, generation=generation, priority=last.priority, sections=kept)


def _dry_run(policy: PolicyRecord, contenders: Sequence[PolicyRecord], config: Mapping[str, Any]) -> DryRun:
    """The policy as one contender more. `config` is what the others come to without it."""
    would, outcomes, _ = _merge(sorted([*contenders, policy], key=attrgetter("rank")))
    mine = outcomes[policy.name]
    return DryRun(
        supplies=mine.supplies,
        conflicts=mine.conflicts,
        changes=tuple(
            section for section in mine.supplies if not means_the_same(section, would[section], config.get(section, {}))
        ),
        misfit=understood(would).misfit,
        faults=would["faults"] if "faults" in mine.supplies else None,
        now=config,
        then=would,
    )


def _merge(contenders: Sequence[PolicyRecord]) -> tuple[dict[str, Any], dict[str, PolicyOutcome], list[str]]:
    """Return the configuration, how each policy fares, and a line for each that an older one of its priority beats."""
    givers = {section: [policy for policy in contenders if section in policy.sections] for section in WIRE_SECTIONS}
    winners = {section: policies[0] for section, policies in givers.items() if policies}
    beaten = [
        (section, winner, policy)
        for section, winner in winners.items()
        for policy in givers[section][1:]
        if policy.priority == winner.priority
        and not means_the_same(section, policy.sections[section], winner.sections[section])
    ]
    outcomes = {
        policy.name: PolicyOutcome(
            supplies=tuple(section for section, winner in winners.items() if winner is policy),
            overridden=tuple(
                section for section, winner in winners.items() if winner is not policy and section in policy.sections
            ),
            conflicts=tuple(sorted({winner.name for _, winner, loser in beaten if loser is policy})),
            generation=policy.generation,
        )
        for policy in contenders
    }
    lines = [
        f"{section}: {winner.name} and {policy.name} have priority {winner.priority} and differ; "
        f"the older {winner.name} stays in effect"
        for section, winner, policy in beaten
    ]
    return {section: winner.sections[section] for section, winner in winners.items()}, outcomes, lines


def means_the_same(section: str, one: object, other: object) -> bool:
    """True when they mean the same: `{}` and a section that spells out the defaults do."""
    if one == other:
        return True
    mine, theirs = (_in_full(section, orjson.dumps(it)) for it in (one, other))
    return mine is not None and mine == theirs


@lru_cache(1024)  # a fleet has few different ones
def _in_full(section: str, given: bytes) -> Mapping[str, Any] | None:
    """Return the section with its defaults; None: it cannot be read."""
    try:
        return to_dict(with_defaults(parse(Sections, {section: orjson.loads(given)})))
    except InputError:
        return None


def within_limit(refs: Iterable[PolicyRef]) -> tuple[PolicyRef, ...]:
    """Return spec.policies, the strongest first. Where they are too many, those that supply nothing are left out
    first, the weakest of them before the others."""
    kept = list(refs)
    silent = [ref for ref in reversed(kept) if not ref.sections]
    dropped = {ref.name for ref in silent[: max(0, len(kept) - MAX_POLICIES)]}
    return tuple(ref for ref in kept if ref.name not in dropped)
