"""What arrives in a real container: environment, mounts and device nodes, by each way of injection.

The nodes are made by the test, with the numbers of /dev/null, in a folder that is the node's dev root.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.cluster import GPU, NAMESPACE, Cluster
from support.driver_root import CONTROL, installed_with_root
from support.overlay import write
from support.rig_cluster import RigCluster

pytestmark = [pytest.mark.e2e, pytest.mark.long]

DRIVER = "/var/lib/nodedevices/driver"  # as an installer on Google's nodes makes it
# Every NVIDIA node in /dev with its numbers, and whether it can be written to: the cgroup lets it.
LOOK = """
import json, os, stat
found = {}
for name in sorted(os.listdir("/dev")):
    if name.startswith("nvidia"):
        about = os.stat(f"/dev/{name}")
        with open(f"/dev/{name}", "w") as file:
            file.write("x")
        found[name] = [stat.S_ISCHR(about.st_mode), os.major(about.st_rdev), os.minor(about.st_rdev)]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def with_cdi(installed: Cluster) -> Iterator[None]:
    with installed_with_root(installed, "cdi", NODEDEVICES_DRIVER_DIRECTORY=DRIVER):
        yield


def inject(cluster: Cluster, **section: Any) -> None:
    cluster.policy("inject", {"injection": section}, selector={"kubernetes.io/hostname": cluster.b})

    def applied() -> bool:
        object_ = cluster.nodedevices(cluster.b)
        spec, status = object_["spec"], object_["status"]
        resolved: dict[str, Any] = spec["config"].get("injection", {})
        return section.items() <= resolved.items() and bool(status["appliedConfigHash"] == spec["configHash"])

    cluster.until("the node's agent has applied it", applied)


def client(cluster: Cluster) -> tuple[str, str]:
    """A pod with one GPU: the GPU's id, and the name of its device node."""
    cluster.pod("client", cluster.b, {GPU: 1})
    (gpu,) = cluster.held(cluster.b, "client")
    return gpu, f"nvidia{cluster.devices(cluster.b)[gpu]['attributes']['minor']}"


def nodes(cluster: Cluster) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = json.loads(cluster.kubectl.exec("client", "python3", "-c", LOOK, namespace=NAMESPACE))
    return found


@pytest.mark.parametrize("strategy", ["cdi-cri", "cdi-annotations"])
def test_by_cdi_a_container_has_its_gpus_nodes_and_no_others(with_cdi: None, rig: RigCluster, strategy: str) -> None:
    inject(rig, deviceListStrategies=[strategy])
    _, own = client(rig)
    assert nodes(rig) == {name: [True, 1, 3] for name in sorted((*CONTROL, own))}
    assert rig.environment("client")["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_by_the_drivers_directory_a_container_reads_it_and_has_its_gpus_nodes_and_no_variable(
    with_cdi: None, rig: RigCluster
) -> None:
    """Google's way. The folder is there to read: no program in the container can change the node's driver."""
    write(rig, rig.b, f"{DRIVER}/lib64/libcuda.so.1", "the driver's library")
    write(rig, rig.b, f"{DRIVER}/vulkan/icd.d/nvidia_icd.json", "{}")
    inject(rig, deviceListStrategies=["driver-directory"])
    _, own = client(rig)
    assert nodes(rig) == {name: [True, 1, 3] for name in sorted((*CONTROL, own))}
    assert not [name for name in rig.environment("client") if name.startswith("NVIDIA_")]
    library = ["cat", "/usr/local/nvidia/lib64/libcuda.so.1", "/etc/vulkan/icd.d/nvidia_icd.json"]
    assert rig.kubectl.exec("client", *library, namespace=NAMESPACE) == "the driver's library{}"
    overwrite = ["sh", "-c", "echo x > /usr/local/nvidia/lib64/libcuda.so.1 || echo refused"]
    assert rig.kubectl.exec("client", *overwrite, namespace=NAMESPACE).strip() == "refused"
