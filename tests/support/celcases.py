"""Every condition between fields that the API server checks (CEL), broken and kept by two objects that are much alike.

What a policy may say a node's configuration may, too: such a pair stands for the same rule of both kinds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nodedevices_api.container import WORDS
from nodedevices_api.fields import NOT_EXTENDED
from support.contract import policy

Json = dict[str, Any]
GPU, OTHER = "nvidia.com/gpu", "example.com/a"
SLICES = {"strategy": "timeSlicing", "resources": [{"name": GPU, "replicas": 2}]}
RENAMED = {"strategy": "timeSlicing", "resources": [{"name": GPU, "replicas": 2, "rename": OTHER}]}
SLICED = {"name": OTHER, "strategy": "timeSlicing", "replicas": 2}  # in its own way
CLIENTS = {"strategy": "mps", "resources": [{"name": GPU, "replicas": 2}]}


@dataclass(frozen=True)
class Pair:
    """One condition at one place of a kind, and what the API server says of the object that breaks it."""

    kind: str
    place: str
    field: str  # as the API server names the place
    refused: Json
    accepted: Json
    says: str


def node(**spec: Any) -> Json:
    return {
        "apiVersion": "nodedevices.io/v1alpha1",
        "kind": "NodeDevices",
        "metadata": {"name": "n1"},
        "spec": spec,
    }


def _policy(sections: Mapping[str, Any]) -> Json:
    return policy(**sections)


def _configuration(sections: Mapping[str, Any]) -> Json:
    return node(config=dict(sections))


def _both(place: str, field: str, refused: Mapping[str, Any], accepted: Mapping[str, Any], says: str) -> list[Pair]:
    """Of sections: as a policy, and as a node's configuration."""
    return [
        Pair(
            kind,
            f"{root}{place and '.' + place}",
            f"{root}{field and '.' + field}",
            make(refused),
            make(accepted),
            says,
        )
        for kind, root, make in (("DevicePolicy", "spec", _policy), ("NodeDevices", "spec.config", _configuration))
    ]


def _of_policy(place: str, field: str, refused: Json, accepted: Json, says: str) -> Pair:
    return Pair("DevicePolicy", place, field, refused, accepted, says)


def _slices(**entry: Any) -> Json:
    return {"sharing": {"strategy": "timeSlicing", "resources": [{"name": GPU, "replicas": 2, **entry}]}}


def _capacity(**entry: Any) -> Json:
    return {"capacity": [{"name": OTHER, **entry}]}


def _for_containers(**template: Any) -> Json:
    return {"sharing": {"strategy": "memory", "resources": [{"name": GPU, "memoryUnit": "1Gi", "container": template}]}}


def _selector(**requirement: Any) -> Json:
    return policy(nodeSelector={"matchExpressions": [{"key": "a", **requirement}]}, partitions={})


PAIRS: tuple[Pair, ...] = (
    *_both(
        "",
        "",
        {"capacity": [{"name": OTHER, "perNode": 1}], "resources": {"devices": [{"match": {}, "name": OTHER}]}},
        {"capacity": [{"name": OTHER, "perNode": 1}], "resources": {"devices": [{"match": {}, "name": GPU}]}},
        f'capacity and resources.devices both name ["{OTHER}"]: '
        "a resource has one owner; choose another name for the capacity",
    ),
    *_both(
        "",
        "",
        {"capacity": [{"name": OTHER, "perNode": 1}], "sharing": RENAMED},
        {"capacity": [{"name": OTHER, "perNode": 1}], "sharing": SLICES},
        f'capacity and sharing.resources both name ["{OTHER}"]: '
        "a resource has one owner; choose another name for the capacity",
    ),
    *_both(
        "expect[]",
        "expect[0]",
        {"expect": [{"match": {"profile": "1g.*"}, "count": 8}]},
        {"expect": [{"match": {"type": "gpu"}, "count": 8}]},
        "match.profile is 1g.*: whole devices are expected, and no device has a profile; leave out match.profile",
    ),
    *_both(
        "idle",
        "idle",
        {"idle": {"event": True}},
        {"idle": {"event": True, "afterSeconds": 1800}},
        "idle has no afterSeconds: event and podCondition go with afterSeconds; give it, such as 1800",
    ),
    _of_policy(
        "spec",
        "spec",
        policy(),
        policy(partitions={}),
        "a policy sets at least one section: serving, resources, sharing, partitions, injection, health, faults, "
        "capacity, labels, discovery, expect, idle",
    ),
    _of_policy(
        "spec",
        "spec",
        policy(sharing=CLIENTS, partitions={"strategy": "mixed"}),
        policy(sharing=CLIENTS, partitions={"strategy": "single"}),
        "sharing.strategy is mps, and partitions.strategy is mixed: "
        "MPS is not possible with partitions.strategy mixed; use timeSlicing, or another partitions.strategy",
    ),
    *_both(
        "sharing",
        "sharing",
        {"sharing": {**SLICES, "strategy": "none"}},
        {"sharing": SLICES},
        f'resources has ["{GPU}"], and strategy is none: '
        "strategy none has no resources; choose timeSlicing, mps or memory, or leave out resources",
    ),
    *_both(
        "sharing",
        "sharing",
        {"sharing": {"strategy": "timeSlicing"}},
        {"sharing": {"strategy": "none"}},
        "strategy is timeSlicing, and resources is missing: "
        "list at least one resource with its replicas, or choose strategy none",
    ),
    *_both(
        "sharing.resources[]",
        "sharing.resources[0]",
        {"sharing": {"strategy": "timeSlicing", "resources": [{"name": GPU, "replicas": 2, "memoryUnit": "1Gi"}]}},
        {"sharing": {"strategy": "memory", "resources": [{"name": GPU, "rename": "tencent.com/vcuda-memory"}]}},
        f"{GPU} has both: a sharing resource has exactly one of replicas and memoryUnit; "
        "with rename aliyun.com/gpu-mem or tencent.com/vcuda-memory memoryUnit can be left out",
    ),
    *_both(
        "sharing.resources[]",
        "sharing.resources[0]",
        {"sharing": {"strategy": "timeSlicing", "resources": [{"name": GPU, "replicas": 2, "packing": "spread"}]}},
        {"sharing": {"strategy": "memory", "resources": [{"name": GPU, "memoryUnit": "1Gi", "packing": "spread"}]}},
        f"{GPU} has no memoryUnit: memoryReserve, packing, numa, enforcement, container and coreResource go with "
        "memoryUnit",
    ),
    *_both(
        "sharing.resources[].container.mounts[]",
        "sharing.resources[0].container.mounts[0]",
        _for_containers(mounts=[{"hostPath": "/a", "containerPath": "/proc/self"}]),
        _for_containers(mounts=[{"hostPath": "/a", "containerPath": "/process"}]),
        "containerPath /proc/self: a container's /proc, /sys and /dev are the container runtime's; choose another path",
    ),
    *_both(
        "sharing.resources[].container.env[]",
        "sharing.resources[0].container.env[0]",
        _for_containers(env=[{"name": "LD_PRELOAD", "value": "x"}]),
        _for_containers(env=[{"name": "OLD_PRELOAD", "value": "x"}]),
        "name LD_PRELOAD: a policy does not set what the agent sets, which devices are visible, or what programs are "
        "loaded from; choose another name",
    ),
    *_both(
        "sharing.resources[].container.env[]",
        "sharing.resources[0].container.env[0]",
        _for_containers(env=[{"name": "A", "value": "$(MEMORY)"}]),
        _for_containers(env=[{"name": "A", "value": "$5 $(DEVICE_ID)$"}]),
        f"A is $(MEMORY): a value may hold {', '.join(f'$({word})' for word in WORDS)}",
    ),
    *_both(
        "sharing.resources[]",
        "sharing.resources[0]",
        {"sharing": {"strategy": "timeSlicing", "resources": [{"name": GPU, "replicas": 2, "cores": True}]}},
        {"sharing": {"strategy": "memory", "resources": [{"name": GPU, "memoryUnit": "1Gi", "cores": True}]}},
        f"{GPU} has no memoryUnit: cores goes with memoryUnit",
    ),
    *_both(
        "sharing",
        "sharing",
        {"sharing": {"strategy": "memory", "resources": [{"name": GPU, "replicas": 2}]}},
        {"sharing": {"strategy": "memory", "resources": [{"name": GPU, "memoryUnit": "1Gi"}, SLICED]}},
        "strategy is memory: strategy memory needs memoryUnit, and every other one replicas",
    ),
    *_both(
        "sharing",
        "sharing",
        {
            "sharing": {
                "strategy": "memory",
                "failRequestsGreaterThanOne": True,
                "resources": [{"name": GPU, "memoryUnit": "1Gi"}],
            }
        },
        {"sharing": {"strategy": "memory", "resources": [{"name": GPU, "memoryUnit": "1Gi"}]}},
        "failRequestsGreaterThanOne is true: "
        "with strategy memory a container requests as many shares as it needs memory; leave it out",
    ),
    *_both(
        "injection",
        "injection",
        {"injection": {"deviceListStrategies": ["envvar", "driver-directory"]}},
        {"injection": {"deviceListStrategies": ["driver-directory"]}},
        'deviceListStrategies is ["envvar", "driver-directory"]: driver-directory brings the driver by itself, and '
        "each of the others would bring it once more; give it alone, or leave it out",
    ),
    *_both(
        "health.rules[]",
        "health.rules[0]",
        {"health": {"rules": [{"reasons": ["Xid31"], "state": "Ignored", "holdDownSeconds": 60}]}},
        {"health": {"rules": [{"reasons": ["Xid31"], "state": "Degraded", "holdDownSeconds": 60}]}},
        "state is Ignored, and holdDownSeconds is 60: "
        "what is ignored has no holdDownSeconds: leave it out, or choose Degraded or Unhealthy",
    ),
    *_both(
        "health.rules[]",
        "health.rules[0]",
        {"health": {"rules": [{"reasons": ["Xid31"], "state": "Ignored", "after": {"count": 2, "windowSeconds": 60}}]}},
        {
            "health": {
                "rules": [{"reasons": ["Xid31"], "state": "Degraded", "after": {"count": 2, "windowSeconds": 60}}]
            }
        },
        "state is Ignored, and after.count is 2: "
        "what is ignored is not counted: leave out after, or choose Degraded or Unhealthy",
    ),
    *_both(
        "health.rules[]",
        "health.rules[0]",
        {"health": {"rules": [{"reasons": ["Xid31"], "state": "Ignored", "match": {"profile": "1g.*"}}]}},
        {"health": {"rules": [{"reasons": ["Xid31"], "state": "Ignored", "match": {"type": "gpu"}}]}},
        "match.profile is 1g.*: a health rule is about devices, and no device has a profile; leave out match.profile",
    ),
    *_both(
        "faults.rules[]",
        "faults.rules[0]",
        {"faults": {"rules": [{"match": {"profile": "1g.*"}}]}},
        {"faults": {"rules": [{"match": {"type": "nic", "near": "gpu"}}]}},
        "match.profile is 1g.*: a fault is a device's, and no device has a profile; leave out match.profile",
    ),
    *_both(
        "faults",
        "faults",
        {"faults": {"taint": {"effect": "NoExecute"}}},
        {"faults": {"taint": {"effect": "NoExecute"}, "budget": {"perHour": 1}}},
        "taint.effect is NoExecute, and there is no budget: "
        "NoExecute or an eviction needs a budget; give budget.maxUnavailable or budget.perHour",
    ),
    *_both(
        "faults.budget",
        "faults.budget",
        {"faults": {"budget": {"maxUnavailable": "101%"}}},
        {"faults": {"budget": {"maxUnavailable": "100%"}}},
        "maxUnavailable 101%: give a number of nodes from 0, or 0% to 100% of them",
    ),
    *_both(
        "faults.budget",
        "faults.budget",
        {"faults": {"budget": {}}},
        {"faults": {"budget": {"perHour": 0}}},
        "budget has neither: a budget has maxUnavailable, perHour or both",
    ),
    *_both(
        "capacity[]",
        "capacity[0]",
        _capacity(),
        _capacity(perNode=1),
        f"{OTHER} has none of them: a capacity has exactly one of perNode, perDevice and sumOf",
    ),
    *_both(
        "capacity[]",
        "capacity[0]",
        _capacity(perNode=1, match={"type": "nic"}),
        _capacity(perDevice=1, match={"type": "nic"}),
        f"{OTHER} has match and perNode 1: perNode counts no devices: leave out match, or choose perDevice or sumOf",
    ),
    *_both(
        "capacity[]",
        "capacity[0]",
        _capacity(perDevice=1, match={"profile": "1g.*"}),
        _capacity(perDevice=1, match={"productName": "*H100*"}),
        f"{OTHER} has match.profile 1g.*: "
        "a capacity counts devices, and no device has a profile: leave out match.profile",
    ),
    *(
        pair
        for place, make in (
            ("capacity[].name", lambda name: {"capacity": [{"name": name, "perNode": 1}]}),
            ("resources.devices[].name", lambda name: {"resources": {"devices": [{"match": {}, "name": name}]}}),
            ("sharing.resources[].name", lambda name: _slices(name=name)),
            ("sharing.resources[].rename", lambda name: _slices(rename=name)),
        )
        for pair in _both(
            place,
            place.replace("[]", "[0]"),
            make("a.kubernetes.io/b"),
            make("a.kubernetes.example/b"),
            f'"a.kubernetes.io/b": not allowed; {NOT_EXTENDED}',
        )
    ),
    *_both(
        "labels",
        "labels",
        {"labels": {"extra": {"k8s.io/a": "b", OTHER: "c"}}},
        {"labels": {"extra": {"ak8s.io/a": "b", OTHER: "c"}}},
        'extra has ["k8s.io/a"]: a label of a policy is not under kubernetes.io, k8s.io or nodedevices.io: '
        "choose a domain of your own",
    ),
    _of_policy(
        "spec.rollout",
        "spec.rollout",
        policy(rollout={"maxNodes": "0%"}, partitions={}),
        policy(rollout={"maxNodes": "1%"}, partitions={}),
        "maxNodes 0%: give a number of nodes from 1, or 1% to 100% of them",
    ),
    _of_policy(
        "spec.nodeSelector.matchExpressions[]",
        "spec.nodeSelector.matchExpressions[0]",
        _selector(operator="In"),
        _selector(operator="In", values=["b"]),
        "a: In without values: In and NotIn need values, Exists and DoesNotExist have none",
    ),
    Pair(
        "NodeDevices",
        "spec.unschedulable[]",
        "spec.unschedulable[0]",
        node(unschedulable=[{"id": "GPU-1", "reason": "  "}]),
        node(unschedulable=[{"id": "GPU-1", "reason": " x "}]),
        "GPU-1: reason is blank: say why the device is out of service, such as RMA 4711",
    ),
)
