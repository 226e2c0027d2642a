"""A cluster that a person has on the desk: of kind, k3d or minikube.

Stand-in GPUs must never get into a cluster that people work on, so a cluster is taken only when all of this holds:
its context has the name that one of these tools gives; its nodes bear that tool's own mark; no node offers a GPU;
NodeDevices is not installed. All of it is asked before anything is built or written, and everything after it goes to
that very context, whatever the current one is by then.

Images are built by docker, podman or buildah and brought to the nodes as archives: without a registry, and without
root.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.rig import images
from cluster.rig.problem import Progress, RigError
from support.cluster_provider import ClusterProvider, usable_nodes
from support.kubectl import Kubectl, KubectlError, NotReached

OLDEST_MINOR = 32
USUAL = {"kind": "kind-kind", "k3d": "k3d-k3s-default", "minikube": "minikube"}  # context of the tool's default cluster
GPUS = re.compile(r"gpu|(nvidia|amd)\.com/")  # in names of resources

Json = dict[str, Any]


@dataclass(frozen=True)
class Desk:
    tool: str
    name: str  # of the cluster, as the tool has it
    context: str

    def loading(self, archive: Path) -> list[str]:
        """The command that brings an archive of an image to every node."""
        match self.tool:
            case "kind":
                return ["kind", "load", "image-archive", str(archive), "--name", self.name]
            case "k3d":
                return ["k3d", "image", "import", str(archive), "--cluster", self.name]
            case _:
                return ["minikube", "image", "load", str(archive), "--profile", self.name]

    def foreign(self, nodes: Sequence[Json]) -> list[str]:
        """The names of nodes that are not this tool's.

        A kubelet has its providerID from kind and k3s. Of minikube's nodes only the first has a label, the others have
        names (minikube 16415)."""
        labels = [node["metadata"].get("labels", {}).get("minikube.k8s.io/name") for node in nodes]

        def ours(node: Json) -> bool:
            name: str = node["metadata"]["name"]
            provider: str = node["spec"].get("providerID", "")
            match self.tool:
                case "kind":
                    return bool(re.fullmatch(rf"kind://[^/]+/{re.escape(self.name)}/{re.escape(name)}", provider))
                case "k3d":
                    return name.startswith("k3d-") and provider == f"k3s://{name}"
                case _:
                    return self.name in labels and bool(re.fullmatch(rf"{re.escape(self.name)}(-m\d+)?", name))

        return [node["metadata"]["name"] for node in nodes if not ours(node)]


def named(text: str) -> Desk:
    """The cluster that CLUSTER= means: a tool's default one, or a context by a name that such a tool gives."""
    context = USUAL.get(text, text)
    for tool in ("kind", "k3d"):
        if context.startswith(f"{tool}-") and context != f"{tool}-":
            return Desk(tool, context.removeprefix(f"{tool}-"), context)
    if context == "minikube":
        return Desk("minikube", "minikube", context)
    raise NotReached(
        f"CLUSTER={text or '(empty)'} is no cluster of kind, k3d or minikube: give kind, kind-NAME, k3d, k3d-NAME or "
        "minikube. Simulated GPUs go nowhere else; for another cluster of yours without GPUs: "
        "KUBECONFIG=... REGISTRY=... make demo"
    )


def checked(desk: Desk, folder: Path, program: str = "kubectl") -> Kubectl:
    """kubectl on that cluster alone, by a kubeconfig in `folder`. NotReached: the reason why it must not be used."""
    for needed in (program, desk.tool):
        if shutil.which(needed) is None:
            raise NotReached(f"{needed} is not on the PATH; it is needed for the cluster {desk.context}")
    kubectl = pinned(desk, folder, program)
    nodes = kubectl.json("get", "nodes")["items"]
    if not nodes or desk.foreign(nodes):
        raise NotReached(
            f"the context {desk.context} is called as {desk.tool} would call it, but these nodes are not of "
            f"{desk.tool}'s cluster {desk.name}: {', '.join(desk.foreign(nodes)) or 'there is none'}. Nothing was done"
        )
    if offered := gpus(nodes):
        raise NotReached(
            f"there are GPUs on the cluster {desk.context}: {offered}. Simulated ones are not put beside them"
        )
    minor = int(re.sub(r"\D", "", kubectl.json("version")["serverVersion"]["minor"]))
    if minor < OLDEST_MINOR:
        raise NotReached(f"the cluster {desk.context} has Kubernetes 1.{minor}; 1.{OLDEST_MINOR} or later is needed")
    return kubectl


def pinned(desk: Desk, folder: Path, program: str) -> Kubectl:
    """kubectl with a kubeconfig that has this context and no other."""
    command = [program, "config", "view", "--raw", "--minify", "--flatten", f"--context={desk.context}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        create = {"kind": "kind create cluster", "k3d": "k3d cluster create", "minikube": "minikube start"}[desk.tool]
        raise NotReached(f"there is no context {desk.context} in your kubeconfig ({done.stderr.strip()}): {create}?")
    kubeconfig = folder / "kubeconfig"
    kubeconfig.touch(mode=0o600)
    kubeconfig.write_text(done.stdout)
    return Kubectl(kubeconfig, program)


def gpus(nodes: Sequence[Json]) -> str:
    """Which nodes offer which, in words; empty where none does."""
    offered = [
        f"{node['metadata']['name']} has {count} {name}"
        for node in nodes
        for name, count in node["status"].get("allocatable", {}).items()
        if GPUS.search(name) and count != "0"
    ]
    return ", ".join(offered)


def provider(text: str, folder: Path, say: Callable[[str], None]) -> ClusterProvider:
    """The cluster that CLUSTER= means, with our images on its nodes. `folder` is for its kubeconfig."""
    desk = named(text)
    kubectl = checked(desk, folder)
    nodes = usable_nodes(kubectl, least=1)
    references = load(desk, say)
    return ClusterProvider(kubectl, nodes, references, None)


def load(desk: Desk, say: Callable[[str], None]) -> Mapping[str, str]:
    """Build our images and bring them to the nodes; name in the manifests -> reference."""
    with tempfile.TemporaryDirectory() as name:
        try:
            archives = images.saved(Path(name), Progress())
        except RigError as error:
            raise NotReached(str(error)) from error
        for archive in archives:
            command = desk.loading(archive)
            say(f"$ {' '.join(command)}")
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
            if done.returncode:
                raise KubectlError(command, done.returncode, done.stderr + done.stdout)
            archive.unlink()
    return images.references()
