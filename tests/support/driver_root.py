"""A driver's root on node b of the rig, with NVIDIA's device nodes, which have the numbers of /dev/null."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.cluster import Cluster
from support.overlay import container_patch, installed_with
from support.rig_cluster import RigCluster

ROOT = "/var/lib/nodedevices/root"
CONTROL = ("nvidiactl", "nvidia-uvm")
NODES = (*CONTROL, *(f"nvidia{index}" for index in range(4)))


@contextmanager
def installed_with_root(installed: Cluster, *components: str, **settings: str) -> Iterator[None]:
    """Have the component driver-root and these, and the agent with these variables."""
    if not isinstance(installed, RigCluster):
        pytest.skip("makes device nodes on the nodes: only on our own rig")
    make_nodes(installed, installed.b, NODES)
    with installed_with(installed, *components, "driver-root", patches=[agent_patch(**settings)]):
        yield


def make_nodes(rig: RigCluster, node: str, names: Iterable[str]) -> None:
    made = " ".join(f"{ROOT}/dev/{name}" for name in names)
    folders = f"mkdir -p {ROOT}/dev/nvidia-caps"
    rig.shell(node, f"{folders} && for node in {made}; do [ -e $node ] || mknod -m 666 $node c 1 3; done")


def agent_patch(**settings: str) -> dict[str, Any]:
    """What has the agent read that root, beside the component driver-root."""
    place = {"name": "driver-root", "hostPath": {"path": ROOT}}
    every = {"NVIDIA_DEV_ROOT": ROOT, "NODEDEVICES_CDI_WITHOUT_LIBRARIES": "true", **settings}
    return container_patch("nodedevices-agent", "agent", *every.items(), volumes=[place])
