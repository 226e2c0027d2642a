"""Two nodes with their agents, the operator and a Prometheus, for a short while of work and faults, for dashboards.

The first node has eight H100s, with telemetry: two jobs train on it, and XID 79 strikes a GPU of one. The second has
four L4s that a policy shares by memory. Kubelets are stand-ins, devices are simulated; all else is real. Prometheus
scrapes every program twice, as our PodMonitors and as our Services have it, each as a cluster of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from support import fleet, prometheus_server
from support.agentprocess import AgentProcess
from support.exposed import parsed
from support.kubectl import Kubectl, wait_until
from support.kubelet import ThreadedKubelet
from support.operatorprocess import OperatorProcess
from support.prometheus_server import Process, Server
from support.simulated import strike

WAYS = ("pods", "services")  # how Prometheus finds programs, and the label `cluster` of what it scrapes so
TRAINING, SERVING = "gpu-1", "gpu-2"
NAMESPACE, OTHERS = fleet.NAMESPACE, "notebooks"
GPU, MEMORY = "nvidia.com/gpu", "nodedevices.io/gpu-memory"
JOBS = {"train-0": 4, "train-1": 2}  # and their GPUs; "small-0" and "small-1" serve
GPUS = 8
STEPS = 6  # of a second
READINGS = {
    "utilizationPercent": 80,
    "temperatureCelsius": 65,
    "powerMilliwatts": 520_000,
    "memoryUsedBytes": 60 * 2**30,
    "smClockMhz": 1980,
    "thermalSlowdown": False,
    "remapPending": False,
    "pcieReplays": 0,
    "eccUncorrectableVolatile": 0,
    "eccUncorrectableAggregate": 0,
    "remappedUncorrectable": 0,
    "nvlinksInactive": 0,
}


def machine(busy: Sequence[int] = (), events: Sequence[dict[str, object]] = ()) -> str:
    """The H100s, with every reading. The first that is busy needs a reset once something has happened."""
    devices: list[dict[str, object]] = []
    for index in range(GPUS):
        action = {"recoveryAction": "ResetBus"} if events and index == busy[0] else {}
        devices.append({"index": index, **READINGS, **action})
    return yaml.safe_dump({"profile": f"h100 x {GPUS}", "devices": devices, "events": list(events)})


def policies() -> list[dict[str, Any]]:
    entry = {"name": GPU, "memoryUnit": "1Gi", "memoryReserve": "512Mi"}
    sharing = {"strategy": "memory", "resources": [entry]}
    return [
        fleet.policy("taint-faults", faults={"taintEffect": "NoSchedule"}),
        fleet.policy("l4-by-memory", {"pool": "l4"}, sharing=sharing),
    ]


@contextmanager
def played(kubectl: Kubectl, operator: OperatorProcess, folder: Path) -> Iterator[tuple[Server, float]]:
    """Prometheus when all has happened, and since when it has scraped."""
    fleet.namespace(kubectl)
    for name, pool, amounts in ((TRAINING, "h100", {GPU: GPUS}), (SERVING, "l4", {MEMORY: 84})):
        kubectl.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"pool": pool}}})
        fleet.FleetNode(kubectl, name).kubelet(amounts)
    kubectl.apply(*policies())
    for job, count in JOBS.items():
        fleet.pod(kubectl, job, TRAINING, requests={GPU: count})
    with (
        ThreadedKubelet() as training,
        ThreadedKubelet() as serving,
        agent(kubectl, folder / TRAINING, training, TRAINING, machine()) as trainer,
        agent(kubectl, folder / SERVING, serving, SERVING, "profile: l4 x 4\n") as server,
    ):
        training.run(training.kubelet.until(lambda: training.kubelet.allocatable(GPU) == GPUS))
        serving.run(serving.kubelet.until(lambda: serving.kubelet.allocatable(MEMORY) > 0))
        programs = [
            Process(f"agent-{node}", "agent", node, port(one)) for node, one in ((TRAINING, trainer), (SERVING, server))
        ]
        programs.append(Process("operator-0", "operator", SERVING, operator.port))
        found = prometheus_server.of_processes(programs)
        labels = {way: {"cluster": way} for way in WAYS}
        with prometheus_server.running(found, folder, hold="1s", labels=labels) as prometheus:
            wait_until("all is scraped", lambda: all_up(prometheus, len(programs)))
            began = time.time()
            busy: list[int] = []
            events: list[dict[str, object]] = []
            waiting = list(JOBS.items())  # one starts at each step: the first call of a kind is no rate yet
            for step in range(STEPS):
                time.sleep(1.0)
                if waiting:
                    job, count = waiting.pop(0)
                    granted = training.run(training.kubelet.allocate(GPU, count, pod=job, namespace=NAMESPACE))
                    busy += indices(trainer, granted.ids)
                if step < 2:
                    serving.run(serving.kubelet.allocate(MEMORY, 8, pod=f"small-{step}", namespace=OTHERS))
                if step == STEPS // 2:
                    events = [strike(busy[0], 79), strike(busy[-1], 31)]
                trainer.edit(machine(busy, events))
            wait_until("the fault is on its pod, and alerted", lambda: over(prometheus))
            time.sleep(2.0)
            yield prometheus, began


def agent(kubectl: Kubectl, folder: Path, kubelet: ThreadedKubelet, node: str, devices: str) -> AgentProcess:
    folder.mkdir()
    return AgentProcess(
        folder,
        kubelet_dir=kubelet.kubelet.root,
        devices=devices,
        arguments=(f"--kubeconfig={kubectl.kubeconfig}", "--telemetry"),
        node=node,
    )


def port(running: AgentProcess) -> int:
    return int(running.lines("serving metrics and health")[-1]["port"])


def indices(running: AgentProcess, ids: Sequence[str]) -> list[int]:
    """Of these GPUs."""
    shown = (dict(labels) for labels in parsed(running.get("/metrics")[1])["nodedevices_device_info"])
    index = {labels["uuid"]: int(labels["index"]) for labels in shown}
    return [index[each] for each in ids]


def all_up(prometheus: Server, programs: int) -> bool:
    health = list(prometheus.up().values())
    return health == ["up"] * (len(WAYS) * programs)


def over(prometheus: Server) -> bool:
    marked = prometheus.series("nodedevices_operator_fault_to_pod_seconds_count > 0")
    return bool(marked) and "NodeDevicesUnhealthyDeviceHeld" in prometheus.firing()
