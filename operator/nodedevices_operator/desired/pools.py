"""The fleet as budgets and breakers see it: for each policy that reacts to faults, its nodes, which of them are out of
service, and which have failed since when. Pure.

A node belongs to the policy that supplies its section `faults`, as soon as the policy is there: a new policy comes to
its nodes one by one, and a mass fault among them is none of the first one alone. It is out of service while it is not
Ready, cordoned, or tainted by us; desired/fleet.py adds those where a granted action is under way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from nodedevices_api.errors import parse
from nodedevices_api.sections import Faults
from nodedevices_common.errors import InputError

from nodedevices_operator.desired.consequences import unhealthy
from nodedevices_operator.desired.fleet import Limits, Pool
from nodedevices_operator.records.objects import NodeDevicesRecord, NodeRecord, PolicyRecord

SECTION = "faults"


@dataclass(slots=True)
class _Members:
    generation: int = -1
    section: object = None  # of the newest generation that any of the nodes has
    nodes: set[str] = field(default_factory=set)
    out: set[str] = field(default_factory=set)
    faults: dict[str, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Source:
    """Who supplies a node's section."""

    policy: str
    generation: int
    section: object


def pools(
    records: Mapping[str, NodeDevicesRecord],
    nodes: Mapping[str, NodeRecord],
    policies: Iterable[PolicyRecord] = (),
) -> list[Pool]:
    """By policy. A section that cannot be read allows nothing."""
    found: dict[str, _Members] = {}
    reacting = [each for each in policies if not each.dry_run and each.spec is not None and SECTION in each.sections]
    reacting.sort(key=lambda each: (-each.priority, each.created, each.name))  # as in desired.configuration
    for name, record in records.items():
        node = nodes.get(name)
        source = _wanted(node, reacting) or _stored(record)
        if source is None:
            continue
        members = found.setdefault(source.policy, _Members())
        members.nodes.add(name)
        if node is None or not node.ready or node.cordoned or node.taints:
            members.out.add(name)
        if faults := unhealthy(record):
            members.faults[name] = frozenset(health.since for health in faults)
        if source.generation > members.generation and source.section is not None:
            members.generation, members.section = source.generation, source.section
    return [
        Pool(
            policy=policy,
            limits=limits(it.section, len(it.nodes)),
            nodes=frozenset(it.nodes),
            out=frozenset(it.out),
            faults=it.faults,
        )
        for policy, it in sorted(found.items())
    ]


def _wanted(node: NodeRecord | None, reacting: Sequence[PolicyRecord]) -> _Source | None:
    policy = next((each for each in reacting if node is not None and each.selects(node.labels)), None)
    return None if policy is None else _Source(policy.name, policy.generation, policy.sections[SECTION])


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
