"""Where the chain breaks for claims: on nodes that serve by DRA, from the slices to the pods that wait."""

from __future__ import annotations

import json
from typing import Any

import pytest
from nodedevices_kubectl.objects import CLAIMS, CLASSES, EVERY_EVENT, NODES, PODS, SLICES
from support.command_line import CommandLine, JsonObject, condition, gpu, node
from support.recorded_api import NODE_DEVICES, POLICIES, RecordedApi

GPU, CLASS = "nvidia.com/gpu", "gpu.nvidia.com"
LATELY, EARLIER = "2026-11-23T11:59:20Z", "2026-11-23T11:00:00Z"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/nodedevices-system/leases/nodedevices-operator"
PUBLISHED = condition("SlicesPublished", "True", "Published")
DOUBT = "0/3 nodes are available: 3 cannot allocate all claims."
TAKEN = "the device gpu-0 is prepared for the claim ml/first. Delete the pod, so that it is scheduled again"


def by_dra(*devices: JsonObject, **status: Any) -> JsonObject:
    status.setdefault("conditions", [PUBLISHED])
    item = node("n1", *(devices or (gpu(0), gpu(1))), **status)
    for resource in item["status"]["resources"]:
        resource["managedBy"] = "dra"
    return item


def device(name: str, *taints: JsonObject) -> JsonObject:
    return {"name": name, "attributes": {"resource": {"string": GPU}}, **({"taints": taints} if taints else {})}


def piece(*devices: JsonObject, generation: int = 1, of: int = 1, on: str = "n1") -> JsonObject:
    pool = {"name": on, "generation": generation, "resourceSliceCount": of}
    spec = {"driver": "nodedevices.io", "nodeName": on, "pool": pool, "devices": list(devices)}
    return {"metadata": {"name": f"{on}-{generation}"}, "spec": spec}


def device_class(selects: str = "nodedevices.io", **spec: Any) -> JsonObject:
    selectors = [{"cel": {"expression": f'device.driver == "{selects}"'}}]
    return {"metadata": {"name": CLASS}, "spec": {"selectors": selectors, "extendedResourceName": GPU, **spec}}


def claim(*devices: str, of: str = CLASS, pool: str = "n1", driver: str = "nodedevices.io") -> JsonObject:
    results = [{"request": "gpu", "driver": driver, "pool": pool, "device": name} for name in devices]
    return {
        "metadata": {"namespace": "ml", "name": "big"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": of}}]}},
        "status": {"allocation": {"devices": {"results": results}}} if devices else {},
    }


def pod(on: str = "", since: str = EARLIER, **more: Any) -> JsonObject:
    placed = condition("PodScheduled", "True" if on else "False", "", "" if on else DOUBT, since)
    return {
        "metadata": {"namespace": "ml", "name": "trainer", "uid": "u-1"},
        "spec": {"resourceClaims": [{"name": "gpu", "resourceClaimName": "big"}]} | ({"nodeName": on} if on else {}),
        "status": {"phase": "Pending", "conditions": [placed], **more},
    }


def event(message: str = TAKEN, uid: str = "u-1", at: str = LATELY) -> JsonObject:
    about = {"kind": "Pod", "namespace": "ml", "name": "trainer", "uid": uid}
    name = {"name": f"trainer.{at}"}
    return {"metadata": name, "involvedObject": about, "message": message, "lastTimestamp": at}


@pytest.fixture
def dra(api: RecordedApi) -> RecordedApi:
    """A node that serves two GPUs by DRA, and on which all is well."""
    api.add(NODE_DEVICES, by_dra())
    ready = condition("Ready", "True", "KubeletReady")
    api.add(NODES, {"metadata": {"name": "n1", "labels": {}}, "status": {"allocatable": {}, "conditions": [ready]}})
    api.objects[POLICIES] = []
    api.singles[LEASE] = {"spec": {"holderIdentity": "operator-1", "renewTime": "2026-11-23T11:59:55.000000Z"}}
    api.add(SLICES, piece(device("gpu-0"), device("gpu-1")))
    api.add(CLASSES, device_class())
    for collection in (PODS, CLAIMS, EVERY_EVENT):
        api.objects[collection] = []
    return api


def link(kubectl: CommandLine, name: str, *arguments: str) -> tuple[str, str]:
    """Status and detail of a link."""
    kubectl("check", "--all", "-o", "json", *arguments)
    found = {each["link"]: each for each in json.loads(kubectl.out)["items"]}
    assert not (found[name]["status"] == "broken" and not found[name]["next"])
    return found[name]["status"], found[name]["detail"]


def test_a_node_that_serves_by_dra_has_links_of_its_own_and_others_need_no_request_for_them(
    dra: RecordedApi, kubectl: CommandLine
) -> None:
    assert kubectl("check", "n1", "--no-headers") == 0
    links = [line.split()[1:3] for line in kubectl.out.splitlines()]
    assert links[0] == ["class", CLASS]
    assert [name for name, _ in links[7:]] == ["kubelet", "slices", "holders", "claims", "pods"]
    assert link(kubectl, "slices") == ("ok", f"published: {GPU}: 2")
    assert link(kubectl, "claims")[0] == "ok"
    dra.objects[NODE_DEVICES] = [node("n1", gpu(0))]
    dra.requests.clear()
    kubectl("check")
    assert not [path for _, path in dra.requests if "resource.k8s.io" in path or path.startswith((PODS, EVERY_EVENT))]


def test_what_the_plugin_serves_beside_dra_is_compared_with_the_node(dra: RecordedApi, kubectl: CommandLine) -> None:
    item = by_dra()
    item["status"]["resources"].append({"name": "nvidia.com/mig-1g.10gb", "healthy": 3, "managedBy": "plugin"})
    dra.objects[NODE_DEVICES] = [item]
    assert link(kubectl, "allocatable") == ("broken", "nvidia.com/mig-1g.10gb: 0, but the agent offers 3")


# --- slices -----------------------------------------------------------------------------------------------------------
TAINT = {"key": "nodedevices.io/unhealthy", "effect": "NoSchedule"}
SLICES_SEEN: dict[str, tuple[list[JsonObject], str, str]] = {
    "none": ([], "broken", "the node has no ResourceSlice, although its agent published it"),
    "another node's": (
        [piece(device("gpu-0"), device("gpu-1"), on="n2")],
        "broken",
        "the node has no ResourceSlice, although its agent published it",
    ),
    "half of a change": (
        [piece(device("gpu-0"), of=2, generation=2), piece(device("gpu-1"), of=1)],
        "broken",
        "1 of 2 ResourceSlices are there: the scheduler uses none of them",
    ),
    "emptied": ([piece()], "broken", f"in ResourceSlices are only {GPU}: 0 of 2 healthy devices"),
    "one left out": (
        [piece(device("gpu-0"))],
        "warning",
        f"in ResourceSlices are only {GPU}: 1 of 2 healthy devices",
    ),
    "one tainted": (
        [piece(device("gpu-0"), device("gpu-1", TAINT))],
        "warning",
        f"in ResourceSlices are only {GPU}: 1 of 2 healthy devices",
    ),
}


@pytest.mark.parametrize(("seen", "status", "detail"), SLICES_SEEN.values(), ids=SLICES_SEEN)
def test_slices_are_what_the_agent_says(
    dra: RecordedApi, kubectl: CommandLine, seen: list[JsonObject], status: str, detail: str
) -> None:
    dra.objects[SLICES] = seen
    assert link(kubectl, "slices") == (status, detail)


def test_a_shared_device_counts_as_its_shares_and_shares_of_memory_are_for_claims_alone(
    dra: RecordedApi, kubectl: CommandLine
) -> None:
    item = by_dra()
    item["status"]["resources"][0] |= {"healthy": 6, "sharing": "memory"}
    dra.objects[NODE_DEVICES] = [item]
    none = {"value": "9", "requestPolicy": {"default": "0", "validValues": ["0"]}}
    step = {"default": "1Gi", "validRange": {"min": "1Gi", "step": "1Gi"}}
    shared = [
        device(name)
        | {"allowMultipleAllocations": True, "capacity": {"memory": {"value": size, "requestPolicy": step}}}
        for name, size in (("gpu-0", "4Gi"), ("gpu-1", "2Gi"))
    ]
    shared[0]["capacity"]["tiles"] = none
    dra.objects[SLICES] = [piece(*shared)]
    dra.objects[CLASSES] = [device_class(extendedResourceName=None)]
    assert link(kubectl, "slices") == ("ok", f"published: {GPU}: 6")
    assert link(kubectl, f"class {CLASS}")[0] == "ok"


def test_slices_that_follow_from_what_changed_lately_are_pending(dra: RecordedApi, kubectl: CommandLine) -> None:
    item = by_dra()
    item["metadata"]["creationTimestamp"] = LATELY
    dra.objects[NODE_DEVICES] = [item]
    for seen in ([], [piece()]):
        dra.objects[SLICES] = seen
        assert link(kubectl, "slices")[0] == "pending"
    dra.objects[CLASSES] = []
    assert link(kubectl, f"class {CLASS}")[0] == "pending"


def test_what_is_not_published_is_said_in_the_agents_words(dra: RecordedApi, kubectl: CommandLine) -> None:
    why = "the kubelet has not registered the driver nodedevices.io yet"
    dra.objects[NODE_DEVICES] = [by_dra(conditions=[condition("SlicesPublished", "False", "NotPublished", why)])]
    assert link(kubectl, "slices") == ("broken", f"NotPublished: {why}")


def test_without_the_api_all_of_it_is_one_break(dra: RecordedApi, kubectl: CommandLine) -> None:
    for collection in (SLICES, CLASSES, CLAIMS):
        del dra.objects[collection]
    assert kubectl("check", "-o", "json") == 3
    shown = {each["link"]: each["status"] for each in json.loads(kubectl.out)["items"]}
    assert shown == {"slices": "broken", "claims": "unknown"}
    assert "has no resource.k8s.io/v1" in kubectl.out


def test_what_a_person_may_not_read_is_unknown(dra: RecordedApi, kubectl: CommandLine) -> None:
    for collection in (SLICES, CLASSES, PODS):
        dra.refusals[collection] = [403]
    assert kubectl("check", "-o", "json") == 0
    shown = {each["link"]: each["status"] for each in json.loads(kubectl.out)["items"]}
    assert shown == dict.fromkeys(("slices", "class", "claims"), "unknown")
    dra.objects[PODS] = [pod()]
    dra.refusals[CLAIMS] = [403]
    assert link(kubectl, "claims") == ("unknown", "you may not list ResourceClaims")


# --- classes ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("seen", "status", "detail"),
    [
        ([], "broken", f"there is no DeviceClass for {GPU}"),
        ([device_class("gpu.nvidia.com")], "broken", "another's DeviceClass: it selects no device of nodedevices.io"),
        ([device_class(extendedResourceName=None)], "warning", "this API server drops extendedResourceName"),
        ([device_class()], "ok", f"for {GPU}"),
    ],
)
def test_a_class_is_there_selects_our_devices_and_has_the_resources_name(
    dra: RecordedApi, kubectl: CommandLine, seen: list[JsonObject], status: str, detail: str
) -> None:
    dra.objects[CLASSES] = seen
    found = link(kubectl, f"class {CLASS}", "n1")
    assert found[0] == status
    assert found[1].startswith(detail)


# --- claims -----------------------------------------------------------------------------------------------------------
def waits(dra: RecordedApi, kubectl: CommandLine, waiting: JsonObject, *claims: JsonObject) -> list[tuple[str, str]]:
    """Status and detail of `claims`, of the cluster and of the node, where they are not ok."""
    dra.objects[PODS], dra.objects[CLAIMS] = [waiting], list(claims)
    kubectl("check", "-o", "json")
    found = json.loads(kubectl.out)["items"]
    return [(each["status"], each["detail"]) for each in found if each["link"] == "claims"]


def test_a_claim_that_no_device_satisfies_has_the_schedulers_words(dra: RecordedApi, kubectl: CommandLine) -> None:
    said = ("warning", f"ml/trainer: ResourceClaim big is not allocated: {DOUBT}")
    assert waits(dra, kubectl, pod(), claim()) == [said]
    assert kubectl.code == 0
    assert waits(dra, kubectl, pod()) == [("warning", "ml/trainer: there is no ResourceClaim big")]
    assert waits(dra, kubectl, pod(), claim(of="gpu.example.com")) == [], "another driver's"
    assert waits(dra, kubectl, pod(), claim("gpu-0")) == []
    prioritized = claim()
    either = [{"deviceClassName": "x"}, {"deviceClassName": CLASS}]
    prioritized["spec"]["devices"]["requests"] = [{"name": "gpu", "firstAvailable": either}]
    assert waits(dra, kubectl, pod(), prioritized) == [said]
    own = device_class() | {"metadata": {"name": "mine"}}
    dra.objects[CLASSES].append(own)
    assert waits(dra, kubectl, pod(), claim(of="mine")) == [said]


def test_a_claim_that_is_not_prepared_has_the_reason_of_its_pods_event(dra: RecordedApi, kubectl: CommandLine) -> None:
    given = claim("gpu-0")
    dra.objects[EVERY_EVENT] = [event(), event("of before", at=EARLIER), event("another's", uid="u-0")]
    assert waits(dra, kubectl, pod("n1"), given) == [("broken", f"ml/trainer: {TAKEN}")]
    assert kubectl.code == 3
    dra.objects[EVERY_EVENT] = []
    assert waits(dra, kubectl, pod("n1"), given) == [("warning", "not prepared yet, of pods ml/trainer")]
    assert waits(dra, kubectl, pod("n1", since=LATELY), given) == [("pending", "being prepared, of pods ml/trainer")]
    assert waits(dra, kubectl, pod("n1"), claim("gpu-0", driver="gpu.example.com")) == []
    assert waits(dra, kubectl, pod("n2"), claim("gpu-0", pool="n2")) == [], "of a node that is not ours"


def test_a_claim_that_is_prepared_is_no_longer_what_its_pod_waits_for(dra: RecordedApi, kubectl: CommandLine) -> None:
    dra.objects[EVERY_EVENT] = [event()]
    holder = {"namespace": "ml", "pod": "trainer", "container": "main", "claim": "big", "since": LATELY}
    dra.objects[NODE_DEVICES] = [by_dra(gpu(0, holders=[holder]), gpu(1))]
    assert waits(dra, kubectl, pod("n1"), claim("gpu-0")) == []


@pytest.mark.parametrize("field", ["resourceClaimStatuses", "extendedResourceClaimStatus"])
def test_a_claim_that_was_made_for_a_pod_is_found_by_its_status(
    dra: RecordedApi, kubectl: CommandLine, field: str
) -> None:
    made = {"resourceClaimName": "big"}
    waiting = pod("n1")
    waiting["status"][field] = [made] if field.endswith("es") else made
    waiting["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "t"}]
    dra.objects[EVERY_EVENT] = [event()]
    assert waits(dra, kubectl, waiting, claim("gpu-0")) == [("broken", f"ml/trainer: {TAKEN}")]
