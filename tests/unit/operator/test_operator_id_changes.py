"""What a DryRun policy says of resource names, and of the pods that hold devices by them."""

from __future__ import annotations

from typing import Any

from nodedevices_operator.desired.configuration import DryRun
from nodedevices_operator.desired.dry_run import dry_run_effect, id_changes
from nodedevices_operator.records.objects import NodeDevicesRecord
from support.cases import cases
from support.opfacts import GPU, device, holder, record, resource, sharing

H100 = {"vendor": "nvidia", "productName": "NVIDIA H100"}
RENAMED: dict[str, Any] = {"devices": [{"match": {"productName": "*H100"}, "name": "example.com/h100"}]}
KEPT = "these keep what they hold until they end"


def node(*devices: dict[str, Any], **more: Any) -> NodeDevicesRecord:
    return record(*(devices or tuple(device(index, attributes=H100) for index in range(8))), **more)


def said(found: NodeDevicesRecord, then: dict[str, Any], now: dict[str, Any] | None = None) -> str:
    return id_changes(found, now or {}, {**(now or {}), **then}).text()


def of_memory(**rule: Any) -> dict[str, Any]:
    return {"strategy": "memory", "resources": [{"name": GPU, "memoryUnit": "1Gi", **rule}]}


@cases(
    ("then", "names"),
    ({"sharing": sharing(4)}, "nvidia.com/gpu"),
    ({"sharing": {**sharing(2), "renameByDefault": True}}, "nvidia.com/gpu, nvidia.com/gpu.shared"),
    ({"sharing": of_memory()}, "nodedevices.io/gpu-memory, nvidia.com/gpu"),
    (
        {"sharing": of_memory(rename="tencent.com/vcuda-memory")},
        "nvidia.com/gpu, tencent.com/vcuda-core, tencent.com/vcuda-memory",
    ),
    ({"resources": {"exclude": ["GPU-3"]}}, "nvidia.com/gpu"),
    ({"resources": RENAMED}, "example.com/h100, nvidia.com/gpu"),
    ({"partitions": {"strategy": "mixed"}}, "nvidia.com/gpu"),
    (
        {
            "resources": RENAMED,
            "sharing": {"strategy": "timeSlicing", "resources": [{"name": "example.com/h100", "replicas": 2}]},
        },
        "example.com/h100, nvidia.com/gpu",
    ),
)
def test_every_name_that_may_come_or_change_is_said(then: dict[str, Any], names: str) -> None:
    assert said(node(), then) == f"ids of {names}"
    assert said(node(device(0, holders=[holder("t")])), then) == f"ids of {names}; held by ml/t: {KEPT}"


def test_a_rule_of_sharing_that_stays_or_is_for_a_name_of_other_nodes_changes_nothing() -> None:
    other = {"name": "example.com/other", "replicas": 9}
    mine = {"name": GPU, "replicas": 2}
    both = {"strategy": "timeSlicing", "resources": [other, mine]}
    alone = {"strategy": "timeSlicing", "resources": [mine]}
    found = node(device(0, attributes=H100, holders=[holder("t")]))
    assert said(found, {"sharing": both}, {"sharing": alone}) == ""
    assert said(found, {"sharing": {"strategy": "timeSlicing", "resources": [other]}}) == ""
    assert said(found, {"sharing": {**alone, "failRequestsGreaterThanOne": True}}, {"sharing": alone}) == ""
    assert said(found, {"sharing": {**alone, "strategy": "mps"}}, {"sharing": alone}) != ""
    assert said(found, {"sharing": {}}, {"sharing": alone}) == f"ids of nvidia.com/gpu; held by ml/t: {KEPT}"


def test_pods_that_hold_a_device_by_such_a_name_are_named_as_far_as_known_and_the_rest_counted() -> None:
    amd = "amd.com/gpu"
    makers = [
        device(0, attributes=H100, holders=[holder("train")]),
        device(1, attributes={"vendor": "amd"}, holders=[holder("infer", resource=amd)]),
    ]
    found = node(*makers, resources=[resource(1, 1), resource(1, 1, amd)])
    assert said(found, {"sharing": sharing(2)}) == f"ids of nvidia.com/gpu; held by ml/train: {KEPT}"
    found = node(*(device(index, attributes=H100, holders=[holder(f"t-{index}")]) for index in range(7)))
    names = [{"match": {"productName": "*H100"}, "name": f"example.com/m{number}"} for number in range(7)]
    assert said(found, {"resources": {"devices": names}}) == (
        "ids of example.com/m0, example.com/m1, example.com/m2, example.com/m3, example.com/m4 and 3 more; "
        f"held by ml/t-0, ml/t-1, ml/t-2, ml/t-3, ml/t-4 and 2 more: {KEPT}"
    )
    unknown = {"HoldersKnown": ("Unknown", "PodResourcesIncomplete")}
    assert said(node(conditions=unknown), {"sharing": sharing(2)}).endswith("; which pods hold them is not known")
    cut = device(0, attributes=H100, holders=[holder("train")], holdersTruncated=3)
    assert said(node(cut), {"sharing": sharing(2)}).endswith(f"; held by ml/train and perhaps others: {KEPT}")


TO_DRA, BACK = {"serving": {"api": "DRA"}}, {"serving": {"api": "DevicePlugin"}}


def claimant(pod: str) -> dict[str, Any]:
    return holder(pod, resource=None, claim="big")


@cases(
    ("found", "now", "then", "text"),
    (node(), {}, TO_DRA, "nvidia.com/gpu by DRA"),
    (
        node(device(0, attributes=H100, holders=[holder("t")])),
        {},
        TO_DRA,
        f"nvidia.com/gpu by DRA; held by ml/t: {KEPT}",
    ),
    (
        node(device(0, attributes=H100, holders=[claimant("t")]), resources=[resource(1, 1, by="dra")]),
        TO_DRA,
        BACK,
        f"nvidia.com/gpu by the device plugin API; held by ml/t: {KEPT}",
    ),
    (
        node(device(0, attributes=H100, holders=[claimant("t")]), resources=[resource(1, 1, by="dra")]),
        TO_DRA,
        {"resources": {"exclude": ["GPU-0"]}},
        f"ids of nvidia.com/gpu; held by ml/t: {KEPT}",
    ),
    (node(), {"sharing": sharing(2)}, TO_DRA, "nvidia.com/gpu by DRA"),
    (node(), {}, {**TO_DRA, "sharing": of_memory()}, "nodedevices.io/gpu-memory, nvidia.com/gpu by DRA"),
    (
        node(),
        {},
        {**TO_DRA, "sharing": of_memory(rename="tencent.com/vcuda-memory")},
        "nvidia.com/gpu by DRA; ids of tencent.com/vcuda-core, tencent.com/vcuda-memory",
    ),
    (node(), {}, {**TO_DRA, "sharing": of_memory(cores=True)}, f"{GPU} by DRA; ids of nodedevices.io/gpu-memory"),
    (node(), TO_DRA, TO_DRA, ""),
    (node(), {}, BACK, ""),
)
def test_a_switch_of_the_api_is_said_with_the_pods_that_keep_their_devices(
    found: NodeDevicesRecord, now: dict[str, Any], then: dict[str, Any], text: str
) -> None:
    assert said(found, then, now) == text


@cases(
    ("kubelet", "text"),
    ("v1.36.0", ""),
    ("v1.37.2-gke.100", ""),
    ("v2.0.0", ""),
    ("v1.35.9", f"pods that request {GPU} without a claim get none of this node (kubelet v1.35.9; that needs 1.36)"),
    ("", f"pods that request {GPU} without a claim get none of this node, unless its kubelet is 1.36 or later"),
    ("v1.33.4", "serving.api: DRA needs Kubernetes 1.34 or later, and the kubelet is v1.33.4"),
)
def test_where_the_server_drops_the_name_a_dry_run_says_who_loses_it(kubelet: str, text: str) -> None:
    def changes(now: dict[str, Any], then: dict[str, Any], *resources: dict[str, Any]) -> str:
        trial = DryRun(changes=("serving",), now=now, then=then)
        return dry_run_effect(trial, node(resources=list(resources)), (), kubelet).changes

    details = "; ".join(filter(None, (f"{GPU} by DRA", text)))
    assert changes({}, TO_DRA, resource(8, 8)) == f"would change serving ({details})"
    assert changes(TO_DRA, BACK, resource(8, 8, by="dra")) == f"would change serving ({GPU} by the device plugin API)"


def test_shares_of_memory_are_for_claims_alone_on_every_version() -> None:
    then = {**TO_DRA, "sharing": of_memory()}
    trial = DryRun(changes=("serving", "sharing"), then=then)
    assert dry_run_effect(trial, node(), (), "v1.37.2").changes == (
        "would change serving, sharing (nodedevices.io/gpu-memory, nvidia.com/gpu by DRA; pods that request "
        "nodedevices.io/gpu-memory without a claim get none of this node (amounts of memory need one))"
    )


def test_what_changes_no_id_says_nothing() -> None:
    assert said(node(), {"health": {"holdDownSeconds": 5}}) == ""
    assert said(node(), {"serving": {"mode": "Observe"}, "sharing": sharing(2)}) == ""
    assert said(node(resources=[resource(8, 8, by="device-plugin")]), {"sharing": sharing(2)}) == ""
    both = {"sharing": sharing(2), "capacity": [{"name": GPU, "perNode": 3}]}
    assert said(node(), both) == "", "the operator refuses it"
