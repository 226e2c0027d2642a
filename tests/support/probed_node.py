"""The agent's steps, without the agent: lines of several probes in, a file or a policy that says which of them run."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from nodedevices_plugin.model import Holder, HoldersState, Holdings, RecentAllocate
from nodedevices_plugin.pipeline.requesting import SeenObject
from nodedevices_plugin.pipeline.state import State
from nodedevices_plugin.pipeline.step import Step
from nodedevices_plugin.pipeline.world import Inputs, World, begin
from nodedevices_plugin.settings import file as files
from nodedevices_plugin.settings.file import FileOutcome
from nodedevices_plugin.settings.flags import Local, parse
from nodedevices_probe.protocol import DeviceFact
from support.facts import START, snapshot
from support.steps import step

NICS, OTHER_NICS = "nics=/opt/nic-probe", "nics=/opt/nic-probe --fast"
CONFIG = {"resources": {"devices": [{"match": {"type": "nic"}, "name": "example.com/rdma"}]}}
RDMA, GPU = "example.com/rdma", "nvidia.com/gpu"


def said(*probes: str) -> FileOutcome:
    """The file with these probes."""
    return FileOutcome(config=files.from_document({"flags": {"probe": list(probes)}}))


BOTH = said("nvml", NICS)
BROKEN = FileOutcome(error="line 1: not YAML")


def nic(index: int = 0, **facts: Any) -> DeviceFact:
    known = {"id": f"NIC-{index}", "pci_bus_id": f"0000:3b:00.{index}", "vendor": "mellanox"}
    return DeviceFact(**{**known, "index": index, "type": "nic", **facts})


class Node:
    """The agent's steps, without the agent."""

    def __init__(
        self,
        file: FileOutcome = BOTH,
        local: Local | None = None,
        state: State | None = None,
        hardware: frozenset[str] | None = None,
    ) -> None:
        self.local = local or parse(["--node-name=n1", "--config-file=/c", "--operator-wait-seconds=0"], {})
        self.file = file
        self.hardware = hardware
        self.clock = 100.0
        self.seen = SeenObject(exists=True, config=CONFIG)
        self.holdings = Holdings(state=HoldersState.SYNCED, taken=1.0)
        self.recent: tuple[RecentAllocate, ...] = ()
        self.last: Step | None = None
        self.world: World = begin(
            state or State(), self.local, now=START, monotonic=self.clock, file=file, hardware=hardware
        )

    def line(self, probe: str, *devices: DeviceFact, **more: Any) -> Node:
        line = snapshot(*devices, **{"probe": probe, "instance": f"of-{probe}", **more})
        return self._step(snapshot=line, source=probe)

    def uses(self, file: FileOutcome) -> Node:
        self.file = file
        return self._step()

    def wait(self, seconds: float, **reports: tuple[DeviceFact, ...]) -> Node:
        """Meanwhile these probes go on reporting these devices."""
        until = self.clock + seconds
        while self.clock < until:
            self.clock += min(5.0, until - self.clock)
            for probe, devices in reports.items():
                self.line(probe, *devices)
            self._step()
        return self

    def held(self, resource: str, *ids: str) -> Node:
        holder = Holder(namespace="ml", pod="train-0", container="main", resource=resource, ids=ids, since=START)
        self.holdings = replace(self.holdings, holders=(holder,) if ids else ())
        return self._step()

    def restart(self, file: FileOutcome | None = None, state: State | None = None) -> Node:
        node = Node(file or self.file, self.local, state or self.world.state, self.hardware)
        node.holdings = self.holdings
        return node

    def _step(self, **line: Any) -> Node:
        self.last = step(
            self.world,
            Inputs(
                holdings=self.holdings,
                recent=self.recent,
                arrived=self.clock,
                file=self.file,
                hardware=self.hardware,
                seen=self.seen,
                saved=self.world.active.effective,
                **line,
            ),
            self.local,
            now=START + timedelta(seconds=self.clock - 100.0),
            monotonic=self.clock,
        )
        self.world = self.last.world
        return self

    @property
    def runs(self) -> tuple[str, ...]:
        return self.world.probe_set.texts

    @property
    def devices(self) -> list[str]:
        return [each.fact.id for each in self.world.inventory.devices]

    @property
    def states(self) -> dict[str, tuple[str, str]]:
        return {key: (each.state.value, each.reason) for key, each in self.world.verdicts.items()}

    @property
    def offered(self) -> list[str]:
        """What new pods can get."""
        plan = self.world.plan
        return [each.id for resource in plan.resources for each in resource.ids if each.healthy] if plan else []

    @property
    def problems(self) -> list[str]:
        return [f"{each.code}: {each.message}" for each in self.world.inventory.problems]
