"""The nodes of a policy that take a change now; decided by desired/rollout.py, remembered here.

Nodes ask as they are reconciled, and are reconciled again when their turn has come. Nothing is written: what is
remembered is what the nodes themselves say, so that another process reaches the same. Until every node has been seen
once, no node has its turn. The cost of a node's news is that of its own few policies, not of the fleet.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct, field

from nodedevices_operator.desired.rollout import RolloutState, Standing, most_nodes, resumed, wrong_word
from nodedevices_operator.records.objects import PolicyRecord
from nodedevices_operator.records.shared import shared

PolicyGroup = frozenset[str]  # policies whose sections come to a node together, for which it waits
NAMED = 3  # nodes


class _Entry(Struct, frozen=True):
    """State that is remembered of a node."""

    members: frozenset[str] = frozenset()
    under_way: frozenset[str] = frozenset()
    worse_off: str = ""
    groups: frozenset[PolicyGroup] = frozenset()  # one of them may have its turn while another is stopped
    first: bool = False  # it takes no place: it is watched already, or gets its configuration at once

    @property
    def waits(self) -> frozenset[str]:
        """The policies for which it waits."""
        return frozenset[str]().union(*self.groups)


class _Waiting(Struct):
    """Nodes that wait for the same policies; those that take no place come first, then by name."""

    nodes: set[str] = field(default_factory=set)
    heap: list[tuple[bool, str]] = field(default_factory=list)  # with some that do not wait any more


class _Nodes(Struct):
    """The nodes of one policy."""

    members: set[str] = field(default_factory=set)
    under_way: dict[str, None] = field(default_factory=dict)
    worse_off: dict[str, str] = field(default_factory=dict)
    called: set[str] = field(default_factory=set)  # queued for a free place, and have not asked since
    waiting: int = 0


class Rollouts:
    """`enqueue` queues a node; `changed` is called with policies whose roll-out shows another state than before."""

    def __init__(
        self,
        *,
        policies: Callable[[], Mapping[str, PolicyRecord]],
        enqueue: Callable[[str], None],
        changed: Callable[[frozenset[str]], None],
    ) -> None:
        self._policies = policies
        self._enqueue = enqueue
        self._changed = changed
        self._entries: dict[str, _Entry] = {}
        self._nodes: dict[str, _Nodes] = {}
        self._waiting: dict[PolicyGroup, _Waiting] = {}
        self.begun = False  # every node has been seen; until then no node has its turn

    def begin(self) -> None:
        """Begin: every node has been seen."""
        if not self.begun:
            self.begun = True
            self.call(self._nodes)

    def ask(self, node: str, standing: Standing) -> frozenset[str]:
        """The pending sections that stay as they are for now."""
        before = self._entries.get(node, _Entry())
        reserved = before.under_way if standing.pending else frozenset[str]()  # granted, and not written yet
        self._put(node, before, _Entry(standing.members | reserved, standing.under_way | reserved, standing.worse_off))
        held = {
            section
            for section, policies in standing.pending.items()
            if not all(self._admits(policy, node, free=standing.free) for policy in policies)
        }
        stopping = frozenset[str]().union(*(standing.pending[section] for section in held))
        while more := {section for section, by in standing.pending.items() if by & stopping} - held:
            held |= more  # a policy's sections go together
            stopping = stopping.union(*(standing.pending[section] for section in more))
        going = shared(name for section, by in standing.pending.items() if section not in held for name in by)
        under_way = standing.under_way | (going if not standing.free else frozenset())
        worse_off = "" if going & standing.under_way else standing.worse_off
        groups = _together(standing.pending[section] for section in held)
        after = _Entry(standing.members, under_way, worse_off, groups=groups, first=bool(under_way) or standing.free)
        self._put(node, self._entries[node], after)
        if after != before:
            self._changed(before.under_way | after.under_way | before.waits | after.waits)
            self.call(before.under_way | before.members)
        return frozenset(held)

    def forget(self, node: str) -> None:
        """Forget a node that is gone."""
        before = self._entries.get(node)
        if before is not None:
            self._put(node, before, _Entry())
            del self._entries[node]
            self._changed(before.under_way | before.waits)
            self.call(before.members)

    def state(self, name: str) -> RolloutState:
        nodes, policy = self._nodes.get(name, _Nodes()), self._policies().get(name)
        return RolloutState(
            waiting=nodes.waiting,
            under_way=tuple(name for name, _ in zip(nodes.under_way, range(NAMED), strict=False)),
            under_way_count=len(nodes.under_way),
            worse_off=tuple(sorted(nodes.worse_off.items())[:NAMED]),
            resumed=resumed(policy),
            refused=wrong_word(policy) if policy is not None else "",
        )

    def stopped(self) -> list[str]:
        """Policies whose roll-out is stopped, deleted ones included."""
        return sorted(policy for policy in self._nodes if self._stopped(policy))

    def why(self, node: str) -> str:
        """Return why the node waits; for people."""
        entry = self._entries.get(node, _Entry())
        for policy in sorted(entry.waits):
            if self._stopped(policy):
                worse_off, reason = min(self._nodes[policy].worse_off.items())
                return f"the roll-out of {policy} is stopped: {worse_off}: {reason}"
        return f"waits for its turn in the roll-out of {', '.join(sorted(entry.waits))}"

    # --- the turns --------------------------------------------------------------------------------------------------
    def _admits(self, policy: str, node: str, *, free: bool) -> bool:
        """One that is watched already is none more, and what it waits for may mend it."""
        if not self.begun:
            return False
        if node in self._nodes[policy].under_way:
            return True
        return not self._stopped(policy) and (free or self._room(policy) > 0)

    def _stopped(self, policy: str) -> bool:
        nodes = self._nodes.get(policy)
        return nodes is not None and bool(nodes.worse_off) and not resumed(self._policies().get(policy))

    def _room(self, policy: str) -> int:
        nodes, record = self._nodes.get(policy, _Nodes()), self._policies().get(policy)
        passed_over = len(nodes.worse_off) if resumed(record) else 0
        return most_nodes(record, len(nodes.members)) - len(nodes.under_way) + passed_over

    def call(self, policies: Iterable[str]) -> None:
        """Queue those whose turn has come, and those that take no place. One that asks and has to wait is called again
        when a place is free."""
        if not self.begun:
            return
        wanted = frozenset(policies)
        for group, waiting in list(self._waiting.items()):
            if not group & wanted:
                continue
            room = min(0 if self._stopped(policy) else self._uncalled(policy) for policy in group)
            while waiting.heap and (room > 0 or not waiting.heap[0][0]):
                fresh, node = heapq.heappop(waiting.heap)
                if node in waiting.nodes:
                    self._enqueue(node)
                    room -= fresh
                    for policy in group if fresh else ():
                        self._nodes[policy].called.add(node)

    def _uncalled(self, policy: str) -> int:
        """Return the free places for which no node is called yet: without them, a wave that ends calls all that wait. A
        node that was called and cannot ask keeps its place free only while others go on."""
        nodes = self._nodes.get(policy, _Nodes())
        return self._room(policy) - (len(nodes.called) if nodes.under_way else 0)

    # --- the memory -------------------------------------------------------------------------------------------------
    def _put(self, node: str, before: _Entry, after: _Entry) -> None:
        for policy in before.members | before.under_way | before.waits:
            nodes = self._nodes.setdefault(policy, _Nodes())
            nodes.members.discard(node)
            nodes.called.discard(node)
            nodes.under_way.pop(node, None)
            nodes.worse_off.pop(node, None)
            nodes.waiting -= policy in before.waits
        for group in before.groups & self._waiting.keys():
            self._waiting[group].nodes.discard(node)
            if not self._waiting[group].nodes:
                del self._waiting[group]
        self._entries[node] = after
        for policy in after.members | after.under_way | after.waits:
            nodes = self._nodes.setdefault(policy, _Nodes())
            nodes.members.add(node)
            if policy in after.under_way:
                nodes.under_way[node] = None
                if after.worse_off:
                    nodes.worse_off[node] = after.worse_off
            nodes.waiting += policy in after.waits
        for group in after.groups:
            waiting = self._waiting.setdefault(group, _Waiting())
            waiting.nodes.add(node)
            heapq.heappush(waiting.heap, (not after.first, node))
            if len(waiting.heap) > 2 * len(waiting.nodes) + NAMED:  # of nodes that asked several times
                waiting.heap = sorted((not self._entries[other].first, other) for other in waiting.nodes)
        for policy in before.members | before.under_way | before.waits:
            if policy in self._nodes and not self._nodes[policy].members:
                del self._nodes[policy]


def _together(changes: Iterable[PolicyGroup]) -> frozenset[PolicyGroup]:
    """Return the changes, those that have a policy in common as one."""
    found: list[PolicyGroup] = []
    for change in changes:
        joined = change.union(*(group for group in found if group & change))
        found = [joined, *(group for group in found if not group & change)]
    return frozenset(found)
