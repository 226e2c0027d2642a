"""`nodedevices-operator extender` on a real API server, with exactly the rights that it needs: its list and watch of
NodeDevices and pods, seen by what it answers the scheduler."""

from __future__ import annotations

import json
import socket
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support import fleet
from support.access import kubeconfig
from support.apiserver import ApiServer
from support.kubectl import Kubectl, wait_until
from support.nodeshares import MEMORY, gpu, holder, node_devices, pod
from support.operatorprocess import NAMESPACE, OperatorProcess
from support.patience import CLUSTER_PATIENCE_SECONDS

ACCOUNT = "extender-of-a-test"
OTHER = "example.com/other-memory"
RULES = [
    {"apiGroups": ["nodedevices.io"], "resources": ["nodedevices"], "verbs": ["list", "watch"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
]


@pytest.fixture
def account(apiserver: ApiServer, kubectl: Kubectl, tmp_path: Path) -> Path:
    """The kubeconfig of an account that may list and watch NodeDevices and pods, and nothing else."""
    fleet.namespace(kubectl)
    group, role = "rbac.authorization.k8s.io", {"name": ACCOUNT}
    kubectl.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": role | {"namespace": NAMESPACE}},
        {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": role, "rules": RULES},
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": role,
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": ACCOUNT},
            "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}],
        },
    )
    token = kubectl.token(ACCOUNT, NAMESPACE)
    return kubeconfig(apiserver.kubeconfig, tmp_path / "extender.kubeconfig", token)


def report(kubectl: Kubectl, name: str, *devices: Mapping[str, Any]) -> None:
    """As an agent writes it."""
    made = node_devices(name, *devices)
    head = {"apiVersion": made["apiVersion"], "kind": made["kind"], "metadata": {"name": name}}
    if kubectl.get("nodedevices", name) is None:
        kubectl.apply_as("nodedevices-agent", head)
    kubectl.apply_as("nodedevices-agent", head | {"status": made["status"]}, subresource="status")


class Scheduler:
    """Calls an extender."""

    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}/scheduler"

    def filter(self, size: int, *, resource: str = MEMORY) -> dict[str, str]:
        """Why a pod of that size cannot be on each node that is refused."""
        arguments = {"Pod": pod("wanted", size, resource=resource), "NodeNames": ["n1", "n2"], "Nodes": None}
        request = urllib.request.Request(f"{self._base}/filter", data=json.dumps(arguments).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=CLUSTER_PATIENCE_SECONDS) as answer:
            found = json.load(answer)
        refused: dict[str, str] = found["FailedNodes"] | found["FailedAndUnresolvableNodes"]
        assert set(found["NodeNames"]) == {"n1", "n2"} - set(refused)
        return refused

    def inspect(self) -> Any:
        with urllib.request.urlopen(f"{self._base}/inspect", timeout=CLUSTER_PATIENCE_SECONDS) as answer:
            return json.load(answer)


def test_answers_follow_node_devices_and_pods_of_a_real_api_server(
    kubectl: Kubectl, account: Path, tmp_path: Path
) -> None:
    full = "no single GPU has 10 free units of {} (largest free: {})"
    held = holder("held", 20) | {"namespace": fleet.NAMESPACE}
    fleet.pod(kubectl, "held", "n1", requests={MEMORY: 20})
    report(kubectl, "n1", gpu(0, 24, held), gpu(1, 9))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with OperatorProcess(tmp_path, account, f"--address=127.0.0.1:{port}", command="extender") as process:
        scheduler = Scheduler(port)
        assert scheduler.filter(10) == {"n1": full.format(MEMORY, 9)}
        # A node shares memory from now on, another pod is bound to it, a resource comes whose pods nobody has listed.
        fleet.pod(kubectl, "early", "n2", requests={OTHER: 20})
        report(kubectl, "n2", gpu(0, 24), gpu(1, 24, resource=OTHER))
        wait_until("another resource", lambda: scheduler.filter(10, resource=OTHER) == {"n2": full.format(OTHER, 4)})
        fleet.pod(kubectl, "bound", "n2", requests={MEMORY: 20})
        wait_until(
            "bound", lambda: scheduler.filter(10) == {"n1": full.format(MEMORY, 9), "n2": full.format(MEMORY, 4)}
        )
        shown = {each["name"]: each for each in scheduler.inspect()["nodes"]}
        assert (shown["n1"]["totalGPU"], shown["n1"]["usedGPU"]) == (33, 20)
        assert {each["name"] for each in shown["n2"]["bound"]} == {"bound", "early"}
        # A pod ends, and one is deleted: their shares are free before any agent says so.
        fleet.patch_pod(kubectl, "held", {"phase": "Succeeded"})
        wait_until("ended", lambda: "n1" not in scheduler.filter(10))
        kubectl.run("delete", "pod", "bound", "-n", fleet.NAMESPACE, "--grace-period=0", "--force")
        wait_until("deleted", lambda: scheduler.filter(10) == {})
        # What is not known passes.
        assert set(scheduler.filter(100)) == {"n1", "n2"}
        kubectl.delete("nodedevices", "n1")
        wait_until("no NodeDevices", lambda: set(scheduler.filter(100)) == {"n2"})
        assert process.metric("nodedevices_extender_cache_objects") >= 2
        assert "forbidden" not in process.said()
        assert process.stop() == 0
