"""A fleet on a real API server, without kubelets and agents: Nodes, NodeDevices and pods of the real sizes.

What a NodeDevices holds is what the real agent writes of eight simulated H100s that two pods hold, once well and once
with a GPU at fault; every node of the fleet gets a copy with its own name, devices and pods. The same agent writes
whatever the contract of the day is, so nothing here knows its fields.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from support.agentprocess import AgentProcess
from support.fleet import GPU, NAMESPACE, stamp
from support.kubectl import Kubectl
from support.kubelet import StandInKubelet
from support.simulated import h100s

from benchmarks.bare import NODE_DEVICES, NODES, Call, Client, apply

MODEL = "nd-bench-model"  # its name is in everything that is of this node alone
AGENT = "nodedevices-agent"
PODS_EACH, GPUS_EACH = 8, 1
AT_FAULT = 3  # the index of the GPU
CHUNK = 250  # nodes made between two lines of progress
AT_ONCE = 32
IMAGES = 40  # a Node's status is mostly its images; with these it has 9 KB
PATIENCE_SECONDS = 60.0

Say = Callable[[str], None]


@dataclass(frozen=True)
class Model:
    """JSON of one NodeDevices' status, with names and ids of the model's own."""

    well: str
    at_fault: str

    def status(self, node: str, uid: str, *, at_fault: bool = False) -> dict[str, Any]:
        text = (self.at_fault if at_fault else self.well).replace(MODEL, node)
        for device in self.devices:
            text = text.replace(device, f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, node + device)}")
        found: dict[str, Any] = orjson.loads(text)
        return found | {"nodeUID": uid}

    @property
    def devices(self) -> Sequence[str]:
        return sorted(set(re.findall(r"GPU-[0-9a-f]{8}-[0-9a-f-]{27}", self.well)))

    def marked_pod(self, node: str) -> str:
        """The pod that holds the GPU at fault."""
        [bad] = [it for it in json.loads(self.at_fault)["devices"] if it["health"]["state"] != "Healthy"]
        [entry] = bad["holders"]
        name: str = entry["pod"].replace(MODEL, node)
        return name


async def model(kubeconfig: Path, kubectl: Kubectl, folder: Path) -> Model:
    """What the real agent writes of a node. The object is removed again."""
    found = {}
    async with StandInKubelet() as kubelet:
        agent = AgentProcess(
            folder,
            kubelet_dir=kubelet.root,
            arguments=(f"--kubeconfig={kubeconfig}",),
            node=MODEL,
        )
        agent.start()
        try:
            await kubelet.until(lambda: kubelet.allocatable(GPU) == PODS_EACH * GPUS_EACH, patience=PATIENCE_SECONDS)
            for number in range(PODS_EACH):
                await kubelet.allocate(GPU, GPUS_EACH, pod=f"{MODEL}-{number}", namespace=NAMESPACE)
            found["well"] = await shown(kubectl, held_by_pods)
            agent.edit(h100s(xid79=AT_FAULT))
            found["at_fault"] = await shown(kubectl, lambda it: held_by_pods(it) and it["summary"]["unhealthy"] == 1)
        finally:
            agent.kill()
    kubectl.delete("nodedevices", MODEL)
    return Model(**found)


def held_by_pods(status: dict[str, Any]) -> bool:
    return all(device.get("holders") for device in status["devices"])


async def shown(kubectl: Kubectl, holds: Callable[[dict[str, Any]], object]) -> str:
    """The status of the model as JSON, once that holds."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        item = await asyncio.to_thread(kubectl.get, "nodedevices", MODEL)
        status = (item or {}).get("status") or {}
        if status.get("devices") and holds(status):
            return json.dumps(status)
        if time.monotonic() > deadline:
            raise RuntimeError(f"the agent's report did not come: {json.dumps(status)[:1000]}")
        await asyncio.sleep(0.2)


# --- the fleet ------------------------------------------------------------------------------------------------------
@dataclass
class Fleet:
    api: Client
    model: Model
    names: Sequence[str]
    uids: dict[str, str]  # of Nodes
    own_uids: dict[str, str]  # of NodeDevices

    @classmethod
    async def create(cls, api: Client, model: Model, count: int, say: Say, *, with_pods: int) -> Fleet:
        """Nodes, and their NodeDevices with a report. Of the pods that these name only those exist that will be marked:
        one on each of the first nodes."""
        fleet = cls(api, model, [f"node-{number:05d}" for number in range(count)], {}, {})
        for start in range(0, count, CHUNK):
            await each(fleet._create, fleet.names[start : start + CHUNK])
            say(f"{min(start + CHUNK, count)} of {count} nodes, with {PODS_EACH} holders each")
        say(f"{with_pods} pods")
        await each(fleet._create_pod, fleet.names[:with_pods])
        return fleet

    async def _create(self, name: str) -> None:
        made = orjson.loads(await self.api.call(Call("POST", NODES, body=node(name))))
        uid = self.uids[name] = made["metadata"]["uid"]
        owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}
        owned = {"ownerReferences": [owner | {"controller": False, "blockOwnerDeletion": False}]}
        item = await self.api.call(apply(f"{NODE_DEVICES}/{name}", own(name, **owned), AGENT))
        self.own_uids[name] = orjson.loads(item)["metadata"]["uid"]
        await self.report([name])

    async def _create_pod(self, name: str) -> None:
        await self.api.call(Call("POST", pods(), body=pod(self.model.marked_pod(name), name)))

    async def report(self, names: Iterable[str], *, at_fault: bool = False) -> None:
        """What the agents of these nodes write."""

        async def write(name: str) -> None:
            status = self.model.status(name, self.uids[name], at_fault=at_fault)
            await self.api.call(apply(f"{NODE_DEVICES}/{name}/status", own(name) | {"status": status}, AGENT))

        await each(write, names)

    async def run(self, names: Iterable[str]) -> None:
        """The kubelets' word that the pods with a GPU at fault run since before their agent's first report."""
        running = {"status": {"phase": "Running", "startTime": stamp(-3600)}}

        async def start(name: str) -> None:
            path = f"{pods()}/{self.model.marked_pod(name)}/status"
            patch = "application/strategic-merge-patch+json"
            await self.api.call(Call("PATCH", path, {"fieldManager": "kubelet"}, running, patch))

        await each(start, names)


async def each(do: Callable[[str], Any], names: Iterable[str]) -> None:
    """For all of them, so many at once."""
    left = iter(names)

    async def work() -> None:
        for name in left:
            await do(name)

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))


def pods() -> str:
    return f"/api/v1/namespaces/{NAMESPACE}/pods"


def own(name: str, **metadata: Any) -> dict[str, Any]:
    group = NODE_DEVICES.removeprefix("/apis/").rpartition("/")[0]
    return {"apiVersion": group, "kind": "NodeDevices", "metadata": {"name": name, **metadata}}


def node(name: str) -> dict[str, Any]:
    """As a kubelet registers it."""
    now = stamp()
    amounts = {"cpu": "128", "memory": "1056Gi", "pods": "110", "ephemeral-storage": "1Ti", GPU: "8"}
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    types = {"MemoryPressure": "False", "DiskPressure": "False", "PIDPressure": "False", "Ready": "True"}
    conditions = [
        {
            "type": kind,
            "status": status,
            "reason": f"Kubelet{kind}",
            "message": f"kubelet says {status} of {kind}",
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }
        for kind, status in types.items()
    ]
    images = [
        {
            "names": [f"registry.example/team/image-{at}@sha256:{at:064x}", f"registry.example/team/image-{at}:1.{at}"],
            "sizeBytes": 1_000_000 * at,
        }
        for at in range(1, IMAGES + 1)
    ]
    info = dict.fromkeys(("machineID", "systemUUID", "bootID"), str(uuid.uuid5(uuid.NAMESPACE_DNS, name)))
    info |= {"kernelVersion": "6.8.0-1030", "osImage": "Linux", "containerRuntimeVersion": "containerd://2.1.4"}
    info |= {"kubeletVersion": "v1.36.0", "kubeProxyVersion": "", "operatingSystem": "linux", "architecture": "amd64"}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": conditions, "images": images, "nodeInfo": info}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "status": status}


def pod(name: str, node: str) -> dict[str, Any]:
    """A pod that holds GPUs there."""
    amounts = {GPU: str(GPUS_EACH), "cpu": "32", "memory": "256Gi"}
    container: dict[str, Any] = {"name": "main", "image": "registry.example/team/train:1", "command": ["train"]}
    container |= {"resources": {"limits": amounts, "requests": amounts}}
    spec = {"nodeName": node, "automountServiceAccountToken": False, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}
