"""The agent's steps without the agent: a node whose devices and holders a test sets, and what answers the kubelet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Self

from nodedevices_plugin.granting.answers import Answers
from nodedevices_plugin.model import ContainerEdits, DeviceNode, Holder, HoldersState, Holdings, NodePods
from nodedevices_plugin.pipeline.requesting import SeenObject
from nodedevices_plugin.pipeline.state import State
from nodedevices_plugin.pipeline.world import Inputs, World, begin
from nodedevices_plugin.settings.effective import from_saved
from nodedevices_plugin.settings.flags import Local, parse
from nodedevices_plugin.sharing.base import HelperFacts
from nodedevices_plugin.vendors.cdi import CdiEnvironment
from nodedevices_plugin.vendors.files import DeviceFiles
from nodedevices_probe.protocol import DeviceFact
from support.facts import START, snapshot
from support.steps import step

LOCAL = parse(["--node-name=n1", "--operator-wait-seconds=0"], {})
NOBODY = Holdings(state=HoldersState.SYNCED, taken=1.0)


class Node:
    """The agent's steps without the agent, and what answers the kubelet; what is to be saved is, at once."""

    def __init__(self, *devices: DeviceFact, existing: frozenset[str] = frozenset(), local: Local = LOCAL) -> None:
        self.clock = 100.0
        self.devices = devices
        self.existing = existing
        self.local = local
        self.device_files: DeviceFiles = {}
        self.pods = NodePods()
        self.helpers = HelperFacts()
        self.cdi: Mapping[str, CdiEnvironment] = {}
        self.world: World = begin(State(), local, now=START, monotonic=self.clock)
        self.answers = Answers()

    def now(self, requested: dict[str, Any] | None = None, *holders: Holder) -> Self:
        saved = None
        for _ in range(2):
            self.clock += 1
            if self.world.state.applied is not None:
                saved = from_saved(self.world.state.applied, self.local.modes)
            inputs = Inputs(
                snapshot=snapshot(*self.devices),
                arrived=self.clock,
                seen=SeenObject(exists=True, generation=1, config=requested or {}),
                holdings=replace(NOBODY, holders=holders, taken=self.clock),
                existing=self.existing,
                pods=self.pods,
                device_files=self.device_files,
                helpers=self.helpers,
                cdi=self.cdi,
                saved=saved,
            )
            at = START + timedelta(seconds=self.clock)
            self.world = step(self.world, inputs, self.local, now=at, monotonic=self.clock).world
        if self.world.plan is not None:
            self.answers.use(self.world.plan, self.world.inventory, self.world.access.containers)
        return self

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
    def unmatched(self) -> list[str]:
        return [each.text for each in self.world.config.unmatched]

    def container(self, resource: str, *ids: str) -> ContainerEdits:
        return self.answers.edits(self.answers.grant(resource, ids))


def nodes(*paths: str) -> tuple[DeviceNode, ...]:
    return tuple(DeviceNode(container_path=path, host_path=path) for path in paths)
