"""The cluster of a chaos run: the rig's two nodes, our system with its extras, and everything that is done to them.

It differs from that of the end-to-end tests by a disk of a few MiB for the kubelet's device-plugin directory, which can
be filled up; by a second probe, which policies take away; by the right to watch pods, which shares of computing power
need; and by a second scheduler with the extender, as processes beside the control plane.
"""

from __future__ import annotations

import json
import re
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from chaos.machines import EXTRA, NODES, PROFILES
from chaos.seen import Holder, NodeSeen, PodSeen, Process, Seen
from cluster.rig import versions
from support import cluster_provider, installing, overlay
from support.cluster import BASE_POLICY, HEALTHY, HOLD_DOWN_SECONDS, NAMESPACE, SYSTEM
from support.kubectl import Kubectl, KubectlError, condition
from support.node_client import NodeClient
from support.operatorprocess import ExtenderProcess
from support.rig_cluster import RigCluster
from support.second_scheduler import extended

PLUGINS = "/var/lib/kubelet/device-plugins"
STATE = f"{PLUGINS}/nodedevices-state.json"
DISK = "8m"
SAMPLE_SECONDS = 0.25
EXTRA_FILE = "/var/lib/nodedevices/extra.yaml"
PARTS = {
    "agent": re.compile(r"nodedevices-agent|nodedevices_plugin"),
    "probe": re.compile(r"nodedevices-probe|nodedevices_probe\.(main|spare)"),
    "operator": re.compile(r"nodedevices-operator|nodedevices_operator"),
}
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
PREFIXES = (VISIBLE, "NODEDEVICES_MEMORY", "NODEDEVICES_CORES")


@dataclass
class ChaosCluster:
    rig: RigCluster
    extender: ExtenderProcess
    _ids: dict[str, dict[int, str]] = field(default_factory=dict)  # node -> index -> id, as last shown

    # --- what is done -------------------------------------------------------------------------------------------------
    @property
    def kubectl(self) -> Kubectl:
        return self.rig.kubectl

    def client(self, node: str) -> NodeClient:
        return self.rig.node_clients[node]

    def ids(self, node: str) -> Mapping[int, str]:
        """The node's devices by index, as NodeDevices last showed them."""
        return self._ids.get(node, {})

    def of_part(self, part: str, node: str) -> list[dict[str, Any]]:
        """Its processes on a node, whichever of a pod's containers they run in."""
        found = self.client(node).call("containers", prefixes=["NONE"])
        return [each for each in found if any(PARTS[part].fullmatch(word.rsplit("/", 1)[-1]) for word in each["words"])]

    def leader(self) -> tuple[str, str] | None:
        """Node and uid of the pod of the operator that leads; None while there is none."""
        lease = self.kubectl.get("lease", "nodedevices-operator", SYSTEM) or {}
        name = lease.get("spec", {}).get("holderIdentity", "").rpartition("_")[0]
        pod = self.kubectl.get("pod", name, SYSTEM) if name else None
        return None if pod is None else (pod["spec"].get("nodeName", ""), pod["metadata"]["uid"])

    def victims(self, part: str, node: str) -> tuple[str, list[int]]:
        """Where the processes of a part are, and which; of the operator those of the leader."""
        if part == "operator":
            where = self.leader()
            if where is None:
                return "", []
            node, uid = where
            return node, [each["pid"] for each in self.of_part(part, node) if each["pod"] == uid]
        return node, [each["pid"] for each in self.of_part(part, node)]

    def send(self, node: str, pids: Sequence[int], how: signal.Signals) -> None:
        for pid in pids:
            with suppress(ConnectionError):  # it ended meanwhile
                self.client(node).call("signal", pid=pid, signal=int(how))

    # --- what is seen -------------------------------------------------------------------------------------------------
    def look(self) -> Seen:
        """Everything, now."""
        seen = look(self.rig)
        for name, node in seen.nodes.items():
            by_index = {one["index"]: one["id"] for one in node.shown.get("status", {}).get("devices", ())}
            self._ids.setdefault(name, {}).update(by_index)
        return seen


def look(rig: RigCluster) -> Seen:
    """Everything on a cluster of our rig, now. The containers' processes are read before the kubelet's lists."""
    try:
        listed = {each["metadata"]["name"]: each for each in rig.kubectl.items("pods", NAMESPACE)}
        system = rig.kubectl.items("pods", SYSTEM)
        nodes = {each["metadata"]["name"]: each for each in rig.kubectl.items("nodes")}
        shown = {each["metadata"]["name"]: each for each in rig.kubectl.items("nodedevices")}
        policies = {each["metadata"]["name"]: each for each in rig.kubectl.items("devicepolicies")}
        pods: Mapping[str, PodSeen] | None = {name: pod_seen(each) for name, each in listed.items()}
    except KubectlError:
        pods, system, nodes, shown, policies = None, [], {}, {}, {}
    return Seen(
        nodes={name: _node(rig, name, nodes.get(name, {}), shown.get(name, {})) for name in NODES},
        pods=pods,
        policies=policies,
        parts={each["metadata"]["name"]: condition(each, "Ready").get("status") == "True" for each in system},
    )


def _node(rig: RigCluster, name: str, node: Mapping[str, Any], shown: Mapping[str, Any]) -> NodeSeen:
    client = rig.node_clients[name]
    processes = tuple(
        Process(each["pid"], each["pod"], each["container"], visible(each["environment"]))
        for each in client.call("containers", prefixes=PREFIXES)
        if each["words"][0] == "sleep"
    )
    checkpoint = tuple(holder(each["pod"], each["container"], [each]) for each in client.call("checkpoint"))
    try:
        offered = client.allocatable()
        holders = tuple(
            holder(each["pod"], each["container"], each["devices"])
            for each in client.holders()
            if each["namespace"] == NAMESPACE
        )
        answers = True
    except ConnectionError:
        offered, holders, answers = {}, (), False
    return NodeSeen(
        name=name,
        answers=answers,
        offered=frozenset((resource, id_) for resource, ids in offered.items() for id_ in ids),
        holders=holders,
        checkpoint=merged(checkpoint),
        processes=processes,
        node=node,
        shown=shown,
    )


def visible(environment: Mapping[str, str]) -> frozenset[str] | None:
    said = environment.get(VISIBLE)
    return None if said is None else frozenset(each for each in said.split(",") if each and each != "void")


def holder(pod: str, container: str, devices: Sequence[Mapping[str, Any]]) -> Holder:
    return Holder(pod, container, frozenset((each["resource"], id_) for each in devices for id_ in each["ids"]))


def merged(entries: Sequence[Holder]) -> tuple[Holder, ...]:
    """One for each container."""
    found: dict[tuple[str, str], frozenset[tuple[str, str]]] = {}
    for each in entries:
        found[each.pod, each.container] = found.get((each.pod, each.container), frozenset()) | each.ids
    return tuple(Holder(pod, container, ids) for (pod, container), ids in found.items())


def pod_seen(pod: Mapping[str, Any]) -> PodSeen:
    status, spec = pod.get("status", {}), pod["spec"]
    states = [*status.get("containerStatuses", ()), *status.get("initContainerStatuses", ())]
    return PodSeen(
        uid=pod["metadata"]["uid"],
        name=pod["metadata"]["name"],
        node=spec.get("nodeName", ""),
        phase=status.get("phase", ""),
        reason=f"{status.get('reason', '')} {status.get('message', '')}".strip(),
        deleting="deletionTimestamp" in pod["metadata"],
        containers={each["containerID"].rpartition("/")[2]: each["name"] for each in states if each.get("containerID")},
        init=frozenset(
            each["name"] for each in spec.get("initContainers", ()) if each.get("restartPolicy") != "Always"
        ),
        healthy=str(condition(pod, HEALTHY).get("status", "")),
    )


# --- beginning and end ------------------------------------------------------------------------------------------------
@contextmanager
def running(name: str, *, keep: bool = False) -> Iterator[ChaosCluster]:
    """A cluster of that name with everything on it; gone afterwards."""
    with ExitStack() as ending:
        provider = ending.enter_context(cluster_provider.of_rig(name, keep=keep, quick=True))
        assert provider.own_rig is not None
        rig = RigCluster(provider.kubectl, provider.image, *provider.pair, own_rig=provider.own_rig)
        kubectl = rig.kubectl
        kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        for node in NODES:
            rig.rig.stop_kubelet(node)
            restart_soon(provider.own_rig.rig.layout.node(node).folder / "kubelet.json")
            rig.shell(node, f"mount -t tmpfs -o size={DISK},mode=750 chaos {PLUGINS}")
            rig.rig.start_kubelet(node)
            rig.node_clients[node] = rig.reach(node)
            ending.callback(rig.node_clients[node].close)
            overlay.write(rig, node, EXTRA_FILE, yaml.safe_dump(EXTRA))
            rig.hardware(node, yaml.safe_dump({"profile": PROFILES[node]}))
        base = {"health": {"holdDownSeconds": HOLD_DOWN_SECONDS}, "rollout": {"maxNodes": "100%"}}
        extra = overlay.agent_patch(
            ("NODEDEVICES_ADD_PROBE_EXTRA", f"extra=nodedevices-probe simulated --file {EXTRA_FILE}")
        )
        # Its file is a path, so that the probe runs in the agent's container, and the other one by the probe server.
        extra["spec"]["template"]["spec"]["containers"][0]["volumeMounts"] = [overlay.SIMULATED_MOUNT]
        overlay.apply(rig, ("gpu-cores",), (overlay.AT_ONCE, extra))
        for what in (installing.AGENT, installing.OPERATOR):
            kubectl.run("rollout", "status", what, "-n", SYSTEM, "--timeout=150s", seconds=160)
        rig.policy(BASE_POLICY, base, priority=-1000)
        folder = Path(ending.enter_context(tempfile.TemporaryDirectory(prefix="nd-chaos-")))
        yield ChaosCluster(rig, ending.enter_context(extended(rig, folder)))


def restart_soon(file: Path) -> None:
    """What is killed again and again is back in seconds, where the kubelet can be told so (KEP-4603)."""
    if [int(part) for part in versions.chosen().minor.split(".")] >= [1, 35]:
        config = json.loads(file.read_text())
        config["crashLoopBackOff"] = {"maxContainerRestartPeriod": "2s"}
        file.write_text(json.dumps(config))
