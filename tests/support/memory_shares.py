"""Pods that have GPUs by memory, and the three accounts of what each container has: the kubelet's ids, the variables
inside the container, and the holders in NodeDevices. They must always agree, whatever order things happened in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from support.bookings import physical
from support.cluster import GPU, NAMESPACE, Cluster

MEMORY = "nodedevices.io/gpu-memory"
ALIYUN = "aliyun.com/gpu-mem"
VCUDA_MEMORY, VCUDA_CORE = "tencent.com/vcuda-memory", "tencent.com/vcuda-core"
MIB = {"1Gi": 1024, "2Gi": 2048, "256Mi": 256}


@dataclass(frozen=True)
class Grant:
    """Shares of one device, as a container has them."""

    device: str
    shares: int
    unit: str

    @property
    def mib(self) -> int:
        return self.shares * MIB[self.unit]

    @classmethod
    def of(cls, ids: Iterable[str]) -> Grant:
        """From the kubelet's ids (`GPU-...::1Gi.3`), which must be of one device and unit."""
        parts = [(physical(each), each.partition("::")[2].partition(".")[0]) for each in ids]
        [(device, unit)] = set(parts)
        return cls(device, len(parts), unit)


def by_memory(cluster: Cluster, unit: str = "1Gi", *, resource: str = MEMORY, **rule: Any) -> None:
    """The policy by which node b shares its GPUs by memory."""
    name = {} if resource == MEMORY else {"rename": resource}
    sections = {"sharing": {"strategy": "memory", "resources": [{"name": GPU, "memoryUnit": unit, **name, **rule}]}}
    cluster.policy("memory", sections, selector={"kubernetes.io/hostname": cluster.b})


def offered(cluster: Cluster, count: int, resource: str = MEMORY) -> list[str]:
    """The devices of node b that are shared, by index, once kubelet and Node have so many shares."""
    cluster.until("the kubelet has the shares", lambda: len(cluster.ids(cluster.b, resource)) == count)
    cluster.until("the Node, too", lambda: cluster.node_count(cluster.b, resource) == count)
    devices = {physical(each) for each in cluster.ids(cluster.b, resource)}
    return sorted(devices, key=lambda each: int(cluster.devices(cluster.b)[each]["index"]))


def container(cluster: Cluster, name: str, shares: int = 0, *, resource: str = MEMORY, **more: Any) -> dict[str, Any]:
    limits = {"limits": {resource: str(shares)}} if shares else {}
    return {
        "name": name,
        "image": cluster.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", "infinity"],
        "resources": limits,
        **more,
    }


def pod(
    cluster: Cluster,
    name: str,
    containers: Sequence[Mapping[str, Any]],
    *,
    init: Sequence[Mapping[str, Any]] = (),
    annotations: Mapping[str, str] | None = None,
    **spec: Any,
) -> None:
    """Made, on node b; not awaited."""
    metadata = {"name": name, "namespace": NAMESPACE, "annotations": dict(annotations or {})}
    parts = {"containers": list(containers), "initContainers": list(init)}
    cluster.kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": metadata,
            "spec": cluster.pod_spec(cluster.b, {}) | parts | spec,
        }
    )


def refused(cluster: Cluster, name: str) -> str:
    """The message with which the kubelet fails the pod."""

    def look() -> str | None:
        status = (cluster.kubectl.get("pod", name, NAMESPACE) or {}).get("status", {})
        return str(status["message"]) if status.get("reason") == "UnexpectedAdmissionError" else None

    return str(cluster.until(f"the kubelet refuses {name}", look))


def ids(cluster: Cluster, name: str) -> dict[str, set[str]]:
    """By container of the pod the ids of shares of memory that the kubelet gave it."""
    found: dict[str, set[str]] = {}
    for holder in cluster.node_clients[cluster.b].holders():
        if (holder["namespace"], holder["pod"]) == (NAMESPACE, name):
            of = found.setdefault(holder["container"], set())
            of.update(one for each in holder["devices"] if each["resource"] != VCUDA_CORE for one in each["ids"])
    return found


def grants(cluster: Cluster, name: str) -> dict[str, Grant]:
    """By container of the pod what it has, as the kubelet says."""
    return {container: Grant.of(of) for container, of in ids(cluster, name).items()}


def variables(cluster: Cluster, name: str, container: str = "") -> dict[str, str]:
    """Those of the container that are about GPUs, as a program in it finds them."""
    ours = ("NODEDEVICES_", "NVIDIA_VISIBLE", "ALIYUN_")
    return {key: value for key, value in cluster.environment(name, container).items() if key.startswith(ours)}


def agreed(cluster: Cluster, *names: str) -> dict[str, dict[str, Grant]]:
    """By pod and container what each has; kubelet, container and NodeDevices say the same of all of them."""
    have = {name: grants(cluster, name) for name in names}
    for name, each in have.items():
        for where, grant in each.items():
            read = variables(cluster, name, where)
            assert read["NVIDIA_VISIBLE_DEVICES"] == read["NODEDEVICES_MEMORY_DEVICE"] == grant.device
            assert read["NODEDEVICES_MEMORY_UNITS"] == str(grant.shares)
            assert read["NODEDEVICES_MEMORY_LIMIT_MIB"] == str(grant.mib)

    def shown() -> dict[str, dict[str, tuple[str, int]]]:
        found: dict[str, dict[str, tuple[str, int]]] = {name: {} for name in names}
        for id_, device in cluster.devices(cluster.b).items():
            for holder in device.get("holders", ()):
                if holder["pod"] in found:
                    found[holder["pod"]][holder["container"]] = (id_, holder["shares"])
        return found

    said = {name: {where: (one.device, one.shares) for where, one in each.items()} for name, each in have.items()}
    cluster.until(f"NodeDevices has {said}", lambda: shown() == said)
    return have
