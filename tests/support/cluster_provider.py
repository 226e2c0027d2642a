"""Where demo, end-to-end tests and benchmarks run: a cluster of our own rig, or one that the user has.

With REGISTRY and KUBECONFIG set it is the user's: its first two ready Linux nodes, images from that registry. Otherwise
it is ours: started, and removed with everything that it made when the block ends, whatever happened in it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from support.kubectl import Kubectl, NotReached, condition

if TYPE_CHECKING:
    from support.rig import Rig

GPU = "nvidia.com/gpu"
CLOSED = ("NoSchedule", "NoExecute")  # taints of control-plane nodes, say: the demo's pods tolerate none
AGENT, OPERATOR = "nodedevices-agent", "nodedevices-operator"


@dataclass(frozen=True)
class ClusterProvider:
    kubectl: Kubectl
    nodes: tuple[str, ...]
    images: Mapping[str, str]  # name in the manifests -> reference
    own_rig: Rig | None  # None: not our rig

    @property
    def pair(self) -> tuple[str, str]:
        """Its nodes, of which all but the demo need two."""
        first, second = self.nodes
        return first, second

    @property
    def image(self) -> str:
        """For pods that only need a shell and Python: the agent's, since every node has it."""
        return self.images[AGENT]


def is_users() -> bool:
    """Whether the environment names one. REGISTRY decides: many shells have a KUBECONFIG that is not meant here."""
    if not os.environ.get("REGISTRY"):
        return False
    if not os.environ.get("KUBECONFIG"):
        raise NotReached("REGISTRY is set and KUBECONFIG is not; a cluster of yours needs both, ours needs neither")
    return True


def of_user() -> ClusterProvider:
    """The cluster that KUBECONFIG names, with images from REGISTRY (TAG, or this version)."""
    kubectl = Kubectl(Path(os.environ["KUBECONFIG"]))
    nodes = usable_nodes(kubectl)
    registry, tag = os.environ["REGISTRY"].rstrip("/"), os.environ.get("TAG", "0.1.0")
    images = {name: f"{registry}/{name}:{tag}" for name in (AGENT, OPERATOR)}
    return ClusterProvider(kubectl, nodes, images, None)


def usable_nodes(kubectl: Kubectl, *, least: int = 2) -> tuple[str, ...]:
    """Two nodes of a user's cluster, or one where that is enough. NotReached: what is in the way."""
    if kubectl.get("crd", "nodedevices.nodedevices.io") is not None:
        raise NotReached(
            "NodeDevices is installed on this cluster, and what runs here takes everything of it away at its end; "
            "give a cluster without it (docs/operations.md says how to remove it)"
        )
    usable = []
    for node in kubectl.json("get", "nodes", "-l", "kubernetes.io/os=linux")["items"]:
        ready = condition(node, "Ready").get("status") == "True" and not node["spec"].get("unschedulable")
        closed = any(taint["effect"] in CLOSED for taint in node["spec"].get("taints", []))
        if ready and not closed and int(node["status"]["allocatable"].get(GPU, "0")) == 0:
            usable.append(node["metadata"]["name"])
    if len(usable) < least:
        raise NotReached(
            f"nodes that are ready, take any pod and offer no {GPU}: {least} needed; "
            f"this cluster has {len(usable)}: {usable}"
        )
    return tuple(usable[:2])


@contextmanager
def of_rig(name: str, *, keep: bool = False, quick: bool = False) -> Iterator[ClusterProvider]:
    """A cluster of the rig with two nodes, and our images on them; `keep` leaves it running.

    `quick`: the kubelets write their Nodes every second, and not every ten as they do by default. Nothing is hidden by
    it, rather the reverse, and the tests wait less.
    """
    from support import rig

    period = {"node_status": "1s"} if quick else {}
    with rig.running(name, keep=keep, **period) as own_rig:
        yield ClusterProvider(Kubectl(own_rig.kubeconfig, str(own_rig.kubectl)), ("n1", "n2"), own_rig.images, own_rig)
