"""The world on our own rig, where a test may also stop kubelets, the API server and single processes.

The hands work in the nodes' own namespaces here, not through `kubectl exec`: they must go on while a kubelet or the API
server is away.
"""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from support.cluster import GPU, NAMESPACE, Cluster
from support.kubectl import wait_until
from support.node_client import PROGRAM, NodeClient

if TYPE_CHECKING:
    from support.rig import Rig

SCRAPE = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1], timeout=5).read().decode())"
UNAUTHORIZED = 'nodedevices_publish_errors_total{status="401"}'


@dataclass
class RigCluster(Cluster):
    _was_away: bool = False  # the API server, since kubelets, controller-manager and scheduler were last started

    @property
    def rig(self) -> Rig:
        assert self.own_rig is not None
        return self.own_rig

    def reach(self, node: str) -> NodeClient:
        return NodeClient([*self.rig.node_argv(node), sys.executable, "-u", "-c", PROGRAM.read_text()])

    def environment(self, pod: str, container: str = "") -> dict[str, str]:
        """As the kernel shows it: an exec takes a fifth of a second of CPU, and tests look hundreds of times."""
        found = self.kubectl.object("pod", pod, NAMESPACE)
        states = [*found["status"].get("initContainerStatuses", ()), *found["status"].get("containerStatuses", ())]
        named = container or found["spec"]["containers"][0]["name"]
        [own] = [each["containerID"].rpartition("/")[2] for each in states if each["name"] == named]
        client = self.node_clients[found["spec"]["nodeName"]]

        def first() -> dict[str, str]:
            running = client.call("containers", prefixes=[""])
            variables = {each["pid"]: each["environment"] for each in running if each["container"] == own}
            return variables[min(variables)] if variables else {}

        # The kubelet says that it runs when the runtime has let it go, which is shortly before it is the container's.
        return wait_until(f"a process of {pod}/{named}", first)

    def restart_kubelet(self, node: str) -> None:
        self.rig.restart_kubelet(node)

    def reboot(self, node: str) -> None:
        """The node has lost its power and is coming back; the client on it is a new one."""
        self.rig.reboot(node)
        self.node_clients[node].close()
        self.node_clients[node] = self.reach(node)

    @contextmanager
    def without_api_server(self) -> Iterator[None]:
        """The API server is away inside, and back and answering after it, whatever happens."""
        self.rig.stop_apiserver()
        self._was_away = True
        try:
            yield
        finally:
            self.rig.start_apiserver()
            self.until("the API server answers", lambda: self.kubectl.run("get", "--raw", "/readyz"))

    def wake(self) -> None:
        """Every node is Ready; after an absence of the API server by a restart.

        Kubernetes' informers try again ever more rarely, in the end twice a minute; no test needs to wait for that.
        """
        if self._was_away:
            self.rig.restart_controllers()
            for node in (self.a, self.b):
                self.restart_kubelet(node)
            self._was_away = False
        super().wake()

    def processes(self, node: str, name: str) -> list[int]:
        """Processes on a node that run this program."""
        found: list[int] = self.node_clients[node].call("processes", name=name)
        return found

    def kill(self, node: str, name: str) -> None:
        """kill -9 of every process of this program on a node; there must be one."""
        self._signal(node, name, signal.SIGKILL)

    def freeze(self, node: str, name: str) -> None:
        """Every process of this program on a node stands still; there must be one."""
        self._signal(node, name, signal.SIGSTOP)

    def _signal(self, node: str, name: str, number: signal.Signals) -> None:
        assert self.node_clients[node].call("kill", name=name, signal=number), f"no {name} runs on {node}"

    def out_of_memory(self, node: str, name: str) -> None:
        """The container of this program on a node has no memory left, and the kernel kills the program."""
        assert self.node_clients[node].call("fill", name=name), f"{name} on {node} was not killed"

    def shell(self, node: str, script: str) -> str:
        """Output of a shell's command on a node, among the node's own files."""
        return subprocess.run(
            [*self.rig.node_argv(node), "sh", "-euc", script], capture_output=True, text=True, check=True
        ).stdout

    def token_claims(self, pod: Mapping[str, Any]) -> dict[str, Any]:
        """What the token in a pod's volume claims."""
        volumes = f"/var/lib/kubelet/pods/{pod['metadata']['uid']}/volumes/kubernetes.io~projected"
        claims = self.shell(pod["spec"]["nodeName"], f"cat {volumes}/*/token").split(".")[1]
        found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
        return found

    def token_node(self, node: str) -> str:
        """Uid of the Node that the token in the agent's volume names; empty: it names none (claims of KEP-4193)."""
        named = self.token_claims(self.agent(node))["kubernetes.io"].get("node", {})
        return str(named.get("uid", ""))

    def counted(self, agent: Mapping[str, Any], series: str) -> float:
        """The sum of the series of this agent's pod that begin so, read on its node: no API server, no kubelet."""
        url = f"http://{agent['status']['podIP']}:9735/metrics"
        text = self.rig.node_exec(agent["spec"]["nodeName"], [sys.executable, "-c", SCRAPE, url])
        return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(series))

    def restarts(self, node: str, container: str = "agent") -> int:
        """How often a container of the agent's pod was restarted."""
        [found] = [each for each in self.agent(node)["status"]["containerStatuses"] if each["name"] == container]
        count: int = found["restartCount"]
        return count

    @contextmanager
    def watching(self, node: str) -> Iterator[Callable[[], list[set[str]]]]:
        """Every set of GPU ids that the kubelet offered meanwhile, as often as it changed."""
        with self.reach(node) as far:
            far.call("watch")

            def seen() -> list[set[str]]:
                lists = [event["resources"] for _, event in far.events if "resources" in event]
                return [set(one.get(GPU, {})) for one in lists]

            self.until("the watch has begun", seen)
            yield seen
