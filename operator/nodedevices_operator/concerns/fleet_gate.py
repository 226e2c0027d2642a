"""The fleet gate: one key that grants or refuses what nodes propose, and writes it down first.

The order is the promise: read the record, decide (desired/fleet.py), write the record, and only then answer. Killed in
between, a restarted operator finds the action in the record, grants it again and counts it once. The write carries the
record's resourceVersion, so two operators, or a person in between, never both win.

A record that was deleted is written again from memory; after a restart it is not known what it said, and it begins
empty, but for a breaker that the policies show as open. Policies name the record in their status, so that an operator
in another namespace knows that it has not got it; then nothing is granted until it was copied, or a person goes on
without it.

A record that cannot be read or written, time after time, stops all actions as well, and is shown as an open breaker is.

It decides whenever a fault comes or goes, also where nothing is proposed: the breaker judges faults, not what is
to be done about them. The record is read once after each start, so that an open breaker shows; while it is open the
record is watched, so that a person's annotation counts at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime

import structlog
from msgspec import Struct
from msgspec.structs import replace
from nodedevices_api import conditions as names
from nodedevices_common.confirming import CONFIRM
from nodedevices_common.times import rfc3339

from nodedevices_operator.cache.rejected import again_and_again
from nodedevices_operator.desired.fleet import (
    OPEN,
    Action,
    ActionAnswer,
    Arrivals,
    Claims,
    Fleet,
    Pool,
    Survey,
    arrivals,
    checked,
    decide,
    from_data,
    refusal,
    resumed,
    stopped,
    to_data,
    why_stopped,
    would_answer,
)
from nodedevices_operator.kube.port import JsonObject, Kube, KubeError, find
from nodedevices_operator.metrics import OperatorMetrics
from nodedevices_operator.records.names import FLEET, identified, namespaced

KEY = "fleet"  # the one key in its queue
NAME = "nodedevices-actions"  # of the ConfigMap
NAMESPACE = "nodedevices-system"  # its, where nothing else is said
AGAIN_SECONDS = 30.0  # between two decisions while something is refused
WATCH_SECONDS = 120  # after which the API server ends one; a silent one is given up after 150
FAILURES = 3  # to read or write the record one after the other, and it is shown

log = structlog.get_logger()


class Stop(Struct, frozen=True):
    """Why no action is granted: an open breaker, or a record that cannot be written."""

    reason: str  # of the policies' condition
    message: str
    since: str  # when it opened
    record: str  # by which a person closes it, namespace/name; "": it closes by itself
    refusal: str = ""  # why a person's annotation does not close it


class FleetGate:
    """`enqueue` queues KEY; `answered` is called with each node whose proposals have another answer than before, and
    `switched` with those that have faults when what `stop` says changes."""

    def __init__(
        self,
        kube: Kube,
        metrics: OperatorMetrics,
        *,
        namespace: str,
        survey: Callable[[], Survey],
        claims: Callable[[str], Claims] = lambda _: Claims(),
        enqueue: Callable[[str], None],
        answered: Callable[[str], None],
        switched: Callable[[Sequence[str]], None] = lambda _: None,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube = kube
        self._metrics = metrics
        self._namespace = namespace
        self._path = namespaced(namespace, "configmaps", NAME)
        self._survey = survey
        self._where = f"{namespace}/{NAME}"
        self._claims = claims
        self._enqueue = enqueue
        self._answered = answered
        self._switched = switched
        self._wall = wall
        self._clock = clock
        self._proposals: dict[tuple[str, str], tuple[Action, ...]] = {}  # by node and kind, only what is wanted now
        self._answers: dict[Action, ActionAnswer] = {}  # of these
        self._last: Fleet | None = None  # the record as it was last read or written
        self._arrivals: Arrivals | None = None
        self._faults: dict[str, Mapping[str, str]] = {}  # of each node, as it was last reconciled
        self._failures = 0  # to read or write the record, since that last succeeded
        self.stop: Stop | None = None  # why nothing is granted now; None: the breaker is closed, as far as is known
        self._open = asyncio.Event()  # the breaker is open
        self.place = ""  # of the record, as the policies are to name it; "": there is none yet, or it is not theirs

    def propose(self, node: str, kind: str, actions: Sequence[Action]) -> None:
        """Replace what the node wants done of that kind; nothing withdraws it."""
        before = self._proposals.pop((node, kind), ())
        for action in set(before).difference(actions):
            self._answers.pop(action, None)
        if actions:
            self._proposals[node, kind] = tuple(actions)
            if before != tuple(actions):
                self._enqueue(KEY)

    def answer(self, action: Action) -> ActionAnswer | None:
        """Return the decision; None: not decided yet, and nothing is done."""
        return self._answers.get(action)

    def stopped(self) -> str:
        """Why nothing is granted, whatever is proposed; empty: the breaker is closed, as far as is known."""
        return "" if self.stop is None else self.stop.message

    def acted_on(self, node: str) -> Collection[str] | None:
        """Return the ids of what was acted upon there and is not known to be well; None: the record was not read."""
        return None if self._last is None else self._last.unavailable.get(node, ())

    def would_answer(self, pool: Pool, actions: Sequence[Action]) -> Mapping[Action, ActionAnswer]:
        """Return what would be answered now if the policy of that pool were enforced. Nothing is granted or written."""
        survey = self._survey()
        seen = self._arrivals or arrivals(None, survey.faults, self._clock())
        fleet = self._last or Fleet(place=self._where)
        return would_answer(fleet, pool, actions, now=self._wall(), survey=survey, seen=seen)

    def seen(self, node: str, faults: Mapping[str, str]) -> None:
        """The node is about to be reconciled, and this is what is at fault there."""
        if self._faults.pop(node, {}) != faults:
            self._enqueue(KEY)
        if faults:
            self._faults[node] = faults

    async def watch_record(self) -> None:
        """Watch the record while the breaker is open, so that a person's annotation counts at once; until cancelled.
        Without the right to watch, or while no watch is possible, the record is read now and then."""
        await again_and_again(self._watch_once, "failed to watch the record of actions, retrying")

    async def _watch_once(self) -> None:
        """One watch, until it ends. It begins with the record as it is, so that nothing between two is missed."""
        await self._open.wait()
        query = {"fieldSelector": f"metadata.name={NAME}", "timeoutSeconds": str(WATCH_SECONDS)}
        async for _ in self._kube.watch(namespaced(self._namespace, "configmaps"), query):
            self._enqueue(KEY)

    async def reconcile(self, _key: str) -> float | None:
        """Decide on all proposals. Returns the seconds after which to decide again; KubeError: nothing was granted."""
        try:
            again = await self._decide()
        except KubeError as error:
            self._failures += 1
            if self._failures >= FAILURES:
                self._show_failure(error)
            raise
        self._failures = 0
        return again

    def _show_failure(self, error: KubeError) -> None:
        """Say that nothing is granted, because the record cannot be read or written."""
        if self.stop is not None and self.stop.reason != names.RECORD_NOT_WRITTEN:
            return
        since = rfc3339(self._wall()) if self.stop is None else self.stop.since
        message = f"no action has been granted since {since}: the record of actions, ConfigMap {self._where}: {error}"
        stop = Stop(names.RECORD_NOT_WRITTEN, message, since, record="")
        if stop != self.stop:
            self.stop = stop
            self._metrics.breaker_open.set(1)
            self._switched(list(self._survey().faults))

    async def _decide(self) -> float | None:
        proposals = dict(self._proposals)
        survey, now = self._survey(), self._wall()
        seen = self._arrivals = arrivals(self._arrivals, survey.faults, self._clock())
        wanted = [action for actions in proposals.values() for action in actions]
        expected = decide(self._last or Fleet(), (), now, survey, seen).fleet
        if expected.breaker == OPEN:  # what was granted holds no more, whether or not it can be written down
            self._answers = {action: answer for action, answer in self._answers.items() if not answer.granted}
        elif not wanted and expected == self._last and self.stop is None:
            return None
        record = await find(self._kube, self._path)
        known = self._last or Fleet(place=self._where)
        claims = self._claims(self._where)
        fleet, shown, refused = known, None, ""
        if record is not None:
            shown = from_data(record.get("data") or {})
            fleet = shown or stopped(known, names.RECORD_UNREADABLE, f"ConfigMap {NAME} cannot be read", now)
            annotation = str((record["metadata"].get("annotations") or {}).get(CONFIRM, ""))
            refused = refusal(fleet, annotation, now)
            if (after := resumed(fleet, annotation, now, survey.faults)) != fleet:
                fleet = replace(after, place=claims.elsewhere or self._where)
        fleet = checked(fleet, claims, self._where, now, lost=record is None and self._last is None)
        decision = decide(fleet, wanted, now, survey, seen)
        kept = record is not None and shown is None and decision.fleet.breaker == OPEN  # a person's, until they resume
        nothing = record is None and decision.fleet == Fleet(place=self._where)
        if decision.fleet != shown and not kept and not nothing:
            await self._write(record, decision.fleet)
        self._last = decision.fleet
        answers = decision.answers
        for (node, kind), actions in proposals.items():
            changed = [action for action in actions if self._answers.get(action) != answers[action]]
            if self._proposals.get((node, kind)) == actions and changed:
                self._count(changed, answers)
                self._answers |= {action: answers[action] for action in changed}
                self._answered(node)
        self._show(known, decision.fleet, refused=refused, written=not nothing, nodes=list(survey.faults))
        return (
            AGAIN_SECONDS if decision.fleet.breaker == OPEN or not all(it.granted for it in answers.values()) else None
        )

    def _show(self, before: Fleet, fleet: Fleet, *, refused: str, written: bool, nodes: Sequence[str]) -> None:
        """Say why nothing is granted and where the record is, where that has changed."""
        stop = None
        self._metrics.breaker_open.set(fleet.breaker == OPEN)
        if fleet.breaker == OPEN:
            if before.breaker != OPEN:
                log.warning("actions stopped", reason=fleet.reason)
            cause = fleet.cause or names.MASS_FAULT
            stop = Stop(cause, why_stopped(fleet, refused), fleet.opened, self._where, refused)
            self._open.set()
        else:
            if before.breaker == OPEN:
                log.warning("actions resumed", by=fleet.resumed)
            self._open.clear()
        theirs = written and fleet.cause != names.RECORD_MISSING
        if (stop, theirs) != (self.stop, bool(self.place)):
            self.place = self._where if theirs else ""
            if refused and (self.stop is None or self.stop.refusal != refused):
                log.warning("actions not resumed", why=refused)
            self.stop = stop
            self._switched(nodes)

    def _count(self, changed: Sequence[Action], answers: Mapping[Action, ActionAnswer]) -> None:
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

    async def _write(self, record: JsonObject | None, fleet: Fleet) -> None:
        data = to_data(fleet)
        if record is None:
            head = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME, "namespace": self._namespace}}
            await self._kube.create(namespaced(self._namespace, "configmaps"), head | {"data": data})
            return
        metadata = record["metadata"]
        body = identified("ConfigMap", NAME, metadata["uid"], namespace=self._namespace)
        body["metadata"]["resourceVersion"] = metadata["resourceVersion"]
        await self._kube.apply(self._path, body | {"data": data}, FLEET)
