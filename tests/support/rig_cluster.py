"""The world on our own rig, where a test may also stop kubelets, the API server and single processes.

The hands work in the nodes' own namespaces here, not through `kubectl exec`: they must go on while a kubelet or the API
server is away.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from support.cluster import GPU, Cluster
from support.node_client import PROGRAM, NodeClient

if TYPE_CHECKING:
    from support.rig import Rig


@dataclass
class RigCluster(Cluster):
    _was_away: bool = False  # the API server, since kubelets, controller-manager and scheduler were last started

    @property
    def rig(self) -> Rig:
        assert self.own_rig is not None
        return self.own_rig

    def reach(self, node: str) -> NodeClient:
        return NodeClient([*self.rig.node_argv(node), sys.executable, "-u", "-c", PROGRAM.read_text()])

    def restart_kubelet(self, node: str) -> None:
        self.rig.restart_kubelet(node)

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
        assert self.node_clients[node].call("kill", name=name), f"no {name} runs on {node}"

    def shell(self, node: str, script: str) -> str:
        """Output of a shell's command on a node, among the node's own files."""
        return subprocess.run(
            [*self.rig.node_argv(node), "sh", "-euc", script], capture_output=True, text=True, check=True
        ).stdout

    def token_node(self, node: str) -> str:
        """Uid of the Node that the token in the agent's volume names; empty: it names none (claims of KEP-4193)."""
        uid = self.agent(node)["metadata"]["uid"]
        volumes = f"/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~projected"
        claims = self.shell(node, f"cat {volumes}/*/token").split(".")[1]
        named = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["kubernetes.io"].get("node", {})
        return str(named.get("uid", ""))

    def restarts(self, node: str) -> int:
        """How often the agent's container was restarted in its pod."""
        count: int = self.agent(node)["status"]["containerStatuses"][0]["restartCount"]
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
