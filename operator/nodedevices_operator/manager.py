"""The operator without its surroundings: cache, queues, reconcilers and the authoritative LIST, wired together.

kopf, HTTP and signals are main.py's; a test drives this with any `Kube`.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from itertools import islice
from typing import Any, get_args

import structlog
from nodedevices_api.conditions import STALE
from nodedevices_api.nodedevices import HealthState
from prometheus_client import Gauge

from nodedevices_operator.cache.queue import KeyQueue
from nodedevices_operator.cache.rejected import RejectedPods
from nodedevices_operator.cache.relist import RELIST_SECONDS, Relister
from nodedevices_operator.cache.rollouts import Rollouts
from nodedevices_operator.cache.store import Cache, Dirty, faults
from nodedevices_operator.cache.workers import RetryLater, Workers
from nodedevices_operator.concerns.fleet_gate import KEY as FLEET_KEY, NAMESPACE, FleetGate
from nodedevices_operator.concerns.port import SETTLED_SECONDS, Tools
from nodedevices_operator.concerns.registry import CONCERNS, Factory
from nodedevices_operator.desired.conditions import node_problems
from nodedevices_operator.desired.consequences import faulty
from nodedevices_operator.desired.pods import own_health
from nodedevices_operator.desired.pools import acts, claims
from nodedevices_operator.kube.apply import Writer, utc_now
from nodedevices_operator.kube.port import Kube, KubeError
from nodedevices_operator.metrics import OperatorMetrics
from nodedevices_operator.reconcile.node import ConcernError, NodeReconciler
from nodedevices_operator.reconcile.policy import SUM_UP_SECONDS, PolicyReconciler, Tallies
from nodedevices_operator.reconcile.surveyor import Surveyor
from nodedevices_operator.reconcile.whole_objects import ClusterProperties, DeviceClasses
from nodedevices_operator.records.kinds import Kind, Record

NODE_WORKERS = 16  # each waits for one call at a time, as all do; the client allows 32
MARK_WORKERS = 10  # so that a pod's mark never waits for a connection
POLICY_WORKERS = 2
MOST_UNHEALTHY = 1000  # devices that have a series of their own, and containers that hold them
POLICY_COUNTS = ("selected", "applied", "overridden", "failed", "waiting")  # DevicePolicy.status.nodes

log = structlog.get_logger()


class Manager:
    """Everything that decides and writes. Make it inside a running loop. A `standby` watches only, until `lead` is
    called; any other leads from the beginning."""

    def __init__(
        self,
        kube: Kube,
        metrics: OperatorMetrics,
        *,
        namespace: str = NAMESPACE,
        relist_seconds: float = RELIST_SECONDS,
        retired_seconds: float = SETTLED_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], str] = utc_now,
        cluster_properties: bool = False,
        concerns: Sequence[Factory] = CONCERNS,
        standby: bool = False,
    ) -> None:
        self.cache = Cache(clock=clock)
        self.metrics = metrics
        self.nodes = KeyQueue(clock)
        self.policies = KeyQueue(clock)
        self.fleet = KeyQueue(clock)
        self._clock = clock
        tallies = Tallies()
        writer = Writer(kube, metrics, now)
        self.rejected = RejectedPods(kube, changed=lambda node: self.dirty(Dirty(frozenset({node}))))
        self._surveyor = Surveyor(self.cache)
        self._gate = FleetGate(
            kube,
            metrics,
            namespace=namespace,
            survey=self._surveyor.survey,
            claims=lambda where: claims(self.cache.policies.values(), where),
            enqueue=self.fleet.add,
            answered=lambda node: self.nodes.add(node, urgent=True),
            switched=self._switched,
            clock=clock,
        )
        self._rollouts = Rollouts(
            policies=lambda: self.cache.policies,
            enqueue=self.nodes.add,
            changed=lambda policies: self.dirty(Dirty(policies=policies)),
        )
        self._node = NodeReconciler(
            cache=self.cache,
            tools=Tools(
                writer,
                metrics,
                self._gate,
                self._rollouts,
                clock=clock,
                retired_seconds=retired_seconds,
                rejected=self.rejected,
            ),
            dirty=self.dirty,
            tallies=tallies,
            concerns=concerns,
        )
        self._policy = PolicyReconciler(
            self.cache, writer, self.dirty, tallies, gate=self._gate, rollouts=self._rollouts
        )
        self._properties = ClusterProperties(self.cache, writer) if cluster_properties else None
        self._classes = DeviceClasses(self.cache, writer)
        self.relister = Relister(kube, self.cache, metrics, self.dirty, period=relist_seconds, clock=clock)
        self.relister.synced = self._synced
        self.relister.went_back = self._forget_writes
        self._unseen: set[str] = set()  # nodes not reconciled since the cache was synced
        self._leading = not standby

    def arrived(self, kind: Kind, deleted: bool, record: Record) -> None:
        """Take in a watch event."""
        self.cache.last_event = self._clock()
        self.dirty(self.cache.remove(kind, record.name, record.uid) if deleted else self.cache.observe(kind, record))

    def dirty(self, dirty: Dirty) -> None:
        """Have these keys reconciled. Until this replica leads and its cache is synced none is: all will be."""
        if not (self._leading and self.cache.synced):
            return
        for name in sorted(dirty.nodes):  # a roll-out begins with the first
            self.nodes.add(name, urgent=name in dirty.urgent, ahead=name in dirty.faults)
        for name in dirty.policies:
            self.policies.add(name, delay=SUM_UP_SECONDS)

    def _synced(self) -> None:
        if not self._leading:
            return
        self._unseen = set(self.cache.node_devices)
        self._rollouts.begun = False
        self.fleet.add(FLEET_KEY)
        # Perhaps without a NodeDevices: what is left on it, and on the pods of one that has had devices.
        left = {name for name, node in self.cache.nodes.items() if node.marked or node.capacity}
        at_fault = frozenset(name for name, record in self.cache.node_devices.items() if faults(record))
        self.dirty(Dirty(frozenset(self._unseen | left), frozenset(self.cache.policies), faults=at_fault))

    def _switched(self, nodes: Sequence[str]) -> None:
        """The breaker has opened or closed: nodes with faults and policies that act on them say so."""
        acting = frozenset(name for name, it in self.cache.policies.items() if it.dry_run or acts(it))
        self.dirty(Dirty(frozenset(nodes), acting, urgent=frozenset(nodes)))

    def _forget_writes(self) -> None:
        """Forget what was remembered of writes: they may be undone."""
        for name in self.cache.node_devices:
            self._node.forget_writes(name)
        self._synced()

    def watching(self) -> list[asyncio.Task[None]]:
        """Start what only reads: every replica does. None of the tasks ever ends by itself."""
        return [*_tasks("relist", self.relister.run), *_tasks("rejected-pods", self.rejected.run)]

    def lead(self) -> list[asyncio.Task[None]]:
        """Start what writes: the leader alone does, for as long as it lives. A standby begins with everything that is
        known, as after a start, and a relist corrects that. None of the tasks ever ends by itself."""
        before, self._leading = self._leading, True
        if self.cache.synced and not before:
            self._synced()
            self.relister.soon()
        nodes, policies, fleet = Workers(self.nodes), Workers(self.policies), Workers(self.fleet)
        return [
            *_tasks("mark", lambda: nodes.run_ahead(self.mark_node), MARK_WORKERS),
            *_tasks("node", lambda: nodes.run(self.reconcile_node, failure=self._failed), NODE_WORKERS),
            *_tasks("policy", lambda: policies.run(self.reconcile_policy, failure=self._failed), POLICY_WORKERS),
            *_tasks("fleet", lambda: fleet.run(self.reconcile_fleet, failure=self._failed)),
            *_tasks("record", self._gate.watch_record),
            *([] if self._properties is None else _tasks("properties", self._properties.run)),
            *_tasks("device-classes", self._classes.run),
        ]

    async def mark_node(self, name: str) -> None:
        """Mark the pods of a node whose faults are others than before; all else follows in its reconciliation."""
        await self._measured("marks", self._node.mark, name)

    async def reconcile_node(self, name: str) -> float | None:
        record = self.cache.node_devices.get(name)
        self._gate.seen(name, {} if record is None else faulty(record))
        try:
            return await self._measured("node", self._node.reconcile, name)
        finally:
            self._unseen.discard(name)
            if not self._unseen:
                self._rollouts.begin()

    async def reconcile_policy(self, name: str) -> float | None:
        if self._unseen:  # counts of half the nodes would only be corrected a moment later
            raise RetryLater(SUM_UP_SECONDS, f"{len(self._unseen)} nodes have not been reconciled yet")
        if (policy := self.cache.policies.get(name)) is not None and policy.dry_run:  # it asks what would be granted
            await self._surveyor.catch_up()
        return await self._measured("policy", self._policy.reconcile, name)

    async def reconcile_fleet(self, key: str) -> float | None:
        await self._surveyor.catch_up()
        return await self._measured("fleet", self._gate.reconcile, key)

    async def _measured(
        self, kind: str, reconcile: Callable[[str], Awaitable[float | None]], name: str
    ) -> float | None:
        began = time.perf_counter()
        result = "failed"
        try:
            again = await reconcile(name)
            result = "done"
        except RetryLater:
            result = "requeued"
            raise
        except KubeError as error:
            if error.retry_after is None:
                raise
            result = "requeued"
            raise RetryLater(error.retry_after, str(error)) from error
        finally:
            self.metrics.reconciled(kind, result, time.perf_counter() - began)
        return again

    def _failed(self, key: str, error: Exception, delay: float) -> None:
        if isinstance(error, RetryLater):
            log.debug("requeued", key=key, why=str(error))
        elif isinstance(error, KubeError):
            if error.status == 404 and key != FLEET_KEY:  # a deletion that no watch has delivered
                self.relister.again()
            log.warning("write failed", key=key, error=str(error), retry_seconds=round(delay, 1))
        else:
            known = isinstance(error, ConcernError)  # logged already
            log.error(
                "reconciliation failed",
                key=key,
                error=str(error),
                retry_seconds=round(delay, 1),
                exc_info=None if known else error,
            )

    def gauge(self) -> None:
        """Bring the gauges up to date, for a scrape. Those about the fleet are the leader's."""
        cache, metrics, now = self.cache, self.metrics, self._clock()
        metrics.leader.set(self._leading)
        if cache.last_event is not None:
            metrics.last_event.set(now - cache.last_event)
        if self.relister.last_complete is not None:
            metrics.last_relist.set(now - self.relister.last_complete)
        if not self._leading:
            return
        for kind, queue in (("node", self.nodes), ("policy", self.policies), ("fleet", self.fleet)):
            metrics.queue_depth.labels(kind).set(len(queue))
            metrics.queue_age.labels(kind).set(queue.age())
        records = cache.node_devices.values()
        metrics.nodes.set(len(records))
        states = Counter(device.health.state for record in records for device in record.devices)
        for health in get_args(HealthState):
            metrics.devices.labels(health.lower()).set(states[health])
        metrics.faults.set(states["Unhealthy"] + states["Unknown"])
        unhealthy = (
            (record.name, it.index, it.id, it.health.reason, it.health.action or "None")
            for record in records
            for it in record.devices
            if it.health.state == "Unhealthy"
        )
        holders = (
            (record.name, it.index, it.id, holder.resource, holder.namespace, holder.pod, holder.container)
            for record in records
            for it in record.devices
            for part in it.parts
            for holder in part.holders
            if "Unhealthy" in {it.health.state, (own_health(holder, part.health) or part.health).state}
        )
        _show(metrics.unhealthy, dict.fromkeys(islice(unhealthy, MOST_UNHEALTHY), 1))
        _show(metrics.unhealthy_holder, dict.fromkeys(islice(holders, MOST_UNHEALTHY), 1))
        problems = [(record.name, *problem) for record in records for problem in node_problems(record)]
        metrics.stale.set(sum(kind == STALE for _, kind, _ in problems))
        _show(metrics.problems, dict.fromkeys(problems, 1))
        accepted = sum(not policy.refusal for policy in cache.policies.values())
        metrics.policies.labels("true").set(accepted)
        metrics.policies.labels("false").set(len(cache.policies) - accepted)
        stopped = set(self._rollouts.stopped())
        _show(metrics.rollout_stopped, {(name,): name in stopped for name in stopped | cache.policies.keys()})
        counts = {
            (policy.name, state): (policy.counts or {}).get(state)
            for policy in cache.policies.values()
            for state in POLICY_COUNTS
        }
        _show(metrics.policy_nodes, {labels: count for labels, count in counts.items() if isinstance(count, int)})


def _show(gauge: Gauge, values: Mapping[Any, float]) -> None:
    """Have the gauge these values, by its labels, and no others."""
    gauge.clear()
    for labels, value in values.items():
        gauge.labels(*labels).set(value)


def _tasks(
    name: str, work: Callable[[], Coroutine[None, None, None]], count: int | None = None
) -> list[asyncio.Task[None]]:
    """Return tasks that do this work; where `count` is given, so many, with numbers in their names."""
    names = [name] if count is None else [f"{name}-{index}" for index in range(count)]
    return [asyncio.create_task(work(), name=each) for each in names]
