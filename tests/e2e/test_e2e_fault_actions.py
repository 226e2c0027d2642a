"""A device fails, and by policy its pod is marked, evicted and made again elsewhere; within budgets, not against a
PodDisruptionBudget, and not while many nodes fail at once. With the real kubelets, scheduler and controllers."""

from __future__ import annotations

from typing import Any

import pytest
from nodedevices_common.confirming import CONFIRM
from support import simulated
from support.cluster import GPU, HEALTHY, NAMESPACE, SYSTEM, Cluster
from support.fleet import stamp

pytestmark = [pytest.mark.e2e, pytest.mark.any_cluster]

KEY = "nodedevices.io/device-fault"
RECORD = "nodedevices-actions"
EVICT = {"evictMode": "AfterGrace", "evictGraceSeconds": 1}
LABELS = {"app": "web"}
RULE = {"action": "Ignore", "onPodConditions": [{"type": HEALTHY, "status": "False"}]}


def template(cluster: Cluster, **more: Any) -> dict[str, Any]:
    """A pod with a GPU that would rather run on node `a`."""
    spec = cluster.pod_spec(cluster.a, {GPU: 1})
    del spec["nodeSelector"]
    place = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [cluster.a]}]}
    prefer = [{"weight": 100, "preference": place}]
    spec["terminationGracePeriodSeconds"] = 1  # so that its kubelet says how it ended
    spec["affinity"] = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": prefer}}
    return {"metadata": {"labels": LABELS}, "spec": spec | more}


def deployment(cluster: Cluster, **more: Any) -> str:
    """One replica; returns the name of its pod, which is ready on node `a`."""
    spec = {"replicas": 1, "selector": {"matchLabels": LABELS}, "template": template(cluster, **more)}
    metadata = {"name": "web", "namespace": NAMESPACE}
    cluster.kubectl.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec})
    return ready(cluster, cluster.a)


def on(cluster: Cluster, node: str) -> list[dict[str, Any]]:
    pods = [one for one in cluster.pods() if one["spec"].get("nodeName") == node]
    return [one for one in pods if "deletionTimestamp" not in one["metadata"]]


def ready(cluster: Cluster, node: str) -> str:
    def look() -> str:
        for one in on(cluster, node):
            conditions = {each["type"]: each["status"] for each in one["status"].get("conditions", [])}
            if conditions.get("Ready") == "True":
                return str(one["metadata"]["name"])
        return ""

    return str(cluster.until(f"a pod is ready on {node}", look))


def strike(cluster: Cluster, pod: str) -> None:
    """XID 79 on the GPU that the pod holds."""
    [bad] = cluster.until("its device is known", lambda: cluster.held(cluster.a, pod))
    index = cluster.devices(cluster.a)[bad]["index"]
    cluster.until("NodeDevices names the holder", lambda: cluster.devices(cluster.a)[bad].get("holders"))
    cluster.hardware(cluster.a, simulated.h100s(xid79=index))


def taints(cluster: Cluster) -> list[tuple[str, str]]:
    listed = cluster.node(cluster.a)["spec"].get("taints", [])
    return [(one["effect"], one.get("value", "")) for one in listed if one["key"] == KEY]


def reasons(cluster: Cluster, pod: str) -> set[str]:
    found = cluster.kubectl.items("events", NAMESPACE, fields=f"involvedObject.name={pod}")
    return {one["reason"] for one in found}


def shown(cluster: Cluster) -> dict[str, Any]:
    return cluster.action(cluster.a, "evictions")


def test_a_deployments_pod_leaves_its_bad_gpu_and_its_successor_is_ready_on_the_other_node(cluster: Cluster) -> None:
    faults = {"podCondition": "Always", "taintEffect": "NoSchedule", **EVICT}
    cluster.policy("act", {"faults": faults | {"budget": {"maxUnavailable": 1, "perHour": 100}}})
    cluster.until("the policy is active", lambda: shown(cluster).get("reason") == "InSync")
    first = deployment(cluster, readinessGates=[{"conditionType": HEALTHY}])
    strike(cluster, first)
    cluster.until("the Node is tainted", lambda: taints(cluster) == [("NoSchedule", "Xid79")])
    second = ready(cluster, cluster.b)
    assert second != first
    assert {"DeviceFault", "DeviceFaultEviction"} <= reasons(cluster, first)
    cluster.until("nothing is left to do", lambda: shown(cluster).get("message") == "no pod needs to be evicted")
    cluster.hardware(cluster.a, simulated.h100s())
    cluster.until("the taint is gone", lambda: taints(cluster) == [])
    assert on(cluster, cluster.b)[0]["metadata"]["name"] == second


@pytest.mark.long
def test_a_jobs_pod_that_is_evicted_for_its_gpu_is_replaced_and_not_counted_as_a_failure(cluster: Cluster) -> None:
    cluster.policy("act", {"faults": {**EVICT, "taintEffect": "NoSchedule", "budget": {"perHour": 100}}})
    spec = {
        "backoffLimit": 0,
        "podFailurePolicy": {"rules": [RULE]},
        "template": template(cluster, restartPolicy="Never"),
    }
    metadata = {"name": "train", "namespace": NAMESPACE}
    cluster.kubectl.apply({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec})
    first = ready(cluster, cluster.a)
    strike(cluster, first)
    assert ready(cluster, cluster.b) != first
    job = cluster.kubectl.get("job", "train", NAMESPACE) or {}
    assert job["status"].get("failed", 0) == 0
    assert job["status"]["active"] == 1


def test_a_mass_fault_stops_all_actions_until_a_person_resumes_them(cluster: Cluster) -> None:
    faults = {"evictMode": "AfterGrace", "evictGraceSeconds": 8, "budget": {"perHour": 100}}
    cluster.policy("act", {"faults": faults})
    cluster.until("the policy is active", lambda: shown(cluster).get("reason") == "InSync")
    pod = deployment(cluster)
    strike(cluster, pod)
    cluster.hardware(cluster.b, simulated.l4s(lost=1))

    def stopped() -> dict[str, Any]:
        return cluster.condition("devicepolicy", "act", "ActionsStopped")

    said = cluster.until("the breaker opens", lambda: (one := stopped()).get("status") == "True" and one)
    assert (said["reason"], "confirm actions resumed" in said["message"]) == ("MassFault", True)
    cluster.until("the eviction is held", lambda: shown(cluster).get("reason") == "Stopped")
    assert [one["metadata"]["name"] for one in on(cluster, cluster.a)] == [pod]
    word = f"{CONFIRM}=actions=resumed@{stamp()}"
    cluster.kubectl.run("annotate", "configmap", RECORD, "-n", SYSTEM, "--overwrite", word)
    cluster.until("it is evicted", lambda: pod not in {one["metadata"]["name"] for one in cluster.pods()})
    cluster.until("the policy says so", lambda: stopped().get("status") != "True")
