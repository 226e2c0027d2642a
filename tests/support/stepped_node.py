"""The agent's steps without the agent: what a test gives them, what they make of it, and what answers the kubelet.

`Steps` has what every such node needs; `Node` has one probe, and support.probed_node several.
"""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta
from typing import Any, Self

from msgspec.structs import replace
from nodedevices_api.nodedevices import NodeDevicesStatus
from nodedevices_plugin.granting.answers import Answers
from nodedevices_plugin.kubelet.offer import RecentAllocations
from nodedevices_plugin.model import ContainerEdits, DeviceNode, Holder, HoldersState, Holdings, Plan, Refused
from nodedevices_plugin.pipeline.configuration import SeenObject
from nodedevices_plugin.pipeline.state import State
from nodedevices_plugin.pipeline.step import Step
from nodedevices_plugin.pipeline.world import Inputs, World, begin
from nodedevices_plugin.settings.effective import Effective, understood
from nodedevices_plugin.settings.flags import Local
from nodedevices_plugin.status.facts import NodeFacts, ProbeFacts
from nodedevices_plugin.status.report import report
from nodedevices_plugin.vendors.faults import FaultSources
from nodedevices_probe.protocol import DeviceFact, ProbeEvent, Snapshot
from support.facts import START, gpu_id, snapshot
from support.local import at_once
from support.steps import step
from support.there import there

LOCAL = at_once(["--node-name=n1"], {})
NOBODY = Holdings(state=HoldersState.SYNCED, taken=1.0)


def report_of(world: World, now: datetime) -> NodeDevicesStatus:
    """What the agent of that world reports then."""
    return report(
        NodeFacts(
            world=world,
            verdicts=world.known.verdicts,
            config=world.config,
            unschedulable={each.id: each.reason for each in world.state.unschedulable if each.holds(now)},
            started=START,
            probes=(ProbeFacts(name="any", inventory=world.known.inventory),),
            now=now,
        )
    )


class Steps:
    """A node whose inputs a test sets. What is to be saved is, at once, but for `disk_full`."""

    def __init__(
        self,
        *,
        local: Local = LOCAL,
        state: State | None = None,
        vendors: FaultSources | None = None,
        clock: float = 100.0,
        **inputs: Any,
    ) -> None:
        self.local = local
        self.vendors = vendors
        self.clock = clock  # time.monotonic()
        self.ahead = 0.0  # seconds that the wall clock was set forward by
        self.inputs = Inputs(**{"holdings": NOBODY, **inputs})
        self._last: Step | None = None
        self.disk_full = False
        self._read: tuple[object, Effective | None] | None = None  # what is saved, and what is understood of it
        self.begin(state or State())

    @property
    def time(self) -> datetime:
        return START + timedelta(seconds=self.clock + self.ahead)

    def begin(self, state: State) -> None:
        """The agent starts, with this in the state file."""
        self.world: World = begin(
            state,
            self.local,
            now=self.time,
            monotonic=self.clock,
            file=self.inputs.file,
            hardware=self.inputs.hardware,
            device_files=self.inputs.device_files,
        )
        self._save()

    def restarts(self) -> Self:
        """The agent starts again, with what it has saved."""
        self.begin(self.world.state)
        return self

    def given(self, **inputs: Any) -> Self:
        """From the next step on."""
        self.inputs = replace(self.inputs, **inputs)
        return self

    def sees(self, **changes: Any) -> Self:
        """The node's object, from the next step on: as before but for this."""
        return self.given(seen=replace(self.inputs.seen or SeenObject(exists=True), **changes))

    def wait(self, seconds: float = 0.0) -> Self:
        """Time passes, and no line comes."""
        self.clock += seconds
        return self.step()

    def step(self, line: Snapshot | None = None, source: str = "") -> Self:
        inputs = replace(self.inputs, snapshot=line, source=source, arrived=self.clock)
        self._last = step(self.world, inputs, self.local, now=self.time, monotonic=self.clock, vendors=self.vendors)
        self.world = self._last.world
        return self.step() if self._save() else self

    def _save(self) -> bool:
        """Whether the state file has another configuration now."""
        if self.disk_full:
            self.given(unsaved_because="write state.json: No space left on device")
            return False
        applied, before, local = self.world.state.applied, self.inputs.saved, self.local
        if self._read is None or self._read[0] != applied:
            self._read = applied, understood(applied, local.modes, local.vendors)[0]
        self.given(saved=self._read[1], unsaved_because="")
        return self.inputs.saved != before

    # --- what came of it ----------------------------------------------------------------------------------------------
    @property
    def last(self) -> Step:
        """The step that was made last."""
        return there(self._last)

    @property
    def plan(self) -> Plan:
        """What is offered, once anything was planned."""
        return there(self.world.plan)

    @property
    def refused(self) -> Refused:
        """What of the configuration was refused."""
        return there(self.world.config.refused)

    @property
    def config(self) -> str:
        return self.world.config.reason

    @property
    def offers(self) -> dict[str, list[str]]:
        """Healthy ids by resource."""
        resources = self.world.plan.resources if self.world.plan else ()
        return {each.name: [one.id for one in each.ids if one.healthy] for each in resources}

    @property
    def counts(self) -> dict[str, tuple[int, int]]:
        """By resource: ids, and those of them that are healthy."""
        resources = self.world.plan.resources if self.world.plan else ()
        return {each.name: (len(each.ids), sum(one.healthy for one in each.ids)) for each in resources}

    @property
    def states(self) -> dict[str, tuple[str, str]]:
        """State and reason by device, in words."""
        return {id_: (each.state.value, each.reason) for id_, each in self.world.known.verdicts.items()}

    def says(self, id_: str = gpu_id(0)) -> tuple[str, str, bool]:
        """State and reason of a device, and whether new containers may get it."""
        return *self.states[id_], self.world.known.verdicts[id_].offered

    @property
    def unmatched(self) -> list[str]:
        return [each.text for each in self.world.config.unmatched]


class Node(Steps):
    """A node with one probe, whose lines have `devices` a second after each other."""

    def __init__(self, *devices: DeviceFact, **node: Any) -> None:
        super().__init__(**node)
        self.devices = devices
        self.answers = Answers(recent=RecentAllocations())
        # An agent that starts anew connects to the process of the probe that runs.
        self._events = max((0, *(each.sequence for each in self.world.state.cursors.values())))

    def line(self, *devices: DeviceFact, after: float = 1.0, xids: tuple[ProbeEvent, ...] = (), **line: Any) -> Self:
        """A line with these devices (or all), `after` seconds, and events that get the next numbers."""
        self.clock += after
        events = []
        for each in xids:
            self._events += 1
            events.append(dataclasses.replace(each, sequence=self._events))
        return self.step(snapshot(*(devices or self.devices), **{"events": tuple(events), **line}))

    def now(self, requested: dict[str, Any] | None = None, *holders: Holder) -> Self:
        """This is requested, and these are all that hold devices."""
        self.given(seen=SeenObject(exists=True, generation=1, config=requested or {}))
        for _ in range(2):
            self.given(holdings=replace(NOBODY, holders=holders, taken=self.clock + 1)).line()
        if self.world.plan is not None:
            self.answers.use(self.world.plan, self.world.known.inventory, self.world.access.containers)
        return self

    def restarted(self, local: Local | None = None) -> Node:
        """Another agent with what this one has saved, which was given nothing yet."""
        return Node(*self.devices, local=local or self.local, state=self.world.state, clock=self.clock)

    def container(self, resource: str, *ids: str) -> ContainerEdits:
        return self.answers.edits(self.answers.grant(resource, ids))


def nodes(*paths: str) -> tuple[DeviceNode, ...]:
    return tuple(DeviceNode(container_path=path, host_path=path) for path in paths)
