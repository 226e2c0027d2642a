"""What `make demo` shows in two acts, on any cluster with two nodes that have no device plugin for nvidia.com/gpu.
With one node it is the first act, without the policy that is for the other node.

Each scene does one thing to the cluster, waits until the API server or the kubelet shows its effect, and prints the
real output of the command that a person would use to see it. A scene whose effect does not come in time raises. Faults
enter only through the simulated probe's file. Times are taken where they arrive in this process: from the moment before
the new file is sent to the moment at which the changed object (a watch) or the kubelet's answer (PodResources) is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from demo.stage import Stage
from support import node_client, simulated
from support.kubectl import Kubectl, NotReached, Watch, condition, wait_until
from support.node_client import NodeClient

NAMESPACE = "nodedevices-demo"
GPU = "nvidia.com/gpu"
MEMORY = "nodedevices.io/gpu-memory-mib"
HOLD_DOWN_SECONDS = 5
IDLE_SECONDS = 60  # the least that a policy can ask for
DEVICES = (
    'jsonpath={range .status.devices[*]}{.name}{"\\t"}{.health.state}{"\\t"}{.health.reason}{"\\t"}'
    '{.holders[*].pod}{"\\n"}{end}'
)
CONDITION = (
    'jsonpath={range .status.conditions[?(@.type=="nodedevices.io/DeviceHealthy")]}'
    '{.status} {.reason}: {.message}{"\\n"}{end}'
)
IDLE = "nodedevices.io/DeviceIdle"
UNUSED = (
    f'jsonpath={{range .status.conditions[?(@.type=="{IDLE}")]}}{{.status}} {{.reason}}: {{.message}}{{"\\n"}}{{end}}'
)
KINDS = (
    'jsonpath={range .status.devices[?(@.attributes.vendor)]}{.name}{"\\t"}{.type}{"\\t"}{.attributes.vendor}{"\\t"}'
    '{.attributes.productName}{"\\t"}{.health.state}{"\\n"}{end}'
)
WITHHELD = (
    'jsonpath={range .status.resources[*]}{.name}: {.healthy} of {.capacity}{"\\n"}'
    '{range .withheld[*]}  {.count} {.reason} {.devices}: {.message}{"\\n"}{end}{end}'
)
RESOURCES = 'jsonpath={range .status.resources[*]}{.name}{"\\t"}{.capacity}{"\\n"}{end}'
REQUESTS = (
    "custom-columns=POD:.metadata.name,NODE:.spec.nodeName,PHASE:.status.phase,"
    "REQUESTS:.spec.containers[0].resources.limits"
)
MARKS = (
    "custom-columns=POD:.metadata.name,PHASE:.status.phase,"
    'MESSAGE:.status.conditions[?(@.type=="nodedevices.io/DeviceHealthy")].message'
)
LABEL = "act=2"
RDMA, FPGA = "example.com/rdma", "example.com/fpga"
PODS = {"cuda": GPU, "rocm": "amd.com/gpu", "mpi": RDMA, "synth": FPGA}  # what each of them requests
STRUCK = {"gpu": "cuda", "partitioned": "rocm", "nic": "mpi", "fpga": "synth"}  # simulated.one_of_each
# docs/architecture.md; the last one is the kubelet's own period, not ours.
TARGETS = {"kubelet": "1 s", "NodeDevices": "2 s", "pod condition": "5 s", "Event": "5 s", "Node allocatable": "15 s"}


def policy() -> dict[str, Any]:
    return {
        "apiVersion": "nodedevices.io/v1alpha1",
        "kind": "DevicePolicy",
        "metadata": {"name": "everywhere"},
        "spec": {
            "nodeSelector": {},
            "health": {"holdDownSeconds": HOLD_DOWN_SECONDS},
            "capacity": [{"name": MEMORY, "sumOf": "memoryMiB"}],
            "idle": {"afterSeconds": IDLE_SECONDS},
        },
    }


def sharing(node: str) -> dict[str, Any]:
    return {
        "apiVersion": "nodedevices.io/v1alpha1",
        "kind": "DevicePolicy",
        "metadata": {"name": "share-the-gpus"},
        "spec": {
            "nodeSelector": {"matchLabels": {"kubernetes.io/hostname": node}},
            "priority": 10,
            "sharing": {"strategy": "timeSlicing", "resources": [{"name": GPU, "replicas": 4}]},
        },
    }


def naming(node: str) -> dict[str, Any]:
    """Priority 10 is sharing()'s, which has no such section."""
    return {
        "apiVersion": "nodedevices.io/v1alpha1",
        "kind": "DevicePolicy",
        "metadata": {"name": "names"},
        "spec": {
            "nodeSelector": {"matchLabels": {"kubernetes.io/hostname": node}},
            "resources": {
                "devices": [{"match": {"type": "nic"}, "name": RDMA}, {"match": {"type": "fpga"}, "name": FPGA}]
            },
        },
    }


def trainer(node: str, image: str) -> dict[str, Any]:
    return pod("trainer", node, image, {GPU: "2"}, 'echo "my devices: $NVIDIA_VISIBLE_DEVICES"; exec sleep 3600')


def notebook(node: str, image: str) -> dict[str, Any]:
    return pod("notebook", node, image, {GPU: "1"}, "exec sleep 3600")


def holder(name: str, node: str, image: str, resource: str) -> dict[str, Any]:
    """A pod of the second act, with one of a resource."""
    return pod(name, node, image, {resource: "1"}, "exec sleep 3600", act="2")


def pod(name: str, node: str, image: str, limits: Mapping[str, str], script: str, **labels: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "containers": [
                {
                    "name": "main",
                    "image": image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["sh", "-c", script],
                    "resources": {"limits": dict(limits)},
                }
            ],
        },
    }


@dataclass
class Story:
    stage: Stage
    kubectl: Kubectl
    image: str
    nodes: tuple[str, ...]  # one or two
    times: dict[str, float] = field(default_factory=dict)
    held: list[dict[str, Any]] = field(default_factory=list)  # devices of the trainer
    _hands: ExitStack = field(default_factory=ExitStack)

    def run(self) -> None:
        with self._hands:
            self.give_devices()
            self.run_a_pod()
            self.apply_policies()
            self.start_a_notebook()
            if self.small:
                self.share(self.small)
            self.break_a_gpu()
            self.take_one_out_of_service()
            self.recover()
            self.conclude()
            if self.small:
                self.offer_every_kind(self.small)
                self.break_one_of_each(self.small)
            else:
                self.stage.note("With a second node there is a second act: other makers' devices.")
            self.find_who_uses_none()

    @property
    def big(self) -> str:
        """The node of the 8 H100s."""
        return self.nodes[0]

    @property
    def small(self) -> str | None:
        """The node with a few devices of every kind."""
        return self.nodes[1] if len(self.nodes) > 1 else None

    # --- what a person would type -------------------------------------------------------------------------------------
    def show(self, *args: str, pictured: bool = False) -> str:
        output = self.kubectl.run(*args)
        self.stage.shown("kubectl " + " ".join(quoted(arg) for arg in args), output, pictured=pictured)
        return output

    def status(self, node: str) -> dict[str, Any]:
        found = self.kubectl.get("nodedevices", node) or {}
        status: dict[str, Any] = found.get("status") or {}
        return status

    def number(self, node: str, resource: str, what: str = "allocatable") -> int | None:
        """A Node's count of a resource; None while it has none of that name."""
        found = self.kubectl.get("node", node) or {}
        value = found.get("status", {}).get(what, {}).get(resource)
        return None if value is None else int(value)

    def h100s(self, *, xid79: int | None = None) -> str:
        """The big node's devices: those of the trainer compute, and all others stand still."""
        return simulated.used(simulated.h100s(xid79=xid79), [each["index"] for each in self.held])

    # --- scenes -------------------------------------------------------------------------------------------------------
    def give_devices(self) -> None:
        other = f"; on {self.small} two H100, an MI300X in eight partitions, two ConnectX-7 and a U250"
        self.stage.step(
            f"Devices (simulated: one file on each node): 8 H100 on {self.big}{other if self.small else ''}"
        )
        self.kubectl.apply(
            *(node_client.pod(node, namespace=NAMESPACE, image=self.image) for node in self.nodes),
        )
        self.kubectl.run("wait", "-n", NAMESPACE, "--for=condition=Ready", "pod", "-l", "app=hand", "--timeout=60s")
        self.node_clients = {
            node: self._hands.enter_context(node_client.through_pod(self.kubectl, node, namespace=NAMESPACE))
            for node in self.nodes
        }
        self.node_clients[self.big].write(self.h100s())
        if self.small:
            self.node_clients[self.small].write(simulated.one_of_each())
        for node, count in zip(self.nodes, (8, 6), strict=False):
            wait_until(
                f"NodeDevices {node} has {count} healthy devices",
                lambda node=node, count=count: self.status(node).get("summary", {}).get("healthy") == count,  # type: ignore[misc]
            )
        for node, count in zip(self.nodes, (8, 2), strict=False):
            wait_until(
                f"node {node} has {count} allocatable {GPU}",
                lambda node=node, count=count: self.number(node, GPU) == count,  # type: ignore[misc]
            )
        self.stage.done("the nodes offer them to pods")
        self.show("get", "nodedevices", pictured=True)

    def run_a_pod(self) -> None:
        self.stage.step(f"A pod with two {GPU}")
        self.kubectl.apply(trainer(self.big, self.image))
        self.kubectl.run("wait", "-n", NAMESPACE, "--for=condition=Ready", "pod/trainer", "--timeout=60s")
        wait_until("the pod's log names its devices", lambda: self.kubectl.logs("trainer", namespace=NAMESPACE).strip())
        self.stage.done("it runs")
        self.show("logs", "-n", NAMESPACE, "trainer")

        def held() -> list[dict[str, Any]] | None:
            found = [
                device
                for device in self.status(self.big).get("devices", [])
                if any(holder["pod"] == "trainer" for holder in device.get("holders", []))
            ]
            return found if len(found) == 2 else None

        self.held = wait_until("NodeDevices names the pod as holder of two devices", held)
        log = self.kubectl.logs("trainer", namespace=NAMESPACE)
        for device in self.held:
            if device["id"] not in log:
                raise NotReached(f"NodeDevices says that trainer holds {device['id']}, but its log does not: {log}")
        self.show("get", "nodedevices", self.big, "-o", DEVICES)
        self.node_clients[self.big].write(self.h100s())

    def apply_policies(self) -> None:
        self.stage.step(f"A policy for every node: count GPU memory as {MEMORY}")
        self.stage.note(
            f"It also shortens health.holdDownSeconds from 300 to {HOLD_DOWN_SECONDS}, for this demo's sake."
        )
        self.kubectl.apply(policy())
        wait_until(
            "the node has the memory capacity",
            lambda: self.number(self.big, MEMORY, "capacity") == simulated.H100_MIB * 8,
        )
        self.stage.done("the operator owns the new capacity; the scheduler can use it")
        self.show("get", "node", self.big, "-o", f"jsonpath={{.status.capacity.{escaped(MEMORY)}}}")

    def start_a_notebook(self) -> None:
        """It takes a GPU and does nothing with it; what comes of that is the last scene."""
        self.kubectl.apply(notebook(self.big, self.image))
        self.kubectl.run("wait", "-n", NAMESPACE, "--for=condition=Ready", "pod/notebook", "--timeout=60s")

    def share(self, node: str) -> None:
        self.stage.step(f"A policy for {node}: time-slicing, 4 replicas of each H100, without a restart")
        before = self.agent_start(node)
        self.kubectl.apply(sharing(node))
        wait_until(f"node {node} has 8 allocatable {GPU}", lambda: self.number(node, GPU) == 8)
        if self.agent_start(node) != before:
            raise NotReached(f"the agent on {node} was restarted: {before} -> {self.agent_start(node)}")
        self.stage.done(f"2 became 8; the agent on {node} is still the one started at {before[1]}")
        self.show("get", "node", node, "-o", f"jsonpath={{.status.allocatable.{escaped(GPU)}}}", pictured=True)
        self.show("get", "devicepolicies")

    def agent_start(self, node: str) -> tuple[int, str]:
        """(restarts, start time) of the agent's container on a node."""
        pods = self.kubectl.json(
            "get",
            "pods",
            "-n",
            "nodedevices-system",
            "-l",
            "app.kubernetes.io/component=agent",
            "--field-selector",
            f"spec.nodeName={node}",
        )["items"]
        [container] = [one for one in pods[0]["status"]["containerStatuses"] if one["name"] == "agent"]
        return container["restartCount"], container["state"]["running"]["startedAt"]

    def break_a_gpu(self) -> None:
        victim = self.held[0]
        self.stage.step(
            f"XID 79 strikes {victim['name']} on {self.big}, which the pod holds: it has fallen off the bus"
        )
        far: NodeClient = self.node_clients[self.big]
        far.call("watch")
        with ExitStack() as watches:

            def watch(*args: str) -> Watch:
                return watches.enter_context(Watch(self.kubectl, args))

            devices = watch("nodedevices", self.big)
            pod = watch("pod", "trainer", "-n", NAMESPACE)
            node = watch("node", self.big)
            events = watch("events", "-n", NAMESPACE, "--field-selector", "involvedObject.name=trainer")
            wait_until("the watches have begun", lambda: devices.seen and pod.seen and node.seen)
            self.restarts = self.pod_restarts()
            began = far.write(self.h100s(xid79=victim["index"]))

            def when(name: str, moment: float) -> None:
                self.times[name] = moment - began

            when("kubelet", far.first_allocatable(GPU, 7, after=began))
            at, _ = devices.first(
                "NodeDevices shows the fault",
                lambda one: (
                    one["status"]["summary"]["unhealthy"] == 1 and one["status"]["summary"]["reason"] == "Xid79"
                ),
                after=began,
            )
            when("NodeDevices", at)
            at, _ = pod.first(
                "the pod has the condition",
                lambda one: condition(one, "nodedevices.io/DeviceHealthy").get("status") == "False",
                after=began,
            )
            when("pod condition", at)
            at, _ = events.first("the pod has the Event", lambda one: one["reason"] == "DeviceFault", after=began)
            when("Event", at)
            at, _ = node.first(
                f"node {self.big} has 7 allocatable {GPU}",
                lambda one: one["status"]["allocatable"].get(GPU) == "7",
                after=began,
            )
            when("Node allocatable", at)
        wait_until(
            "the memory capacity shrank", lambda: self.number(self.big, MEMORY, "capacity") == simulated.H100_MIB * 7
        )
        self.stage.done("everybody who needs to know knows")
        self.show("get", "nodedevices", pictured=True)
        self.show("nodedevices", "devices", "--unhealthy", pictured=True)
        self.show("get", "node", self.big, "-o", f"jsonpath={{.status.allocatable.{escaped(GPU)}}}")
        self.show("get", "node", self.big, "-o", f"jsonpath={{.status.capacity.{escaped(MEMORY)}}}")
        self.show("get", "pod", "-n", NAMESPACE, "trainer", "-o", CONDITION)
        self.show("get", "events", "-n", NAMESPACE, "--field-selector", "reason=DeviceFault", pictured=True)
        if self.pod_restarts() != self.restarts:
            raise NotReached("the pod was restarted; a fault marks a pod, it does not end it")
        self.stage.note("The pod goes on running on its other GPU; what to do with it is the owner's choice.")

    def take_one_out_of_service(self) -> None:
        other = self.held[1]
        self.stage.step(f"A person takes {other['name']} out of service as well: why 6 of 8?")
        entry = {"id": other["id"], "reason": "RMA 4711"}
        self.kubectl.patch("nodedevices", self.big, {"spec": {"unschedulable": [entry]}})

        def reasons() -> dict[str, int]:
            resources = {each["name"]: each for each in self.status(self.big).get("resources", [])}
            return {each["reason"]: each["count"] for each in resources[GPU].get("withheld", [])}

        wait_until("NodeDevices says why two are withheld", lambda: reasons() == {"Unhealthy": 1, "Cordoned": 1})
        self.stage.done("the object says which, and why")
        self.show("get", "nodedevices", "-o", "wide")
        self.show("get", "nodedevices", self.big, "-o", WITHHELD)
        self.kubectl.patch("nodedevices", self.big, {"spec": {"unschedulable": None}})

    def pod_restarts(self) -> tuple[str, int]:
        pod = self.kubectl.get("pod", "trainer", NAMESPACE) or {}
        return pod["status"]["phase"], pod["status"]["containerStatuses"][0]["restartCount"]

    def recover(self) -> None:
        self.stage.step("The GPU is reset and answers again")
        self.node_clients[self.big].write(self.h100s())

        def back() -> bool:
            pod = self.kubectl.get("pod", "trainer", NAMESPACE)
            return (
                "RestartApp" in condition(pod, "nodedevices.io/DeviceHealthy").get("message", "")
                and self.status(self.big)["summary"]["healthy"] == 8
                and self.number(self.big, GPU) == 8
                and self.number(self.big, MEMORY, "capacity") == simulated.H100_MIB * 8
            )

        wait_until("everything is back", back, seconds=HOLD_DOWN_SECONDS + 40)
        self.stage.done(f"after the hold-down of {HOLD_DOWN_SECONDS} s the GPU is back; its pod says what it lost")
        self.show("get", "nodedevices")
        self.show("get", "node", self.big, "-o", f"jsonpath={{.status.allocatable.{escaped(GPU)}}}")
        self.show("get", "pod", "-n", NAMESPACE, "trainer", "-o", CONDITION)

    def conclude(self) -> None:
        self.stage.step("From the fault in the probe's input to ...")
        rows = [(name, f"{seconds:.2f} s", TARGETS[name]) for name, seconds in self.times.items()]
        self.stage.table(("where it was read", "this run", "target"), rows)

    # --- second act: other makers' devices ----------------------------------------------------------------------------
    def offer_every_kind(self, node: str) -> None:
        self.stage.step(f"Second act. {node} has devices of four makers; a policy names its NICs and renames its FPGA")
        self.show("get", "nodedevices", node, "-o", KINDS)
        self.show("get", "nodedevices", node, "-o", RESOURCES)
        self.kubectl.apply(naming(node))
        self.kubectl.apply(*(holder(name, node, self.image, what) for name, what in PODS.items()))
        pods = [f"pod/{name}" for name in PODS]
        self.kubectl.run("wait", "-n", NAMESPACE, "--for=condition=Ready", *pods, "--timeout=60s")
        self.stage.done("the FPGA has another name, the NICs have one, and pods hold one of each")
        self.show("get", "nodedevices", node, "-o", RESOURCES)
        self.show("get", "pods", "-n", NAMESPACE, "-l", LABEL, "-o", REQUESTS)

    def break_one_of_each(self, node: str) -> None:
        def held() -> dict[str, int] | None:
            devices = self.status(node).get("devices", [])
            index = {device["name"]: device["index"] for device in devices}
            whole = {device["name"]: index[device.get("parent", device["name"])] for device in devices}
            found = {one["pod"]: whole[device["name"]] for device in devices for one in device.get("holders", [])}
            return found if found.keys() == PODS.keys() else None

        self.stage.step(
            "An XID, an uncorrectable error, a lost link, a tripped firewall: each pod hears of its own device's"
        )
        index = wait_until("NodeDevices names a holder of each kind", held)
        struck = {kind: index[pod] for kind, pod in STRUCK.items()}
        self.node_clients[node].write(simulated.one_of_each(struck=struck))

        def marked() -> bool:
            pods = [self.kubectl.get("pod", name, NAMESPACE) for name in PODS]
            return all(condition(pod, "nodedevices.io/DeviceHealthy").get("status") == "False" for pod in pods)

        wait_until("every pod is marked", marked)
        self.stage.done("every pod is marked")
        self.show("get", "pods", "-n", NAMESPACE, "-l", LABEL, "-o", MARKS)
        self.show("get", "nodedevices", node, "-o", DEVICES)

    def find_who_uses_none(self) -> None:
        self.stage.step(
            f"Since the first policy a notebook holds a GPU too. Does it use it? (idle.afterSeconds: {IDLE_SECONDS})"
        )

        def words() -> dict[str, str]:
            holders = [holder for device in self.status(self.big)["devices"] for holder in device.get("holders", [])]
            return {each["pod"]: each["idle"] for each in holders if "idle" in each}

        wait_until("the notebook is found", lambda: words() == {"notebook": "NeverUsed"}, seconds=IDLE_SECONDS + 60)
        wait_until("its pod says so", lambda: condition(self.kubectl.get("pod", "notebook", NAMESPACE), IDLE))
        self.stage.done("it never did; the trainer, whose GPUs compute, is not named")
        self.show("nodedevices", "idle", "-n", NAMESPACE, pictured=True)
        self.show("get", "pod", "-n", NAMESPACE, "notebook", "-o", UNUSED)
        self.stage.note("Nothing is ended for it: what follows is yours to say.")

    def forget(self) -> None:
        """Takes back what the story made in the cluster; the files on the nodes first, by pods that still exist."""
        for node in self.nodes:
            if self.kubectl.get("pod", node_client.pod_name(node), NAMESPACE):
                with node_client.through_pod(self.kubectl, node, namespace=NAMESPACE) as far:
                    far.call("remove")
        self.kubectl.delete("namespace", NAMESPACE)


def escaped(resource: str) -> str:
    """A resource name as jsonpath wants it."""
    return resource.replace(".", "\\.")


def quoted(argument: str) -> str:
    """As one types it in a shell."""
    return argument if not set(argument) & set(' "{}[]$*?\\') else f"'{argument}'"
