"""The fleet gate: one key that grants or refuses what nodes propose, and writes it down first.

The order is the promise: read the record, decide (desired/fleet.py), write the record, and only then answer. Killed in
between, a restarted operator finds the action in the record, grants it again and counts it once. The write carries the
record's resourceVersion, so two operators, or a person in between, never both win. A record that was deleted is written
again from memory; after a restart it is not known what it said, and it begins empty.

The record is read once after each start, so that an open breaker shows in the metrics, and again now and then while the
breaker is open or something is refused: nobody watches ConfigMaps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import structlog

from nodedevices_operator.desired.fleet import (
    OPEN,
    RESUME,
    Action,
    Answer,
    Fleet,
    Pool,
    decide,
    from_data,
    resumed,
    stopped,
    to_data,
)
from nodedevices_operator.kube.port import Kube, KubeError, Object
from nodedevices_operator.metrics import Metrics
from nodedevices_operator.records.names import FLEET, config_map_path, config_maps, identified

KEY = "fleet"  # the one key in its queue
NAME = "nodedevices-actions"  # of the ConfigMap
NAMESPACE = "nodedevices-system"  # its, where nothing else is said
AGAIN_SECONDS = 30.0  # between two decisions while something is refused

log = structlog.get_logger()


class FleetGate:
    """`enqueue` queues KEY; `answered` is called with each node whose proposals have another answer than before."""

    def __init__(
        self,
        kube: Kube,
        metrics: Metrics,
        *,
        namespace: str,
        pools: Callable[[], Sequence[Pool]],
        enqueue: Callable[[str], None],
        answered: Callable[[str], None],
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._kube = kube
        self._metrics = metrics
        self._namespace = namespace
        self._path = config_map_path(namespace, NAME)
        self._pools = pools
        self._enqueue = enqueue
        self._answered = answered
        self._wall = wall
        self._proposals: dict[tuple[str, str], tuple[Action, ...]] = {}  # by node and kind, only what is wanted now
        self._answers: dict[Action, Answer] = {}  # of these
        self._last: Fleet | None = None  # the record as it was last read or written

    def propose(self, node: str, kind: str, actions: Sequence[Action]) -> None:
        """What the node wants done of that kind now, in the place of what it wanted before; nothing withdraws it."""
        if self._proposals.get((node, kind), ()) == tuple(actions):
            return
        if actions:
            self._proposals[node, kind] = tuple(actions)
        else:
            self._proposals.pop((node, kind), None)
        wanted = {action for each in self._proposals.values() for action in each}
        self._answers = {action: answer for action, answer in self._answers.items() if action in wanted}
        if actions:
            self._enqueue(KEY)

    def answer(self, action: Action) -> Answer | None:
        """None: not decided yet, and nobody acts."""
        return self._answers.get(action)

    async def reconcile(self, _key: str) -> float | None:
        """Decide on all proposals. Returns the seconds after which to decide again; KubeError: nothing was granted."""
        proposals = dict(self._proposals)
        if not proposals and self._last is not None and self._last.breaker != OPEN:
            return None
        record, now = await self._read(), self._wall()
        known = self._last or Fleet()
        fleet, shown = known, None
        if record is not None:
            shown = from_data(record.get("data") or {})
            fleet = stopped(known, f"ConfigMap {NAME} cannot be read", now) if shown is None else shown
            annotations = record["metadata"].get("annotations") or {}
            fleet = resumed(fleet, str(annotations.get(RESUME, "")), now)
        wanted = [action for actions in proposals.values() for action in actions]
        decision = decide(fleet, wanted, now, self._pools())
        kept = record is not None and shown is None and decision.fleet.breaker == OPEN  # somebody's, until they resume
        nothing = record is None and decision.fleet == Fleet()
        if decision.fleet != shown and not kept and not nothing:
            await self._write(record, decision.fleet)
        self._log(known, decision.fleet)
        self._last = decision.fleet
        answers = decision.answers()
        for (node, kind), actions in proposals.items():
            changed = [action for action in actions if self._answers.get(action) != answers[action]]
            if self._proposals.get((node, kind)) == actions and changed:
                self._count(changed, answers)
                self._answers |= {action: answers[action] for action in changed}
                self._answered(node)
        return AGAIN_SECONDS if decision.refused or decision.fleet.breaker == OPEN else None

    def _count(self, changed: Sequence[Action], answers: dict[Action, Answer]) -> None:
        for action in changed:
            before, now = self._answers.get(action), answers[action]
            result = "granted" if now.granted else "stopped" if now.stopped else "refused"
            if before is None or (before.granted, before.stopped) != (now.granted, now.stopped):
                self._metrics.actions.labels(action.kind, result).inc()
                log.info(
                    f"action {result}",
                    node=action.node,
                    kind=action.kind,
                    target=action.target,
                    fault=action.reason,
                    why=now.reason,
                )

    def _log(self, before: Fleet, now: Fleet) -> None:
        if now.breaker == OPEN and before.breaker != OPEN:
            log.warning("actions stopped", reason=now.reason, until=now.until or "a person resumes them")
        elif now.breaker != OPEN and before.breaker == OPEN:
            log.warning("actions resumed", by=now.resumed or "time")
        self._metrics.breaker_open.set(now.breaker == OPEN)

    async def _read(self) -> Object | None:
        try:
            return await self._kube.get(self._path)
        except KubeError as error:
            if error.status != 404:
                raise
            return None

    async def _write(self, record: Object | None, fleet: Fleet) -> None:
        data = to_data(fleet)
        if record is None:
            head = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME, "namespace": self._namespace}}
            await self._kube.create(config_maps(self._namespace), head | {"data": data})
            return
        metadata = record["metadata"]
        body = identified("ConfigMap", NAME, metadata["uid"], namespace=self._namespace)
        body["metadata"]["resourceVersion"] = metadata["resourceVersion"]
        await self._kube.apply(self._path, body | {"data": data}, FLEET)
