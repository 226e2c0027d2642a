"""A client on a node: it edits the simulated devices file there and reads from that node's kubelet what it knows.

Two ways to the node, one program at its end (node_client_remote.py): `kubectl exec` into a small pod, which works on
any cluster, or a process in the node's own namespaces, which works while the API server is away. The pod runs the
agent's image, because the node has it already and it holds Python and grpcio; it runs none of the agent's code and
needs no privilege but three hostPath directories.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.kubectl import Kubectl, wait_until
from support.patience import CLUSTER_PATIENCE_SECONDS

PROGRAM = Path(__file__).with_name("node_client_remote.py")


def pod(node: str, *, namespace: str, image: str) -> dict[str, Any]:
    """The pod through which the client reaches a node."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": pod_name(node), "namespace": namespace, "labels": {"app": "hand"}},
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "tolerations": [{"operator": "Exists"}],
            "containers": [
                {
                    "name": "hand",
                    "image": image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["sleep", "infinity"],
                    "securityContext": {
                        "runAsUser": 0,
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    "volumeMounts": [
                        {"name": "simulated", "mountPath": "/var/lib/nodedevices"},
                        {"name": "pod-resources", "mountPath": "/var/lib/kubelet/pod-resources", "readOnly": True},
                        {"name": "device-plugins", "mountPath": "/var/lib/kubelet/device-plugins"},
                    ],
                }
            ],
            "volumes": [
                host_path("simulated", "/var/lib/nodedevices", "DirectoryOrCreate"),
                host_path("pod-resources", "/var/lib/kubelet/pod-resources", "Directory"),
                host_path("device-plugins", "/var/lib/kubelet/device-plugins", "Directory"),
            ],
        },
    }


def host_path(name: str, path: str, kind: str) -> dict[str, Any]:
    return {"name": name, "hostPath": {"path": path, "type": kind}}


def pod_name(node: str) -> str:
    return f"hand-{node}"


def through_pod(kubectl: Kubectl, node: str, *, namespace: str) -> NodeClient:
    """The hand in its pod, which must be running."""
    program = PROGRAM.read_text()
    argv = kubectl.argv("exec", "-i", "-n", namespace, pod_name(node), "--", "python3", "-u", "-c", program)
    return NodeClient(argv, kubectl.environment())


class NodeClient:
    """One conversation. `events` holds what came on its own, each with its arrival (time.monotonic())."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self.events: list[tuple[float, dict[str, Any]]] = []
        self._number = 0
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self._process = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=dict(environment) if environment is not None else None,
        )
        self._output: list[str] = []
        self._threads = [
            threading.Thread(target=self._read, daemon=True),
            threading.Thread(target=self._listen, daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        wait_until("the client on the node answers", self._ready, seconds=CLUSTER_PATIENCE_SECONDS, every=0.02)

    def _ready(self) -> bool:
        if self._process.poll() is not None:
            raise ConnectionError(f"the node client ended: {''.join(self._output)}")
        return any(event.get("event") == "ready" for _, event in self.events)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            if "event" in said:
                self.events.append((time.monotonic(), said))
            else:
                self._answers.put(said)
        self._answers.put({"error": "the node client ended"})

    def _listen(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._output.append(line)
            del self._output[:-50]

    def call(self, do: str, **more: object) -> Any:
        """The answer to a request. Raises ConnectionError when there is none, or it is that the kubelet is away."""
        assert self._process.stdin is not None
        self._number += 1
        try:
            self._process.stdin.write(json.dumps({"number": self._number, "do": do, **more}) + "\n")
            self._process.stdin.flush()
            said = self._answers.get(timeout=CLUSTER_PATIENCE_SECONDS)
            while said.get("number", self._number) != self._number:  # of a question that was given up
                said = self._answers.get(timeout=CLUSTER_PATIENCE_SECONDS)
        except queue.Empty:
            raise ConnectionError(f"{do}: no answer within {CLUSTER_PATIENCE_SECONDS} s") from None
        if "error" in said:
            raise ConnectionError(f"{do}: {said['error']}\n{''.join(self._output)}")
        return said["answer"]

    def write(self, text: str) -> float:
        """Replaces the simulated devices file; the moment just before it was sent, so times from it never flatter."""
        moment = time.monotonic()
        self.call("write", text=text)
        return moment

    def allocatable(self) -> dict[str, dict[str, list[int]]]:
        """resource -> healthy id -> its NUMA nodes, from the kubelet's GetAllocatableResources."""
        found: dict[str, dict[str, list[int]]] = self.call("allocatable")
        return found

    def holders(self) -> list[dict[str, Any]]:
        """Containers with devices of the device plugin API, from the kubelet's List."""
        return [each for each in self.call("holders") if each["devices"]]

    def first_allocatable(
        self, resource: str, count: int, *, after: float, seconds: float = CLUSTER_PATIENCE_SECONDS
    ) -> float:
        """When (after that moment) the kubelet first had that many ids of it; needs `call("watch")` before."""

        def look() -> float | None:
            for at, event in list(self.events):
                if (
                    at >= after
                    and event["event"] == "allocatable"
                    and len(event["resources"].get(resource, {})) == count
                ):
                    return at
            return None

        return wait_until(f"the kubelet has {count} of {resource}", look, seconds=seconds, every=0.02)

    def close(self) -> None:
        """Ends the conversation; the far end sees its input close and ends too."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it is gone already
            self._process.stdin.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for thread in self._threads:
            thread.join(timeout=5)
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()

    def __enter__(self) -> NodeClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
