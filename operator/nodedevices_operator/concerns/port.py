"""The port: one thing that the operator keeps on a Node, a pod or an object; and the tools that it is made with.

A concern is one coroutine: it reads what the view does not have, has a pure function of `desired/` decide, and writes
what differs. Each time from what the cluster shows, and safe to be killed between any two calls. A concern fails alone:
what it raises is counted and retried by the node's back-off, and the other concerns go on. A new one is a file in this
folder and a line in registry.py (docs/extending.md).
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace
from nodedevices_api import conditions as names
from nodedevices_api.defaults import Resolved
from nodedevices_common.conditions import build, same

from nodedevices_operator.cache.rejected import RejectedPods
from nodedevices_operator.cache.rollouts import Rollouts
from nodedevices_operator.cache.store import Cache, Dirty
from nodedevices_operator.concerns.budget import CallBudget, NodeEvents
from nodedevices_operator.concerns.fleet_gate import FleetGate
from nodedevices_operator.desired.conditions import ConditionVerdict, Staleness, next_actions, summed_up
from nodedevices_operator.desired.configuration import Configuration, Understood, understood
from nodedevices_operator.desired.fleet import ActionAnswer
from nodedevices_operator.desired.pods import Scope, scope
from nodedevices_operator.desired.policy_status import Hindrance
from nodedevices_operator.kube.apply import Writer
from nodedevices_operator.kube.port import JsonObject, Kube, KubeError, find, node_pods
from nodedevices_operator.metrics import OperatorMetrics
from nodedevices_operator.records.kinds import Kind, read
from nodedevices_operator.records.names import pod_path
from nodedevices_operator.records.objects import Affected, HolderRecord, NodeDevicesRecord, NodeRecord

SETTLED_SECONDS = 6 * 60.0  # the kubelet's endpointStopGracePeriod is 5 min, checked with the next node status
NOT_YET_SECONDS = 2.0  # until a starting pod says enough about itself
# Reads of pods that one node may cause. A node has a few hundred pods, and each is read once or twice for a fault; what
# an agent invents beyond that waits, and its node with it.
READS_AT_ONCE, SECONDS_PER_READ, READS_WAIT_SECONDS = 1024, 0.1, 10.0

Memory = TypeVar("Memory")


class Info(Struct, frozen=True):
    """A concern's description of itself."""

    name: str  # of its metrics and log lines
    section: str = ""  # of the DevicePolicy that configures it; a policy has not applied while this is hindered
    condition: str = ""  # its type on NodeDevices.status, where it has one; no other concern has the same
    action: str = ""  # its name in NodeDevices.status.actions, where it has one; no other concern has the same
    by_generation: bool = True  # the condition is about a generation of spec, and says which
    informs: bool = False  # it only says what is so: it goes on where its section is understood in part
    first: bool = False  # when faults change it runs once by itself, before anything else is written for any node


class Shown(Enum):
    """A condition or an action about which nothing was decided, or that is no longer needed."""

    KEPT = "as it stands"
    REMOVED = "removed"


class Outcome(Struct, frozen=True):
    """Result of a reconciliation of one concern."""

    verdict: ConditionVerdict | Shown = Shown.KEPT  # of its condition or action
    requeue_after: float | None = None  # seconds after which to reconcile without any event
    problems: tuple[
        Exception, ...
    ] = ()  # what was refused for want of permission is repeated now and then, the rest by back-off
    hindrance: Hindrance | None = None  # why its section is not in effect, where no action says so

    @property
    def retried(self) -> bool:
        """True when something is to be tried again by back-off."""
        return any(not forbidden(error) for error in self.problems)


class Concern(ABC, Generic[Memory]):
    """One thing that the operator keeps, for all nodes; one node at a time by the key queue. What it remembers of each
    only saves calls: after `forget`, or in a new process, it reaches the same end."""

    info: ClassVar[Info]

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._writer = tools.writer
        self._nodes: dict[str, Memory] = {}

    @abstractmethod
    async def reconcile(self, view: View) -> Outcome:
        """Write what differs from what shall be there, and nothing where nothing does. May raise KubeError."""

    def forget(self, node: str) -> None:
        """The node is gone, or is another one of the same name, or the state kept for it may be wrong."""
        self._nodes.pop(node, None)


class OnNode(Concern[Memory]):
    """A concern that keeps something on the Node, or on its pods, as policies say."""

    async def reconcile(self, view: View) -> Outcome:
        """Nothing changes before the agent has said anything, and the configuration is known and stored."""
        if view.node is None or view.sections is None or not (view.reported and view.stored):
            return Outcome()
        try:
            return await self.keep(view, view.node, view.sections)
        except KubeError as error:
            outcome = failed_to(f"write the Node's {self.info.name}", error)
            return outcome if self.info.action else replace(outcome, hindrance=hindered(error))

    @abstractmethod
    async def keep(self, view: View, node: NodeRecord, sections: Resolved) -> Outcome:
        """As `reconcile`, with the Node to write to and the sections to act by."""


@dataclass(slots=True)
class Tools:
    """One set for all concerns. A concern takes what it needs."""

    writer: Writer
    metrics: OperatorMetrics
    gate: FleetGate
    rollouts: Rollouts
    rejected: RejectedPods
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    retired_seconds: float = SETTLED_SECONDS
    reads: dict[str, CallBudget] = field(default_factory=dict)  # of pods, by node
    events: NodeEvents = field(init=False)

    def __post_init__(self) -> None:
        self.events = NodeEvents(self.writer, self.metrics, self.clock)

    async def pod(self, view: View, namespace: str, name: str) -> JsonObject | None:
        """Return a pod that the node names, as it was when this reconciliation first asked; None: there is none. May
        raise KubeError, also where the node has caused too many reads."""
        at, node = (namespace, name), view.record.name
        if at not in view.pods:
            budget = self.reads.setdefault(node, CallBudget(READS_AT_ONCE, SECONDS_PER_READ))
            if view.exhausted is None and not budget.take(self.clock()):
                text = f"node {node} names more than {READS_AT_ONCE} pods at once; the others wait"
                view.exhausted = KubeError(text, status=429, retry_after=READS_WAIT_SECONDS)
            if view.exhausted is not None:
                raise view.exhausted
            view.pods[at] = await find(self.writer.kube, pod_path(namespace, name))
        return view.pods[at]


@dataclass(slots=True)
class View:
    """One reconciliation of one node: what is known of it, and what concerns have found so far.

    Each of the later fields has one writer, the concern that it is named after; concerns run in the registry's order.
    """

    before: NodeDevicesRecord  # as it stood when the reconciliation began
    record: NodeDevicesRecord  # as it is now
    node: NodeRecord | None  # None: not known, or the NodeDevices is of an earlier Node of that name
    cache: Cache
    dirty: Callable[[Dirty], None]
    infos: tuple[Info, ...]
    now: str  # when the reconciliation began, as conditions and Events write it
    outcomes: dict[str, Outcome] = field(default_factory=dict)  # of the concerns before, by name; by the reconciler
    configuration: Configuration | None = None
    stored: bool = True  # NodeDevices.spec says what `configuration` says; by configuration, too
    understood: Understood | None = None  # the configuration, as far as it can be read; by configuration, too
    staleness: Staleness | None = None
    affected: tuple[Affected, ...] | None = None  # what affectedPods shall be; None: not known; by pod_marks
    # Holders, each with its device, whose container has restarted since what happened to it, and is well again by that;
    # by pod_marks.
    restarted: frozenset[tuple[HolderRecord, str]] = frozenset()
    status: object = None  # what NodeDevices.status shows of us by now
    pods_at_first: Sequence[JsonObject] | None = None  # by pods_at_first
    pods: dict[tuple[str, str], JsonObject | None] = field(default_factory=dict)  # by Tools.pod
    exhausted: KubeError | None = None  # by Tools.pod, which reads no more of them

    @property
    def sections(self) -> Resolved | None:
        """The sections to act by: as resolved now, else as they were resolved last. None: not known."""
        if self.understood is None and self.record.config is not None:
            stored = understood(self.record.config)
            if not stored.problems and not stored.misfit:  # what cannot be read takes nothing back
                self.understood = stored
        return None if self.understood is None else self.understood.sections

    def left_alone(self, info: Info) -> Hindrance | None:
        """Why what the concern has written stays as it stands; None: its section is understood."""
        unreadable = frozenset() if self.sections is None or self.understood is None else self.understood.partly
        if self.understood is None or info.informs or info.section not in unreadable:
            return None
        why = self.understood.misfit or "; ".join(self.understood.problems)
        return Hindrance(f"{info.section} cannot be read, and what it has set so far stays: {why}")

    @property
    def first(self) -> bool:
        """True in the first reconciliation of a NodeDevices: it has no condition of ours yet."""
        return not any(self.record.condition(info.condition) for info in self.infos if info.condition)

    @property
    def reported(self) -> bool:
        """True when the agent has said anything about this very Node. One that has not takes nothing back."""
        return self.node is not None and bool(self.record.heartbeat)

    @property
    def scope(self) -> Scope:
        """Return what the node's agent may speak for."""
        return scope(self.record.name, self.node, self.sections)

    def wrote(self, kind: Kind, raw: JsonObject) -> None:
        """Go on with what a write or a read returned. It may hold other writers' news as well."""
        name = self.record.name
        self.dirty(self.cache.observe(kind, read(kind, raw, self.cache.records(kind).get(name))))
        self.record = self.cache.node_devices.get(name, self.record)
        if self.node is not None:
            self.node = self.cache.nodes.get(name, self.node)

    def decided(self) -> dict[str, ConditionVerdict | None]:
        """The verdicts by action, as far as something has been decided; None: the action is no longer needed."""
        found = ((info.action, self.outcomes[info.name].verdict) for info in self.infos if info.name in self.outcomes)
        return {
            action: None if isinstance(verdict, Shown) else verdict
            for action, verdict in found
            if action and verdict is not Shown.KEPT
        }


async def write_status(writer: Writer, view: View, affected: Sequence[Affected]) -> None:
    """Write the operator's part of NodeDevices.status: the conditions and actions of all concerns, and affectedPods.
    One field manager, so one apply carries everything; what nothing was decided about is written unchanged. May raise
    KubeError."""
    record = view.record
    infos = [info for info in view.infos if info.condition]
    verdicts = {info.condition: view.outcomes[info.name].verdict for info in infos if info.name in view.outcomes}
    actions = next_actions(record.actions, view.decided(), record.generation)
    state = (frozenset(affected), tuple(verdicts.items()), actions)
    if view.status == state:
        return
    shown = {item.type: item for item in record.conditions}
    kinds = {info.condition for info in infos} | {names.ACTIONS_SYNCED}
    conditions: list[dict[str, Any]] = []
    for info in infos:
        old, verdict = shown.get(info.condition), verdicts.get(info.condition, Shown.KEPT)
        if not isinstance(verdict, Shown):
            generation = record.generation if info.by_generation else None
            conditions.append(build(info.condition, *verdict, shown=old, generation=generation, now=view.now))
        elif verdict is Shown.KEPT and old is not None:
            said = old.status, old.reason, old.message
            conditions.append(build(old.type, *said, shown=old, generation=old.generation, now=view.now))
    if (summed := summed_up(actions)) is not None:
        old = shown.get(names.ACTIONS_SYNCED)
        conditions.append(build(names.ACTIONS_SYNCED, *summed[0], shown=old, generation=summed[1], now=view.now))
    unchanged = (
        state[0] == set(record.affected)
        and set(actions) == {it for it in record.actions if it.name in names.ACTIONS}
        and {it["type"] for it in conditions} == kinds & shown.keys()
        and all(same(shown[it["type"]], it) for it in conditions)
    )
    if not unchanged:
        view.wrote(Kind.NODE_DEVICES, await writer.status(record, conditions, actions, affected))
    view.status = state


async def pods_at_first(view: View, kube: Kube) -> Sequence[JsonObject]:
    """Return the node's pods in the first reconciliation, listed once for all concerns; later none. May raise
    KubeError.

    An earlier NodeDevices, deleted by hand or with its CRD, took the record of what it left on pods with it. It is
    looked for once: before the NodeDevices has our conditions. What is found is recorded by the same write that puts
    these there, so that a kill in between finds nothing half done.
    """
    if not view.first:
        return ()
    if view.pods_at_first is None:
        view.pods_at_first = [pod async for pod in node_pods(kube, view.record.name)]
    return view.pods_at_first


def forbidden(error: Exception) -> bool:
    return isinstance(error, KubeError) and error.forbidden


def not_granted(answer: ActionAnswer | None, stopped: str) -> ConditionVerdict:
    """Return the verdict of a concern whose action waits for its grant. `stopped`: by the gate."""
    if answer is None:
        return "False", names.STOPPED if stopped else names.PENDING, stopped or "the action is not recorded yet"
    return "False", names.STOPPED if answer.stopped else names.REFUSED, answer.reason


def failed_to(what: str, error: KubeError) -> Outcome:
    """Return the outcome of a concern whose action says that it could not read or write what it needs."""
    return Outcome(("False", failure(error), f"failed to {what}: {error}"), problems=(error,))


def failure(error: KubeError) -> str:
    """Return the reason of an action for a write or a read that failed, which is no waiting."""
    return names.FORBIDDEN if error.forbidden else names.NOT_WRITTEN


def hindered(*errors: KubeError) -> Hindrance | None:
    """Return the hindrance of a concern without an action: what it cannot write, its policy has not applied."""
    if not errors:
        return None
    worst = max(errors, key=forbidden)
    return Hindrance(f"{failure(worst)}: {worst}", passing=not worst.forbidden)
