"""Nodes with the policies as they are, beside nodes with the policies as they would be; and what differs.

A roll-out (spec.rollout) is not foreseen: what is said of a node is what it comes to once its turn has come. Taints and
evictions are answered by the operator's budgets and its breaker, for all nodes together, as if they came at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct, field
from msgspec.structs import asdict, replace
from nodedevices_api.conditions import ACTIONS_STOPPED, CONFLICT
from nodedevices_common.observing import without_effect, would_observe
from nodedevices_common.raw import Raw, mapping, text
from nodedevices_common.text import listing
from nodedevices_common.times import rfc3339
from nodedevices_operator.desired.capacity import plan_capacity
from nodedevices_operator.desired.configuration import (
    WIRE_SECTIONS,
    Configuration,
    DryRun,
    means_the_same,
    resolve,
    understood,
)
from nodedevices_operator.desired.dry_run import (
    DryRunEffect,
    IdChanges,
    dry_run_effect,
    id_changes,
    lacking,
    no_dra,
    without_names,
)
from nodedevices_operator.desired.fleet import OPEN, Action, ActionAnswer, Fleet, arrivals, from_data, would_answer
from nodedevices_operator.desired.pools import SECTION as FAULTS, Reacting, coming, dry_run_pool, survey
from nodedevices_operator.records.kinds import node_devices_record, node_record, policy_record
from nodedevices_operator.records.objects import NodeDevicesRecord, NodeRecord, Note, PolicyRecord

from nodedevices_dryrun.ids import IdEffect, ResourceChange, id_effect, rules_without_effect
from nodedevices_dryrun.policies import DELETED, Policies, PolicyChange, changed

# What a change does to a node, the worst first: all but the last two are to be looked at before it is made.
REFUSED, WAITS, HOLDS_BACK, ACTS, TAKES_NAMES, UNCERTAIN, CHANGES, NOTHING = (
    "Refused",
    "Waits",
    "HoldsBack",
    "Acts",
    "TakesNames",
    "Uncertain",
    "Changes",
    "None",
)
_RULES = ("health", FAULTS)  # sections whose rules may be about some devices


class Cluster(Struct, frozen=True):
    """Raw objects of the whole cluster, as an API server gives them. `nodes` None: they cannot be read; then the labels
    of a NodeDevices count, which the operator copies from its Node. `record`: the ConfigMap that `record_of` names;
    None: not read."""

    items: Sequence[Raw]
    policies: Sequence[Raw]
    nodes: Sequence[Raw] | None = None
    record: Raw | None = None


class NodeEffect(Struct, frozen=True):
    """One node. `sections`: of the effective configuration, that would be others."""

    node: str
    sections: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()  # that supply these, as it would be
    refused: tuple[str, ...] = ()  # by the operator or the agent, which keep what is in effect
    ids: IdEffect = field(default_factory=IdEffect)
    capacity: tuple[ResourceChange, ...] = ()
    actions: str = ""  # taints and evictions, as a text for people
    acts: bool = False  # whether there are any, granted or not
    without_names: str = ""  # what pods lose that request a resource by its name, as a text for people

    @property
    def effect(self) -> str:
        found = self.ids
        effects = {
            REFUSED: self.refused or found.refused,
            WAITS: found.waits,
            HOLDS_BACK: found.held_back,
            ACTS: self.acts,
            TAKES_NAMES: self.without_names,
            UNCERTAIN: found.unknown and found.pods,
            CHANGES: self.sections,
        }
        return next((effect for effect, there in effects.items() if there), NOTHING)

    @property
    def message(self) -> str:
        found = self.ids
        pods, keep = listing(found.pods), ""
        if found.held_back:
            keep = f"{listing(found.held_back)}: not for new pods until these have ended: {pods}"
        elif found.pods and not found.waits and not found.unknown:
            keep = f"these pods keep what they hold until they end: {pods}"
        parts = (
            *self.refused,
            found.refused and f"the agent would refuse it: {found.refused}",
            found.waits,
            keep,
            found.unknown and f"which ids change is not known: {found.unknown}",
            found.assumes and f"it is assumed that the node has the component {found.assumes}",
            self.without_names,
            self.actions,
            *(note.text for note in found.unmatched),
        )
        return "; ".join(filter(None, parts))

    def fields(self) -> dict[str, Any]:
        """Return plain values, by the names of `-o json`."""
        found = self.ids
        return {
            "node": self.node,
            "effect": self.effect,
            "policies": list(self.policies),
            "sections": list(self.sections),
            "resources": [asdict(resource) for resource in (*found.resources, *self.capacity)],
            "mayChange": list(found.names),
            "heldBack": list(found.held_back),
            "pods": list(found.pods),
            "waitsFor": list(found.waits_for),
            "unmatched": [note.text for note in found.unmatched],
            "assumes": found.assumes,
            "message": self.message,
        }


class DryRunResult(Struct, frozen=True):
    """`nodes`: only those that a change concerns; `selected`, by policy: how many it selects now, and then."""

    changes: tuple[PolicyChange, ...]
    nodes: tuple[NodeEffect, ...]
    selected: Mapping[str, tuple[int, int]]

    @property
    def matches_nothing(self) -> bool:
        """True when a policy selects no node, or an entry has no effect on any node to which its section comes."""
        if any(not self.selected[change.name][1] for change in self.changes if change.how != DELETED):
            return True
        nodes = Counter((node.policies, section) for node in self.nodes for section in node.sections)
        idle = Counter(
            (node.policies, *place)
            for node in self.nodes
            for place in {(note.section, note.entry) for note in node.ids.unmatched}
        )
        return any(count == nodes[policies, section] for (policies, section, _), count in idle.items())

    @property
    def harmful(self) -> bool:
        harms = {node.effect for node in self.nodes} - {CHANGES, NOTHING}
        return bool(harms) or any(change.refusal for change in self.changes)


class _Node(Struct):
    raw: Raw
    record: NodeDevicesRecord
    node: NodeRecord
    now: Configuration
    then: Configuration
    effect: NodeEffect
    would: DryRunEffect = field(default_factory=DryRunEffect)


def dry_run(cluster: Cluster, given: Sequence[Raw], deleted: Sequence[str], now: datetime) -> DryRunResult:
    policies = changed(cluster.policies, given, deleted, now)
    known = {text(mapping(raw.get("metadata")).get("name")): raw for raw in cluster.nodes or ()}
    changed_names = {change.name for change in policies.changes}
    concerned = [policy for policy in (*policies.before, *policies.after) if policy.name in changed_names]
    records: dict[str, NodeDevicesRecord] = {}
    nodes: dict[str, NodeRecord] = {}
    found: list[_Node] = []
    for raw in cluster.items:
        record = node_devices_record(raw)
        node = _node(record, known)
        records[record.name], nodes[record.name] = record, node
        if any(policy.selects(node.labels) for policy in concerned):
            found.append(_resolved(raw, record, node, policies))
    _answered(found, records, nodes, policies, cluster=cluster, now=now)
    effects = tuple(made.effect for made in found if made.effect.effect != NOTHING)
    before, after = (
        {it.name: sum(it.selects(node.labels) for node in nodes.values()) for it in side if it.name in changed_names}
        for side in (policies.before, policies.after)
    )
    selected = {change.name: (before.get(change.name, 0), after.get(change.name, 0)) for change in policies.changes}
    return DryRunResult(policies.changes, effects, selected)


def _node(record: NodeDevicesRecord, known: Mapping[str, Raw]) -> NodeRecord:
    """Return the Node; where it is not known, one that has the labels of its NodeDevices, and is in service."""
    raw = known.get(record.name)
    return NodeRecord(name=record.name, uid="", labels=record.labels) if raw is None else node_record(raw)


def _resolved(raw: Raw, record: NodeDevicesRecord, node: NodeRecord, policies: Policies) -> _Node:
    sides = (policies.before, policies.after)
    now, then = (resolve(node.labels, side, record.config, record.policies) for side in sides)
    sections = tuple(
        section
        for section in WIRE_SECTIONS
        if not means_the_same(section, now.config.get(section, {}), then.config.get(section, {}))
    )
    refused = [then.message] if then.status == "False" and then.message != now.message else []
    observes = would_observe(now.config, then.config, observing=record.observes)
    changes_ids = bool(sections) and not (observes and record.observes)
    ids = id_effect(raw, record, now.config, then.config) if changes_ids else IdEffect()
    if observes:
        left_out = (Note(section, "", text) for section, text in without_effect(then.config) if section in sections)
        ids = replace(ids, unmatched=(*ids.unmatched, *left_out))
    if changed_rules := {name: then.config[name] for name in _RULES if name in sections and name in then.config}:
        ids = replace(ids, unmatched=(*ids.unmatched, *rules_without_effect(raw, changed_rules)))
    if "expect" in sections:
        few = lacking(understood(then.config).sections.expect, record.devices)
        short = (Note("expect", f"[{at}]", f"expect[{at}]: {text}") for at, text in few.items())
        ids = replace(ids, unmatched=(*ids.unmatched, *short))
    changes = id_changes(record, now.config, then.config) if changes_ids else IdChanges()
    refused += [why] if (why := no_dra(changes, node.kubelet)) else []
    effect = NodeEffect(
        node=record.name,
        sections=sections,
        policies=_suppliers(then, sections),
        refused=tuple(refused),
        ids=ids,
        without_names="" if refused or ids.refused else _without_names(changes, ids, node),
    )
    made = _Node(raw, record, node, now, then, effect)
    if "capacity" in sections:
        made.effect = _with_capacity(made)
    if FAULTS in sections and FAULTS in then.config:
        policy = DryRun(faults=then.config[FAULTS], now=now.config, then=then.config)
        made.would = dry_run_effect(policy, record, node.taints)
    return made


def _without_names(changes: IdChanges, ids: IdEffect, node: NodeRecord) -> str:
    if changes.api != "DRA":
        return ""
    known = [resource.name for resource in ids.resources if resource.by == "dra"]
    return without_names(changes.switched if ids.unknown else known, node.kubelet, by_memory=changes.by_memory)


def _suppliers(then: Configuration, sections: Iterable[str]) -> tuple[str, ...]:
    by = {section: ref.name for ref in then.policies for section in ref.sections}
    return tuple(dict.fromkeys(by[section] for section in sections if section in by))


def _with_capacity(made: _Node) -> NodeEffect:
    """Add what the operator would write on the Node."""
    before, after = (understood(configuration.config).sections.capacity for configuration in (made.now, made.then))
    ours = made.node.owned | {capacity.name for capacity in before}
    was = plan_capacity(before, made.record, made.node, ours=ours).values
    plan = plan_capacity(after, made.record, made.node, ours=ours)
    will = plan.values
    changes = tuple(
        ResourceChange(
            name=name,
            before=was.get(name, 0),
            after=will.get(name, 0),
            gone=max(0, was.get(name, 0) - will.get(name, 0)),
            added=max(0, will.get(name, 0) - was.get(name, 0)),
            sharing="none",
            by="operator",
        )
        for name in sorted({*was, *will})
        if was.get(name, 0) != will.get(name, 0)
    )
    refused = (plan.verdict[2],) if plan.verdict is not None and plan.verdict[1] == CONFLICT else ()
    return replace(made.effect, capacity=changes, refused=(*made.effect.refused, *refused))


# --- faults ----------------------------------------------------------------------------------------------------------
def _answered(
    found: Sequence[_Node],
    records: Mapping[str, NodeDevicesRecord],
    nodes: Mapping[str, NodeRecord],
    policies: Policies,
    *,
    cluster: Cluster,
    now: datetime,
) -> None:
    """Add what would be done about faults, as budgets and breaker allow it to each policy."""
    acting: dict[str, list[_Node]] = {}
    for node in found:
        if FAULTS in node.effect.sections and (by := _suppliers(node.then, [FAULTS])):
            acting.setdefault(by[0], []).append(node)
    if not any(node.would.text({}) for mine in acting.values() for node in mine):
        return
    seen, place = survey(records, nodes, policies.before), record_of(cluster.policies)
    fleet = _fleet(cluster, policies.before, place, now)
    unread = [] if cluster.nodes is not None else ["which Nodes are out of service"]
    unread += [] if fleet is not None else [f"which actions ConfigMap {place} records as done"]
    doubt = f"; unknown here, and counted as none: {', and '.join(unread)}" if unread else ""
    known, reacting = {policy.name: policy for policy in policies.after}, Reacting(policies.after)
    for name, mine in acting.items():
        pool = dry_run_pool(known[name], frozenset(it.name for it in nodes.values() if coming(it, reacting) == name))
        actions: list[Action] = [action for node in mine for action in node.would.actions]
        answers: Mapping[Action, ActionAnswer] = would_answer(
            fleet or Fleet(),
            pool,
            actions,
            now=now,
            survey=seen,
            seen=arrivals(None, seen.faults, 0.0),
        )
        for node in mine:
            if said := node.would.text(answers):
                node.effect = replace(node.effect, actions=said + doubt, acts=bool(node.would.actions))


def record_of(policies: Iterable[Raw]) -> str:
    """Return where the operator records what it does about faults, namespace/name; empty: it has not done anything."""
    known = map(policy_record, policies)
    return next((place for policy in known if (place := policy.resume_record or policy.actions_record)), "")


def _fleet(cluster: Cluster, policies: Iterable[PolicyRecord], place: str, now: datetime) -> Fleet | None:
    """Return the operator's record. None: it is not known, but for an open breaker, which the policies' status says."""
    if (fleet := from_data(mapping(mapping(cluster.record).get("data")))) is not None:
        return fleet
    for policy in policies:
        for condition in policy.conditions:
            if condition.type == ACTIONS_STOPPED and condition.status == "True":
                return Fleet(breaker=OPEN, reason=condition.message, opened=rfc3339(now), place=place)
    return None if place else Fleet()
