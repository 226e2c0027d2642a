"""MPS on a real kubelet in real containers: nodedevices-mps as users install it, NVIDIA's two binaries stood in for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support import memory_shares, mps
from support.cluster import GPU, HEALTHY, NAMESPACE, SYSTEM, Cluster
from support.memory_shares import MEMORY, by_memory, offered
from support.overlay import MPS, PATH, SIMULATED_MOUNT, agent_patch, container_patch, installed_with, write
from support.rig_cluster import RigCluster

pytestmark = [pytest.mark.e2e, pytest.mark.long]

PROGRAMS = "/var/lib/nodedevices/bin"
PIPE = "/mps/nvidia.com/gpu/pipe"
LOG = "/mps/nvidia.com/gpu/log/commands"
LIMITER = "/var/lib/nodedevices/limiter"
L4_MIB = 23034


@pytest.fixture(scope="module")
def with_mps(installed: Cluster) -> Iterator[None]:
    """The component mps; programs that a node's folder has come before those of the images. Nothing is in it yet."""
    if not isinstance(installed, RigCluster):
        pytest.skip("puts programs on the nodes: only on our own rig")
    path = ("PATH", f"{PROGRAMS}:{PATH}")
    place = {"name": "simulated", "hostPath": {"path": "/var/lib/nodedevices", "type": "DirectoryOrCreate"}}
    runner = container_patch("nodedevices-mps", "mps", path, volumes=[place])
    container = runner["spec"]["template"]["spec"]["containers"][0]
    container["volumeMounts"] = [{"name": "simulated", "mountPath": "/var/lib/nodedevices"}]
    agent = agent_patch(path, ("CONTAINER_MOUNT_DIR", LIMITER))
    # NVIDIA's client, by which the agent asks the daemons.
    agent["spec"]["template"]["spec"]["containers"][0]["volumeMounts"] = [SIMULATED_MOUNT]
    with installed_with(installed, "mps", patches=[agent, runner], other=[MPS]):
        yield


def mps_pod(cluster: Cluster) -> str:
    label = "app.kubernetes.io/component=mps"
    items = cluster.kubectl.items("pods", SYSTEM, labels=label, fields=f"spec.nodeName={cluster.b}")
    return str(next(one["metadata"]["name"] for one in items if "deletionTimestamp" not in one["metadata"]))


def in_runner(cluster: Cluster, *argv: str) -> str:
    return cluster.kubectl.exec(mps_pod(cluster), *argv, namespace=SYSTEM)


def put_programs(rig: RigCluster) -> None:
    for name, text in (("nvidia-cuda-mps-control", mps.CONTROL), ("nvidia-smi", mps.SMI)):
        write(rig, rig.b, f"{PROGRAMS}/{name}", text, "755")


def test_a_container_shares_its_gpu_by_mps_as_soon_as_the_daemon_answers(with_mps: None, rig: RigCluster) -> None:
    rule = {"name": GPU, "replicas": 4}
    rig.policy("mps", {"sharing": {"strategy": "mps", "resources": [rule]}}, selector={"kubernetes.io/hostname": rig.b})
    reported = rig.until(
        "the node says what is missing",
        lambda: (
            (c := rig.condition("nodedevices", rig.b, "ConfigApplied"))
            and "nvidia-cuda-mps-control not found" in c["message"]
            and c
        ),
    )
    assert (reported["status"], reported["reason"]) == ("False", "ConfigInvalid")
    rig.until("the last good configuration stays", lambda: len(rig.ids(rig.b)) == 4)

    put_programs(rig)
    rig.until("the kubelet has 16 shares", lambda: len(rig.ids(rig.b)) == 16)
    rig.until("the Node has 16", lambda: rig.node_count(rig.b, GPU) == 16)
    assert in_runner(rig, "cat", LOG).splitlines() == [
        "-d",
        "set_default_active_thread_percentage 25",
        *(f"set_default_device_pinned_mem_limit {index} {L4_MIB // 4}M" for index in range(4)),
    ]

    rig.pod("client", rig.b, {GPU: 1})

    def inside(*argv: str) -> str:
        return rig.kubectl.exec("client", *argv, namespace=NAMESPACE)

    assert rig.environment("client")["CUDA_MPS_PIPE_DIRECTORY"] == PIPE
    assert rig.visible("client") <= set(rig.devices(rig.b)), "a container sees a device, not a share"
    assert inside("cat", f"{PIPE}/percentage").strip() == "25.0", "the daemon's own pipe folder"
    memory = next(line for line in inside("cat", "/proc/mounts").splitlines() if line.split()[1] == "/dev/shm")
    assert memory.split()[2] == "tmpfs"
    inside("touch", "/dev/shm/client-was-here")
    assert in_runner(rig, "ls", "/dev/shm").split() == ["client-was-here"]

    rig.kubectl.delete("pod", mps_pod(rig), namespace=SYSTEM)  # and with it the daemon, and every client's contexts
    rig.until(
        "the client's condition says that a new daemon answers",
        lambda: rig.condition("pod", "client", HEALTHY, NAMESPACE).get("reason") == "MpsDaemonRestarted",
    )
    assert rig.marked("client", "False")["message"].endswith("Recovery: RestartApp.")
    assert [one["reason"] for one in rig.events("client")][-1] == "DeviceFault"
    assert in_runner(rig, "cat", LOG).splitlines().count("-d") == 2
    rig.until("the shares are back", lambda: len(rig.ids(rig.b)) == 16)
    rig.pod("next", rig.b, {GPU: 1})

    def reasons() -> dict[str, str]:
        held = [one for each in rig.devices(rig.b).values() for one in each.get("holders", ())]
        return {one["pod"]: one.get("health", {}).get("reason", "") for one in held}

    rig.until("a new client is well", lambda: reasons() == {"client": "MpsDaemonRestarted", "next": ""})
    assert rig.condition("pod", "next", HEALTHY, NAMESPACE) == {}

    rig.kubectl.delete("pod", "client", "next", namespace=NAMESPACE)
    rig.drop_policy("mps")
    rig.until("the GPUs are whole again", lambda: len(rig.ids(rig.b)) == 4)
    rig.until("the daemon has ended", lambda: in_runner(rig, "cat", LOG).splitlines()[-1:] == ["quit"])

    def modes() -> set[str]:
        return {line.split()[-1] for line in in_runner(rig, "cat", f"{PROGRAMS}/nvidia-smi.log").splitlines()[-4:]}

    rig.until("the GPUs have their compute mode back", lambda: modes() == {"DEFAULT"})


def test_a_container_with_shares_of_memory_has_limits_of_its_own_and_what_its_policy_gives(
    with_mps: None, rig: RigCluster
) -> None:
    put_programs(rig)
    write(rig, rig.b, f"{LIMITER}/limiter.conf", "of the node\n")
    env = [
        {"name": "XLA_PYTHON_CLIENT_MEM_FRACTION", "value": "$(MEMORY_FRACTION)"},
        {"name": "WHO", "value": "policy"},
    ]
    mounts = [{"hostPath": f"{LIMITER}/limiter.conf", "containerPath": "/etc/limiter.conf"}]
    by_memory(rig, enforcement="mps", container={"env": env, "mounts": mounts})
    offered(rig, 4 * (L4_MIB // 1024))
    own = [{"name": "WHO", "value": "pod"}]
    memory_shares.pod(rig, "limited", [memory_shares.container(rig, "main", 8, env=own)])
    rig.running("limited")

    def inside(*argv: str) -> str:
        return rig.kubectl.exec("limited", *argv, namespace=NAMESPACE).strip()

    variables = rig.environment("limited")
    assert variables["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=8192M"
    assert variables["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "36"
    assert inside("cat", f"/mps/{MEMORY}/pipe/percentage") == "100.0", "its daemon's own pipe folder"
    assert variables["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.3556"
    assert variables["WHO"] == "pod", "a pod's own variables go before"
    assert inside("cat", "/etc/limiter.conf") == "of the node"
    mounted = next(
        line for line in inside("cat", "/proc/mounts").splitlines() if line.split()[1] == "/etc/limiter.conf"
    )
    assert "ro" in mounted.split()[3].split(",")

    rig.kubectl.delete("pod", "limited", namespace=NAMESPACE)
    rig.drop_policy("memory")
    rig.until("the GPUs are whole again", lambda: len(rig.ids(rig.b)) == 4)
