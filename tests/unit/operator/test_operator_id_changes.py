"""What a DryRun policy says of resource names, ids and the pods that hold them: numbers only without a doubt."""

from __future__ import annotations

from typing import Any

import pytest
from nodedevices_operator.desired.id_changes import id_changes
from nodedevices_operator.records.objects import NodeDevicesRecord
from support.opfacts import GPU, device, holder, record, resource, sharing

H100 = {"vendor": "nvidia", "productName": "NVIDIA H100"}
L4 = {"vendor": "nvidia", "productName": "NVIDIA L4"}
RENAMED: dict[str, Any] = {"devices": [{"match": {"productName": "*H100"}, "name": "example.com/h100"}]}


def node(*devices: dict[str, Any], now: dict[str, Any] | None = None, **more: Any) -> NodeDevicesRecord:
    """One that has applied `now`."""
    given = devices or tuple(device(index, attributes=H100) for index in range(8))
    spec = {"config": now or {}, "configHash": "h"}
    return record(*given, spec=spec, **{"appliedConfigHash": "h", **more})


def said(found: NodeDevicesRecord, then: dict[str, Any], now: dict[str, Any] | None = None) -> str:
    return id_changes(found, now or {}, {**(now or {}), **then}).text()


def shared(capacity: int, replicas: int, name: str = GPU) -> list[dict[str, Any]]:
    return [resource(capacity, capacity, name, sharing="timeSlicing") | {"replicas": replicas}]


def test_sharing_multiplies_the_ids() -> None:
    assert said(node(), {"sharing": sharing(4)}) == "nvidia.com/gpu: 8 -> 32 ids (timeSlicing, 4 each)"


def test_other_shares_are_counted_from_the_devices_and_not_from_the_shares() -> None:
    now = {"sharing": sharing(4)}
    found = node(now=now, resources=shared(32, 4))
    assert said(found, {"sharing": sharing(2)}, now) == "nvidia.com/gpu: 32 -> 16 ids (timeSlicing, 2 each)"
    assert said(found, {"sharing": {}}, now) == "nvidia.com/gpu: 32 -> 8 ids"


def test_a_name_that_ends_and_one_that_begins_are_both_said() -> None:
    assert said(node(), {"sharing": {**sharing(2), "renameByDefault": True}}) == (
        "nvidia.com/gpu: 8 -> 0 ids; nvidia.com/gpu.shared: 0 -> 16 ids (timeSlicing, 2 each)"
    )


def test_a_name_for_some_devices_takes_their_ids_from_the_usual_one_and_only_their_pods_are_named() -> None:
    found = node(
        device(0, attributes=H100, holders=[holder("train")]), device(1, attributes=L4, holders=[holder("infer")])
    )
    assert said(found, {"resources": RENAMED}) == (
        "example.com/h100: 0 -> 1 ids; nvidia.com/gpu: 2 -> 1 ids; held by ml/train: these keep what they hold until "
        "they end"
    )


def test_an_excluded_device_takes_its_id_along() -> None:
    assert said(node(), {"resources": {"exclude": ["GPU-3"]}}) == "nvidia.com/gpu: 8 -> 7 ids"


def test_a_device_that_is_no_longer_excluded_brings_its_id() -> None:
    now = {"resources": {"exclude": ["GPU-0"]}}
    out = device(0, attributes=H100, excluded="GPU-0")
    found = node(out, device(1, attributes=H100), now=now, resources=[resource(1, 1)])
    assert said(found, {"resources": {}}, now) == "nvidia.com/gpu: 1 -> 2 ids"


def test_beside_devices_that_a_rule_names_the_others_have_the_one_name_that_is_left() -> None:
    two = [device(0, attributes=H100), device(1, attributes=L4)]
    found = node(*two, now={"resources": RENAMED}, resources=[resource(1, 1, "example.com/h100"), resource(1, 1)])
    then = {"resources": RENAMED | {"exclude": ["GPU-1"]}}
    assert said(found, then, {"resources": RENAMED}) == "nvidia.com/gpu: 1 -> 0 ids"


def test_a_name_that_no_policy_gives_may_be_of_the_nodes_own_settings_and_is_not_counted() -> None:
    found = node(resources=[resource(8, 8, "example.com/own")])
    assert said(found, {"resources": {"exclude": ["GPU-3"]}}) == (
        "ids that may change, how many is not known before: example.com/own"
    )


def test_names_and_shares_that_change_together_are_counted_together() -> None:
    shares = {"strategy": "timeSlicing", "resources": [{"name": "example.com/h100", "replicas": 2}]}
    assert said(node(), {"resources": RENAMED, "sharing": shares}) == (
        "example.com/h100: 0 -> 16 ids (timeSlicing, 2 each); nvidia.com/gpu: 8 -> 0 ids"
    )


def test_so_many_pods_are_named_and_the_rest_counted() -> None:
    found = node(*(device(index, attributes=H100, holders=[holder(f"t-{index}")]) for index in range(7)))
    assert "held by ml/t-0, ml/t-1, ml/t-2, ml/t-3, ml/t-4 and 2 more: these keep" in said(
        found, {"sharing": sharing(2)}
    )


def test_that_the_holders_are_not_known_is_said() -> None:
    found = node(conditions={"HoldersKnown": ("Unknown", "PodResourcesIncomplete")})
    assert said(found, {"sharing": sharing(2)}).endswith("; which pods hold them is not known")


@pytest.mark.parametrize(
    ("found", "then"),
    [
        pytest.param(node(appliedConfigHash="older"), {"sharing": sharing(2)}, id="not applied yet"),
        pytest.param(
            node(conditions={"ConfigApplied": ("False", "WaitingForHolders")}), {"sharing": sharing(2)}, id="waiting"
        ),
        pytest.param(node(resources=shared(32, 4)), {"sharing": sharing(2)}, id="shared by the node's own settings"),
        pytest.param(node(resources=[resource(5, 5)]), {"resources": {"exclude": ["GPU-3"]}}, id="does not add up"),
        pytest.param(node(), {"partitions": {"strategy": "mixed"}}, id="partitions"),
        pytest.param(
            node(device(0, attributes=H100), device(1, type="nic", attributes=H100), resources=[resource(2, 2)]),
            {"resources": {"exclude": ["GPU-0"]}},
            id="another type",
        ),
    ],
)
def test_where_there_is_a_doubt_there_is_no_number(found: NodeDevicesRecord, then: dict[str, Any]) -> None:
    assert said(found, then) == "ids that may change, how many is not known before: nvidia.com/gpu"


def test_sharing_by_memory_names_both_names_without_a_number() -> None:
    shares = {"strategy": "memory", "resources": [{"name": GPU, "memoryUnit": "1Gi"}]}
    text = said(node(device(0, holders=[holder("t")])), {"sharing": shares})
    assert text == (
        "ids that may change, how many is not known before: nodedevices.io/gpu-memory, nvidia.com/gpu; held by ml/t: "
        "these keep what they hold until they end"
    )


def test_what_changes_no_id_says_nothing() -> None:
    assert said(node(), {"health": {"holdDownSeconds": 5}}) == ""
    assert said(node(), {"serving": {"mode": "Observe"}, "sharing": sharing(2)}) == ""
