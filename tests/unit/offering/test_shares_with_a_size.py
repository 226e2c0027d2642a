"""Shares that have a size in the place of a number: the port has room for a mode that counts each device by itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from nodedevices_api.sections import Injection, SharedResource, Sharing
from nodedevices_common.quantity import to_bytes
from nodedevices_plugin.granting.containers import edits, node_containers
from nodedevices_plugin.granting.grants import grant
from nodedevices_plugin.model import ContainerEdits, Grant, OfferedResource
from nodedevices_plugin.offering.shape import PlanSettings
from nodedevices_plugin.sharing import registry
from nodedevices_plugin.sharing.base import NodeTraits, Request, Settings, Split
from support.facts import GIB, gpu, gpu_id, healthy, inventory_of
from support.plans import make_plan

GPU = "nvidia.com/gpu"
GPUS = tuple(gpu(number, memory_bytes=size * GIB) for number, size in enumerate((40, 80, 10)))


@dataclass(frozen=True, slots=True)
class BySize:
    name: str = "bySize"
    helper: None = None

    def check(self, node: NodeTraits) -> None:
        pass

    def split(self, request: Request) -> Split:
        unit = request.rule.memory_unit or "1Gi"
        return Split(counts=tuple(it.memory_bytes // to_bytes(unit) for it in request.units), unit=unit)

    def edits(self, grant: Grant, settings: Settings) -> ContainerEdits:
        return ContainerEdits(envs={"SHARES": str(len(grant.ids))})


@pytest.fixture
def resource() -> Iterator[OfferedResource]:
    """A device of 40 GiB, one of 80 and one of 10, in shares of 20."""
    forget = registry.add(BySize())
    rule = SharedResource(name=GPU, memory_unit="20Gi")
    sharing = Sharing(strategy="bySize", resources=(rule,))
    [found] = make_plan(inventory_of(*GPUS), healthy(*GPUS), PlanSettings(sharing=sharing)).resources
    yield found
    forget()


def test_each_device_has_as_many_shares_as_fit(resource: OfferedResource) -> None:
    devices = [each.device_id for each in resource.ids]
    assert [devices.count(gpu_id(number)) for number in range(3)] == [2, 4, 0]
    assert (resource.sharing, resource.replicas, resource.unit) == ("bySize", None, "20Gi")


def test_a_container_gets_what_follows_from_its_shares(resource: OfferedResource) -> None:
    granted = grant(resource, [f"{gpu_id(1)}::20Gi.0", f"{gpu_id(1)}::20Gi.3"])
    assert edits(granted, node_containers(inventory_of(*GPUS), Injection())).envs["SHARES"] == "2"
