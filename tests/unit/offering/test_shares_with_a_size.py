"""A mode that is all of its own: it counts each device by itself, by a size in the place of a number, and what it needs
to know at an Allocate is in its own record."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from nodedevices_api.errors import parse
from nodedevices_api.sections import Injection, Sharing
from nodedevices_common.quantity import from_bytes, to_bytes
from nodedevices_plugin.granting.answers import edits, grant, node_containers
from nodedevices_plugin.model import ContainerEdits, Grant, MemoryShares, OfferedResource, SharingFacts
from nodedevices_plugin.offering.shape import PlanSettings
from nodedevices_plugin.sharing.base import Settings, SharingMode, Split, SplitRequest
from nodedevices_plugin.sharing.registry import MODES, SharingModes
from support.facts import GIB, gpu, gpu_id, healthy, inventory_of
from support.plans import make_plan

GPU = "nvidia.com/gpu"
GPUS = tuple(gpu(number, memory_bytes=size * GIB) for number, size in enumerate((40, 85, 10)))


class Cut(SharingFacts, frozen=True, kw_only=True):
    """How much of each device no share has, by id."""

    left: Mapping[str, int]


class BySize(SharingMode, frozen=True):
    name = "bySize"

    def split(self, request: SplitRequest) -> Split:
        unit = to_bytes(request.rule.memory_unit or "1Gi")
        left = {it.id: it.memory_bytes % unit for it in request.units}
        devices = {it.id: it.memory_bytes for it in request.units}
        shares = MemoryShares(unit=from_bytes(unit), unit_bytes=unit, devices=devices)
        sharing = Cut(mode=self, memory=shares, left=left)
        return Split(counts=tuple(it.memory_bytes // unit for it in request.units), sharing=sharing)

    def edits(self, grant: Grant, settings: Settings) -> ContainerEdits:
        sharing = grant.resource.sharing
        assert isinstance(sharing, Cut)
        left = sum(sharing.left[each] for each in {one.device_id for one in grant.ids})
        return ContainerEdits(envs={"SHARES": str(len(grant.ids)), "LEFT": str(left // GIB)})


@pytest.fixture
def resource() -> OfferedResource:
    """A device of 40 GiB, one of 85 and one of 10, in shares of 20."""
    modes = SharingModes((*MODES.modes, BySize()))
    rule = {"name": GPU, "memoryUnit": "20Gi"}
    sharing = parse(Sharing, {"strategy": "bySize", "resources": [rule]}, strategies=modes.names)
    settings = PlanSettings(sharing=sharing, sharing_modes=modes)
    [found] = make_plan(inventory_of(*GPUS), healthy(*GPUS), settings).resources
    return found


def test_each_device_has_as_many_shares_as_fit(resource: OfferedResource) -> None:
    devices = [each.device_id for each in resource.ids]
    assert [devices.count(gpu_id(number)) for number in range(3)] == [2, 4, 0]
    assert (resource.sharing.name, resource.sharing.replicas) == ("bySize", None)
    assert all("::20Gi." in each.id for each in resource.ids)


def test_a_container_gets_what_follows_from_its_shares(resource: OfferedResource) -> None:
    granted = grant(resource, [f"{gpu_id(1)}::20Gi.0", f"{gpu_id(1)}::20Gi.3"])
    envs = edits(granted, node_containers(inventory_of(*GPUS), Injection())).envs
    assert (envs["SHARES"], envs["LEFT"]) == ("2", "5")
