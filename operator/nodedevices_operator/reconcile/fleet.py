"""The fleet gate: one key that grants or refuses what nodes propose, and writes it down first.

Nothing uses it yet: no concern proposes anything, the manager makes no gate, and the operator's RBAC has no ConfigMaps.
Who brings the first action (eviction) gives the gate a queue, a namespace and these rights: get, create and patch of
ConfigMaps there.

The order is the promise: read the record, decide (desired/fleet.py), write the record, and only then answer. Killed in
between, the next life finds the action in the record, grants it again and counts it once. The write carries the
record's resourceVersion, so two operators, or a person in between, never both win. A record that was deleted is written
again from memory; after a restart nobody can know what it said, and it begins empty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog

from nodedevices_operator.desired.fleet import (
    OPEN,
    RESUME,
    Action,
    Fleet,
    Limits,
    decide,
    from_data,
    resumed,
    stopped,
    to_data,
)
from nodedevices_operator.kube.port import Kube, KubeError, Object
from nodedevices_operator.records.names import FLEET, config_map_path, config_maps, identified

KEY = "fleet"  # the one key in its queue
NAME = "nodedevices-actions"  # of the ConfigMap
REFUSED_SECONDS = 30.0  # between two decisions while something is refused: nobody watches ConfigMaps

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Answer:
    granted: bool
    reason: str = ""  # why not, for people


class FleetGate:
    """`ask` queues KEY; `answered` is called with each node whose proposals have another answer than before."""

    def __init__(
        self,
        kube: Kube,
        *,
        namespace: str,
        limits: Callable[[], Limits],
        ask: Callable[[str], None],
        answered: Callable[[str], None],
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._kube = kube
        self._namespace = namespace
        self._path = config_map_path(namespace, NAME)
        self._limits = limits
        self._ask = ask
        self._answered = answered
        self._wall = wall
        self._proposals: dict[str, tuple[Action, ...]] = {}  # by node, only what it proposes now
        self._answers: dict[Action, Answer] = {}  # of these
        self._last = Fleet()  # the record as it was last seen or written

    def propose(self, node: str, actions: Sequence[Action]) -> None:
        """What the node wants now, in the place of what it wanted before; nothing withdraws it."""
        if self._proposals.get(node, ()) == tuple(actions):
            return
        if actions:
            self._proposals[node] = tuple(actions)
        else:
            self._proposals.pop(node, None)
        wanted = {action for each in self._proposals.values() for action in each}
        self._answers = {action: answer for action, answer in self._answers.items() if action in wanted}
        if actions:
            self._ask(KEY)

    def answer(self, action: Action) -> Answer | None:
        """None: not decided yet, and nobody acts."""
        return self._answers.get(action)

    async def reconcile(self, _key: str) -> float | None:
        """Decide on all proposals. Returns the seconds after which to decide again; KubeError: nothing was granted."""
        proposals = dict(self._proposals)
        if not proposals:
            return None
        record, now = await self._read(), self._wall()
        fleet, shown = self._last, None
        if record is not None:
            shown = from_data(record.get("data") or {})
            fleet = stopped(self._last, f"ConfigMap {NAME} cannot be read", now) if shown is None else shown
            annotations = record["metadata"].get("annotations") or {}
            fleet = resumed(fleet, str(annotations.get(RESUME, "")), now)
        wanted = [action for actions in proposals.values() for action in actions]
        decision = decide(fleet, wanted, now, self._limits())
        kept = record is not None and shown is None and decision.fleet.breaker == OPEN  # somebody's, until they resume
        if decision.fleet != shown and not kept:
            await self._write(record, decision.fleet)
        if decision.fleet.breaker == OPEN and self._last.breaker != OPEN:
            log.warning("actions stopped", reason=decision.fleet.reason)
        self._last = decision.fleet
        answers = {action: Answer(granted=True) for action in decision.granted}
        answers |= {action: Answer(granted=False, reason=why) for action, why in decision.refused.items()}
        for node, actions in proposals.items():
            changed = any(self._answers.get(action) != answers[action] for action in actions)
            if self._proposals.get(node) == actions and changed:
                self._answers |= {action: answers[action] for action in actions}
                self._answered(node)
        return REFUSED_SECONDS if decision.refused else None

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
