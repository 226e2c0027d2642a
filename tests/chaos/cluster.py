"""The cluster of a chaos run: the rig's two nodes, our system with its extras, and everything that is done to them.

It differs from that of the end-to-end tests by the components that DRA needs; by disks of a few MiB for the kubelet's
device-plugin directory and for the records of claims, which can be filled up; by a second probe, which policies take
away; by the right to watch pods, which shares of computing power need; and by a second scheduler with the extender, as
processes beside the control plane.
"""

from __future__ import annotations

import json
import re
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from chaos.machines import EXTRA, NODES, PROFILES
from chaos.seen import ClaimSeen, Holder, NodeSeen, PodSeen, Process, Published, Record, Seen
from cluster.rig import versions
from nodedevices_common.quantity import whole_units
from support import cluster_provider, installing, overlay
from support.cluster import BASE_POLICY, HEALTHY, HOLD_DOWN_SECONDS, NAMESPACE, SYSTEM
from support.driver_root import NODES as GPU_NODES, agent_patch, make_nodes
from support.kubectl import Kubectl, KubectlError, condition
from support.node_client import NodeClient
from support.operatorprocess import ExtenderProcess
from support.pagesteps import objects
from support.rig_cluster import RigCluster
from support.second_scheduler import extended

PLUGINS = "/var/lib/kubelet/device-plugins"
STATE = f"{PLUGINS}/nodedevices-state.json"
DISKS = (PLUGINS, "/var/lib/kubelet/plugins/nodedevices.io")
CAPABILITIES = tuple(f"nvidia-caps/nvidia-cap{number}" for number in range(600))  # of MIG devices
OPERATORS = "app.kubernetes.io/managed-by=nodedevices-operator"
DISK = "8m"
SAMPLE_SECONDS = 0.25
EXTRA_FILE = "/var/lib/nodedevices/extra.yaml"
PARTS = {
    "agent": re.compile(r"nodedevices-agent|nodedevices_plugin"),
    "probe": re.compile(r"nodedevices-probe|nodedevices_probe\.(main|spare)"),
    "operator": re.compile(r"nodedevices-operator|nodedevices_operator"),
}
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
DRIVER = "nodedevices.io"
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
            devices = node.shown.get("status", {}).get("devices", ())
            by_index = {one["index"]: one["id"] for one in devices if "parent" not in one}
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
        refusals = _refusals(rig)
        pods: Mapping[str, PodSeen] | None = {name: pod_seen(each, refusals) for name, each in listed.items()}
        claims, slices, classes = _dra(rig)
    except KubectlError:
        pods, system, nodes, shown, policies, claims, slices, classes = None, [], {}, {}, {}, {}, {}, frozenset()
    return Seen(
        nodes={
            name: replace(_node(rig, name, nodes.get(name, {}), shown.get(name, {})), published=slices.get(name, ()))
            for name in NODES
        },
        pods=pods,
        claims=claims,
        classes=classes,
        policies=policies,
        parts={each["metadata"]["name"]: condition(each, "Ready").get("status") == "True" for each in system},
    )


def _minor() -> list[int]:
    return [int(part) for part in versions.chosen().minor.split(".")]


def _refusals(rig: RigCluster) -> dict[str, str]:
    """By the pod's uid: why its claims could not be prepared, as the last Event about it says."""
    found = rig.kubectl.items("events", NAMESPACE, fields="reason=FailedPrepareDynamicResources")
    return {each["involvedObject"]["uid"]: each["message"] for each in sorted(found, key=_when)}


def _when(event: Mapping[str, Any]) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime"))


def _dra(rig: RigCluster) -> tuple[dict[str, ClaimSeen], dict[str, tuple[Published, ...]], frozenset[str]]:
    """The claims, by node what is in our slices, and the operator's DeviceClasses."""
    if _minor() < [1, 34]:
        return {}, {}, frozenset()
    claims = {each["metadata"]["name"]: claim_seen(each) for each in rig.kubectl.items("resourceclaims", NAMESPACE)}
    slices: dict[str, tuple[Published, ...]] = {}
    for each in rig.kubectl.items("resourceslices"):
        spec = each["spec"]
        if spec["driver"] == DRIVER:
            node = spec["nodeName"]
            slices[node] = (*slices.get(node, ()), *map(published, spec.get("devices") or ()))
    classes = rig.kubectl.items("deviceclasses", labels=OPERATORS)
    return claims, slices, frozenset(each["metadata"]["name"] for each in classes)


def claim_seen(claim: Mapping[str, Any]) -> ClaimSeen:
    metadata = claim["metadata"]
    allocation = claim.get("status", {}).get("allocation") or {}
    results = [each for each in allocation.get("devices", {}).get("results", ()) if each["driver"] == DRIVER]
    return ClaimSeen(
        name=metadata["name"],
        uid=metadata["uid"],
        devices=frozenset((each["request"], each["device"]) for each in results),
        node=results[0]["pool"] if results else "",
        owner=next((each["name"] for each in metadata.get("ownerReferences", ()) if each["kind"] == "Pod"), ""),
    )


def published(device: Mapping[str, Any]) -> Published:
    said = {name: value.get("string", "") for name, value in device.get("attributes", {}).items()}
    tainted = any(each["effect"] != "None" for each in device.get("taints", ()))
    amounts = device.get("capacity", {}).values() if device.get("allowMultipleAllocations") else ()
    policies = [(each["value"], each["requestPolicy"]["default"]) for each in amounts]
    shares = max((whole_units(value) // whole_units(one) for value, one in policies if one != "0"), default=1)
    return Published(device["name"], said.get("resource", ""), said.get("uuid", ""), tainted, shares)


def _node(rig: RigCluster, name: str, node: Mapping[str, Any], shown: Mapping[str, Any]) -> NodeSeen:
    client = rig.node_clients[name]
    processes = tuple(
        Process(each["pid"], each["pod"], each["container"], visible(each["environment"]), frozenset(each["nodes"]))
        for each in client.call("containers", prefixes=PREFIXES)
        if each["words"][0] == "sleep"
    )
    checkpoint = tuple(holder(each["pod"], each["container"], [each]) for each in client.call("checkpoint"))
    try:
        offered = client.allocatable()
        holders = tuple(
            holder(each["pod"], each["container"], each["devices"], each["claims"])
            for each in client.call("holders")
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
        records=tuple(Record(**each) for each in client.call("records")),
        cdi=frozenset(client.call("cdi")),
        node=node,
        shown=shown,
    )


def visible(environment: Mapping[str, str]) -> frozenset[str] | None:
    said = environment.get(VISIBLE)
    return None if said is None else frozenset(each for each in said.split(",") if each and each != "void")


def holder(
    pod: str, container: str, devices: Sequence[Mapping[str, Any]], claims: Sequence[Mapping[str, Any]] = ()
) -> Holder:
    return Holder(
        pod,
        container,
        frozenset((each["resource"], id_) for each in devices for id_ in each["ids"]),
        frozenset((each["name"], name) for each in claims for driver, _, name in each["devices"] if driver == DRIVER),
        frozenset(name for each in claims for name in each["cdi"]),
    )


def merged(entries: Sequence[Holder]) -> tuple[Holder, ...]:
    """One for each container."""
    found: dict[tuple[str, str], frozenset[tuple[str, str]]] = {}
    for each in entries:
        found[each.pod, each.container] = found.get((each.pod, each.container), frozenset()) | each.ids
    return tuple(Holder(pod, container, ids) for (pod, container), ids in found.items())


def pod_seen(pod: Mapping[str, Any], refusals: Mapping[str, str]) -> PodSeen:
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
        claims=claims_of(pod),
        unscheduled=str(condition(pod, "PodScheduled").get("message", "")),
        refused=refusals.get(pod["metadata"]["uid"], ""),
    )


def claims_of(pod: Mapping[str, Any]) -> dict[str, frozenset[tuple[str, str]]]:
    """By container the claims that it uses, and of which request; empty: of all."""
    spec, status = pod["spec"], pod.get("status", {})
    names = {each["name"]: each["resourceClaimName"] for each in spec.get("resourceClaims", ())}
    uses = [
        (container["name"], names[each["name"]], each.get("request", ""))
        for container in (*spec.get("initContainers", ()), *spec["containers"])
        for each in container.get("resources", {}).get("claims", ())
    ]
    special = status.get("extendedResourceClaimStatus") or {}
    uses += [
        (each["containerName"], special["resourceClaimName"], each["requestName"])
        for each in special.get("requestMappings", ())
    ]
    found: dict[str, frozenset[tuple[str, str]]] = {}
    for container, claim, request in uses:
        found[container] = found.get(container, frozenset()) | {(claim, request)}
    return found


# --- beginning and end ------------------------------------------------------------------------------------------------
@contextmanager
def running(name: str, *, keep: bool = False) -> Iterator[ChaosCluster]:
    """A cluster of that name with everything on it; gone afterwards."""
    dra = ("cdi", "dra") if _minor() >= [1, 34] else ()
    with ExitStack() as ending:
        provider = ending.enter_context(cluster_provider.of_rig(name, keep=keep, quick=True))
        assert provider.own_rig is not None
        rig = RigCluster(provider.kubectl, provider.image, *provider.pair, own_rig=provider.own_rig)
        kubectl = rig.kubectl
        kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        for node in NODES:
            rig.rig.stop_kubelet(node)
            restart_soon(provider.own_rig.rig.layout.node(node).folder / "kubelet.json")
            for disk in DISKS:
                rig.shell(node, f"mkdir -p {disk} && mount -t tmpfs -o size={DISK},mode=750 chaos {disk}")
            make_nodes(rig, node, (*GPU_NODES, *CAPABILITIES))
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
        overlay.apply(rig, ("driver-root", *dra), (overlay.AT_ONCE, extra, agent_patch()))
        kubectl.apply(*objects("sharing-memory.md", "ClusterRole", "ClusterRoleBinding"))
        for what in (installing.AGENT, installing.OPERATOR):
            kubectl.run("rollout", "status", what, "-n", SYSTEM, "--timeout=150s", seconds=160)
        rig.policy(BASE_POLICY, base, priority=-1000)
        folder = Path(ending.enter_context(tempfile.TemporaryDirectory(prefix="nd-chaos-")))
        yield ChaosCluster(rig, ending.enter_context(extended(rig, folder)))


def restart_soon(file: Path) -> None:
    """What is killed again and again is back in seconds, where the kubelet can be told so (KEP-4603)."""
    if _minor() >= [1, 35]:
        config = json.loads(file.read_text())
        config["crashLoopBackOff"] = {"maxContainerRestartPeriod": "2s"}
        file.write_text(json.dumps(config))
