"""The world of the end-to-end tests: one cluster, the system installed from our manifests, and what a test does to it.

It knows the project as a user does: through kubectl, the API, the kubelet's PodResources, the probe's input, and what
stands inside a pod's container. It imports neither the agent nor the operator. Each test begins at the baseline (8
simulated H100s on node `a`, 4 simulated L4s on node `b`, no pod, the base policy alone) and may leave any mess behind:
the next one's `reset` clears it. Waits have generous deadlines; none of them is a measurement.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from nodedevices_common.confirming import CONFIRM
from support import installing, node_client, simulated
from support.bookings import Sample, doubled, physical
from support.cluster_provider import ClusterProvider
from support.fleet import stamp
from support.kubectl import Kubectl, action, condition, wait_until
from support.node_client import NodeClient
from support.patience import CLUSTER_PATIENCE_SECONDS

if TYPE_CHECKING:
    from support.rig import Rig

NAMESPACE = "nodedevices-e2e"
SYSTEM = "nodedevices-system"
GPU = "nvidia.com/gpu"
MEMORY = "nodedevices.io/gpu-memory-mib"
HEALTHY = "nodedevices.io/DeviceHealthy"
BASE_POLICY = "e2e-base"
OURS = "app!=hand"  # in NAMESPACE: what a test made
# Short, so that a recovered device is back soon: what the hold-down is for is tested where it can be given a clock.
HOLD_DOWN_SECONDS = 1
# Some 0.6 s; but after an absence of the API server the scheduler's watches may take a minute to return.


SHOWS_HEALTH = (1, 36)  # ResourceHealthStatus is on by default


@dataclass
class Cluster:
    kubectl: Kubectl
    image: str  # the agent's: for pods that only need a shell
    a: str  # node with the H100s
    b: str  # node with the L4s
    own_rig: Rig | None = None  # None: not our rig
    node_clients: dict[str, NodeClient] = field(default_factory=dict)

    # --- the hardware -------------------------------------------------------------------------------------------------
    def hardware(self, node: str, text: str) -> float:
        """New hardware on a node; the moment before it was sent."""
        return self.node_clients[node].write(text)

    def settle(self) -> None:
        """Everything is at the baseline, as the kubelets and the API server show it."""
        self.hardware(self.a, simulated.h100s())
        self.hardware(self.b, simulated.l4s())
        for node in (self.a, self.b):
            self.until(f"the agent that runs on {node} reports", lambda n=node: self.reports(n))  # type: ignore[misc]
        self.confirm_recovered(self.a)
        for node, count in ((self.a, 8), (self.b, 4)):
            self.until(f"{node} is healthy", lambda n=node, c=count: self.summary(n).get("healthy") == c)  # type: ignore[misc]
            self.until(
                f"the kubelet of {node} has {count} ids",
                lambda n=node, c=count: len(self.ids(n)) == c,  # type: ignore[misc]
            )
            self.until(
                f"{node} has {count} allocatable",
                lambda n=node, c=count: self.node_count(n, GPU) == c,  # type: ignore[misc]
            )

    def confirm_recovered(self, node: str) -> None:
        """For drivers that cannot say that a device is well again, a person says so."""
        ill = [one["id"] for one in self.devices(node).values() if one["health"]["state"] == "Unhealthy"]
        self.confirm(node, ill, self.nodedevices(node))

    def confirm(self, node: str, ids: Sequence[str], shown: Mapping[str, Any]) -> None:
        """A person says that these are well again. `shown`: the node's NodeDevices."""
        if not ids:
            return
        now = stamp(micro=True)  # each entry is acted on once only
        value = ",".join(f"{one}=recovered@{now}" for one in ids)
        self.kubectl.patch("nodedevices", node, {"metadata": {"annotations": {CONFIRM: value}}})

    def reset(self) -> None:
        """Back to the baseline, whatever the last test left behind."""
        self.wake()
        kinds = ("deployments", "statefulsets", "jobs", "poddisruptionbudgets", "pods")
        self.kubectl.clear(*kinds, namespace=NAMESPACE, labels=OURS)
        names = [each["metadata"]["name"] for each in self.kubectl.items("devicepolicies")]
        self.kubectl.delete("devicepolicies", *(name for name in names if name != BASE_POLICY))
        base = {"health": {"holdDownSeconds": HOLD_DOWN_SECONDS}, "rollout": {"maxNodes": "100%"}}  # no node waits
        self.policy(BASE_POLICY, base, priority=-1000)
        self.until("no pod of ours is left", lambda: not self.pods())
        self.settle()

    def wake(self) -> None:
        """Every node is Ready."""
        for node in (self.a, self.b):
            self.until(f"{node} is Ready", lambda n=node: self.condition("node", n, "Ready")["status"] == "True")  # type: ignore[misc]

    # --- what the API server shows ------------------------------------------------------------------------------------
    def until(self, what: str, look: Callable[[], Any], seconds: float = CLUSTER_PATIENCE_SECONDS) -> Any:
        return wait_until(what, look, seconds=seconds)

    def never(self, what: str, look: Callable[[], object], seconds: float) -> None:
        """For so long, this does not happen."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            seen = look()
            assert not seen, f"{what}: {seen!r}"
            time.sleep(0.2)

    def nodedevices(self, node: str) -> dict[str, Any]:
        return self.kubectl.get("nodedevices", node) or {}

    def summary(self, node: str) -> dict[str, Any]:
        found: dict[str, Any] = self.nodedevices(node).get("status", {}).get("summary", {})
        return found

    def devices(self, node: str) -> dict[str, dict[str, Any]]:
        """id -> device or partition, as NodeDevices shows it."""
        return {one["id"]: one for one in self.nodedevices(node).get("status", {}).get("devices", [])}

    def device(self, node: str, index: int) -> dict[str, Any]:
        return next(one for one in self.devices(node).values() if one["index"] == index and "parent" not in one)

    def node(self, node: str) -> dict[str, Any]:
        return self.kubectl.get("node", node) or {}

    def node_count(self, node: str, resource: str, what: str = "allocatable") -> int | None:
        value = self.node(node).get("status", {}).get(what, {}).get(resource)
        return None if value is None else int(value)

    def condition(self, kind: str, name: str, type_: str, namespace: str | None = None) -> dict[str, Any]:
        return condition(self.kubectl.get(kind, name, namespace), type_)

    def action(self, node: str, name: str) -> dict[str, Any]:
        return action(self.kubectl.get("nodedevices", node), name)

    # --- what the kubelet shows ---------------------------------------------------------------------------------------
    def ids(self, node: str, resource: str = GPU) -> set[str]:
        """The healthy ids that the kubelet may hand out, held or not."""
        return set(self.node_clients[node].allocatable().get(resource, {}))

    def held(self, node: str, pod: str) -> set[str]:
        """The ids that the kubelet gave to a pod of ours."""
        return {
            one
            for holder in self.node_clients[node].holders()
            if holder["namespace"] == NAMESPACE and holder["pod"] == pod
            for device in holder["devices"]
            for one in device["ids"]
        }

    @contextmanager
    def nothing_twice(self, node: str) -> Iterator[None]:
        """Meanwhile nobody has, and nobody could get, a device that another pod has, but as shares of one plan."""
        with self.reach(node) as far:
            far.call("sample")

            def samples() -> list[Sample]:
                shown = [event for _, event in far.events if event["event"] == "sample"]
                return [Sample.of(one["allocatable"], one["holders"]) for one in shown]

            self.until("the sampling has begun", samples)
            yield
            assert [each for one in samples() for each in doubled(one)] == []

    def agreed(self, node: str, *pods: str) -> None:
        """Each pod's container sees the devices that the kubelet says it has, and NodeDevices names it on them."""
        have = {pod: {physical(each) for each in self.held(node, pod)} for pod in pods}
        assert {pod: self.visible(pod) for pod in pods} == have

        def named() -> bool:
            shown: dict[str, set[str]] = {pod: set() for pod in pods}
            for id_, device in self.devices(node).items():
                for holder in device.get("holders", ()):
                    shown.get(holder["pod"], set()).add(id_)
            return shown == have

        self.until(f"NodeDevices names {have}", named)

    # --- what a user makes --------------------------------------------------------------------------------------------
    def policy(
        self, name: str, sections: Mapping[str, Any], *, priority: int = 0, selector: Mapping[str, str] | None = None
    ) -> None:
        self.kubectl.apply(
            {
                "apiVersion": "nodedevices.io/v1alpha1",
                "kind": "DevicePolicy",
                "metadata": {"name": name},
                "spec": {
                    "nodeSelector": {"matchLabels": dict(selector)} if selector else {},
                    "priority": priority,
                    **sections,
                },
            }
        )

    def drop_policy(self, name: str) -> None:
        self.kubectl.delete("devicepolicies", name)

    def pod(self, name: str, node: str, limits: Mapping[str, int], *, run: bool = True) -> dict[str, Any]:
        """A pod with these limits on that node, placed by the scheduler; running, unless it is not to wait."""
        self.kubectl.apply(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": NAMESPACE},
                "spec": self.pod_spec(node, limits),
            }
        )
        return self.running(name) if run else {}

    def pod_spec(self, node: str, limits: Mapping[str, int]) -> dict[str, Any]:
        return {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "containers": [
                {
                    "name": "main",
                    "image": self.image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["sleep", "infinity"],
                    "resources": {"limits": {key: str(value) for key, value in limits.items()}},
                }
            ],
        }

    def running(self, name: str, *, other_than: str = "") -> dict[str, Any]:
        """The pod once it is ready; `other_than` is the uid of a namesake that it must not be."""

        def look() -> dict[str, Any] | None:
            pod = self.kubectl.get("pod", name, NAMESPACE)
            if not pod or pod["metadata"]["uid"] == other_than:
                return None
            if condition(pod, "Ready").get("status") != "True":
                raise LookupError(f"its status is {pod.get('status')}")  # said where it is not ready in time
            return pod

        found: dict[str, Any] = self.until(f"pod {name} is ready", look)
        return found

    def pods(self) -> Sequence[dict[str, Any]]:
        return self.kubectl.items("pods", NAMESPACE, labels=OURS)

    def visible(self, pod: str) -> set[str]:
        """The devices that the container of a pod was given, as its own environment says."""

        def listed() -> str:  # a kubelet that has just started does not know its pods yet: exec is refused
            return self.environment(pod)["NVIDIA_VISIBLE_DEVICES"]

        return set(self.until(f"pod {pod} shows its devices", listed).split(","))

    def environment(self, pod: str, container: str = "") -> dict[str, str]:
        """The variables of a container that runs; without a name of the pod's first."""
        lines = self.kubectl.exec(pod, "env", namespace=NAMESPACE, container=container).splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def alive(self, pod: Mapping[str, Any]) -> None:
        """The very same pod runs, and none of its containers was restarted."""
        name = pod["metadata"]["name"]
        now = self.kubectl.get("pod", name, NAMESPACE)
        assert now is not None, f"pod {name} is gone"
        assert now["metadata"]["uid"] == pod["metadata"]["uid"]
        assert now["status"]["phase"] == "Running", now["status"]
        assert {one["restartCount"] for one in now["status"]["containerStatuses"]} == {0}

    def resource_health(self, pod: str) -> dict[str, str]:
        """Id -> health, as the kubelet has them in the pod's own status (allocatedResourcesStatus, KEP-4680)."""
        found = self.kubectl.get("pod", pod, NAMESPACE) or {}
        return {
            resource["resourceID"]: resource["health"]
            for container in found.get("status", {}).get("containerStatuses", ())
            for each in container.get("allocatedResourcesStatus", ())
            for resource in each.get("resources", ())
        }

    def kubelet_says(self, pod: str, health: Mapping[str, str]) -> bool:
        """Whether the pod's own status has exactly these, where the kubelet shows health; before 1.36 it shows none."""
        return self.resource_health(pod) == (health if self.release >= SHOWS_HEALTH else {})

    def marked(self, pod: str, status: str) -> dict[str, Any]:
        """The pod's condition, once it has that status."""

        def look() -> dict[str, Any] | None:
            found = self.condition("pod", pod, HEALTHY, NAMESPACE)
            return found if found.get("status") == status else None

        found: dict[str, Any] = self.until(f"pod {pod} has {HEALTHY}={status}", look)
        return found

    def lost_it(self, pod: str) -> None:
        """The pod's device is back, and the pod says until it starts again that what it had on it is gone."""
        self.until(
            f"pod {pod} says what it lost",
            lambda: "Recovery: RestartApp" in self.condition("pod", pod, HEALTHY, NAMESPACE)["message"],
        )
        assert self.condition("pod", pod, HEALTHY, NAMESPACE)["status"] == "False"

    def events(self, name: str, *reasons: str) -> list[dict[str, Any]]:
        """Our Events on a pod: of faults and recoveries, where no other reasons are given."""
        uid = (self.kubectl.get("pod", name, NAMESPACE) or {}).get("metadata", {}).get("uid", "")
        items = self.kubectl.items("events", NAMESPACE, fields=f"involvedObject.uid={uid}")
        return [one for one in items if one["reason"] in (reasons or {"DeviceFault", "DeviceRecovered"})]

    # --- our own parts ------------------------------------------------------------------------------------------------
    def agent(self, node: str) -> dict[str, Any]:
        """The agent's pod on a node."""
        items = self.kubectl.items(
            "pods", SYSTEM, labels="app.kubernetes.io/component=agent", fields=f"spec.nodeName={node}"
        )
        living = [one for one in items if "deletionTimestamp" not in one["metadata"]]
        if not living:
            raise LookupError(f"no agent runs on {node}")
        return living[0]

    def reports(self, node: str) -> bool:
        """Whether NodeDevices shows what the agent that runs now says: a new one is ready before its first report."""
        status = self.agent(node)["status"]
        [state] = [each["state"] for each in status["containerStatuses"] if each["name"] == "agent"]
        began: str = self.nodedevices(node)["status"]["agent"]["startTime"]
        return "running" in state and began >= state["running"]["startedAt"]  # both in UTC, in whole seconds

    def metric(self, node: str, name: str, **labels: str) -> float:
        """A metric of the agent on a node, summed over the series with these labels, as a scrape shows it."""
        code = (
            "import urllib.request as r; print(r.urlopen('http://127.0.0.1:9735/metrics', timeout=5).read().decode())"
        )
        text = self.kubectl.exec(self.agent(node)["metadata"]["name"], "python3", "-c", code, namespace=SYSTEM)
        series = [line for line in text.splitlines() if line.split("{")[0].split(" ")[0] == name]
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        return sum(float(line.rpartition(" ")[2]) for line in series if all(each in line for each in wanted))

    def operator(self) -> dict[str, Any]:
        """The pod of the operator that leads, as the Lease says."""

        def look() -> dict[str, Any] | None:
            lease = self.kubectl.get("lease", "nodedevices-operator", SYSTEM) or {}
            pod, _, _ = lease.get("spec", {}).get("holderIdentity", "").rpartition("_")
            return next((one for one in self.operator_pods() if one["metadata"]["name"] == pod), None)

        found: dict[str, Any] = self.until("an operator leads", look)
        return found

    def operator_pods(self) -> list[dict[str, Any]]:
        items = self.kubectl.items("pods", SYSTEM, labels="app.kubernetes.io/component=operator")
        return [one for one in items if "deletionTimestamp" not in one["metadata"]]

    def operators(self, count: int) -> None:
        """Scales the operator and waits until so many of it are there."""
        self.kubectl.run("scale", "-n", SYSTEM, "deployment/nodedevices-operator", f"--replicas={count}")
        self.until(f"{count} operators", lambda: self._operators_ready(count))

    def _operators_ready(self, count: int) -> bool:
        items = self.kubectl.items("pods", SYSTEM, labels="app.kubernetes.io/component=operator")
        return len(items) == count and all(condition(one, "Ready").get("status") == "True" for one in items)

    @cached_property
    def release(self) -> tuple[int, int]:
        """The API server's: (1, 37). What a kubelet promises depends on it."""
        said = self.kubectl.json("version")["serverVersion"]
        return int(said["major"]), int(said["minor"].rstrip("+"))

    # --- beginning and end --------------------------------------------------------------------------------------------
    @classmethod
    @contextmanager
    def opened(cls, provider: ClusterProvider) -> Iterator[Self]:
        """The world on a cluster: namespace and node clients there, system installed; all of it gone afterwards.

        The devices come first: a new agent without any waits 15 s for a configuration that nobody resolves.
        """
        cluster = cls(provider.kubectl, provider.image, *provider.pair, own_rig=provider.own_rig)
        try:
            cluster.open()
            installing.install(provider.kubectl, provider.images)
            yield cluster
        finally:
            if provider.own_rig is None:  # our own cluster goes as a whole
                cluster.take_back()
            for far in cluster.node_clients.values():
                far.close()

    def reach(self, node: str) -> NodeClient:
        """A new hand on a node."""
        return node_client.through_pod(self.kubectl, node, namespace=NAMESPACE)

    def open(self) -> None:
        self.kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        self.kubectl.apply(*(node_client.pod(node, namespace=NAMESPACE, image=self.image) for node in (self.a, self.b)))
        ready = ("--for=condition=Ready", "pod", "-l", "app=hand", f"--timeout={CLUSTER_PATIENCE_SECONDS:.0f}s")
        self.kubectl.run("wait", "-n", NAMESPACE, *ready, seconds=CLUSTER_PATIENCE_SECONDS + 10)
        for node, text in ((self.a, simulated.h100s()), (self.b, simulated.l4s())):
            self.node_clients[node] = self.reach(node)
            self.hardware(node, text)

    def take_back(self) -> None:
        """What installation and tests made in a cluster that is not ours; at last the files on its nodes."""
        installing.uninstall(self.kubectl)
        for far in self.node_clients.values():
            far.call("remove")
        self.kubectl.delete("namespace", NAMESPACE)
