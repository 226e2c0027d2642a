"""One look at one node: from what the cache knows to what the cluster shall show. Level-based; safe to kill anywhere.

The order is: the node's configuration into NodeDevices.spec; its own capacity on the Node; the Node condition; find the
pods of faults; our conditions and affectedPods into NodeDevices.status; the pods; and affectedPods once more when pods
are done with. Each concern fails alone: the others go on, and the look is repeated after a back-off. Nothing is written
that the cache shows already, and nothing at all before the cache is synced.

An agent that has not reported yet (a NodeDevices deleted by hand and made anew) takes nothing back: capacity,
conditions and marks stay until it has.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog
from nodedevices_api import conditions as names
from nodedevices_api.defaults import Resolved, with_defaults
from nodedevices_api.errors import InputError, parse
from nodedevices_api.sections import Sections

from nodedevices_operator.cache.store import Cache, Dirty
from nodedevices_operator.concerns.capacity import OwnedCapacity, claimed_names
from nodedevices_operator.concerns.events import NodeEvents
from nodedevices_operator.concerns.labels import NodeLabels
from nodedevices_operator.concerns.pod_marks import PodMarks
from nodedevices_operator.concerns.retired_zeros import SETTLED_SECONDS, RetiredZeros
from nodedevices_operator.desired import events
from nodedevices_operator.desired.configuration import Configuration, Previous, resolve
from nodedevices_operator.desired.node import node_condition, same_condition
from nodedevices_operator.desired.pods import bounded, device_text, left_behind, long_ago
from nodedevices_operator.desired.policy_status import (
    Hindrance,
    NodeOutcome,
    Verdict,
    condition,
    hindrances,
    node_outcome,
)
from nodedevices_operator.desired.stale import OVERDUE_AFTER_SECONDS, Staleness, judge
from nodedevices_operator.kube.apply import Writer
from nodedevices_operator.kube.port import KubeError, Object
from nodedevices_operator.metrics import Metrics
from nodedevices_operator.records.kinds import Kind, read
from nodedevices_operator.records.names import NODE_DEVICES, PODS, named
from nodedevices_operator.records.objects import Affected, DeviceRecord, Heard, NodeDevicesRecord, NodeRecord, PolicyRef

FORBIDDEN_SECONDS = 60.0
AWAY_GRACE_SECONDS = 120.0  # for heartbeats to come after the API server's return
MAX_RESOLVED = 256  # different configurations remembered

log = structlog.get_logger()


@dataclass(slots=True)
class _Look:
    """One look at one node, as it goes on."""

    record: NodeDevicesRecord
    node: NodeRecord | None
    claimed: frozenset[str] = frozenset()
    stored: bool = True  # NodeDevices.spec says what we act by
    verdicts: dict[str, Verdict | None] = field(default_factory=dict)  # of our conditions; None: it shall go
    hindered: dict[str, Hindrance] = field(default_factory=dict)  # sections of which something was refused
    problems: list[KubeError] = field(default_factory=list)
    again: list[float] = field(default_factory=list)

    def failed(self, section: str, errors: Sequence[KubeError]) -> None:
        """Of writes by which that section is put in force."""
        self.problems += errors
        for error in errors:
            if error.forbidden:
                self.hindered[section] = Hindrance(f"{names.FORBIDDEN}: {error}")


class NodeReconciler:
    """Looks at nodes. `dirty` is told what our own writes have made worth another look; `outcomes` what they mean for
    policies."""

    def __init__(
        self,
        *,
        cache: Cache,
        writer: Writer,
        metrics: Metrics,
        dirty: Callable[[Dirty], None],
        outcomes: dict[str, NodeOutcome],
        retired_seconds: float = SETTLED_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cache = cache
        self._writer = writer
        self._metrics = metrics
        self._dirty = dirty
        self._clock = clock
        self._events = NodeEvents(writer, metrics, clock)
        self._marks = PodMarks(writer, metrics, self._events, clock)
        self._capacity = OwnedCapacity(writer, clock)
        self._labels = NodeLabels(writer, clock)
        self._retired = RetiredZeros(writer, clock, settled_seconds=retired_seconds)
        self._dark_since: dict[str, float | None] = {}  # by node, what `judge` remembers
        self._uids: dict[str, str] = {}  # by node, of the Node that what is remembered is about
        self._outcomes = outcomes
        self._faults: dict[str, dict[str, DeviceRecord]] = {}  # Unhealthy devices told on NodeDevices, by node
        self._resolved: dict[str, Resolved] = {}

    async def look(self, name: str) -> float | None:
        """Look at a node. Returns the seconds after which to look again without any event; raises to be retried."""
        record = self._cache.node_devices.get(name)
        if record is None:
            self.forget(name)
            return None
        node = self._cache.nodes.get(name)
        if node is not None and self._uids.setdefault(name, node.uid) != node.uid:
            self.forget(name)  # deleted and made anew between two looks
            self._uids[name] = node.uid
        look = _Look(record, node if node is not None and belongs(record, node) else None)
        configuration = await self._configure(look)
        stale = await self._judge(look)
        left = await self._left_behind(look)
        faults_known = bool(look.record.heartbeat) and look.node is not None
        if configuration is not None and faults_known:
            sections = self._sections(configuration)
            if look.stored:
                await self._node(look, sections, stale)
            if left is not None:
                await self._pods(look, sections, left)
        elif left is not None:
            await self._status(look, bounded((*look.record.affected, *left)))
        if configuration is not None and look.node is not None:
            self._account(look, configuration)
        return self._finish(look)

    async def _configure(self, look: _Look) -> Configuration | None:
        """Resolve the node's configuration and write it where it differs. None: its Node is not known."""
        if look.node is None:
            return None
        record = look.record
        look.claimed = claimed_names(record)  # by its word of before the write
        policies = list(self._cache.policies.values())
        configuration = resolve(look.node.labels, policies, Previous(record.config, record.policies))
        look.verdicts[names.POLICY_RESOLVED] = (configuration.status, configuration.reason, configuration.message)
        if not in_spec(record, configuration):
            try:
                raw = await self._writer.config(record, configuration)
            except KubeError as error:
                look.problems.append(error)
                look.stored = False
            else:
                self._took(look, Kind.NODE_DEVICES, raw)
                log.info("configuration set", node=record.name, hash=configuration.config_hash)
        return configuration

    async def _judge(self, look: _Look) -> Staleness:
        """Whether the node is stale. Before a heartbeat is called overdue the object is asked for: a watch may have
        stalled, or the API server may have been away, and then silence says nothing about the agent."""
        stale = self._staleness(look)
        shown = look.record.condition(names.STALE)
        if stale.reason == names.HEARTBEAT_OVERDUE and (shown is None or shown.reason != stale.reason):
            try:
                raw = await self._writer.kube.get(named(NODE_DEVICES, look.record.name))
            except KubeError as error:
                look.problems.append(error)
                self._cache.not_heard(look.record.name, self._clock() - OVERDUE_AFTER_SECONDS + AWAY_GRACE_SECONDS)
            else:
                self._took(look, Kind.NODE_DEVICES, raw)
            stale = self._staleness(look)
        look.verdicts[names.STALE] = (stale.status, stale.reason, stale.message)
        look.again.append(stale.wait)
        return stale

    def _staleness(self, look: _Look) -> Staleness:
        name, now = look.record.name, self._clock()
        stale, self._dark_since[name] = judge(
            look.record,
            look.node,
            heard=self._cache.heard.get(name) or Heard(now),
            dark_since=self._dark_since.get(name),
            now=now,
        )
        return stale

    async def _node(self, look: _Look, sections: Resolved, stale: Staleness) -> None:
        """What is ours on the Node itself."""
        node = look.node
        if node is None:
            return
        result = await self._capacity.sync(sections.capacity, look.record, node, look.claimed)
        look.verdicts[names.CAPACITY_SYNCED] = (result.status, result.reason, result.message)
        self._node_written(look, node=result.node, again=result.again, problem=result.problem)
        await self._zeros(look)
        await self._label(look, sections)
        node = self._cache.nodes.get(node.name, node)
        wanted = node_condition(
            look.record,
            stale,
            wanted=sections.faults.node_condition,
            previous=node.condition,
            now=self._writer.now(),
        )
        if same_condition(node.condition, wanted) or (wanted is None and not node.condition_owned):
            return
        try:
            self._took(look, Kind.NODE, await self._writer.node_condition(node, wanted))
        except KubeError as error:
            look.failed("faults", [error])
        else:
            status, reason = (wanted["status"], wanted["reason"]) if wanted is not None else ("removed", "")
            log.info("node condition set", node=node.name, status=status, reason=reason)

    async def _label(self, look: _Look, sections: Resolved) -> None:
        if look.node is None:
            return
        result = await self._labels.sync(sections.labels, look.record, look.node)
        look.verdicts[names.LABELS_SYNCED] = result.verdict
        self._node_written(look, node=result.node, again=result.again, problem=result.problem)

    async def _zeros(self, look: _Look) -> None:
        if look.node is None:
            return
        try:
            raw, again = await self._retired.sync(look.record, look.node)
        except KubeError as error:
            look.problems.append(error)
        else:
            self._node_written(look, node=raw, again=again)

    def _node_written(
        self, look: _Look, *, node: Object | None, again: float | None, problem: KubeError | None = None
    ) -> None:
        """What one concern did on the Node: the Node after its write, when to look again, what is to be retried."""
        if again is not None:
            look.again.append(again)
        if problem is not None:
            look.problems.append(problem)
        if node is not None:
            self._took(look, Kind.NODE, node)

    async def _left_behind(self, look: _Look) -> tuple[Affected, ...] | None:
        """Pods that carry our condition from an earlier NodeDevices of this node, which took its affectedPods with it
        (deleted by hand, or with its CRD; perhaps while no operator ran). None: nobody can tell yet.

        They are looked for once: on the object's first look, before our conditions stand on it. The same write puts
        both there, so that a kill in between finds nothing half done.
        """
        record = look.record
        if any(record.condition(kind) is not None for kind in OWN_CONDITIONS):
            return ()
        found: list[Affected] = []
        try:
            async for page in self._writer.kube.pages(PODS, fieldSelector=f"spec.nodeName={record.name}"):
                found += left_behind(page)
        except KubeError as error:
            look.problems.append(error)
            return () if error.forbidden else None
        if found:
            log.info("marks of an earlier NodeDevices found", node=record.name, pods=len(found))
        return bounded(found)

    async def _pods(self, look: _Look, sections: Resolved, left: tuple[Affected, ...]) -> None:
        """Pods, with NodeDevices.status before and after; then the Events on the NodeDevices itself."""
        name = look.record.name
        plan = await self._marks.plan(look.record, sections.faults, left)
        if not await self._status(look, plan.entries):
            look.problems += plan.problems
            return  # no pod is told anything that affectedPods does not say
        entries = await self._marks.write(plan, self._cache.changed_at.get(name))
        look.failed("faults", plan.problems)
        if plan.again is not None:
            look.again.append(plan.again)
        if set(entries) != set(plan.entries):
            await self._status(look, entries)
        if sections.faults.event:
            await self._node_events(look)

    async def _node_events(self, look: _Look) -> None:
        """Events on the NodeDevices. A fault of long before our start was told then, and is not told again."""
        record = look.record
        before = self._faults.get(record.name)
        now = {device.id: device for device in record.devices if device.health.state == "Unhealthy"}
        told = dict(before or {})
        about = events.About("NodeDevices", record.name, record.uid)
        try:
            for identity, device in now.items():
                health = device.health
                old = told.get(identity)
                if old is not None and (old.health.reason, old.health.since) == (health.reason, health.since):
                    continue
                if before is not None or not long_ago(health.since, self._writer.now()):
                    what = events.Fault(record.name, identity, health.reason, health.since)
                    await self._events.write(
                        record.name, events.fault(about, what, device_text(device), self._writer.now())
                    )
                told[identity] = device
            for identity, old in list(told.items()):
                if identity not in now:
                    what = events.Fault(record.name, identity, old.health.reason, old.health.since)
                    text = f"{old.name} {identity} is healthy again; it was {old.health.reason}"
                    if any(device.id == identity and device.health.state == "Healthy" for device in record.devices):
                        await self._events.write(record.name, events.recovered(about, what, text, self._writer.now()))
                    elif any(device.id == identity for device in record.devices):
                        continue  # Unknown or Degraded: neither the old fault nor well
                    del told[identity]
            again = await self._events.sum_up(record)
            if again is not None:
                look.again.append(again)
        except KubeError as error:
            look.problems.append(error)
        self._faults[record.name] = told

    async def _status(self, look: _Look, affected: tuple[Affected, ...]) -> bool:
        """Our conditions and affectedPods, where they differ from what stands there. False: it could not be written."""
        record = look.record
        shown = {item.type: item for item in record.conditions}
        conditions: list[dict[str, Any]] = []
        same = set(affected) == set(record.affected)
        for kind in OWN_CONDITIONS:
            old, verdict = shown.get(kind), look.verdicts.get(kind)
            if verdict is None and kind in look.verdicts:
                same = same and old is None
                continue
            if verdict is None:
                if old is None:
                    continue
                verdict, generation = (old.status, old.reason, old.message), old.generation
            else:
                generation = None if kind == names.STALE else record.generation
            made = condition(kind, verdict, shown=old, generation=generation, now=self._writer.now())
            conditions.append(made)
            same = (
                same
                and old is not None
                and (old.status, old.reason, old.message, old.generation)
                == (
                    made["status"],
                    made["reason"],
                    made["message"],
                    generation,
                )
            )
        if same:
            return True
        try:
            raw = await self._writer.status(record, conditions, affected)
        except KubeError as error:
            look.problems.append(error)
            return False
        self._took(look, Kind.NODE_DEVICES, raw)
        return True

    def _account(self, look: _Look, configuration: Configuration) -> None:
        """Policies whose counts change by this node are looked at soon."""
        if look.node is None:
            return
        name = look.record.name
        hindered = hindrances(look.record, look.verdicts) | look.hindered
        outcome = node_outcome(look.node.labels, self._cache.policies, configuration, look.record, hindered)
        before = self._outcomes.get(name)
        if before != outcome:
            self._outcomes[name] = outcome
            concerned = outcome.concerned | (before.concerned if before is not None else frozenset())
            self._dirty(Dirty(policies=concerned))

    def _finish(self, look: _Look) -> float | None:
        failed = [error for error in look.problems if not error.forbidden]
        if failed:  # the one that asks for the longest wait speaks for all
            raise max(failed, key=lambda error: error.retry_after or 0.0)
        for error in look.problems:
            log.warning("not allowed", node=look.record.name, error=str(error))
            look.again.append(FORBIDDEN_SECONDS)
        return min(look.again, default=None)

    def _took(self, look: _Look, kind: Kind, raw: Object) -> None:
        """Go on with what a write returned. It may hold other writers' news as well, hence another look."""
        self._dirty(self._cache.observe(kind, read(kind, raw)))
        name = look.record.name
        look.record = self._cache.node_devices.get(name, look.record)
        if look.node is not None:
            look.node = self._cache.nodes.get(name, look.node)

    def forget(self, name: str) -> None:
        """Of a node that is gone, or of which nothing remembered is to be believed any more."""
        self._events.forget(name)
        self._marks.forget(name)
        self._capacity.forget(name)
        self._labels.forget(name)
        self._retired.forget(name)
        self._dark_since.pop(name, None)
        self._faults.pop(name, None)
        self._uids.pop(name, None)
        before = self._outcomes.pop(name, None)
        if before is not None:
            self._dirty(Dirty(policies=before.concerned))

    def _sections(self, configuration: Configuration) -> Resolved:
        """The configuration with the built-in defaults; remembered, because a fleet has few different ones."""
        known = self._resolved.get(configuration.config_hash)
        if known is None:
            try:
                known = with_defaults(parse(Sections, configuration.config))
            except InputError:  # kept from a newer version; what the agent makes of it, the agent says
                known = with_defaults(Sections())
            if len(self._resolved) >= MAX_RESOLVED:
                self._resolved.clear()
            self._resolved[configuration.config_hash] = known
        return known


OWN_CONDITIONS = (names.POLICY_RESOLVED, names.CAPACITY_SYNCED, names.LABELS_SYNCED, names.STALE)


def belongs(record: NodeDevicesRecord, node: NodeRecord) -> bool:
    """Whether the NodeDevices is of this very Node: one of an earlier Node of that name never drives the new one."""
    return record.owner_uid in {"", node.uid} and record.node_uid in {"", node.uid}


def in_spec(record: NodeDevicesRecord, configuration: Configuration) -> bool:
    """Whether the object says so already."""
    return (
        record.config is not None
        and record.config == configuration.config
        and record.config_name == configuration.config_name
        and record.config_hash == configuration.config_hash
        and _by_name(record.policies) == _by_name(configuration.policies)
    )


def _by_name(refs: tuple[PolicyRef, ...]) -> dict[str, tuple[int, int, frozenset[str]]]:
    """Server-side apply keeps the members of a map-like list, not always their order."""
    return {ref.name: (ref.generation, ref.priority, frozenset(ref.sections)) for ref in refs}
