"""The agent's steps, without the agent: lines of several probes in, a file or a policy that says which of them run."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from msgspec.structs import replace
from nodedevices_plugin.model import Holder
from nodedevices_plugin.pipeline.configuration import SeenObject
from nodedevices_plugin.pipeline.state import State
from nodedevices_plugin.settings.file import FileConfig, FileOutcome
from nodedevices_plugin.settings.flags import Local
from nodedevices_plugin.vendors.base import DeviceFiles
from nodedevices_probe.protocol import DeviceFact
from support.facts import START, snapshot
from support.local import at_once
from support.stepped_node import Steps

NICS, OTHER_NICS = "nics=/opt/nic-probe", "nics=/opt/nic-probe --fast"
CONFIG = {"resources": {"devices": [{"match": {"type": "nic"}, "name": "example.com/rdma"}]}}
RDMA, GPU = "example.com/rdma", "nvidia.com/gpu"


def said(*probes: str) -> FileOutcome:
    """The file with these probes."""
    return FileOutcome(config=FileConfig(flags={"probe": probes}))


BOTH = said("nvml", NICS)
BROKEN = FileOutcome(error="line 1: not YAML")


def nic(index: int = 0, **facts: Any) -> DeviceFact:
    known = {"id": f"NIC-{index}", "pci_bus_id": f"0000:3b:00.{index}", "vendor": "mellanox"}
    return DeviceFact(**{**known, "index": index, "type": "nic", **facts})


class Node(Steps):
    """A node with several probes, whose names its lines have."""

    def __init__(
        self,
        file: FileOutcome = BOTH,
        local: Local | None = None,
        state: State | None = None,
        hardware: frozenset[str] | None = None,
        files: DeviceFiles = MappingProxyType({}),
    ) -> None:
        local = local or at_once(["--node-name=n1", "--config-file=/c"], {})
        seen = SeenObject(exists=True, config=CONFIG)
        super().__init__(local=local, state=state, file=file, hardware=hardware, seen=seen, device_files=files)

    def line(self, probe: str, *devices: DeviceFact, **more: Any) -> Node:
        return self.step(snapshot(*devices, **{"probe": probe, "instance": f"of-{probe}", **more}), probe)

    def uses(self, file: FileOutcome) -> Node:
        return self.given(file=file).step()

    def wait(self, seconds: float = 0.0, **reports: tuple[DeviceFact, ...]) -> Node:
        """Meanwhile these probes go on reporting these devices."""
        until, gap = self.clock + seconds, 5.0
        while self.clock < until:
            self.clock += min(gap, until - self.clock)
            gap = 14.0 if seconds > 60 else gap  # after 15 s a probe is silent
            for probe, devices in reports.items():
                self.line(probe, *devices)
            if not reports:
                self.step()
        return self.step()

    def held(self, resource: str, *ids: str) -> Node:
        holder = Holder(namespace="ml", pod="train-0", container="main", resource=resource, ids=ids, since=START)
        holders = (holder,) if ids else ()
        return self.given(holdings=replace(self.inputs.holdings, holders=holders)).step()

    def restart(self, file: FileOutcome | None = None, state: State | None = None) -> Node:
        """Another agent on the same node: pods and the node's object are as they were."""
        node = Node(file or self.inputs.file, self.local, state or self.world.state, self.inputs.hardware)
        return node.given(holdings=self.inputs.holdings, seen=self.inputs.seen)

    @property
    def runs(self) -> tuple[str, ...]:
        return self.world.known.probe_set.texts

    @property
    def devices(self) -> list[str]:
        return [each.fact.id for each in self.world.known.inventory.devices]

    @property
    def offered(self) -> list[str]:
        """What new pods can get."""
        return [id_ for ids in self.offers.values() for id_ in ids]

    @property
    def problems(self) -> list[str]:
        return [f"{each.code}: {each.message}" for each in self.world.known.inventory.problems]
