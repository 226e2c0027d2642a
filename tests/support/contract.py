"""One full example of each kind, and every way to get its spec wrong that the contract names.

The unit tests put them to the models, the integration tests to a real API server: both must refuse the same things.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

Json = dict[str, Any]

# A sharing section that only an API server with another version's CRD can have stored.
INVALID_SHARING: Json = {"strategy": "memory", "resources": [{"name": "nvidia.com/gpu", "replicas": 2}]}

_WRITTEN: Json = yaml.safe_load(Path(__file__).with_name("contract.yaml").read_text(encoding="utf-8"))


def _object(kind: str, name: str, **fields: Any) -> Json:
    return {"apiVersion": "nodedevices.io/v1alpha1", "kind": kind, "metadata": {"name": name}, **fields}


def policy(**spec: Any) -> Json:
    """A DevicePolicy for every node with these sections."""
    return _object("DevicePolicy", "example", spec={"nodeSelector": {}, **spec})


def node(**spec: Any) -> Json:
    """A NodeDevices object that an operator has written this spec of."""
    return _object("NodeDevices", "n1", spec=spec)


def device(index: int, **extra: Any) -> Json:
    """A healthy device as the agent reports it."""
    return {
        "id": f"GPU-0c2c0f3e-0000-0000-0000-00000000000{index}",
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


BY_MEMORY: Json = _WRITTEN["sharing by memory"]

FULL_POLICY: Json = policy(**_WRITTEN["DevicePolicy"])

# Everything that a policy can set can be a node's configuration.
_CONFIG = {
    key: value
    for key, value in _WRITTEN["DevicePolicy"].items()
    if key not in {"nodeSelector", "priority", "mode", "rollout"}
}

FULL_NODE: Json = _object(
    "NodeDevices",
    "gpu-a01",
    spec={"config": _CONFIG, **_WRITTEN["NodeDevices"]["spec"]},
    status=_WRITTEN["NodeDevices"]["status"],
)


@dataclass(frozen=True)
class Refusal:
    """A spec that must be refused, and words that the API server's answer has; `ours` where our own words differ."""

    name: str
    document: Json
    says: str
    ours: str | None = None


def _sharing(**entry: Any) -> Json:
    return policy(sharing={"strategy": "timeSlicing", "resources": [{"name": "nvidia.com/gpu", **entry}]})


def _sharing_of(name: str) -> Json:
    return policy(sharing={"strategy": "timeSlicing", "resources": [{"name": name, "replicas": 2}]})


def _for_containers(**template: Any) -> Json:
    rule = {"name": "nvidia.com/gpu", "memoryUnit": "1Gi", "container": template}
    return policy(sharing={"strategy": "memory", "resources": [rule]})


def _capacity(*entries: Json, **spec: Any) -> Json:
    return policy(capacity=list(entries), **spec)


RESERVED = "no kubelet takes a name with kubernetes.io/ in it, or one that begins with requests."
_MANY = "Too many"

REFUSALS: tuple[Refusal, ...] = (
    *(
        Refusal(
            name,
            policy(**refusal["policy"]) if "policy" in refusal else node(**refusal["node"]),
            refusal["says"],
            refusal.get("ours"),
        )
        for name, refusal in _WRITTEN["refusals"].items()
    ),
    Refusal("no selector", _object("DevicePolicy", "example", spec={"partitions": {}}), "Required value", "missing"),
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
            f'extra has ["{key}"]: a label of a policy is none that others act by',
        )
        for key in (
            "kubernetes.io/hostname",
            "node-role.kubernetes.io/control-plane",
            "node-restriction.kubernetes.io/tenant",
            "k8s.io/a",
            "x.y.k8s.io/a",
            "node.cluster.x-k8s.io/a",
            "cloud.google.com/perform-maintenance",
            "cloud.google.com/gke-nodepool",
            "eks.amazonaws.com/nodegroup",
            "kubernetes.azure.com/agentpool",
            "karpenter.sh/do-not-disrupt",
            "karpenter.k8s.aws/a",
            "dgxc.nvidia.com/nvsentinel-state",
            "nvidia.com/mig.config",
            "nvidia.com/gpu.deploy.device-plugin",
            "nvidia.com/device-plugin.config",
            "dcm.amd.com/gpu-config-profile",
            "nodedevices.io/agent",
            "x.nodedevices.io/a",
        )
    ),
    Refusal(
        "capacity that sharing gives cores by",
        _capacity({"name": "tencent.com/vcuda-core", "perNode": 1}, sharing=BY_MEMORY),
        'capacity and sharing.resources both name ["tencent.com/vcuda-core"]: a resource has one owner',
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
    Refusal(
        "65 rules", policy(health={"rules": [{"reasons": ["Xid79"], "state": "Ignored"}] * 65}), _MANY, "at most 64"
    ),
)
"""Each is one document with one mistake."""

UNKNOWN_KEYS: tuple[tuple[str, Json, str], ...] = (
    ("in a section", policy(sharing={"strategey": "none"}), "spec.sharing.strategey"),
    ("in the spec", policy(partitions={}, shraing={}), "spec.shraing"),
    ("in a list", _sharing(replicas=2, replica=3), "spec.sharing.resources[0].replica"),
    ("in a node's configuration", node(config={"health": {"holdDown": 3}}), "spec.config.health.holdDown"),
)
"""Documents with one unknown key, and where it is."""
