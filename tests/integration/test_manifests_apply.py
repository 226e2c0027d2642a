"""What `kubectl apply -k` says when nothing has changed: a real API server adds its defaults, and kubectl compares."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from support.kubectl import Kubectl

MANIFESTS = Path(__file__).parents[2] / "manifests"
COMPONENTS = sorted(one.name for one in MANIFESTS.glob("components/*"))


@pytest.fixture
def everything(kubectl: Kubectl, kinds_of_others: None, tmp_path: Path) -> Iterator[Path]:
    """The default overlay with COMPONENTS; afterwards no rule of it is in effect."""
    folder = tmp_path / "everything"
    folder.mkdir()
    place = os.path.relpath(MANIFESTS, folder)
    (folder / "kustomization.yaml").write_text(
        yaml.safe_dump(
            {
                "apiVersion": "kustomize.config.k8s.io/v1beta1",
                "kind": "Kustomization",
                "resources": [f"{place}/overlays/default"],
                "components": [f"{place}/components/{one}" for one in COMPONENTS],
            }
        )
    )
    yield folder
    kinds = "validatingadmissionpolicies,validatingadmissionpolicybindings"
    kubectl.run("delete", kinds, "-l", "app.kubernetes.io/part-of=nodedevices")


@pytest.mark.long
def test_applied_again_without_a_change_everything_is_unchanged(kubectl: Kubectl, everything: Path) -> None:
    """But a PodDisruptionBudget: kubectl replaces its selector, so the patch is never empty, and says configured."""
    kubectl.run("apply", "-k", str(everything))
    before = budgets(kubectl)
    said = kubectl.run("apply", "-k", str(everything)).splitlines()
    assert said
    changed = [line for line in said if not line.endswith(" unchanged")]
    assert [line for line in changed if not line.startswith("poddisruptionbudget.policy/")] == []
    assert budgets(kubectl) == before
    assert before


def budgets(kubectl: Kubectl) -> list[tuple[str, str]]:
    """PodDisruptionBudgets with their version."""
    listed = json.loads(kubectl.run("get", "poddisruptionbudgets", "--all-namespaces", "-o", "json"))["items"]
    return [(each["metadata"]["name"], each["metadata"]["resourceVersion"]) for each in listed]
