"""The agent's and the operator's pure stages on one node: what they make of the lines.

`Judged` has the stages from a line to the verdicts, for every node of a fleet. `Whole` has the whole step
(assess, decide) with holders, the report, and what the operator works out from the object: marks on pods, the Node's
condition, taint and evictions; a few nodes are one. No I/O; what would be in the state file goes through its JSON.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

from msgspec.structs import replace
from nodedevices_api.base import to_dict
from nodedevices_api.conditions import DEVICES_HEALTHY, NODE_DEVICES_HEALTHY
from nodedevices_api.defaults import Resolved, with_defaults
from nodedevices_api.meta import Condition
from nodedevices_api.nodedevices import Probe as ReportedProbe
from nodedevices_api.sections import Sections
from nodedevices_common.conditions import ConditionRecord, read as read_condition
from nodedevices_common.times import rfc3339
from nodedevices_operator.desired import pods
from nodedevices_operator.desired.conditions import Since, Staleness, judge, node_conditions
from nodedevices_operator.desired.consequences import evictions, tainting
from nodedevices_operator.desired.pods import HolderMatch, Scope
from nodedevices_operator.records.kinds import node_devices_record, node_record
from nodedevices_operator.records.objects import HeartbeatArrival, NodeDevicesRecord, NodeRecord, TaintRecord
from nodedevices_plugin.health.events import EventCursor, fresh_events
from nodedevices_plugin.health.history import follow_notices
from nodedevices_plugin.health.machine import judge_all
from nodedevices_plugin.health.rules import HealthRules
from nodedevices_plugin.model import HealthState, Holder, Inventory, Notice, Verdict
from nodedevices_plugin.pipeline import inventory as stage
from nodedevices_plugin.pipeline.configuration import SeenObject
from nodedevices_plugin.pipeline.lost import is_blind
from nodedevices_plugin.pipeline.state import State, restored_devices, to_save
from nodedevices_plugin.status.facts import NodeFacts, ProbeFacts
from nodedevices_plugin.status.report import report
from nodedevices_probe.protocol import ProbeEvent, Snapshot
from pydantic import TypeAdapter
from support.facts import REGISTERED, START
from support.local import at_once
from support.replay.hardware import PROBES
from support.stepped_node import NOBODY, Steps

GPU, RDMA = "nvidia.com/gpu", "example.com/rdma"
NAMESPACE = "ml"
SECTIONS: Mapping[str, Any] = {
    "resources": {"devices": [{"match": {"type": "nic"}, "name": RDMA}]},  # an unused port without a link is no fault
    "faults": {
        "taintEffect": "NoSchedule",
        "evictMode": "AfterGrace",
        "evictGraceSeconds": 120,
        "budget": {"maxUnavailable": "5%"},
    },
}
RULES = HealthRules()
_STATE: TypeAdapter[State] = TypeAdapter(State)
_RESOLVED: Resolved = with_defaults(Sections.model_validate(SECTIONS))
_LOCAL = at_once(["--node-name=n1", *(f"--probe={each}" for each in PROBES)], {})
_LAYOUTS = ((8,), (4, 4), (1, 1, 2, 4))  # GPUs of a node's pods


class Agent(Protocol):
    """What a replay needs of one node's agent. Times are seconds since the beginning."""

    @property
    def verdicts(self) -> Mapping[str, Verdict]: ...

    @property
    def notices(self) -> Mapping[str, tuple[Notice, ...]]: ...

    def line(self, probe: str, snapshot: Snapshot, at: float) -> None:
        """A line comes."""

    def wait(self, at: float) -> None:
        """Something may have changed without a line."""

    def heartbeats(self, at: float, probes: Collection[str]) -> None:
        """These probes have repeated their last line until now."""

    def restart(self, at: float) -> int:
        """It starts again with what it has saved; the size of that in bytes."""

    def confirm_removed(self, device: str, at: float) -> None:
        """A person says that the device was taken out."""

    def end_pods(self) -> None:
        """The node is empty."""

    def start_pods(self) -> None:
        """Pods get what is offered."""

    def down(self, at: float) -> str:
        """The Node is not Ready: the status of its condition then."""


def through_the_file(state: State) -> tuple[State, int]:
    """What the next agent reads of it, and the size of the file."""
    content = _STATE.dump_json(state, by_alias=True, exclude_none=True)
    return _STATE.validate_json(content), len(content)


def condition_of(
    record: NodeDevicesRecord, staleness: Staleness, previous: ConditionRecord | None, now: str
) -> ConditionRecord:
    node = NodeRecord(name=record.name, uid="", condition=previous)
    made = node_conditions(record, staleness, node, now=now)
    return read_condition(next(each for each in made if each["type"] == NODE_DEVICES_HEALTHY))


def without_node(record: NodeDevicesRecord, previous: ConditionRecord | None, at: float) -> ConditionRecord:
    """The Node's condition once the Node is not Ready."""
    raw = {"metadata": {"name": record.name}, "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
    judged, _ = judge(record, node_record(raw), arrival=HeartbeatArrival(at), since=Since(), now=at)
    return condition_of(record, judged, previous, rfc3339(START + timedelta(seconds=at)))


def repeated(inventory: Inventory, at: float) -> Inventory:
    """The inventory after another line that says the same: one every five seconds, of which the last is enough."""
    if inventory.line_monotonic is None:
        return inventory
    return replace(inventory, line_monotonic=at, line_time=START + timedelta(seconds=at))


class Judged:
    """From a line to the verdicts of its devices."""

    def __init__(self, rules: HealthRules = RULES) -> None:
        self._rules = rules
        self._inventories = dict.fromkeys(PROBES, Inventory())
        self._cursors = dict.fromkeys(PROBES, EventCursor())
        self._verdicts: dict[str, dict[str, Verdict]] = {each: {} for each in PROBES}
        self._notices: dict[str, dict[str, tuple[Notice, ...]]] = {each: {} for each in PROBES}
        self._removed: frozenset[str] = frozenset()

    @property
    def verdicts(self) -> Mapping[str, Verdict]:
        return {id_: each for of_probe in self._verdicts.values() for id_, each in of_probe.items()}

    @property
    def notices(self) -> Mapping[str, tuple[Notice, ...]]:
        return {id_: each for of_probe in self._notices.values() for id_, each in of_probe.items()}

    def line(self, probe: str, snapshot: Snapshot, at: float) -> None:
        self._cursors[probe], events = fresh_events(self._cursors[probe], snapshot)
        self._inventories[probe] = stage.update(
            self._inventories[probe], snapshot, now=START + timedelta(seconds=at), monotonic=at, removed=self._removed
        )
        self._judge(probe, events, at)

    def wait(self, at: float) -> None:
        for probe in PROBES:
            self._judge(probe, (), at)

    def heartbeats(self, at: float, probes: Collection[str]) -> None:
        for probe in probes:
            self._inventories[probe] = repeated(self._inventories[probe], at)

    def restart(self, at: float) -> int:
        size = 0
        now = START + timedelta(seconds=at)
        for probe, before in self._inventories.items():
            saved, more = through_the_file(to_save(State(), before, self._verdicts[probe]))
            self._verdicts[probe] = dict(saved.verdicts)
            self._inventories[probe] = stage.restore(restored_devices(saved, now), boot_id=saved.boot_id)
            self._cursors[probe] = EventCursor()
            size += more
        return size

    def confirm_removed(self, device: str, at: float) -> None:
        self._removed = frozenset({device})
        for probe, before in self._inventories.items():
            self._inventories[probe] = stage.release(before, held_partitions=frozenset(), removed=self._removed)
        self.wait(at)

    def end_pods(self) -> None:
        """None are known here."""

    def start_pods(self) -> None:
        """As above."""

    def down(self, at: float) -> str:
        """By an object that has nothing else than the agent's last word."""
        bad = any(each.state is HealthState.UNHEALTHY for each in self.verdicts.values())
        said = {"type": DEVICES_HEALTHY, "status": "False" if bad else "True", "reason": "Said", "message": ""}
        raw = {"metadata": {"name": "node"}, "status": {"conditions": [said]}}
        return without_node(node_devices_record(raw), None, at).status

    def _judge(self, probe: str, events: tuple[ProbeEvent, ...], at: float) -> None:
        now, inventory = START + timedelta(seconds=at), self._inventories[probe]
        self._verdicts[probe] = judge_all(
            self._verdicts[probe],
            inventory,
            events,
            self._rules,
            REGISTERED,
            now=now,
            monotonic=at,
            confirmed=frozenset(),
            shown={},
            counts={},
            in_use=lambda _: True,
            blind=is_blind(inventory, frozenset()),
        )
        self._notices[probe] = follow_notices(self._notices[probe], events, inventory, self._rules, REGISTERED, now=now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What the operator makes of the node."""

    pods: Mapping[str, ConditionRecord]  # those that hold what is not Healthy, with what their condition shall be
    node: ConditionRecord
    tainted: bool
    evicted: frozenset[str]  # pods


@dataclass(slots=True)
class _Pod:
    name: str
    raw: Mapping[str, Any]
    holders: tuple[Holder, ...]
    condition: ConditionRecord | None = None  # as it was written last


@dataclass(slots=True)
class Whole:
    """The whole step, the object and the operator. Pods hold what was offered when the node was last empty."""

    name: str
    number: int
    steps: Steps = field(init=False)
    record: NodeDevicesRecord | None = None  # None: nothing is reported yet
    shown: Shown | None = None
    _pods: dict[str, _Pod] = field(default_factory=dict)
    _rounds: int = 0
    _node: ConditionRecord | None = None
    _taints: tuple[TaintRecord, ...] = ()
    _conditions: tuple[Condition, ...] = ()
    _probes: tuple[ReportedProbe, ...] = ()

    def __post_init__(self) -> None:
        self.steps = Steps(local=_LOCAL, clock=0.0, seen=SeenObject(exists=True, generation=1, config=SECTIONS))

    @property
    def verdicts(self) -> Mapping[str, Verdict]:
        return self.steps.world.known.verdicts

    @property
    def notices(self) -> Mapping[str, tuple[Notice, ...]]:
        return self.steps.world.state.notices

    @property
    def pods(self) -> Mapping[str, frozenset[str]]:
        """The devices of each pod."""
        return {
            each.name: frozenset(id_ for holder in each.holders for id_ in holder.ids) for each in self._pods.values()
        }

    def line(self, probe: str, snapshot: Snapshot, at: float) -> None:
        self.steps.clock = at
        self.steps.step(snapshot, probe)
        self._show()

    def wait(self, at: float) -> None:
        self.steps.clock = at
        self.steps.step()
        self._show()

    def heartbeats(self, at: float, probes: Collection[str]) -> None:
        known = self.steps.world.known
        running = {name: repeated(part, at) if name in probes else part for name, part in known.probes.items()}
        self.steps.world = replace(self.steps.world, known=dataclasses.replace(known, probes=running))

    def restart(self, at: float) -> int:
        self.steps.clock = at
        state, size = through_the_file(self.steps.world.state)
        self.steps.begin(state)
        self.shown = None  # the object is as it was until the next report
        return size

    def confirm_removed(self, device: str, at: float) -> None:
        self.steps.sees(confirm=f"{device}=removed@{rfc3339(self.steps.time)}")
        self.wait(at)

    def end_pods(self) -> None:
        """The node is empty."""
        self._pods = {}
        self._hold()

    def start_pods(self) -> None:
        """Pods get what is offered, in the order in which it is listed."""
        self._rounds += 1
        offered = {name: list(self.steps.offers.get(name, ())) for name in (GPU, RDMA)}
        for number, size in enumerate(_LAYOUTS[self.number % len(_LAYOUTS)]):
            name = f"train-{self.number}-{self._rounds}-{number}"
            given = {each: tuple(sorted(ids[:size])) for each, ids in offered.items()}
            if len(given[GPU]) < size:
                break
            offered = {each: ids[size:] for each, ids in offered.items()}
            self._pods[name] = self._pod(name, given)
        self._hold()

    def down(self, at: float) -> str:
        assert self.record is not None
        self._node = without_node(self.record, self._node, at)
        return self._node.status

    def _pod(self, name: str, given: Mapping[str, tuple[str, ...]]) -> _Pod:
        now = self.steps.time
        limits = {resource: str(len(ids)) for resource, ids in given.items() if ids}
        raw = {
            "metadata": {"name": name, "namespace": NAMESPACE, "uid": f"uid-{name}"},
            "spec": {"nodeName": self.name, "containers": [{"name": "main", "resources": {"limits": limits}}]},
            "status": {"phase": "Running", "startTime": rfc3339(now)},
        }
        holders = tuple(
            Holder(namespace=NAMESPACE, pod=name, container="main", resource=resource, ids=ids, since=now)
            for resource, ids in given.items()
            if ids
        )
        return _Pod(name, raw, holders)

    def _hold(self) -> None:
        holders = tuple(holder for pod in self._pods.values() for holder in pod.holders)
        self.steps.given(holdings=replace(NOBODY, holders=holders, taken=self.steps.clock + 0.001))

    # --- the report, and what comes of it ----------------------------------------------------------------------------
    def _show(self) -> None:
        """The object, and what the operator works out from it."""
        outcome, world = self.steps.last, self.steps.world
        if world.known.inventory.line_monotonic is None:
            return
        now = self.steps.time
        status = report(
            NodeFacts(
                world=world,
                verdicts=world.known.verdicts,
                config=world.config,
                started=START,
                probes=tuple(
                    ProbeFacts(name=name, inventory=part, silent=name in outcome.silent)
                    for name, part in world.known.owned.items()
                ),
                previous=self._conditions,
                previous_probes=self._probes,
                now=now,
            )
        )
        self._conditions, self._probes = status.conditions, status.probes
        raw = {"metadata": {"name": self.name, "uid": self.name}, "spec": {}, "status": to_dict(status)}
        self.record = node_devices_record(raw, self.record)
        self._act(rfc3339(now))

    def _act(self, now: str) -> None:
        assert self.record is not None
        scope = Scope(self.name, frozenset({GPU, RDMA}))
        marked: dict[str, ConditionRecord] = {}
        unsure = set[str]()
        for holding in pods.holdings(self.record):  # the worst of a pod first
            pod = self._pods.get(holding.holder.pod)
            if pod is None or pod.name in marked or pods.match_holder(pod.raw, holding, scope) is not HolderMatch.YES:
                continue
            if holding.undecided or (holding.unknown and pod.condition is None):  # as concerns/pod_marks.py has it
                unsure.add(pod.name)
                continue
            marked[pod.name] = pod.condition = read_condition(pods.pod_condition(holding, pod.condition, now))
        for pod in self._pods.values():
            if pod.name not in marked and pod.name not in unsure and pod.condition is not None:
                pod.condition = read_condition(pods.condition("True", "Healthy", "well again", pod.condition, now))
        self._node = condition_of(self.record, Staleness("False", "Fresh", "", 0.0), self._node, now)
        taint = tainting(self.record, _RESOLVED.faults, self._taints)
        self._taints = () if taint is None else (taint.taint,)
        self.shown = Shown(
            pods=marked,
            node=self._node,
            tainted=taint is not None,
            evicted=frozenset(due.holding.holder.pod for due in evictions(self.record, _RESOLVED.faults)),
        )
