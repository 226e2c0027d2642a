"""What the parts may do in the cluster, and what silent connections cannot do to them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.cluster import NAMESPACE, SYSTEM, Cluster
from support.kubectl import Kubectl, KubectlError

pytestmark = [pytest.mark.e2e, pytest.mark.any_cluster]

TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"


# Holds silent connections, opens those again that are closed, and sends now and then what the kubelet's probes send.
SILENT = """
import json, socket, sys, time
end, servers = time.monotonic() + float(sys.argv[1]), [tuple(one.split(",")) for one in sys.argv[2:]]
held, sent, answered = {server: [] for server in servers}, 0, 0
while time.monotonic() < end:
    for server, mine in held.items():
        for one in list(mine):
            try:
                if one.recv(1, socket.MSG_DONTWAIT) == b"":
                    raise ConnectionError
            except BlockingIOError:
                continue
            except OSError:
                mine.remove(one)
                one.close()
        while len(mine) < 64:
            mine.append(socket.create_connection(server, timeout=5))
        with socket.create_connection(server, timeout=5) as one:
            sent += 1
            one.sendall(b"GET /healthz HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
            answered += b" 200 " in one.recv(4096)
    time.sleep(0.2)
print(json.dumps({"sent": sent, "answered": answered}))
"""


def as_agent(cluster: Cluster, node: str, folder: Path) -> Kubectl:
    """kubectl with the very token that the agent on a node has."""
    token = cluster.kubectl.exec(cluster.agent(node)["metadata"]["name"], "cat", TOKEN, namespace=SYSTEM)
    config = json.loads(cluster.kubectl.run("config", "view", "--raw", "--minify", "--flatten", "-o", "json"))
    config["users"] = [{"name": one["name"], "user": {"token": token}} for one in config["users"]]
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config))
    return Kubectl(path, cluster.kubectl.binary)


def test_an_agent_may_write_its_own_nodes_object_and_no_other(cluster: Cluster, tmp_path: Path) -> None:
    agent = as_agent(cluster, cluster.a, tmp_path)

    def write(node: str, subresource: str) -> None:
        body = {"apiVersion": "nodedevices.io/v1alpha1", "kind": "NodeDevices", "metadata": {"name": node}}
        apply = ("apply", "--server-side", "--field-manager=e2e", "--validate=false", "-f", "-")
        agent.run(*apply, *([f"--subresource={subresource}"] if subresource else []), stdin=json.dumps(body))

    for subresource in ("", "status"):
        write(cluster.a, subresource)
        with pytest.raises(KubectlError, match=f"node {cluster.a} may not write nodedevices {cluster.b}"):
            write(cluster.b, subresource)


def test_an_agent_can_neither_invent_a_node_nor_give_its_object_another_owner(cluster: Cluster, tmp_path: Path) -> None:
    agent = as_agent(cluster, cluster.a, tmp_path)
    invented = {
        "apiVersion": "nodedevices.io/v1alpha1",
        "kind": "NodeDevices",
        "metadata": {"name": "no-such-node"},
        "spec": {},
    }
    with pytest.raises(KubectlError, match="may not write nodedevices no-such-node"):
        agent.run("create", "-f", "-", stdin=json.dumps(invented))
    owner = {"apiVersion": "v1", "kind": "Node", "name": cluster.b, "uid": cluster.node(cluster.b)["metadata"]["uid"]}
    body = invented | {"metadata": {"name": cluster.a, "ownerReferences": [owner]}}
    with pytest.raises(KubectlError, match="only owner allowed"):
        agent.run("apply", "--server-side", "--field-manager=e2e", "-f", "-", stdin=json.dumps(body))


def test_an_agent_sees_no_pod_no_secret_and_no_node(cluster: Cluster, tmp_path: Path) -> None:
    agent = as_agent(cluster, cluster.a, tmp_path)
    for kind in ("pods", "secrets", "nodes", "events"):
        with pytest.raises(KubectlError, match="forbidden"):
            agent.run("get", kind, "-n", SYSTEM)


@pytest.mark.long
def test_silent_connections_from_a_pod_fail_no_probe_of_the_kubelet(cluster: Cluster) -> None:
    cluster.pod("silent", cluster.b, {})
    parts = {one["metadata"]["name"]: one for one in (cluster.agent(cluster.a), cluster.operator())}
    servers = [
        f"{one['status']['podIP']},{port['containerPort']}"
        for one in parts.values()
        for container in one["spec"]["containers"]
        for port in container["ports"]
    ]

    def unhealthy() -> int:
        events = cluster.kubectl.json("get", "events", "-n", SYSTEM, "--field-selector", "reason=Unhealthy")["items"]
        return sum(one.get("count") or 1 for one in events if one["involvedObject"]["name"] in parts)

    def restarts() -> list[int]:
        pods = [cluster.kubectl.object("pod", name, SYSTEM) for name in parts]
        return [one["restartCount"] for pod in pods for one in pod["status"]["containerStatuses"]]

    before = unhealthy(), restarts()
    # Longer than a period of the liveness probe, which is 10 s; readiness is probed every 2 s.
    said = cluster.kubectl.exec("silent", "python3", "-c", SILENT, "12", *servers, namespace=NAMESPACE)
    counts = json.loads(said)
    assert counts["answered"] == counts["sent"] > 0
    assert (unhealthy(), restarts()) == before
