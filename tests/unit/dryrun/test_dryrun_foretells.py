"""What a dry run says of a node beforehand is what the agent then does: the same node is shown both."""

from __future__ import annotations

from typing import Any

import pytest
from nodedevices_api.base import to_dict
from nodedevices_dryrun.ids import IdEffect, id_effect
from nodedevices_operator.records.kinds import node_devices_record
from nodedevices_plugin.model import DRA_DRIVER, Holder
from nodedevices_plugin.vendors.cdi import CdiEnvironment
from nodedevices_probe.protocol import DeviceFact
from support.cases import cases
from support.facts import START, gpu, gpu_id, mig_id, partition
from support.local import at_once
from support.stepped_node import Node, report_of

GPU, SHARED, SLICE = "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-3g.40gb"
FOUR = tuple(gpu(number) for number in range(4))
HALVES = tuple(partition(1, part, profile="3g.40gb", start=4 * part, size=4) for part in (0, 1))
CUT = (gpu(0), gpu(1, mig_enabled=True, partitions=HALVES))
LOCAL = at_once(["--node-name=n1", "--mps-root=/run/nvidia/mps"], {})
MIXED = {"partitions": {"strategy": "mixed"}}
Config = dict[str, Any]


def shared(strategy: str = "timeSlicing", replicas: int | None = 2, **rule: Any) -> Config:
    one = {"name": GPU, **({"replicas": replicas} if replicas else {}), **rule}
    return {"sharing": {"strategy": strategy, "resources": [one]}}


def pod(name: str, *ids: str, resource: str = GPU) -> Holder:
    return Holder(namespace="ml", pod=name, container="c", resource=resource, ids=ids, since=START)


def shown(node: Node, config: Config) -> dict[str, Any]:
    """The node's NodeDevices."""
    status = to_dict(report_of(node.world, node.time))
    return {"metadata": {"name": "n1"}, "spec": {"config": config}, "status": status}


def foretold(node: Node, now: Config, then: Config) -> IdEffect:
    raw = shown(node, now)
    return id_effect(raw, node_devices_record(raw), now, then)


def numbers(node: Node) -> dict[str, int]:
    return {name: count for name, (count, _) in node.counts.items() if count}


def withheld(node: Node) -> list[str]:
    """The devices that go to no new pod since one holds them otherwise, by name."""
    found = {
        each.device_id
        for resource in node.plan.resources
        for each in resource.ids
        if each.blocked and each.blocked.reason == "HeldInAnotherShape"
    }
    return sorted(f"gpu-{int(each[-4:])}" for each in found)


CHANGES = [
    pytest.param(FOUR, {}, shared(), (pod("a", gpu_id(0)),), id="shares of devices of which one is held"),
    pytest.param(FOUR, shared(), {}, (pod("a", f"{gpu_id(0)}::1"),), id="the end of sharing"),
    pytest.param(FOUR, shared(), shared(replicas=4), (pod("a", f"{gpu_id(1)}::0"),), id="more shares"),
    pytest.param(FOUR, {}, shared(rename=SHARED), (pod("a", gpu_id(3)),), id="another name"),
    pytest.param(FOUR, {}, shared(devices=["0", "1"]), (pod("a", gpu_id(3)),), id="shares of some"),
    pytest.param(FOUR, {}, {"resources": {"exclude": [gpu_id(2)]}}, (pod("a", gpu_id(2)),), id="one excluded"),
    pytest.param(
        FOUR,
        {},
        {"resources": {"devices": [{"match": {"ids": [gpu_id(1)]}, "name": "example.com/fast"}]}},
        (pod("a", gpu_id(1)), pod("b", gpu_id(2))),
        id="a name of its own for one",
    ),
    pytest.param(FOUR, {}, shared("memory", None, memoryUnit="10Gi"), (pod("a", gpu_id(0)),), id="by memory"),
    pytest.param(CUT, {"partitions": {"strategy": "mixed"}}, {}, (pod("a", mig_id(1, 0), resource=SLICE),), id="whole"),
    pytest.param(CUT, {}, MIXED, (pod("a", gpu_id(0)),), id="MIG"),
]


@cases(("devices", "now", "then", "holders"), *CHANGES)
def test_the_ids_and_the_devices_held_back_are_those_of_the_agent(
    devices: tuple[DeviceFact, ...], now: Config, then: Config, holders: tuple[Holder, ...]
) -> None:
    node = Node(*devices).now(now, *holders)
    before = numbers(node)
    found = foretold(node, now, then)
    assert (found.unknown, found.refused, found.waits) == ("", "", "")
    node.now(then, *holders)
    after = numbers(node)
    expected = {name: (before.get(name, 0), after.get(name, 0)) for name in {*before, *after}}
    changes = {each.name: (each.before, each.after) for each in found.resources}
    assert {**{name: (count, count) for name, count in before.items()}, **changes} == expected
    assert sorted(found.held_back) == withheld(node)


def test_a_change_that_the_agent_makes_wait_for_pods_is_foretold_with_them() -> None:
    holders = (pod("a", f"{gpu_id(0)}::0"),)
    node = Node(*FOUR, local=LOCAL).now(shared(), *holders)
    found = foretold(node, shared(), shared("mps"))
    node.now(shared("mps"), *holders)
    assert node.config == "WaitingForHolders"
    assert found.waits == node.world.config.message.partition("; ")[0], found
    assert found.waits_for == ("ml/a",)


def test_what_the_agent_refuses_is_foretold_in_its_words() -> None:
    names = {"devices": [{"match": {"ids": [gpu_id(1)]}, "name": SHARED}]}
    then = {"resources": names, **shared(rename=SHARED)}
    refused_in_the_agents_words(Node(*FOUR).now({}), then)


def refused_in_the_agents_words(node: Node, then: Config) -> None:
    found = foretold(node, {}, then)
    node.now(then)
    assert node.config == "ConfigInvalid"
    assert found.refused
    assert node.world.config.message.startswith(found.refused)


BY_CDI = {"injection": {"deviceListStrategies": ["cdi-cri"]}}
BY_DRA: Config = {**BY_CDI, "serving": {"api": "DRA"}}


def with_cdi(*devices: DeviceFact) -> Node:
    """A node on which files for container runtimes can be written."""
    return Node(*devices).given(cdi={"nvidia": CdiEnvironment(toolkit_libraries=True)})


def claimant(name: str, device: str) -> Holder:
    id_ = f"{DRA_DRIVER}/n1/{device}"
    return Holder(namespace="ml", pod=name, container="c", claim=f"ml/{name}", ids=(id_,), since=START)


def managed(node: Node) -> dict[str, str]:
    """By which API the node's resources are served, as it reports."""
    return {each["name"]: each["managedBy"] for each in shown(node, {})["status"]["resources"]}


@cases(
    ("now", "then", "holder", "apis"),
    (BY_CDI, BY_DRA, pod("a", gpu_id(0)), ("plugin", "dra")),
    (BY_DRA, BY_CDI, claimant("a", "gpu-0"), ("dra", "plugin")),
)
def test_a_switch_between_the_apis_is_foretold_with_the_pods_whose_devices_follow_later(
    now: Config, then: Config, holder: Holder, apis: tuple[str, str]
) -> None:
    node = with_cdi(*FOUR).now(now, holder)
    assert managed(node) == {GPU: apis[0]}
    found = foretold(node, now, then)
    assert (found.unknown, found.refused, found.waits) == ("", "", "")
    [change] = found.resources
    assert (change.name, change.before, change.after) == (GPU, 4, 4)
    assert (change.formerly, change.by) == apis
    assert (found.held_back, found.pods) == (("gpu-0",), ("ml/a",))
    assert found.assumes == ("dra" if apis[1] == "dra" else "")
    node.now(then, holder)
    assert managed(node) == {GPU: apis[1]}
    assert withheld(node) == ["gpu-0"]


def test_what_a_claim_has_already_is_held_back_by_no_change_beside_it() -> None:
    node = with_cdi(*FOUR).now(BY_DRA, claimant("a", "gpu-0"))
    found = foretold(node, BY_DRA, {**BY_DRA, "resources": {"exclude": [gpu_id(3)]}})
    assert (found.held_back, found.pods) == ((), ())
    assert [(each.by, each.formerly, each.after) for each in found.resources] == [("dra", "", 3)]


def test_shares_of_computing_power_are_foretold_to_stay_with_the_plugin_in_the_agents_words() -> None:
    node = with_cdi(*FOUR).now(BY_CDI)
    then = {**BY_DRA, **shared("memory", None, devices=["0"], memoryUnit="1Gi", cores=True)}
    found = foretold(node, BY_CDI, then)
    node.now(then)
    assert managed(node) == {GPU: "dra", "nodedevices.io/gpu-memory": "plugin"}
    notes = shown(node, then)["status"]["configuration"]["unmatched"]
    said = [(each["section"], each["entry"], each["message"]) for each in notes]
    assert [(each.section, each.entry) for each in found.unmatched] == [said[0][:2]]
    assert found.unmatched[0].text.endswith(said[0][2])


def test_shares_of_claims_are_foretold_to_become_whole_devices() -> None:
    node = with_cdi(*FOUR).now({**BY_DRA, **shared()})
    found = foretold(node, {**BY_DRA, **shared()}, BY_DRA)
    node.now(BY_DRA)
    assert managed(node) == {GPU: "dra"}
    assert [(change.before, change.after) for change in found.resources] == [(8, 4)]


def test_injection_by_variables_is_foretold_to_be_refused_for_claims_but_where_a_nodes_own_flags_set_it() -> None:
    by_variables: Config = {"serving": {"api": "DRA"}}
    refused_in_the_agents_words(with_cdi(*FOUR).now({}), by_variables)
    node = with_cdi(*FOUR).now(BY_DRA)
    assert foretold(node, BY_DRA, by_variables).refused
    assert not foretold(node, BY_DRA, {**BY_DRA, "injection": {"deviceListStrategies": ["driver-directory"]}}).refused
    raw = shown(node, BY_DRA)
    raw["status"]["configuration"]["sources"] = ["policy", "flags"]
    assert not id_effect(raw, node_devices_record(raw), BY_DRA, by_variables).refused


def test_a_missing_gpu_that_does_not_fit_refuses_nothing() -> None:
    node = Node(*CUT[:1], gpu(2), CUT[1]).now({})
    node.devices = node.devices[:2]
    node.now({})
    single = {"partitions": {"strategy": "single"}, "resources": {"exclude": [gpu_id(2)]}}
    found = foretold(node.now({}), {}, single)
    assert (found.unknown, found.refused) == ("", "")
    node.now(single).now(single)
    assert node.config == "Applied"
    assert numbers(node) == {change.name: change.after for change in found.resources}


def test_where_the_nodes_own_flags_have_a_part_no_number_is_given_and_odd_parts_are_read() -> None:
    own = at_once(["--node-name=n1", "--resource-prefix=example.com"], {})
    node = Node(*FOUR, local=own)
    found = foretold(node.now({}), {}, shared())
    assert not found.resources
    assert found.names == ("example.com/gpu",)
    assert found.unknown.startswith("what it offers depends on its own flags or files")
    raw = {"status": {"devices": [{}, {"id": 3, "capacity": {"memory": []}, "parent": {}, "holders": [{}]}, None]}}
    assert id_effect(raw, node_devices_record(raw), {}, shared()).resources == ()
