"""docs/gitops.md on a real API server: whose fields are whose.

Argo CD and Flux are played: they apply what the chart renders by server-side apply, and compare by a dry run of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from support import fleet, helm
from support.direct import reach
from support.fleet import FleetNode, get_pod, pod
from support.kubectl import Kubectl, condition, wait_until
from support.operatorprocess import OperatorProcess, service_account

SYNCED = ("apply", "--server-side", "--field-manager=argocd-controller", "-f", "-")
INSTANCE = "app.kubernetes.io/instance"  # by which Argo CD may know what is of an application
# A policy in Git that lets the operator write all that it can.
POLICY: dict[str, Any] = {
    "apiVersion": "nodedevices.io/v1alpha1",
    "kind": "DevicePolicy",
    "metadata": {"name": "from-git", "labels": {INSTANCE: "nodedevices"}},
    "spec": {
        "nodeSelector": {},
        "capacity": fleet.memory_capacity(),
        "health": {"holdDownSeconds": 5},
        "labels": {"featureDiscovery": True},
        "faults": {"podCondition": "OnFault", "taintEffect": "NoSchedule"},
    },
}
# Lists whose elements a patch of the client merges by a key; of all others it replaces the whole list.
MERGED = {"containers", "initContainers", "env", "volumes", "volumeMounts", "ports", "imagePullSecrets"}
# Everything but what needs CRDs of others, and the operator's own namespace.
COMPONENTS = (
    "allHardware",
    "cdi",
    "deviceFiles",
    "extenderHost",
    "mps",
)
VALUES: dict[str, Any] = {
    "components": {
        **{name: {"enabled": True} for name in COMPONENTS},
        "extenderScheduler": {"enabled": True, "image": "kube-scheduler"},
        "prometheus": {"enabled": True, "operator": False},
        "namedConfigs": {"enabled": True, "configs": {"default": "version: v1\n"}},
    },
    "criticalPodsQuota": {"enabled": True},
}
needs_helm = pytest.mark.skipif(helm.helm() is None, reason="no helm: `make cluster-tools` builds one")


def rendered() -> str:
    """What Argo CD and Flux apply: hooks are run, not kept in step."""
    done = helm.template(VALUES, "--no-hooks")
    assert done.returncode == 0, done.stderr
    return done.stdout + "\n---\n" + yaml.safe_dump(POLICY)


@pytest.fixture(scope="module")
def manifests(admin: Kubectl) -> Iterator[str]:
    """Applied as Argo CD does it the first time; what a test needs no more is away afterwards."""
    text = rendered()
    admin.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": helm.NAMESPACE}})
    admin.run(*SYNCED, "--force-conflicts", stdin=text)
    yield text
    rest = [one for one in yaml.safe_load_all(text) if one and one["kind"] != "CustomResourceDefinition"]
    admin.run("delete", "--ignore-not-found", "--wait=false", "-f", "-", stdin=yaml.safe_dump_all(rest))


@pytest.fixture(scope="module")
def busy(manifests: str, admin: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetNode]:
    """A node on which the operator has written all that it writes, for a policy of Git."""
    folder = tmp_path_factory.mktemp("operator")
    with OperatorProcess(folder, service_account(admin, folder), relist_seconds=3, leader_elect=True):
        fleet.namespace(admin)
        node = FleetNode(admin, "n1").create({INSTANCE: "nodedevices", "pool": "gpu"})
        pod(admin, "trainer", "n1")
        node.hold(0, "trainer")
        node.fail(0)
        wait_until("pod", lambda: condition(get_pod(admin, "trainer"), "nodedevices.io/DeviceHealthy"))
        wait_until("taint", lambda: node.node["spec"].get("taints"))
        wait_until("capacity", lambda: fleet.MEMORY in node.capacity)
        wait_until("labels", lambda: node.object["metadata"]["labels"].get("pool") == "gpu")
        wait_until("policy", lambda: condition(admin.get("dp", "from-git"), "Accepted"))
        yield node
    direct = reach(admin.kubeconfig, "node")
    assert direct is not None
    direct.clear()


def live(kubectl: Kubectl, text: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = kubectl.json("get", "-f", "-", stdin=text)["items"]
    return found


def versions(objects: list[dict[str, Any]]) -> dict[tuple[str, str], str]:
    """Of the objects that nobody writes but who applies them; of a policy the generation."""
    field = {"DevicePolicy": "generation"}
    return {
        (one["kind"], one["metadata"]["name"]): one["metadata"][field.get(one["kind"], "resourceVersion")]
        for one in objects
    }


@needs_helm
def test_a_second_sync_beside_a_busy_operator_has_no_conflict_no_difference_and_writes_nothing(
    busy: FleetNode, manifests: str, admin: Kubectl
) -> None:
    before = live(admin, manifests)
    assert admin.run("diff", *SYNCED[1:], stdin=manifests) == ""
    said = admin.run(*SYNCED, stdin=manifests)
    assert len(said.splitlines()) == len(before)
    assert versions(live(admin, manifests)) == versions(before)


@needs_helm
def test_nothing_that_our_programs_make_is_taken_for_a_part_of_the_application(busy: FleetNode, admin: Kubectl) -> None:
    """Else it would be pruned, as Git does not have it. What Git has bears that mark."""
    made = [
        busy.object,
        wait_until("record", lambda: admin.get("configmap", "nodedevices-actions", helm.NAMESPACE)),
        wait_until("lease", lambda: admin.get("lease", "nodedevices-operator", helm.NAMESPACE)),
    ]
    marked = [one["kind"] for one in made if INSTANCE in one["metadata"].get("labels", {})]
    assert marked == []
    assert INSTANCE in (admin.get("dp", "from-git") or {})["metadata"]["labels"]


def differs(wanted: Any, found: Any, place: str) -> Iterator[str]:
    """Where a comparison by the client sees a difference: a patch made of `wanted` would change `found`."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        for key, value in wanted.items():
            yield from differs(value, found.get(key), f"{place}.{key}")
    elif isinstance(wanted, list) and place.rpartition(".")[2] in MERGED:
        by = {one.get("name") or one.get("mountPath"): one for one in found or ()}
        for one in wanted:
            name = one.get("name") or one.get("mountPath")
            yield from differs(one, by.get(name), f"{place}[{name}]")
    elif wanted != found:
        yield f"{place}: {json.dumps(wanted)} is {json.dumps(found)}"


@needs_helm
def test_a_comparison_by_the_client_sees_no_difference_either(busy: FleetNode, manifests: str, admin: Kubectl) -> None:
    """Argo CD's, where it is not told to ask the server: what the API server fills in within a list would show."""
    shown = {(one["kind"], one["metadata"]["name"]): one for one in live(admin, manifests)}
    found = [
        text
        for one in yaml.safe_load_all(manifests)
        if one and one["kind"] != "DevicePolicy"
        for text in differs(
            one, shown[one["kind"], one["metadata"]["name"]], f"{one['kind']}/{one['metadata']['name']}"
        )
    ]
    assert found == []
