"""The installation with something else in it for a while: components of ours, and patches as a user's overlay has them.

Applied like any installation, by `kubectl apply -k`; afterwards the plain one is applied again, and what only the
variation had is deleted.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from support import installing
from support.cluster import SYSTEM, Cluster
from support.rig_cluster import RigCluster

MPS = "daemonset/nodedevices-mps"
# The images' own, with a folder of programs on each node before it.
PATH = "/app/packages/bin:/app/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
AGENTS = "nodedevices-agent"
AT_ONCE = {
    "apiVersion": "apps/v1",
    "kind": "DaemonSet",
    "metadata": {"name": AGENTS, "namespace": SYSTEM},
    "spec": {"minReadySeconds": 0, "updateStrategy": {"rollingUpdate": {"maxUnavailable": "100%"}}},
}
# The demo mounts the folder where its probe is; what a test runs in the agent's container reads it there.
SIMULATED_MOUNT = {"name": "simulated", "mountPath": "/var/lib/nodedevices", "readOnly": True}
_WRITE = """
import pathlib, sys
path = pathlib.Path(sys.argv[1])
path.parent.mkdir(parents=True, exist_ok=True)
path.write_text(sys.argv[2])
path.chmod(int(sys.argv[3], 8))
"""


@contextmanager
def installed_with(
    cluster: Cluster, *components: str, patches: Sequence[Mapping[str, Any]] = (), other: Sequence[str] = ()
) -> Iterator[None]:
    """`patches`: strategic merge patches. `other`: workloads besides ours to wait for, and to delete afterwards.

    Both agents are replaced at once. That a roll-out goes from node to node is test_e2e_restarts.py's to show.
    """
    plain = cluster.kubectl.object("daemonset", AGENTS, SYSTEM)["spec"]
    apply(cluster, components, (AT_ONCE, *patches))
    try:
        for what in (installing.AGENT, *other):
            _ready(cluster, what)
        yield
    finally:
        for what in other:
            cluster.kubectl.run("delete", "-n", SYSTEM, what, "--wait=true", seconds=240)
        apply(cluster, (), (AT_ONCE,))
        for what in (installing.AGENT, installing.OPERATOR):
            installing.rolled_out(cluster.kubectl, what)
        as_before = {"spec": {field: plain.get(field) for field in ("minReadySeconds", "updateStrategy")}}
        cluster.kubectl.patch("daemonset", AGENTS, as_before, namespace=SYSTEM)


def apply(cluster: Cluster, components: Sequence[str], patches: Sequence[Mapping[str, Any]]) -> None:
    assert cluster.own_rig is not None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        manifests = os.path.relpath(installing.ROOT / "manifests", folder.resolve())
        more = {
            "components": [f"{manifests}/components/{each}" for each in components],
            "patches": [{"patch": yaml.safe_dump(dict(each))} for each in patches],
        }
        text = installing.kustomization(folder, cluster.own_rig.images, "demo") + yaml.safe_dump(more)
        (folder / "kustomization.yaml").write_text(text)
        cluster.kubectl.run("apply", "-k", name)


def _ready(cluster: Cluster, what: str) -> None:
    kind, _, name = what.partition("/")
    spec = (cluster.kubectl.get(kind, name, SYSTEM) or {})["spec"]
    if spec["updateStrategy"]["type"] == "RollingUpdate":
        installing.rolled_out(cluster.kubectl, what)
        return

    def ready() -> bool:
        status = (cluster.kubectl.get(kind, name, SYSTEM) or {})["status"]
        return bool(status["numberReady"] == status["desiredNumberScheduled"] > 0)

    cluster.until(f"{what} is ready", ready, seconds=installing.ROLL_OUT_SECONDS)


def agent_patch(*env: tuple[str, str]) -> dict[str, Any]:
    return container_patch(AGENTS, "agent", *env)


def container_patch(daemon_set: str, container: str, *env: tuple[str, str], **more: Any) -> dict[str, Any]:
    """Variables of a container, and further fields of the pod."""
    variables = [{"name": name, "value": value} for name, value in env]
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": daemon_set, "namespace": SYSTEM},
        "spec": {"template": {"spec": {"containers": [{"name": container, "env": variables}], **more}}},
    }


def write(rig: RigCluster, node: str, path: str, text: str, mode: str = "644") -> None:
    """A file on a node."""
    rig.rig.node_exec(node, [sys.executable, "-c", _WRITE, path, text, mode])
