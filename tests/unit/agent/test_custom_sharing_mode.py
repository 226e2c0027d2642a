"""A sharing mode that is a file, and is passed in, goes through the whole pipeline as time-slicing does."""

from __future__ import annotations

import dataclasses
from typing import Any

from nodedevices_plugin.sharing.registry import MODES, SharingModes
from support.cases import cases
from support.exclusive_window import NAME, ExclusiveWindow
from support.facts import gpu, gpu_id, old
from support.offers import allocate
from support.stepped_node import LOCAL, Node

GPU = "nvidia.com/gpu"
DEVICES = (gpu(0, readings=old()), gpu(1, readings=old()))
MODES_HERE = SharingModes((*MODES.modes, ExclusiveWindow()))


def config(replicas: int = 3, **more: Any) -> dict[str, Any]:
    return {"sharing": {"strategy": NAME, "resources": [{"name": GPU, "replicas": replicas, **more}]}}


def node_with(modes: SharingModes = MODES_HERE) -> Node:
    return Node(*DEVICES, local=dataclasses.replace(LOCAL, modes=modes))


def test_where_it_is_not_passed_in_the_agent_says_what_may_be_chosen() -> None:
    node = node_with(modes=MODES).now(config())
    assert node.world.config.reason == "ConfigInvalid"
    said = f'sharing.strategy: "{NAME}" is not allowed; choose none, timeSlicing, mps or memory'
    assert said in node.world.config.message


def test_its_shares_are_offered_and_its_containers_get_its_variable() -> None:
    node = node_with().now(config())
    assert (node.world.config.reason, node.counts) == ("Applied", {GPU: (6, 6)})
    [resource] = node.plan.resources
    assert (resource.sharing.name, resource.sharing.replicas) == (NAME, 3)
    assert allocate(resource, [f"{gpu_id(1)}::2"], node.world.access.containers).envs == {
        "EXCLUSIVE_WINDOW": "2 of 3",
        "NVIDIA_VISIBLE_DEVICES": gpu_id(1),
    }


@cases(
    ("requested", "said"),
    (config(9), f"sharing.resources[{GPU}].replicas: 9: a device has 8 windows at most"),
    (
        {**config(), "partitions": {"strategy": "mixed"}},
        f"sharing.strategy: {NAME}: windows are of whole devices; use partitions.strategy none",
    ),
)
def test_what_it_cannot_do_is_refused_in_its_words_and_the_last_stays(requested: dict[str, Any], said: str) -> None:
    node = node_with().now(config()).now(requested)
    assert (node.world.config.reason, node.counts) == ("ConfigInvalid", {GPU: (6, 6)})
    assert said in node.world.config.message
