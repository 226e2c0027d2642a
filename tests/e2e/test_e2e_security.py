"""What the parts may do in the cluster, and that they leave without a trace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import installing, simulated
from support.kubectl import Kubectl, KubectlError
from support.world import GPU, HEALTHY, MEMORY, NAMESPACE, SYSTEM, World

pytestmark = [pytest.mark.e2e, pytest.mark.any_cluster, pytest.mark.timeout(180, method="signal")]

TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"


def as_agent(world: World, node: str, folder: Path) -> Kubectl:
    """kubectl with the very token that the agent on a node has."""
    token = world.kubectl.exec(world.agent(node)["metadata"]["name"], "cat", TOKEN, namespace=SYSTEM)
    config = json.loads(world.kubectl.run("config", "view", "--raw", "--minify", "--flatten", "-o", "json"))
    config["users"] = [{"name": one["name"], "user": {"token": token}} for one in config["users"]]
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config))
    return Kubectl(path, world.kubectl.binary)


def test_an_agent_may_write_its_own_nodes_object_and_no_other(world: World, tmp_path: Path) -> None:
    agent = as_agent(world, world.a, tmp_path)

    def write(node: str, subresource: str) -> None:
        body = {"apiVersion": "nodedevices.io/v1alpha1", "kind": "NodeDevices", "metadata": {"name": node}}
        apply = ("apply", "--server-side", "--field-manager=e2e", "--validate=false", "-f", "-")
        agent.run(*apply, *([f"--subresource={subresource}"] if subresource else []), stdin=json.dumps(body))

    for subresource in ("", "status"):
        write(world.a, subresource)
        with pytest.raises(KubectlError, match=f"node {world.a} may not write nodedevices {world.b}"):
            write(world.b, subresource)


def test_an_agent_can_neither_invent_a_node_nor_give_its_object_another_owner(world: World, tmp_path: Path) -> None:
    agent = as_agent(world, world.a, tmp_path)
    invented = {
        "apiVersion": "nodedevices.io/v1alpha1",
        "kind": "NodeDevices",
        "metadata": {"name": "no-such-node"},
        "spec": {},
    }
    with pytest.raises(KubectlError, match="may not write nodedevices no-such-node"):
        agent.run("create", "-f", "-", stdin=json.dumps(invented))
    owner = {"apiVersion": "v1", "kind": "Node", "name": world.b, "uid": world.node(world.b)["metadata"]["uid"]}
    patch = json.dumps({"metadata": {"ownerReferences": [owner]}})
    with pytest.raises(KubectlError, match="only owner allowed"):
        agent.run("patch", "nodedevices", world.a, "--type=merge", "-p", patch)


def test_an_agent_sees_no_pod_no_secret_and_no_node(world: World, tmp_path: Path) -> None:
    agent = as_agent(world, world.a, tmp_path)
    for kind in ("pods", "secrets", "nodes", "events"):
        with pytest.raises(KubectlError, match="forbidden"):
            agent.run("get", kind, "-n", SYSTEM)


def test_cleanup_leaves_no_key_of_ours_on_nodes_and_pods(world: World) -> None:
    world.policy(
        "everything",
        {
            "capacity": [{"name": MEMORY, "sumOf": "memoryMiB", "scope": "healthy"}],
            "faults": {"podCondition": "OnFault", "event": True, "nodeCondition": True},
        },
    )
    world.pod("marked", world.a, {GPU: 1})
    [bad] = world.held(world.a, "marked")
    world.hardware(world.a, simulated.h100s(xid79=world.devices(world.a)[bad]["index"]))
    world.marked("marked", "False")
    world.until("the capacity is there", lambda: world.node_count(world.a, MEMORY, "capacity"))
    try:
        said = installing.cleanup(world.kubectl)
        for name in (world.a, world.b):
            node = world.node(name)
            conditions = [one["type"] for one in node["status"]["conditions"]]
            assert not [one for one in conditions if one.startswith("nodedevices.io/")], said
            assert MEMORY not in node["status"]["capacity"], said
        assert world.condition("pod", "marked", HEALTHY, NAMESPACE) == {}, said
    finally:
        world.operators(1)
    world.marked("marked", "False")
