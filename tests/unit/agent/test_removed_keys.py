"""A configuration with a key that this version no longer has, as one of an earlier version is at an upgrade."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from nodedevices_plugin.model import Holder
from support.facts import START, gpu, gpu_id, old
from support.stepped_node import Node

GPU = "nvidia.com/gpu"
CARDS = (gpu(0, readings=old()), gpu(1, product_name="NVIDIA L4", readings=old()))
RULE: dict[str, Any] = {"name": GPU, "rename": "nvidia.com/gpu.shared", "replicas": 4}
GOOD: dict[str, Any] = {"sharing": {"strategy": "timeSlicing", "resources": [RULE | {"devices": [gpu_id(1)]}]}}
BEFORE = {"sharing": {"strategy": "timeSlicing", "resources": [RULE | {"match": {"productName": "NVIDIA L4"}}]}}
# As API servers with this version's CRDs read it.
PRUNED = {"sharing": {"strategy": "timeSlicing", "resources": [RULE]}}
OFFERED = {GPU: (1, 1), RULE["rename"]: (4, 4)}
WHOLE = Holder(namespace="ml", pod="train-0", container="main", resource=GPU, ids=(gpu_id(0),), since=START)


def test_the_last_good_configuration_stays_where_a_policys_key_is_gone_and_its_successor_is_named() -> None:
    node = Node(*CARDS).now(GOOD)
    assert (node.config, node.counts) == ("Applied", OFFERED)
    for again in (node.now(BEFORE), node.restarted().now(BEFORE)):
        assert (again.config, again.counts) == ("ConfigInvalid", OFFERED)
        assert (again.refused.section, again.refused.field) == ("sharing", "sharing.resources[0].match")
        assert "match: unknown key; give these devices a name of their own in the section" in again.refused.message


def test_what_was_saved_with_a_key_that_is_gone_is_a_lost_configuration_and_no_device_is_given_twice() -> None:
    node = Node(*CARDS).now(GOOD, WHOLE)
    assert node.offers[GPU] == [gpu_id(0)]
    applied = copy.deepcopy(dict(node.world.state.applied or {}))
    applied["sections"]["sharing"] = BEFORE["sharing"]
    again = Node(*CARDS, state=replace(node.world.state, applied=applied), clock=node.clock)
    assert again.now(BEFORE, WHOLE).config == "ConfigInvalid"
    assert again.counts == {}, "which were shared is not known"
    again.now(PRUNED, WHOLE)
    assert again.config == "WaitingForHolders"
    assert {id_.partition("::")[0] for ids in again.offers.values() for id_ in ids} == {gpu_id(1)}
    assert again.now(PRUNED).counts == {RULE["rename"]: (8, 8)}
