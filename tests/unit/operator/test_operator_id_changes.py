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


# --- without a doubt, or without a number ----------------------------------------------------------------------------
@pytest.mark.parametrize(
    "doubt",
    [
        pytest.param({"spec": {"config": {}}, "appliedConfigHash": ""}, id="nothing was ever applied"),
        pytest.param({"spec": {"config": {"sharing": sharing(4)}, "configHash": "h"}}, id="other sections are written"),
    ],
)
def test_before_the_agent_shows_what_is_written_there_is_no_number(doubt: dict[str, Any]) -> None:
    found = record(device(0, attributes=H100), **({"appliedConfigHash": "h"} | doubt))
    text = said(found, {"resources": {"exclude": ["GPU-0"]}})
    assert text == "ids that may change, how many is not known before: nvidia.com/gpu"


def test_where_the_agent_serves_nothing_no_id_changes() -> None:
    observed = [resource(8, 8, by="device-plugin")]
    assert said(node(resources=observed), {"sharing": sharing(2)}) == ""


def test_what_the_operator_cannot_read_changes_no_id() -> None:
    both = {"sharing": sharing(2), "capacity": [{"name": GPU, "perNode": 3}]}
    assert said(node(), both) == ""


def test_every_name_that_may_come_or_change_is_said_where_numbers_are_not_known() -> None:
    unknown = node(appliedConfigHash="older")
    memory = {"name": GPU, "memoryUnit": "1Gi", "coreResource": "tencent.com/vcuda-core"}
    then = {"resources": RENAMED, "sharing": {"strategy": "memory", "resources": [memory]}}
    assert said(unknown, then) == (
        "ids that may change, how many is not known before: example.com/h100, "
        "nodedevices.io/gpu-memory, nvidia.com/gpu, tencent.com/vcuda-core"
    )


def test_of_many_names_a_few_are_said_and_the_rest_counted() -> None:
    models = [f"NVIDIA M{number}" for number in range(7)]
    devices = [device(at, attributes={"vendor": "nvidia", "productName": each}) for at, each in enumerate(models)]
    rules = [{"match": {"productName": each}, "name": f"example.com/m{at}"} for at, each in enumerate(models)]
    lines = [f"example.com/m{number}: 0 -> 1 ids" for number in range(5)]
    text = said(node(*devices), {"resources": {"devices": rules}})
    assert text == "; ".join([*lines, "and 3 more names"])
    assert said(node(*devices[:6]), {"resources": {"devices": rules[:5]}}).endswith("; and 1 more name")
    assert said(node(*devices[:5]), {"resources": {"devices": rules[:4]}}).endswith("; nvidia.com/gpu: 5 -> 1 ids")


def test_where_holders_are_left_out_of_the_status_there_may_be_others() -> None:
    cut = device(0, attributes=H100, holders=[holder("train")], holdersTruncated=3)
    assert said(node(cut, device(1, attributes=H100)), {"sharing": sharing(2)}) == (
        "nvidia.com/gpu: 2 -> 4 ids (timeSlicing, 2 each); held by ml/train and perhaps others: these keep what they "
        "hold until they end"
    )


def test_shares_that_stay_name_no_pod_and_another_strategy_of_as_many_does() -> None:
    now = {"sharing": sharing(4)}
    found = node(device(0, attributes=H100, holders=[holder("t")]), now=now, resources=shared(4, 4))
    assert said(found, {"sharing": {**sharing(4), "failRequestsGreaterThanOne": True}}, now) == ""
    assert said(found, {"sharing": {**sharing(4), "strategy": "mps"}}, now) == (
        "nvidia.com/gpu: 4 -> 4 ids (mps, 4 each); held by ml/t: these keep what they hold until they end"
    )


def test_one_device_for_another_is_said_although_the_numbers_stay() -> None:
    now = {"resources": {"exclude": ["GPU-0"]}}
    two = [device(0, excluded="GPU-0", attributes=H100), device(1, attributes=H100, holders=[holder("t")])]
    found = node(*two, now=now, resources=[resource(1, 1)])
    assert said(found, {"resources": {"exclude": ["GPU-1"]}}, now) == (
        "as many ids as now, of other devices; held by ml/t: these keep what they hold until they end"
    )


@pytest.mark.parametrize(
    "then",
    [
        {"sharing": {"strategy": "timeSlicing", "resources": [{"name": GPU, "replicas": 2, "devices": ["0"]}]}},
        {"sharing": {"strategy": "timeSlicing", "resources": [{"name": GPU, "replicas": 2, "match": {"type": "gpu"}}]}},
    ],
)
def test_shares_of_some_devices_are_not_counted(then: dict[str, Any]) -> None:
    assert said(node(), then).startswith("ids that may change, how many is not known before: ")


@pytest.mark.parametrize(
    "devices",
    [
        pytest.param([device(0, attributes=H100), device(1, attributes={"vendor": "amd"})], id="two makers"),
        pytest.param([device(0, attributes=H100, partitions=[{"id": "MIG-0", "name": "mig"}])], id="partitions"),
    ],
)
def test_names_of_devices_of_several_kinds_are_not_counted(devices: list[dict[str, Any]]) -> None:
    text = said(node(*devices), {"resources": {"exclude": ["GPU-0"]}})
    assert text == "ids that may change, how many is not known before: nvidia.com/gpu"


def test_a_rule_for_another_resource_decides_nothing_about_this_one() -> None:
    other = {"name": "example.com/other", "replicas": 9}
    rules = {"strategy": "timeSlicing", "resources": [other, {"name": GPU, "replicas": 2}]}
    assert said(node(), {"sharing": rules}) == "nvidia.com/gpu: 8 -> 16 ids (timeSlicing, 2 each)"


def test_shares_are_counted_whatever_names_devices_have() -> None:
    makers = [device(0, attributes=H100), device(1, attributes={"vendor": "amd"})]
    found = node(*makers, resources=[resource(1, 1), resource(1, 1, "amd.com/gpu")])
    assert said(found, {"sharing": sharing(2)}) == "nvidia.com/gpu: 1 -> 2 ids (timeSlicing, 2 each)"


def test_what_the_agent_says_is_applied_is_counted() -> None:
    applied = node(conditions={"ConfigApplied": ("True", "Applied")})
    assert said(applied, {"sharing": sharing(2)}) == "nvidia.com/gpu: 8 -> 16 ids (timeSlicing, 2 each)"


def test_a_rule_by_memory_is_counted() -> None:
    small = device(1, attributes=H100, capacity={"memory": "24Gi"})
    rule = {"match": {"minMemory": "40Gi"}, "name": "example.com/large"}
    assert said(node(device(0, attributes=H100), small), {"resources": {"devices": [rule]}}) == (
        "example.com/large: 0 -> 1 ids; nvidia.com/gpu: 2 -> 1 ids"
    )


def test_where_a_policy_names_resources_the_node_itself_gives_them_no_other_name_than_its_usual_one() -> None:
    now: dict[str, Any] = {"resources": {"exclude": []}}
    found = node(now=now, resources=[resource(8, 8, "example.com/gpu")])
    assert said(found, {"resources": {"exclude": ["GPU-3"]}}, now) == "example.com/gpu: 8 -> 7 ids"


@pytest.mark.parametrize(
    ("rule", "shown"),
    [
        pytest.param({"replicas": 4, "devices": ["0"]}, shared(32, 4), id="of some devices"),
        pytest.param({"replicas": 4}, shared(32, 2), id="the node shows others"),
        pytest.param({"replicas": 4}, shared(30, 4), id="some shares are missing"),
    ],
)
@pytest.mark.parametrize("then", [{"sharing": {}}, {"resources": {"exclude": ["GPU-3"]}}])
def test_shares_that_are_not_as_they_would_be_are_not_counted(
    rule: dict[str, Any], shown: list[dict[str, Any]], then: dict[str, Any]
) -> None:
    now = {"sharing": {"strategy": "timeSlicing", "resources": [{"name": GPU, **rule}]}}
    text = said(node(now=now, resources=shown), then, now)
    assert text == "ids that may change, how many is not known before: nvidia.com/gpu"


def test_a_name_that_two_kinds_of_devices_would_have_is_not_counted() -> None:
    both = {"name": GPU, "replicas": 2, "rename": "example.com/h100"}
    then = {"resources": RENAMED, "sharing": {"strategy": "timeSlicing", "resources": [both]}}
    assert said(node(device(0, attributes=H100), device(1, attributes=L4)), then) == (
        "ids that may change, how many is not known before: example.com/h100, nvidia.com/gpu"
    )
