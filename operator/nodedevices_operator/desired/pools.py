"""The fleet as budgets and breakers see it: what is at fault on each node, and for each policy that reacts to faults,
its nodes, and which of them are out of service.

A node belongs to the policy whose section `faults` is in effect there, as its spec says: a policy that cannot take
effect limits nothing, and the one that it would replace goes on to. A new policy comes to its nodes one by one; what it
gives as a share is a share of all that it will have, and a mass fault is one among all of these, none of the first node
alone. A node is out of service while it is not Ready, cordoned, or tainted by us; desired/fleet.py adds those that were
acted upon.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import merge
from operator import attrgetter

from msgspec import Struct
from nodedevices_api import conditions as names
from nodedevices_api.meta import LabelSelector

from nodedevices_operator.desired.consequences import evicts, faulty, read_faults, taints, unclear
from nodedevices_operator.desired.fleet import Claims, PolicyLimits, Pool, Survey
from nodedevices_operator.records.objects import NodeDevicesRecord, NodeRecord, PolicyRecord

SECTION = "faults"
_Label = tuple[str, str]


class _Source(Struct, frozen=True):
    """Policy that supplies a node's section."""

    policy: str
    generation: int
    section: object


class FleetNode(Struct, frozen=True):
    """One node as budgets and breakers see it."""

    faults: Mapping[str, str]  # id of what is at fault -> since when
    unclear: frozenset[str]  # ids whose state is not known now
    silent: bool  # it says nothing of its devices
    out: bool  # out of service
    source: _Source | None
    coming: str  # the policy that is to supply the section here


class Reacting:
    """The policies that react to faults, the strongest first. Never changed; equal ones give equal answers."""

    def __init__(self, policies: Iterable[PolicyRecord] = ()) -> None:
        found = [
            policy
            for policy in policies
            if not policy.dry_run and policy.spec is not None and SECTION in policy.sections
        ]
        found.sort(key=attrgetter("rank"))
        self._ranked = found
        self._key = tuple((policy.name, policy.uid, policy.generation) for policy in found)
        self._by_label: dict[_Label | None, list[int]] = {}  # places of those that ask for one; None: for none of them
        for place, policy in enumerate(found):
            for label in _required(policy.selector):
                self._by_label.setdefault(label, []).append(place)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reacting) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def first(self, labels: Mapping[str, str]) -> str:
        """The strongest that selects a node with these labels; "": none does."""
        asked = (self._by_label[label] for label in (None, *labels.items()) if label in self._by_label)
        selecting = (self._ranked[place] for place in merge(*asked) if self._ranked[place].selects(labels))
        return next((policy.name for policy in selecting), "")


def _required(selector: LabelSelector | None) -> list[_Label | None]:
    """Labels of which every node that is selected has one; None: not known. Without a selector none is selected."""
    if selector is None:
        return []
    for label in selector.match_labels.items():
        return [label]
    for expression in selector.match_expressions:
        if expression.operator == "In":
            return [(expression.key, value) for value in expression.values or ()]
    return [None]


def fleet_node(record: NodeDevicesRecord, node: NodeRecord | None, reacting: Reacting) -> FleetNode:
    return FleetNode(
        faults=faulty(record),
        unclear=unclear(record),
        silent=not record.devices,
        out=node is None or not node.ready or node.cordoned or bool(node.taints),
        source=_stored(record),
        coming=coming(node, reacting),
    )


def coming(node: NodeRecord | None, reacting: Reacting) -> str:
    """The policy that is to supply the section to this node; "": none is."""
    return "" if node is None else reacting.first(node.labels)


def survey(
    records: Mapping[str, NodeDevicesRecord],
    nodes: Mapping[str, NodeRecord],
    policies: Iterable[PolicyRecord] = (),
) -> Survey:
    """Each node read anew; reconcile/surveyor.py reads those that have changed."""
    reacting = Reacting(policies)
    found = {name: fleet_node(record, nodes.get(name), reacting) for name, record in records.items()}
    return surveyed(found, nodes)


def surveyed(nodes: Mapping[str, FleetNode], known: Iterable[str] = ()) -> Survey:
    """The fleet of these nodes. A section that cannot be read allows nothing. `known`: Nodes, with a NodeDevices or
    without."""
    members: dict[str, dict[str, _Source]] = {}  # by policy, its nodes
    wanted: dict[str, set[str]] = {}  # nodes, by the policy that is to supply the section there
    for name, it in nodes.items():
        if it.coming:
            wanted.setdefault(it.coming, set()).add(name)
        if it.source is not None:
            members.setdefault(it.source.policy, {})[name] = it.source
    out = frozenset(name for name, it in nodes.items() if it.out)
    pools = []
    for policy, sources in sorted(members.items()):
        # Of the newest generation that any of the nodes has.
        section = max(sources.values(), key=lambda it: (it.section is not None, it.generation)).section
        coming = frozenset(wanted.get(policy, ()))
        limit, own = limits(section, len(sources.keys() | coming)), frozenset(sources)
        pools.append(Pool(policy, limit, own, out=out & own, coming=coming, acts=_acts(section)))
    return Survey(
        pools=pools,
        faults={name: it.faults for name, it in nodes.items() if it.faults},
        unclear={name: it.unclear for name, it in nodes.items() if it.unclear},
        silent=frozenset(name for name, it in nodes.items() if it.silent),
        out=out,
        others=frozenset({*nodes, *known}).difference(*(pool.nodes for pool in pools)),
    )


def acts(policy: PolicyRecord) -> bool:
    """True when the policy does anything about faults that the breaker stops."""
    return not policy.dry_run and policy.spec is not None and _acts(policy.sections.get(SECTION))


def dry_run_pool(policy: PolicyRecord, nodes: frozenset[str]) -> Pool:
    """The pool that a DryRun policy would have with these nodes."""
    section = policy.sections.get(SECTION)
    return Pool(policy.name, limits(section, len(nodes)), nodes, acts=_acts(section))


def claims(policies: Iterable[PolicyRecord], where: str) -> Claims:
    """Return what the policies' status says of the record. `where` is this operator's, namespace/name."""
    named: set[str] = set()
    stopped = False
    for policy in policies:
        named |= {policy.actions_record} - {"", where}
        stopped = stopped or any(
            it.type == names.ACTIONS_STOPPED and it.status == "True" and it.reason != names.RECORD_NOT_WRITTEN
            for it in policy.conditions
        )
    return Claims(min(named, default=""), stopped)


def _acts(section: object) -> bool:
    """True when it taints Nodes or evicts pods for any fault."""
    faults = read_faults(section)
    return faults is not None and (taints(faults) or evicts(faults))


def _stored(record: NodeDevicesRecord) -> _Source | None:
    """Return what the node's spec says: also of a policy that is refused, or was deleted a moment ago."""
    ref = next((policy for policy in record.policies if SECTION in policy.sections), None)
    return None if ref is None else _Source(ref.name, ref.generation, (record.config or {}).get(SECTION))


def limits(section: object, nodes: int) -> PolicyLimits:
    """Return the limits of the section's budget and breaker for so many nodes; a percentage is rounded down."""
    faults = read_faults(section)
    if faults is None:
        return PolicyLimits(per_hour=0, max_unavailable=0)
    budget = faults.budget
    most = None if budget is None else budget.max_unavailable
    if isinstance(most, str):
        most = int(most.rstrip("%")) * nodes // 100
    return PolicyLimits(
        per_hour=None if budget is None else budget.per_hour,
        max_unavailable=most,
        percent=faults.breaker_percent,
    )
