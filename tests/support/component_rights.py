"""The operator's rights with one of its components, on an API server without the rest of the manifests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from support.kubectl import Kubectl
from support.operatorprocess import NAMESPACE, service_account

COMPONENTS = Path(__file__).parents[2] / "manifests" / "components"


@contextmanager
def rights_with(component: str, admin: Kubectl, folder: Path) -> Iterator[Path]:
    """A kubeconfig of the operator's account with the component installed: the rule that it adds, as a role of its own
    beside the operator's, and its admission policies."""
    role = _role(component)
    name = role["metadata"]["name"]
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": "nodedevices-operator", "namespace": NAMESPACE}],
    }
    resources = yaml.safe_load((COMPONENTS / component / "kustomization.yaml").read_text())["resources"]
    texts = [(COMPONENTS / component / each).read_text() for each in resources]
    admission = [each for text in texts for each in yaml.safe_load_all(text) if each]
    file = service_account(admin, folder)
    admin.apply(role, binding, *admission)
    yield file
    for each in admission:
        admin.run("delete", each["kind"], each["metadata"]["name"])
    admin.run("delete", "clusterroles,clusterrolebindings", name)


def _role(component: str) -> dict[str, Any]:
    document = yaml.safe_load((COMPONENTS / component / "kustomization.yaml").read_text())
    [added] = [each["patch"] for each in document["patches"] if each["target"]["kind"] == "ClusterRole"]
    [operation] = yaml.safe_load(added)
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": component},
        "rules": [operation["value"]],
    }
