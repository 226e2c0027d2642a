"""A driver's root on node b of the rig, with NVIDIA's device nodes, which have the numbers of /dev/null."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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
    nodes = " ".join(f"{ROOT}/dev/{name}" for name in NODES)
    make = f"mkdir -p {ROOT}/dev && for node in {nodes}; do [ -e $node ] || mknod -m 666 $node c 1 3; done"
    installed.rig.node_exec(installed.b, ["sh", "-c", make])
    place = {"name": "driver-root", "hostPath": {"path": ROOT}}
    every = {"NVIDIA_DEV_ROOT": ROOT, "NODEDEVICES_CDI_WITHOUT_LIBRARIES": "true", **settings}
    roots = container_patch("nodedevices-agent", "agent", *every.items(), volumes=[place])
    with installed_with(installed, *components, "driver-root", patches=[roots]):
        yield
