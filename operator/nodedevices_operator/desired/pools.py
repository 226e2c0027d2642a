"""The fleet as budgets and breakers see it: what is at fault on each node, and for each policy that reacts to faults,
its nodes, and which of them are out of service. Pure.

A node belongs to the policy whose section `faults` is in effect there, as its spec says: a policy that cannot take
effect limits nothing, and the one that it would replace goes on to. A new policy comes to its nodes one by one; what it
gives as a share is a share of all that it will have, and a mass fault is one among all of these, none of the first node
alone. A node is out of service while it is not Ready, cordoned, or tainted by us; desired/fleet.py adds those that were
acted upon.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from nodedevices_api import conditions as names
from nodedevices_api.errors import parse
from nodedevices_api.sections import Faults
from nodedevices_common.errors import InputError

from nodedevices_operator.desired.consequences import evicts, faulty, taints, unclear
from nodedevices_operator.desired.fleet import Claims, Limits, Pool, Survey
from nodedevices_operator.records.objects import NodeDevicesRecord, NodeRecord, PolicyRecord

SECTION = "faults"


@dataclass(slots=True)
class _Members:
    generation: int = -1
    section: object = None  # of the newest generation that any of the nodes has
    nodes: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Source:
    """Who supplies a node's section."""

    policy: str
    generation: int
    section: object


def survey(
    records: Mapping[str, NodeDevicesRecord],
    nodes: Mapping[str, NodeRecord],
    policies: Iterable[PolicyRecord] = (),
) -> Survey:
    """A section that cannot be read allows nothing."""
    found: dict[str, _Members] = {}
    faults: dict[str, Mapping[str, str]] = {}
    unknown: dict[str, frozenset[str]] = {}
    silent: set[str] = set()
    out: set[str] = set()
    coming: dict[str, set[str]] = {}  # nodes, by the policy that is to supply the section there
    reacting = [each for each in policies if not each.dry_run and each.spec is not None and SECTION in each.sections]
    reacting.sort(key=lambda each: (-each.priority, each.created, each.name))  # as in desired.configuration
    for name, record in records.items():
        node = nodes.get(name)
        if its := faulty(record):
            faults[name] = its
        if ids := unclear(record):
            unknown[name] = ids
        if not record.devices:
            silent.add(name)
        if node is None or not node.ready or node.cordoned or node.taints:
            out.add(name)
        if (policy := _wanted(node, reacting)) is not None:
            coming.setdefault(policy, set()).add(name)
        source = _stored(record)
        if source is None:
            continue
        members = found.setdefault(source.policy, _Members())
        members.nodes.add(name)
        if source.generation > members.generation and source.section is not None:
            members.generation, members.section = source.generation, source.section
    pools = [
        Pool(
            policy=name,
            limits=limits(it.section, len(it.nodes | coming.get(name, set()))),
            nodes=frozenset(it.nodes),
            out=frozenset(it.nodes & out),
            coming=frozenset(coming.get(name, ())),
            acts=_acts(it.section),
        )
        for name, it in sorted(found.items())
    ]
    return Survey(pools, faults, unknown, frozenset(silent), frozenset(out))


def acts(policy: PolicyRecord) -> bool:
    """Whether the policy does anything about faults that the breaker stops."""
    return not policy.dry_run and policy.spec is not None and _acts(policy.sections.get(SECTION))


def trial_pool(policy: PolicyRecord, nodes: frozenset[str]) -> Pool:
    """The pool that a DryRun policy would have with these nodes."""
    section = policy.sections.get(SECTION)
    return Pool(policy.name, limits(section, len(nodes)), nodes, acts=_acts(section))


def claims(policies: Iterable[PolicyRecord], where: str) -> Claims:
    """What the policies' status says of the record. `where` is this operator's, namespace/name."""
    named: set[str] = set()
    stopped = False
    for policy in policies:
        named |= {policy.actions_record} - {"", where}
        stopped = stopped or any(it.type == names.ACTIONS_STOPPED and it.status == "True" for it in policy.conditions)
    return Claims(min(named, default=""), stopped)


def _acts(section: object) -> bool:
    """Whether it taints Nodes or evicts pods for any fault."""
    try:
        faults = parse(Faults, section, SECTION)
    except InputError:
        return False
    return taints(faults) or evicts(faults)


def _wanted(node: NodeRecord | None, reacting: Sequence[PolicyRecord]) -> str | None:
    return next((each.name for each in reacting if node is not None and each.selects(node.labels)), None)


def _stored(record: NodeDevicesRecord) -> _Source | None:
    """What the node's spec says: also of a policy that is refused, or was deleted a moment ago."""
    ref = next((each for each in record.policies if SECTION in each.sections), None)
    return None if ref is None else _Source(ref.name, ref.generation, (record.config or {}).get(SECTION))


def limits(section: object, nodes: int) -> Limits:
    """What the section's budget and breaker come to with so many nodes; a percentage is rounded down."""
    try:
        faults = parse(Faults, section, SECTION)
    except InputError:
        return Limits(per_hour=0, max_unavailable=0)
    usual, budget, breaker = Limits(), faults.budget, faults.breaker
    most = None if budget is None else budget.max_unavailable
    if isinstance(most, str):
        most = int(most.rstrip("%")) * nodes // 100
    return Limits(
        per_hour=None if budget is None else budget.per_hour,
        max_unavailable=most,
        percent=usual.percent if breaker is None else breaker.percent,
        window_seconds=usual.window_seconds if breaker is None else breaker.window_seconds,
        reset_seconds=None if breaker is None else breaker.reset_after_seconds,
    )
