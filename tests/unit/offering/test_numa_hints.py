"""The NUMA node that the kubelet is told of every id, for all kinds of devices, whole, shared and in parts."""

from __future__ import annotations

import dataclasses
from typing import Any

from nodedevices_api.sections import OfferMatch, Partitions, ResourceRule, Resources, Sharing
from nodedevices_plugin.kubelet.api import deviceplugin_v1beta1_pb2 as api
from nodedevices_plugin.kubelet.server import snapshot
from nodedevices_plugin.offering.shape import PlanSettings
from nodedevices_probe.protocol import DeviceFact
from nodedevices_probe.simulated.probe import from_profile
from nodedevices_probe.simulated.rules import MODELS
from support.cases import cases
from support.facts import healthy, inventory_of
from support.plans import make_plan

NAME = "example.com/device"


def machine(profile: str, *, numa_node: int | None) -> tuple[DeviceFact, ...]:
    found = from_profile(profile, node="node-a").facts.devices
    return tuple(dataclasses.replace(each, numa_node=numa_node) for each in found)


def hints(*devices: DeviceFact, **sections: Any) -> dict[str, list[int]]:
    """Id -> the NUMA nodes that ListAndWatch says, over all resources."""
    rules = tuple(ResourceRule(match=OfferMatch(type=each), name=NAME) for each in {fact.type for fact in devices})
    settings = PlanSettings(**{"resources": Resources(devices=rules), **sections})
    plan = make_plan(inventory_of(*devices), healthy(*devices), settings)
    lists = [api.ListAndWatchResponse.FromString(snapshot(each)) for each in plan.resources]
    for each in (one for listed in lists for one in listed.devices):
        assert each.HasField("topology") == bool(each.topology.nodes), "no hint is no topology, and never node -1"
    return {each.ID: [node.ID for node in each.topology.nodes] for listed in lists for each in listed.devices}


@cases("model", *MODELS)
@cases(("numa_node", "said"), (0, [0]), (1, [1]), (None, []))
def test_every_device_has_its_probes_numa_node_or_none(model: str, numa_node: int | None, said: list[int]) -> None:
    found = hints(*machine(model, numa_node=numa_node))
    assert found
    assert set(map(tuple, found.values())) == {tuple(said)}


@cases(("numa_node", "said"), (1, [1]), (None, []))
def test_parts_and_shares_are_where_their_device_is(numa_node: int | None, said: list[int]) -> None:
    parts = hints(*machine("mi300x-cpx", numa_node=numa_node), partitions=Partitions(strategy="mixed"))
    sharing = Sharing.model_validate({"strategy": "timeSlicing", "resources": [{"name": NAME, "replicas": 3}]})
    shares = hints(*machine("l4 x 2", numa_node=numa_node), sharing=sharing)
    assert (len(parts), len(shares)) == (8, 6)
    assert [*parts.values(), *shares.values()] == [said] * 14
