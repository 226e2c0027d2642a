"""The fleet as budgets and breakers see it: for each policy that reacts to faults, its nodes, which of them are out of
service, and which have failed since when. Pure.

A node belongs to the policy that supplies its section `faults`. It is out of service while it is not Ready, cordoned,
or tainted by us; desired/fleet.py adds those where a granted action is under way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nodedevices_api.errors import parse
from nodedevices_api.sections import Faults
from nodedevices_common.errors import InputError

from nodedevices_operator.desired.consequences import unhealthy
from nodedevices_operator.desired.fleet import Limits, Pool
from nodedevices_operator.records.objects import NodeDevicesRecord, NodeRecord

SECTION = "faults"


@dataclass(slots=True)
class _Members:
    generation: int = -1
    section: object = None  # of the newest generation that any of the nodes has
    nodes: set[str] = field(default_factory=set)
    out: set[str] = field(default_factory=set)
    faults: dict[str, frozenset[str]] = field(default_factory=dict)


def pools(records: Mapping[str, NodeDevicesRecord], nodes: Mapping[str, NodeRecord]) -> list[Pool]:
    """By policy. A section that cannot be read allows nothing."""
    found: dict[str, _Members] = {}
    for name, record in records.items():
        source = next((ref for ref in record.policies if SECTION in ref.sections), None)
        if source is None:
            continue
        members = found.setdefault(source.name, _Members())
        members.nodes.add(name)
        node = nodes.get(name)
        if node is None or not node.ready or node.cordoned or node.taints:
            members.out.add(name)
        if faults := unhealthy(record):
            members.faults[name] = frozenset(health.since for health in faults)
        if source.generation > members.generation and record.config is not None:
            members.generation, members.section = source.generation, record.config.get(SECTION)
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
