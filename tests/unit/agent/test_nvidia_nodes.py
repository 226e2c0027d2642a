"""NVIDIA's device nodes that are missing: a fault of the GPUs whose containers are to get them from this agent."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from nodedevices_plugin.vendors.cdi import CdiEnvironment, ToolkitDevice
from support.cases import cases
from support.facts import gpu, gpu_id
from support.local import at_once
from support.stepped_node import Node

GPU = "nvidia.com/gpu"
EVERY = frozenset({"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidia1"})
PASSED = {"injection": {"passDeviceSpecs": True}}
BY_DIRECTORY = {"injection": {"deviceListStrategies": ["driver-directory"]}}
BY_CDI = {"injection": {"deviceListStrategies": ["cdi-cri"]}}
BOTH = [gpu_id(0), gpu_id(1)]
LOCAL = at_once(["--node-name=n1"], {"NODEDEVICES_CDI_WITHOUT_LIBRARIES": "true"})


def node_with(existing: Set[str], config: dict[str, Any], toolkit: tuple[ToolkitDevice, ...] = ()) -> Node:
    node = Node(gpu(0, minor=0), gpu(1, minor=1), local=LOCAL, existing=EVERY)
    node.given(cdi={"nvidia": CdiEnvironment(toolkit=toolkit)}).now(config)
    assert node.offers == {GPU: BOTH}
    return node.given(existing=frozenset(existing)).now(config)


def reasons(node: Node) -> list[str]:
    return [node.world.known.verdicts[id_].reason for id_ in BOTH]


@cases("config", PASSED, BY_DIRECTORY, BY_CDI)
def test_a_gpu_without_its_node_goes_to_no_pod(config: dict[str, Any]) -> None:
    node = node_with(EVERY - {"/dev/nvidia1"}, config)
    assert reasons(node) == ["", "DeviceNodeMissing"]
    assert node.offers == {GPU: [gpu_id(0)]}
    assert "/dev/nvidia1: missing" in node.world.known.inventory.problems[0].message


@cases("config", PASSED, BY_DIRECTORY, BY_CDI)
@cases("gone", "/dev/nvidiactl", "/dev/nvidia-uvm")
def test_without_a_node_that_every_program_needs_no_gpu_is_offered(config: dict[str, Any], gone: str) -> None:
    node = node_with(EVERY - {gone}, config)
    assert reasons(node) == ["DeviceNodeMissing", "DeviceNodeMissing"]
    assert node.offers == {GPU: []}
    assert f"{gone}: missing" in node.world.known.inventory.problems[0].message
    node.given(existing=EVERY)
    for _ in range(31):  # until the hold-down is over
        node.clock += 10
        node.now(config)
    assert (node.offers, node.world.known.inventory.problems) == ({GPU: BOTH}, ())


@cases("config", PASSED, BY_CDI)
def test_at_a_first_start_too_a_gpu_without_its_node_goes_to_no_pod(config: dict[str, Any]) -> None:
    node = Node(gpu(0, minor=0), gpu(1, minor=1), local=LOCAL, existing=EVERY - {"/dev/nvidia1"})
    node.given(cdi={"nvidia": CdiEnvironment()}).now(config)
    assert node.offers == {GPU: [gpu_id(0)]}


def test_googles_way_waits_at_its_start_and_holds_nothing_down_then() -> None:
    node = Node(gpu(0, minor=0), gpu(1, minor=1), existing=EVERY - {"/dev/nvidia-uvm"}).now(BY_DIRECTORY)
    assert node.world.plan is None
    assert node.given(existing=EVERY).now(BY_DIRECTORY).offers == {GPU: BOTH}


@cases(
    "config",
    {},
    {"injection": {"deviceListStrategies": ["volume-mounts"]}},
    {**PASSED, "serving": {"mode": "Observe"}},
)
def test_nodes_that_another_program_gives_are_its_own_matter(config: dict[str, Any]) -> None:
    node = Node(gpu(0, minor=0), existing=frozenset({"/dev/nvidiactl"})).now(config).now(config)
    assert node.world.known.verdicts[gpu_id(0)].reason == ""


def test_the_toolkits_own_specification_needs_no_nodes_and_an_agent_that_sees_none_calls_none_missing() -> None:
    theirs = tuple(ToolkitDevice(name=gpu_id(index), nodes=frozenset({f"/dev/nvidia{index}"})) for index in (0, 1))
    assert reasons(node_with(EVERY - {"/dev/nvidia-uvm"}, BY_CDI, theirs)) == ["", ""]
    node = node_with(frozenset({"/dev/infiniband/uverbs0"}), PASSED)
    assert (reasons(node), node.offers) == (["", ""], {GPU: BOTH})
