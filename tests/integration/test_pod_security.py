"""Pod Security, as the real API server enforces it: what the operator's pod passes, and what the agent's needs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.kubectl import Kubectl, KubectlError

BASE = Path(__file__).parents[2] / "manifests" / "base"
LABEL = "pod-security.kubernetes.io/enforce"


@pytest.fixture(scope="module", params=["restricted", "baseline", "privileged"])
def level(request: pytest.FixtureRequest, admin: Kubectl) -> Iterator[str]:
    name: str = request.param
    admin.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"level-{name}", "labels": {LABEL: name}}}
    )
    yield name
    admin.delete("namespace", f"level-{name}", wait=False)


def refusal(admin: Kubectl, file: str, level: str) -> str:
    """What the API server says to the pod of this workload in a namespace of that level; empty: it takes it."""
    workload = yaml.safe_load((BASE / file).read_text())
    spec: dict[str, Any] = workload["spec"]["template"]["spec"]
    del spec[
        "priorityClassName"
    ]  # these two are for kube-system and what follows it by quota; not Pod Security's matter
    account = spec.pop("serviceAccountName")
    admin.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account, "namespace": f"level-{level}"}}
    )
    spec["serviceAccountName"] = account
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod", "namespace": f"level-{level}"}, "spec": spec}
    try:
        admin.create(pod, dry=True)
    except KubectlError as error:
        return error.said
    return ""


@pytest.mark.parametrize(
    "file",
    [
        "operator/deployment.yaml",
        "../components/extender-scheduler/deployment.yaml",
    ],
)
def test_the_pods_of_operator_and_second_scheduler_pass_every_level(admin: Kubectl, level: str, file: str) -> None:
    assert refusal(admin, file, level) == ""


def test_the_agents_pod_needs_privileged_for_its_host_paths_and_for_nothing_else_that_baseline_forbids(
    admin: Kubectl, level: str
) -> None:
    said = refusal(admin, "agent/daemonset.yaml", level)
    if level == "privileged":
        assert said == ""
        return
    violations = said.partition("violates PodSecurity")[2]
    assert 'volumes "device-plugins", "pod-resources"' in violations
    if level == "baseline":
        assert violations.count("(") == 1, "the only one"
