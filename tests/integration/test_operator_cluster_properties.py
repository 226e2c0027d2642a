"""The real operator and the real kube-apiserver: ClusterProperty objects that a hub of clusters can copy, with the
rights of the component cluster-properties, and no right to those of others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import fleet
from support.component_rights import rights_with
from support.fleet import FleetNode
from support.kubectl import Kubectl, KubectlError, wait_until
from support.operatorprocess import OperatorProcess

H100 = "gpu.nvidia-h100-80gb-hbm3.nodedevices.io"
THEIRS = "cluster.clusterset.k8s.io"  # KEP-2149's own example


def crd(*versions: str) -> dict[str, Any]:
    """As sigs.k8s.io/about-api has it (config/crd, 2e06e60): the newest version is stored."""
    value = {"type": "string", "minLength": 1}
    spec = {"type": "object", "required": ["value"], "properties": {"value": value}}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}
    names = {"kind": "ClusterProperty", "plural": "clusterproperties", "singular": "clusterproperty"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": "clusterproperties.about.k8s.io",
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/pull/3084"},
        },
        "spec": {
            "group": "about.k8s.io",
            "scope": "Cluster",
            "names": names | {"listKind": "ClusterPropertyList"},
            "versions": [
                {"name": each, "served": True, "storage": each == versions[-1], "schema": schema} for each in versions
            ],
        },
    }


@pytest.fixture(scope="module")
def rights(admin: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with rights_with("cluster-properties", admin, tmp_path_factory.mktemp("rights")) as file:
        yield file


NEWEST = pytest.param(("v1alpha1", "v1beta1"), id="v1beta1", marks=pytest.mark.long)


@pytest.fixture(params=[pytest.param(("v1alpha1",), id="v1alpha1"), NEWEST])
def installed(request: pytest.FixtureRequest, kubectl: Kubectl) -> Iterator[Kubectl]:
    """An API server with about.k8s.io."""
    made = crd(*request.param)
    kubectl.apply(made)
    name = f"crd/{made['metadata']['name']}"
    wait_until("the CRD", lambda: kubectl.run("wait", "--for=condition=Established", "--timeout=30s", name))
    try:
        yield kubectl
    finally:
        kubectl.run("delete", name)
        wait_until("it is gone", lambda: "clusterproperties" not in kubectl.run("api-resources", "-o", "name"))


def values(kubectl: Kubectl) -> dict[str, dict[str, int]]:
    items = kubectl.json("get", "clusterproperties.about.k8s.io")["items"]
    return {one["metadata"]["name"]: json.loads(one["spec"]["value"]) for one in items}


def theirs(version: str) -> dict[str, Any]:
    head = {"apiVersion": f"about.k8s.io/{version}", "kind": "ClusterProperty", "metadata": {"name": THEIRS}}
    return head | {"spec": {"value": '{"total":1}'}}


def test_each_product_is_a_property_that_follows_the_fleet_and_goes_with_it(
    installed: Kubectl, rights: Path, tmp_path: Path
) -> None:
    fleet.namespace(installed)
    installed.apply(theirs("v1alpha1"))
    stale = theirs("v1alpha1")
    stale["metadata"] = {
        "name": "gpu.gone.nodedevices.io",
        "labels": {"app.kubernetes.io/managed-by": "nodedevices-operator"},
    }
    installed.apply(stale)
    node = FleetNode(installed, "n1", gpus=4, attributes={"productName": "NVIDIA H100 80GB HBM3"}).create()
    node.hold(0, "trainer")
    node.fail(1)
    with OperatorProcess(tmp_path, rights, "--cluster-properties"):
        wanted = {H100: {"total": 4, "healthy": 3, "held": 1}, THEIRS: {"total": 1}}
        wait_until("the fleet is shown", lambda: values(installed) == wanted)
    cleaning = OperatorProcess(tmp_path, rights, "--cluster-properties", command="cleanup").start(ready=False)
    wait_until("cleanup has ended", lambda: cleaning.ended() == 0)
    assert values(installed) == {THEIRS: {"total": 1}}


@pytest.mark.parametrize("installed", [("v1alpha1",)], ids=["v1alpha1"], indirect=True)
def test_it_may_not_write_the_properties_of_others(installed: Kubectl, rights: Path) -> None:
    as_operator = Kubectl(rights, installed.binary)
    with pytest.raises(KubectlError, match=r"only ClusterProperty objects whose names end in \.nodedevices\.io"):
        as_operator.apply(theirs("v1alpha1"))
    installed.apply(theirs("v1alpha1"))
    with pytest.raises(KubectlError, match=r"only ClusterProperty objects"):
        as_operator.run("delete", "clusterproperties.about.k8s.io", THEIRS)


def test_without_the_crd_it_says_so_and_does_the_rest(kubectl: Kubectl, rights: Path, tmp_path: Path) -> None:
    fleet.namespace(kubectl)
    node = FleetNode(kubectl, "n1").create()
    with OperatorProcess(tmp_path, rights, "--cluster-properties") as running:
        wait_until("it says so", lambda: "ClusterProperty (about.k8s.io) is not installed" in running.said())
        wait_until("the rest goes on", lambda: node.object.get("spec", {}).get("configHash"))
