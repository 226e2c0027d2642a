"""The chart on a real cluster, under pods that hold devices: installed, changed, rolled back, removed, installed again.

helm is what a person runs, with the chart of this tree. Only the devices are simulated, by the same settings as in the
overlay `demo`, whose installation the first release takes over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml
from support import audit, helm, installing
from support.cluster import GPU, HEALTHY, MEMORY, NAMESPACE, SYSTEM, Cluster
from support.cluster_provider import AGENT, OPERATOR, ClusterProvider
from support.holding import WHOLE, Holding
from support.kubectl import Watch
from support.rig_cluster import RigCluster

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    pytest.mark.skipif(helm.helm() is None, reason="no helm: `make cluster-tools` builds one"),
]

HELM_SECONDS = 280  # two nodes' agents, one after the other, on a busy machine
SIMULATED = {"name": "NODEDEVICES_SIMULATED", "value": "/var/lib/nodedevices/simulated.yaml"}
PLACE = {"path": "/var/lib/nodedevices", "type": "DirectoryOrCreate"}
CAPACITY = {"capacity": [{"name": MEMORY, "sumOf": "memoryMiB"}]}
# Everything that the operator may write to Nodes and pods.
EVERYTHING = {
    **CAPACITY,
    "faults": {"podCondition": "OnFault", "xidNodeCondition": True},
}
OF_RELEASE = {
    "apiVersion": "nodedevices.io/v1alpha1",
    "kind": "DevicePolicy",
    "metadata": {"name": "of-{{ .Release.Name }}"},
    "spec": {"nodeSelector": {}, **CAPACITY},
}


def values(images: Mapping[str, str], *, level: str, policies: list[Any]) -> dict[str, Any]:
    def image(name: str) -> dict[str, str]:
        repository, _, tag = images[name].rpartition(":")
        return {"repository": repository, "tag": tag}

    return {
        "agent": {
            "image": image(AGENT),
            "flags": {"log-level": level},
            "minReadySeconds": 0,
            "env": [{"name": "NODEDEVICES_PROBE", "value": "simulated"}, SIMULATED],
            "volumes": [{"name": "simulated", "hostPath": PLACE}],
            "probe": {
                "env": [SIMULATED],
                "volumeMounts": [{"name": "simulated", "mountPath": PLACE["path"], "readOnly": True}],
            },
        },
        "operator": {"image": image(OPERATOR), "flags": {"log-level": level}},
        "check": {"postInstall": True},
        "extraObjects": policies,
    }


class Release:
    """`helm COMMAND nodedevices ...` in the namespace of the system; each returns what it printed."""

    def __init__(self, cluster: Cluster, images: Mapping[str, str]) -> None:
        self._kubectl = cluster.kubectl
        self._images = images

    def install(self, *flags: str) -> str:
        return self._set("install", *flags, level="info", policies=[])

    def upgrade(self) -> str:
        return self._set("upgrade", level="debug", policies=[OF_RELEASE])

    def rollback(self) -> str:
        return self._helm("rollback", "1", "--wait")

    def uninstall(self, *flags: str) -> str:
        return self._helm("uninstall", *flags)

    def _set(self, command: str, *flags: str, level: str, policies: list[Any]) -> str:
        text = yaml.safe_dump(values(self._images, level=level, policies=policies))
        return self._helm(command, str(helm.CHART), "--values", "-", "--wait", *flags, given=text)

    def _helm(self, command: str, *arguments: str, given: str = "") -> str:
        done = helm.run(
            *(command, "nodedevices", *arguments, "--namespace", SYSTEM, f"--timeout={HELM_SECONDS}s"),
            given=given,
            kubeconfig=self._kubectl.kubeconfig,
            seconds=HELM_SECONDS + 10,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture
def release(rig: RigCluster, provider: ClusterProvider) -> Iterator[Release]:
    """What the other tests of this cluster need is installed again in the end."""
    made = Release(rig, provider.images)
    yield made
    made.uninstall("--no-hooks", "--ignore-not-found")
    rig.kubectl.delete("pod", "nodedevices-check", namespace=SYSTEM)  # helm leaves what its hooks made
    installing.install(rig.kubectl, provider.images)


def levels(cluster: Cluster) -> set[str]:
    """The log levels of all agents and operators that run."""
    pods = [*(cluster.agent(node) for node in (cluster.a, cluster.b)), *cluster.operator_pods()]
    given = {one for pod in pods for container in pod["spec"]["containers"] for one in container.get("args", ())}
    return {one.partition("=")[2] for one in given if one.startswith("--log-level=")}


SHARES = "nodedevices.io/gpu-memory"  # of another test: a kubelet keeps it for five minutes


def ours_on_nodes(cluster: Cluster) -> set[str]:
    """Keys that only our operator writes; a capacity of 0 may be the kubelet's, of another test."""
    found: set[str] = set()
    for name in (cluster.a, cluster.b):
        node = cluster.node(name)
        found |= {one["type"] for one in node["status"]["conditions"]}
        found |= {key for key, amount in node["status"]["capacity"].items() if amount != "0"}
    return {one for one in found - {SHARES} if one.startswith("nodedevices.io/") or one == "XidCriticalError"}


def parts(cluster: Cluster) -> list[str]:
    """Pods of the system, and what the clean-up ran by; but for the check's pod, which helm leaves behind."""
    named = cluster.kubectl.run("get", "pods,jobs,serviceaccounts", "-n", SYSTEM, "-o", "name").split()
    return [one for one in named if "nodedevices" in one and one != "pod/nodedevices-check"]


def test_a_release_comes_changes_goes_back_and_goes_under_pods_that_hold_devices(
    rig: RigCluster, release: Release
) -> None:
    holding = Holding(rig)
    with Watch(rig.kubectl, ("nodes",)) as nodes:
        said = release.install("--take-ownership", "--force-conflicts")
        assert "2 nodes with 12 devices, 12 healthy: nothing is broken." in said
        holding.unchanged()

        release.upgrade()
        assert levels(rig) == {"debug"}
        rig.until("the release's policy is in effect", lambda: MEMORY in ours_on_nodes(rig))
        holding.unchanged()

        release.rollback()
        assert levels(rig) == {"info"}
        rig.until("its policy is gone", lambda: MEMORY not in ours_on_nodes(rig))
        holding.unchanged()
    capacity = {(one["metadata"]["name"], one["status"]["capacity"].get(GPU)) for _, one in nodes.seen}
    assert capacity == {(rig.a, "8"), (rig.b, "8")}, "the kubelet keeps it while an agent is replaced"

    rig.policy("everything", EVERYTHING)
    holding.fault(off_the_bus=True)
    boot = rig.node(rig.a)["status"]["nodeInfo"]["bootID"]
    xids = rig.until("the Node names the XID", lambda: rig.condition("node", rig.a, "XidCriticalError"))
    assert (xids["status"], xids["reason"], xids["message"]) == ("True", '{"79":true}', boot)
    rig.until("the capacity is there", lambda: MEMORY in ours_on_nodes(rig))
    begin = audit.end(rig.rig.audit_log)
    release.uninstall()
    cleanup = [one for one in audit.requests(rig.rig.audit_log, after=begin) if "cleanup" in one.account]
    assert cleanup
    assert [one.text for one in cleanup if one.refused] == []
    assert ours_on_nodes(rig) == set()
    assert {rig.condition("nodedevices", name, "Ready")["reason"] for name in (rig.a, rig.b)} == {"AgentStopped"}
    assert rig.condition("pod", WHOLE, HEALTHY, NAMESPACE) == {}
    rig.until("no part is left", lambda: parts(rig) == [])
    assert {one["metadata"]["name"] for one in rig.kubectl.items("devicepolicies")} >= {"slices", "everything"}
    assert rig.devices(rig.a).keys() >= holding.held[WHOLE], "the CRDs are kept, with what is in them"
    holding.pods_hold()

    said = release.install()
    assert "2 nodes with 12 devices, 11 healthy: nothing is broken." in said
    rig.marked(WHOLE, "False")
    holding.withdrawn()
    rig.until("the policies are in effect", lambda: MEMORY in ours_on_nodes(rig))
    holding.cure(off_the_bus=True)
    rig.pod("next", rig.a, {GPU: 6})
    assert rig.visible("next") == holding.ids[rig.a] - holding.held[WHOLE]
