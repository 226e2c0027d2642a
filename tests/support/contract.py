"""One full example of each kind, and every way to get its spec wrong that the contract names.

The unit tests put them to the models, the integration tests to a real API server: both must refuse the same things.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

# A sharing section that only an API server with another version's CRD can have stored.
INVALID_SHARING: Json = {"strategy": "memory", "resources": [{"name": "nvidia.com/gpu", "replicas": 2}]}


def policy(**spec: Any) -> Json:
    """A DevicePolicy for every node with these sections."""
    return {
        "apiVersion": "nodedevices.io/v1alpha1",
        "kind": "DevicePolicy",
        "metadata": {"name": "example"},
        "spec": {"nodeSelector": {}, **spec},
    }


BY_MEMORY: Json = {
    "strategy": "memory",
    "resources": [
        {
            "name": "nvidia.com/gpu",
            "match": {
                "vendor": "nvidia",
                "productName": "NVIDIA L4",
                "type": "gpu",
                "profile": "1g.*",
                "minMemory": "16Gi",
                "ids": ["GPU-00000001-0000-0000-0000-000000000000"],
                "near": "nic",
            },
            "memoryUnit": "1Gi",
            "coreResource": "tencent.com/vcuda-core",
            "memoryReserve": "512Mi",
            "packing": "spread",
            "numa": True,
            "cores": True,
            "enforcement": "mps",
            "container": {
                "env": [{"name": "XLA_PYTHON_CLIENT_MEM_FRACTION", "value": "$(MEMORY_FRACTION)"}],
                "mounts": [{"hostPath": "/opt/limiter/lib.so", "containerPath": "/usr/lib/limiter.so"}],
            },
        }
    ],
}

FULL_POLICY: Json = policy(
    nodeSelector={
        "matchLabels": {"pool": "gpu"},
        "matchExpressions": [
            {"key": "nvidia.com/gpu.product", "operator": "In", "values": ["NVIDIA-H100", "NVIDIA-L4"]},
            {"key": "example.com/spare", "operator": "DoesNotExist"},
        ],
    },
    priority=100,
    rollout={"maxNodes": "25%", "pauseSeconds": 60},
    mode="DryRun",
    serving={"mode": "Observe"},
    resources={
        "devices": [
            {
                "match": {
                    "vendor": "nvidia",
                    "productName": "NVIDIA H100*",
                    "type": "gpu",
                    "profile": "1g.*",
                    "minMemory": "40Gi",
                    "ids": ["GPU-0c2c0f3e-0000-0000-0000-000000000001"],
                    "near": "nic",
                },
                "name": "example.com/h100",
            },
            {"match": {}, "name": "nvidia.com/gpu"},
        ],
        "exclude": ["GPU-dead*"],
    },
    sharing={
        "strategy": "timeSlicing",
        "renameByDefault": True,
        "failRequestsGreaterThanOne": True,
        "resources": [
            {"name": "nvidia.com/gpu", "replicas": 4, "rename": "nvidia.com/gpu.part", "devices": ["0", "0:1"]},
        ],
    },
    partitions={"strategy": "mixed"},
    injection={
        "deviceListStrategies": ["envvar", "cdi-cri"],
        "deviceIDStrategy": "index",
        "passDeviceSpecs": True,
    },
    discovery={"probes": ["nvml", "auto", "nics"]},
    expect=[{"match": {"type": "gpu", "productName": "NVIDIA H100*"}, "count": 8}],
    idle={"afterSeconds": 1800, "event": True, "podCondition": True},
    health={
        "rules": [
            {"reasons": ["Xid13", "Xid31"], "state": "Ignored"},
            {
                "reasons": ["Xid14*", "RowRemapPending"],
                "match": {"type": "gpu", "productName": "NVIDIA H100*", "minMemory": "40Gi"},
                "state": "Degraded",
                "holdDownSeconds": 60,
            },
        ],
        "degraded": [{"signal": "pcieReplays", "threshold": 8, "forSeconds": 60}],
        "holdDownSeconds": 30,
        "forgetMissingSeconds": 86400,
        "probe": {"intervalSeconds": 2, "withdrawAfterSeconds": 60},
    },
    faults={
        "podCondition": "Always",
        "event": True,
        "nodeCondition": False,
        "xidNodeCondition": True,
        "taint": {"effect": "NoExecute"},
        "evict": {"mode": "AfterGrace", "graceSeconds": 600, "excludeNamespaces": ["kube-*"]},
        "rules": [
            {
                "reasons": ["Xid79"],
                "recoveryActions": ["RebootNode"],
                "match": {"vendor": "nvidia", "near": "nic"},
                "taint": {"effect": "NoSchedule"},
                "evict": {"mode": "Immediate"},
            }
        ],
        "budget": {"maxUnavailable": "10%", "perHour": 3},
        "breaker": {"percent": 50, "windowSeconds": 300, "resetAfterSeconds": 3600},
    },
    capacity=[
        {"name": "nodedevices.io/gpu-memory-mib", "sumOf": "memoryMiB", "scope": "all"},
        {"name": "example.com/licences", "perNode": 2},
        {"name": "example.com/decoders", "match": {"type": "gpu"}, "perDevice": 7, "scope": "healthy"},
    ],
    labels={"featureDiscovery": True, "extra": {"example.com/managed": "true"}},
)

_GPU = "GPU-0c2c0f3e-0000-0000-0000-00000000000{}"
_MIG = "MIG-5a1b0f3e-0000-0000-0000-000000000001"


def holder(pod: str = "trainer-0", **extra: Any) -> Json:
    return {
        "namespace": "ml",
        "pod": pod,
        "container": "main",
        "resource": "nvidia.com/gpu",
        "since": "2026-11-21T07:02:11.123456Z",
        **extra,
    }


def device(index: int, **extra: Any) -> Json:
    """A healthy device as the agent reports it."""
    return {
        "id": _GPU.format(index),
        "name": f"gpu-{index}",
        "type": "gpu",
        "index": index,
        "attributes": {"productName": "NVIDIA H100 80GB HBM3", "numaNode": index // 4},
        "capacity": {"memory": "81559Mi"},
        "health": {"state": "Healthy", "since": "2026-11-21T07:00:00Z"},
        **extra,
    }


def condition(kind: str, status: str = "True", reason: str = "Because") -> Json:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": "",
        "lastTransitionTime": "2026-11-21T07:00:00Z",
    }


FULL_NODE: Json = {
    "apiVersion": "nodedevices.io/v1alpha1",
    "kind": "NodeDevices",
    "metadata": {"name": "gpu-a01"},
    "spec": {
        # Everything that a policy can set can be a node's configuration.
        "config": {
            key: value
            for key, value in FULL_POLICY["spec"].items()
            if key not in {"nodeSelector", "priority", "mode", "rollout"}
        },
        "configName": "a100-mixed",
        "change": {"time": "2026-11-21T07:02:11Z", "devices": 8, "policies": ["example"]},
        "configHash": "9f2c1d7e0a4b5c6d",
        "policies": [{"name": "h200", "generation": 5, "priority": 100, "sections": ["sharing", "health"]}],
        "unschedulable": [
            {"id": _GPU.format(1), "reason": "RMA 4711", "by": "ops@example.com", "until": "2026-12-01T00:00:00Z"}
        ],
    },
    "status": {
        "observedGeneration": 3,
        "appliedConfigHash": "9f2c1d7e0a4b5c6d",
        "nodeUID": "6f1e7d4c-0000-0000-0000-000000000001",
        "summary": {
            "devices": 2,
            "healthy": 1,
            "degraded": 0,
            "unhealthy": 1,
            "unknown": 0,
            "held": 1,
            "unschedulable": 1,
            "offered": 1,
            "excluded": 1,
            "withheld": "Unhealthy=1,Excluded=1",
            "message": "nvidia.com/gpu: 1 of 2 can be allocated (gpu-0 Unhealthy: Xid79).",
            "model": "NVIDIA H100 80GB HBM3",
            "models": 1,
            "reason": "Xid79",
            "recoveryAction": "RebootNode",
            "mostFaults": "gpu-0=3",
            "idle": 1,
        },
        "configuration": {
            "sources": ["policy", "flags", "environment", "file"],
            "refused": {
                "section": "sharing",
                "field": "sharing.resources[nvidia.com/gpu].replicas",
                "message": "sharing.resources[nvidia.com/gpu].replicas: 49: GPU 0 takes 48 MPS clients at most",
            },
            "refusals": [{"message": "--rdma-config-file /r.json: not JSON; its last content holds", "field": "a"}],
            "unmatched": [
                {
                    "section": "health",
                    "entry": "rules[0].reasons Xdi79",
                    "message": "no such reason; known reasons: EccUncorrectable, Xid<number>",
                }
            ],
            "waitingFor": [
                {"namespace": "ml", "pod": "train-0", "resource": "nvidia.com/gpu", "ids": ["GPU-1::0", "GPU-1::1"]}
            ],
            "waitingForDaemons": 1,
        },
        "drivers": [
            {"name": "nvidia", "version": "570.148.08", "cudaVersion": "12.8"},
            {"name": "mlx5_core", "version": "24.10-1.1.4"},
        ],
        "machine": {
            "type": "DGX H100",
            "mode": "compute",
            "clique": "0c2c0f3e-0000-0000-0000-000000000009.1",
            "migStrategy": "mixed",
            "vgpu": {"version": "17.1", "branch": "r570"},
        },
        "agent": {
            "version": "0.1.0",
            "bootID": "7f7c0f3e-0000-0000-0000-000000000001",
            "startTime": "2026-11-21T07:00:00Z",
            "heartbeatTime": "2026-11-21T07:05:00Z",
        },
        "probes": [
            {"name": "nvml", "state": "Ready", "since": "2026-11-21T07:00:00Z", "devices": 2},
            {
                "name": "nics",
                "state": "Silent",
                "message": "the probe has not reported for 15 s or more",
                "since": "2026-11-21T07:00:00Z",
                "devices": 0,
            },
        ],
        "devices": [
            device(
                0,
                attributes={
                    "uuid": _GPU.format(0),
                    "vendor": "nvidia",
                    "productName": "NVIDIA H100 80GB HBM3",
                    "brand": "Nvidia",
                    "architecture": "Hopper",
                    "pciBusID": "0000:1b:00.0",
                    "pcieRoot": "pci0000:16",
                    "numaNode": 0,
                    "minor": 0,
                    "firmware": "96.00.74.00.01",
                    "extra": {
                        "cudaComputeCapability": {"version": "9.0.0"},
                        "migCapable": {"bool": True},
                        "example.com/slot": {"int": 3},
                        "example.com/rack": {"string": "b7"},
                    },
                },
                probe="nvml",
                shares={
                    "resource": "nodedevices.io/gpu-memory",
                    "total": 7,
                    "held": 2,
                    "free": 5,
                    "unit": "10Gi",
                    "unallocatable": "10Gi",
                    "packing": "binpack",
                    "coresHeld": 30,
                },
                unschedulable="RMA 4711",
                notices=[
                    {
                        "code": "Xid31",
                        "message": "GPU memory page fault (XID 31); restart the application",
                        "partition": _MIG,
                        "since": "2026-11-21T07:00:00Z",
                        "time": "2026-11-21T07:01:00Z",
                        "count": 12,
                    }
                ],
                links=[
                    {"kind": "NVLink", "to": _GPU.format(1), "count": 18},
                    {"kind": "NVLink", "to": "switch", "count": 18},
                ],
                partitions=[
                    {
                        "id": _MIG,
                        "name": "gpu-0-mig-1g.10gb-19-0".replace(".", "-"),
                        "profile": "1g.10gb",
                        "gi": 7,
                        "ci": 0,
                        "start": 0,
                        "size": 1,
                        "capacity": {
                            "memory": "9856Mi",
                            "multiprocessors": "16",
                            "copyEngines": "1",
                            "decoders": "1",
                            "encoders": "0",
                            "jpegEngines": "1",
                            "ofaEngines": "0",
                        },
                        "health": {"state": "Degraded", "reason": "Xid94", "since": "2026-11-21T07:01:00Z"},
                        "shares": {"resource": "nvidia.com/mig-1g.10gb", "total": 2, "held": 1, "free": 0},
                        "holders": [
                            holder(
                                shares=1,
                                memory="9856Mi",
                                cores=30,
                                health={
                                    "state": "Unhealthy",
                                    "reason": "MpsDaemonRestarted",
                                    "since": "2026-11-21T07:01:00Z",
                                    "recoveryAction": "RestartApp",
                                },
                            )
                        ],
                    }
                ],
            ),
            device(
                1,
                health={
                    "state": "Unhealthy",
                    "reason": "Xid79",
                    "message": "GPU has fallen off the bus",
                    "since": "2026-11-21T07:02:11Z",
                    "xid": 79,
                    "xids": [48, 79],
                    "recoveryAction": "RebootNode",
                    "faultDomain": "Device",
                },
                holders=[
                    holder(
                        podUID="1a2b3c4d-0000-0000-0000-000000000001",
                        shares=2,
                        ids=[f"{_GPU.format(1)}::0", f"{_GPU.format(1)}::1"],
                    ),
                    {
                        "namespace": "ml",
                        "pod": "claimer-0",
                        "container": "main",
                        "claim": "gpus",
                        "since": "2026-11-21T07:02:11.000000Z",
                    },
                ],
                holdersTruncated=3,
                excluded="GPU-*",
            ),
        ],
        "resources": [
            {
                "name": "nvidia.com/gpu",
                "capacity": 8,
                "healthy": 4,
                "allocated": 2,
                "sharing": "timeSlicing",
                "replicas": 4,
                "managedBy": "plugin",
            },
            {
                "name": "nodedevices.io/gpu-memory",
                "capacity": 7,
                "healthy": 7,
                "allocated": 2,
                "sharing": "memory",
                "free": 5,
                "unit": "10Gi",
                "packing": "binpack",
                "enforcement": "mps",
                "memory": {"total": "80Gi", "held": "20Gi", "free": "50Gi", "unallocatable": "10Gi"},
                "managedBy": "plugin",
            },
        ],
        "retiredResources": [{"name": "nvidia.com/gpu.shared", "since": "2026-11-21T06:00:00Z"}],
        "affectedPods": [
            {
                "namespace": "ml",
                "name": "trainer-0",
                "uid": "1a2b3c4d-0000-0000-0000-000000000001",
                "device": _GPU.format(1),
                "reason": "Xid79",
                "since": "2026-11-21T07:02:12Z",
            }
        ],
        "conditions": [
            condition("Ready"),
            condition("DevicesHealthy", "False"),
            condition("ConfigApplied", "False", "WaitingForHolders"),
            condition("HoldersKnown", "Unknown"),
        ],
    },
}


@dataclass(frozen=True)
class Refusal:
    """A spec that must be refused, and words that the API server's answer has; `ours` where our own words differ."""

    name: str
    document: Json
    says: str
    ours: str | None = None


def _with(base: Json, change: Callable[[Json], object]) -> Json:
    document = copy.deepcopy(base)
    change(document["spec"])
    return document


def _sharing(**entry: Any) -> Json:
    return policy(sharing={"strategy": "timeSlicing", "resources": [{"name": "nvidia.com/gpu", **entry}]})


def _sharing_of(name: str) -> Json:
    return policy(sharing={"strategy": "timeSlicing", "resources": [{"name": name, "replicas": 2}]})


def _for_containers(**template: Any) -> Json:
    rule = {"name": "nvidia.com/gpu", "memoryUnit": "1Gi", "container": template}
    return policy(sharing={"strategy": "memory", "resources": [rule]})


def _capacity(*entries: Json, **spec: Any) -> Json:
    return policy(capacity=list(entries), **spec)


def _node(**spec: Any) -> Json:
    return {
        "apiVersion": "nodedevices.io/v1alpha1",
        "kind": "NodeDevices",
        "metadata": {"name": "n1"},
        "spec": spec,
    }


RESERVED = "no kubelet takes a name with kubernetes.io/ in it, or one that begins with requests."
_OWNERS = "a resource has one owner"
_BUDGET = "NoExecute or an eviction needs a budget"
_MANY = "Too many"

REFUSALS: tuple[Refusal, ...] = (
    # --- rules between fields ---
    Refusal("no section", policy(), "a policy sets at least one section"),
    Refusal(
        "no selector", _with(policy(partitions={}), lambda spec: spec.pop("nodeSelector")), "Required value", "missing"
    ),
    Refusal(
        "selector: In without values",
        policy(nodeSelector={"matchExpressions": [{"key": "a", "operator": "In"}]}, partitions={}),
        "a: In without values: In and NotIn need values",
    ),
    Refusal(
        "selector: Exists with values",
        policy(nodeSelector={"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}, partitions={}),
        "a: Exists with values: In and NotIn need values",
    ),
    Refusal(
        "ignored and held down",
        policy(health={"rules": [{"reasons": ["Xid31"], "state": "Ignored", "holdDownSeconds": 60}]}),
        "state is Ignored, and holdDownSeconds is 60: what is ignored has no holdDownSeconds: leave it out",
    ),
    Refusal(
        "strategy none with resources",
        policy(sharing={"strategy": "none", "resources": [{"name": "nvidia.com/gpu", "replicas": 2}]}),
        'resources has ["nvidia.com/gpu"], and strategy is none: strategy none has no resources; choose timeSlicing',
    ),
    Refusal(
        "no strategy with resources",
        policy(sharing={"resources": [{"name": "nvidia.com/gpu", "replicas": 2}]}),
        'resources has ["nvidia.com/gpu"], and strategy is not given: strategy none has no resources; choose',
    ),
    Refusal(
        "timeSlicing without resources",
        policy(sharing={"strategy": "timeSlicing"}),
        "strategy is timeSlicing, and resources is missing: list at least one resource with its replicas, or choose",
    ),
    Refusal(
        "mps with an empty list",
        policy(sharing={"strategy": "mps", "resources": []}),
        "strategy is mps, and resources is empty: list at least one resource with its replicas, or choose strategy",
    ),
    Refusal(
        "mps with MIG mixed",
        policy(
            sharing={"strategy": "mps", "resources": [{"name": "nvidia.com/gpu", "replicas": 2}]},
            partitions={"strategy": "mixed"},
        ),
        "sharing.strategy is mps, and partitions.strategy is mixed: MPS is not possible with partitions.strategy mixed",
    ),
    Refusal(
        "limits by MPS with MIG mixed",
        policy(
            sharing={
                "strategy": "memory",
                "resources": [{"name": "nvidia.com/gpu", "memoryUnit": "1Gi", "enforcement": "mps"}],
            },
            partitions={"strategy": "mixed"},
        ),
        "enforcement of sharing.resources is mps, and partitions.strategy is mixed: MPS is not possible with",
    ),
    *(
        Refusal(
            f"variable {name} for containers",
            _for_containers(env=[{"name": name, "value": "1"}]),
            f"name {name}: a policy does not set what the agent sets, which devices are visible, or what programs are "
            "loaded from; choose another name",
        )
        for name in (
            "NVIDIA_VISIBLE_DEVICES",
            "NVIDIA_MIG_CONFIG_DEVICES",
            "CUDA_VISIBLE_DEVICES",
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
            "NODEDEVICES_MEMORY_LIMIT_MIB",
            "ALIYUN_COM_GPU_MEM_IDX",
            "LD_PRELOAD",
            "PATH",
        )
    ),
    *(
        Refusal(f"value {value}", _for_containers(env=[{"name": "A", "value": value}]), text, own)
        for value, text, own in (
            ("$(MEMORY)", "A is $(MEMORY): a value may hold $(MEMORY_LIMIT_MIB)", "A has $(MEMORY): a value may hold"),
            ("$(HOME)/$(DEVICE_ID)", "A is $(HOME)/$(DEVICE_ID): a value may hold", "A has $(HOME): a value may hold"),
            ("$$(X)", "A is $$(X): a value may hold", "A has $(X): a value may hold"),
            ("$(MEMORY_UNITS", "A is $(MEMORY_UNITS: a value may hold", "A has $(MEMORY_UNITS): a value may hold"),
        )
    ),
    *(
        Refusal(
            f"hostPath {path!r}",
            _for_containers(mounts=[{"hostPath": path, "containerPath": "/a"}]),
            "write an absolute path without . and .., such as /opt/limiter",
        )
        for path in ("opt/limiter", "/opt/../etc", "/opt/.", "/opt//limiter", "/opt/", "/opt/a b")
    ),
    *(
        Refusal(
            f"containerPath {path}",
            _for_containers(mounts=[{"hostPath": "/opt/limiter", "containerPath": path}]),
            f"containerPath {path}: a container's /proc, /sys and /dev are the container runtime's; choose another",
        )
        for path in ("/proc", "/sys/fs/cgroup", "/dev/nvidia0")
    ),
    Refusal(
        "one path of a container mounted twice",
        _for_containers(
            mounts=[{"hostPath": "/opt/a", "containerPath": "/a"}, {"hostPath": "/opt/b", "containerPath": "/a"}]
        ),
        "mounts[1]: Duplicate value",
        "/a is listed twice; list it once",
    ),
    Refusal(
        "neither replicas nor memoryUnit",
        _sharing(),
        "nvidia.com/gpu has neither: a sharing resource has exactly one of replicas",
    ),
    Refusal(
        "both replicas and memoryUnit",
        _sharing(replicas=2, memoryUnit="1Gi"),
        "nvidia.com/gpu has both: a sharing resource has exactly one of replicas",
    ),
    Refusal(
        "capacity of nothing",
        _capacity({"name": "example.com/a"}),
        "example.com/a has none of them: a capacity has exactly one of perNode, perDevice",
    ),
    Refusal(
        "capacity of two things",
        _capacity({"name": "example.com/a", "perNode": 1, "sumOf": "memoryMiB"}),
        "example.com/a has several of them: a capacity has exactly one of perNode, perDevice and sumOf",
    ),
    Refusal(
        "capacity per node of some devices",
        _capacity({"name": "example.com/a", "perNode": 1, "match": {"type": "nic"}}),
        "example.com/a has match and perNode 1: perNode counts no devices: leave out match, or choose perDevice",
    ),
    Refusal(
        "capacity of a profile",
        _capacity({"name": "example.com/a", "perDevice": 1, "match": {"profile": "1g.*"}}),
        "example.com/a has match.profile 1g.*: a capacity counts devices, and no device has a profile",
    ),
    *(
        Refusal(
            f"{place} {name[:24]}",
            make(name),
            f'"{name}": not allowed; {says}' if len(name) < 80 else says,
            f"{'not allowed; ' if RESERVED in says else ''}{says}",
        )
        for place, make in (
            ("capacity", lambda name: _capacity({"name": name, "perNode": 1})),
            ("resource", lambda name: policy(resources={"devices": [{"match": {}, "name": name}]})),
            ("shared resource", _sharing_of),
            ("rename", lambda name: _sharing(replicas=2, rename=name)),
        )
        for name, says in (
            ("kubernetes.io/gpu", RESERVED),
            ("x.kubernetes.io/gpu", RESERVED),
            ("mykubernetes.io/gpu", RESERVED),
            ("requests.nvidia.com/gpu", RESERVED),
            ("a..b/gpu", "write a domain and a name of at most 63 characters"),
            (f"example.com/{'a' * 64}", "write a domain and a name of at most 63 characters"),
        )
    ),
    *(
        Refusal(
            f"label {key}",
            policy(labels={"extra": {"example.com/a": "b", key: "c"}}),
            f'extra has ["{key}"]: a label of a policy is not under kubernetes.io, k8s.io or nodedevices.io',
        )
        for key in (
            "kubernetes.io/hostname",
            "node-role.kubernetes.io/control-plane",
            "node-restriction.kubernetes.io/tenant",
            "k8s.io/a",
            "x.y.k8s.io/a",
            "nodedevices.io/agent",
            "x.nodedevices.io/a",
        )
    ),
    Refusal(
        "capacity that resources name",
        _capacity(
            {"name": "nvidia.com/gpu", "perNode": 1}, resources={"devices": [{"match": {}, "name": "nvidia.com/gpu"}]}
        ),
        f'capacity and resources.devices both name ["nvidia.com/gpu"]: {_OWNERS}',
    ),
    Refusal(
        "capacity that sharing names",
        _capacity(
            {"name": "nvidia.com/gpu", "perNode": 1},
            sharing={"strategy": "timeSlicing", "resources": [{"name": "nvidia.com/gpu", "replicas": 2}]},
        ),
        f'capacity and sharing.resources both name ["nvidia.com/gpu"]: {_OWNERS}',
    ),
    Refusal(
        "capacity that sharing renames to",
        _capacity(
            {"name": "example.com/a", "perNode": 1},
            sharing={
                "strategy": "timeSlicing",
                "resources": [{"name": "nvidia.com/gpu", "replicas": 2, "rename": "example.com/a"}],
            },
        ),
        f'capacity and sharing.resources both name ["example.com/a"]: {_OWNERS}',
    ),
    Refusal(
        "capacity that sharing gives cores by",
        _capacity({"name": "tencent.com/vcuda-core", "perNode": 1}, sharing=BY_MEMORY),
        f'capacity and sharing.resources both name ["tencent.com/vcuda-core"]: {_OWNERS}',
    ),
    Refusal(
        "cores of what is shared by time",
        _sharing(replicas=2, coreResource="tencent.com/vcuda-core"),
        "nvidia.com/gpu has no memoryUnit: memoryReserve, packing",
    ),
    Refusal(
        "NoExecute without a budget",
        policy(faults={"taint": {"effect": "NoExecute"}}),
        f"taint.effect is NoExecute, and there is no budget: {_BUDGET}",
    ),
    Refusal(
        "eviction without a budget",
        policy(faults={"evict": {"mode": "Immediate"}}),
        f"evict.mode is Immediate, and there is no budget: {_BUDGET}",
    ),
    Refusal(
        "a rule's NoExecute without a budget",
        policy(faults={"rules": [{"taint": {"effect": "NoExecute"}}]}),
        f"an entry of rules has one of both, and there is no budget: {_BUDGET}",
    ),
    Refusal(
        "a rule's eviction without a budget", policy(faults={"rules": [{"evict": {"mode": "AfterGrace"}}]}), _BUDGET
    ),
    Refusal(
        "a budget of nothing",
        policy(faults={"evict": {"mode": "Immediate"}, "budget": {}}),
        "a budget has maxUnavailable, perHour or both",
    ),
    *(
        Refusal(
            f"maxUnavailable {value!r}",
            policy(faults={"budget": {"maxUnavailable": value}}),
            f"maxUnavailable {value}: give a number of nodes from 0, or 0% to 100%",
        )
        for value in ("101%", "-1%", "ten", "05%", -1)
    ),
    *(
        Refusal(
            f"maxNodes {value!r}",
            policy(rollout={"maxNodes": value}, partitions={}),
            f"maxNodes {value}: give a number of nodes from 1, or 1% to 100%",
        )
        for value in ("101%", "0%", "ten", "05%", 0)
    ),
    # --- bounds, patterns, sets ---
    Refusal("priority 1001", policy(priority=1001, partitions={}), "less than or equal to 1000", "1000 or less"),
    Refusal("priority -1001", policy(priority=-1001, partitions={}), "greater than or equal to -1000", "-1000 or more"),
    Refusal(
        "priority as text", policy(priority="1", partitions={}), 'must be of type integer: "string"', "whole number"
    ),
    Refusal(
        "mode Maybe", policy(mode="Maybe", partitions={}), 'supported values: "Enforce", "DryRun"', "Enforce or DryRun"
    ),
    Refusal("replicas 1", _sharing(replicas=1), "greater than or equal to 2", "2 or more"),
    Refusal("replicas 16385", _sharing(replicas=16385), "less than or equal to 16384", "16384 or less"),
    Refusal("memoryUnit as prose", _sharing(memoryUnit="a lot"), "memoryUnit"),
    Refusal(
        "holdDownSeconds over a day",
        policy(health={"holdDownSeconds": 86401}),
        "less than or equal to 86400",
        "86400 or less",
    ),
    Refusal(
        "graceSeconds over a day",
        policy(faults={"evict": {"graceSeconds": 86401}}),
        "less than or equal to 86400",
        "86400 or less",
    ),
    Refusal(
        "breaker over 100 percent",
        policy(faults={"breaker": {"percent": 101, "windowSeconds": 60}}),
        "less than or equal to 100",
        "100 or less",
    ),
    Refusal(
        "intervalSeconds 11",
        policy(health={"probe": {"intervalSeconds": 11}}),
        "less than or equal to 10",
        "10 or less",
    ),
    Refusal(
        "a rule without reasons",
        policy(health={"rules": [{"reasons": [], "state": "Ignored"}]}),
        "should have at least 1 items",
        "at least 1",
    ),
    Refusal(
        "a reason twice",
        policy(health={"rules": [{"reasons": ["Xid79", "Xid79"], "state": "Ignored"}]}),
        "Duplicate value",
        "listed twice",
    ),
    Refusal(
        "a reason that is none",
        policy(health={"rules": [{"reasons": ["XID 79"], "state": "Ignored"}]}),
        "not allowed; write a health reason, such as Xid79, or a pattern with * and ?",
    ),
    Refusal(
        "65 rules", policy(health={"rules": [{"reasons": ["Xid79"], "state": "Ignored"}] * 65}), _MANY, "at most 64"
    ),
    Refusal(
        "a rule that says Fatal",
        policy(health={"rules": [{"reasons": ["Xid79"], "state": "Fatal"}]}),
        'supported values: "Ignored", "Degraded", "Unhealthy"',
        "Ignored, Degraded or Unhealthy",
    ),
    Refusal(
        "unknown strategy",
        policy(sharing={"strategy": "time-slicing"}),
        'supported values: "none", "timeSlicing"',
        "timeSlicing",
    ),
    Refusal("unknown list strategy", policy(injection={"deviceListStrategies": ["env"]}), "supported values", "envvar"),
    Refusal("no list strategy", policy(injection={"deviceListStrategies": []}), "at least 1 items", "at least 1"),
    Refusal("event as text", policy(faults={"event": "yes"}), "must be of type boolean", "true or false"),
    Refusal(
        "unknown signal",
        policy(health={"degraded": [{"signal": "mood", "threshold": 1}]}),
        "supported values",
        "choose",
    ),
    Refusal(
        "health rule about a profile",
        policy(health={"rules": [{"reasons": ["Xid79"], "state": "Degraded", "match": {"profile": "1g.*"}}]}),
        "match.profile is 1g.*: a health rule is about devices, and no device has a profile; leave out match.profile",
    ),
    Refusal(
        "fault rule about a profile",
        policy(faults={"rules": [{"match": {"profile": "1g.*"}}]}),
        "match.profile is 1g.*: a fault is a device's, and no device has a profile; leave out match.profile",
    ),
    Refusal(
        "unknown recovery action",
        policy(faults={"rules": [{"recoveryActions": ["Pray"]}]}),
        "supported values",
        "choose",
    ),
    Refusal(
        "resource without a domain",
        _capacity({"name": "gpu", "perNode": 1}),
        '"gpu": not allowed; write a domain and a name of at most 63 characters, such as nvidia.com/gpu',
        '"gpu" is not allowed; write a domain and a name of at most 63 characters, such as nvidia.com/gpu',
    ),
    Refusal("label value with a blank", policy(labels={"extra": {"a": "x y"}}), "write a label value"),
    Refusal("glob with a hash", policy(resources={"exclude": ["GPU#1"]}), "write a name, or a pattern with * and ?"),
    Refusal(
        "capacity below 0",
        _capacity({"name": "example.com/a", "perNode": -1}),
        "greater than or equal to 0",
        "0 or more",
    ),
    Refusal(
        "capacity twice",
        _capacity({"name": "example.com/a", "perNode": 1}, {"name": "example.com/a", "perNode": 2}),
        "Duplicate value",
        "listed twice",
    ),
    Refusal(
        "33 capacities",
        _capacity(*({"name": f"example.com/a{n}", "perNode": 1} for n in range(33))),
        _MANY,
        "at most 32",
    ),
    Refusal("17 labels", policy(labels={"extra": {f"l{n}": "x" for n in range(17)}}), _MANY, "at most 16"),
    Refusal("label value too long", policy(labels={"extra": {"a": "x" * 64}}), "Too long", "at most 63"),
    Refusal("65 exclusions", policy(resources={"exclude": [f"GPU-{n}" for n in range(65)]}), _MANY, "at most 64"),
    # --- NodeDevices ---
    Refusal("blank reason", _node(unschedulable=[{"id": "GPU-1", "reason": "  "}]), "GPU-1: reason is blank: say why"),
    Refusal("empty reason", _node(unschedulable=[{"id": "GPU-1", "reason": ""}]), "at least 1 chars", "at least 1"),
    Refusal("no reason", _node(unschedulable=[{"id": "GPU-1"}]), "Required value", "missing"),
    Refusal("long reason", _node(unschedulable=[{"id": "GPU-1", "reason": "x" * 257}]), "Too long", "at most 256"),
    Refusal(
        "id with a blank", _node(unschedulable=[{"id": "GPU 1", "reason": "x"}]), "write a device id, such as GPU-"
    ),
    Refusal(
        "one id twice",
        _node(unschedulable=[{"id": "GPU-1", "reason": "x"}, {"id": "GPU-1", "reason": "y"}]),
        "Duplicate value",
        "listed twice",
    ),
    Refusal(
        "until some day",
        _node(unschedulable=[{"id": "GPU-1", "reason": "x", "until": "tomorrow"}]),
        "must be of type date-time",
        "not a time",
    ),
    Refusal(
        "129 unschedulable",
        _node(unschedulable=[{"id": f"GPU-{n}", "reason": "x"} for n in range(129)]),
        _MANY,
        "at most 128",
    ),
    Refusal(
        "a configuration that breaks a rule",
        _node(config={"sharing": {"strategy": "none", "resources": [{"name": "nvidia.com/gpu", "replicas": 2}]}}),
        "strategy none has no resources",
    ),
    Refusal(
        "33 policies",
        _node(policies=[{"name": f"p{n}", "generation": 1, "priority": 0} for n in range(33)]),
        _MANY,
        "at most 32",
    ),
)
"""Each is one document with one mistake."""

UNKNOWN_KEYS: tuple[tuple[str, Json, str], ...] = (
    ("in a section", policy(sharing={"strategey": "none"}), "spec.sharing.strategey"),
    ("in the spec", policy(partitions={}, shraing={}), "spec.shraing"),
    ("in a list", _sharing(replicas=2, replica=3), "spec.sharing.resources[0].replica"),
    ("in a node's configuration", _node(config={"health": {"holdDown": 3}}), "spec.config.health.holdDown"),
)
"""Documents with one unknown key, and where it is."""
