"""What `kubectl apply -k` says when nothing has changed: a real API server adds its defaults, and kubectl compares."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from support.kubectl import Kubectl

MANIFESTS = Path(__file__).parents[2] / "manifests"
# All but the one that needs CRDs of the Prometheus Operator.
COMPONENTS = sorted({one.name for one in MANIFESTS.glob("components/*")} - {"prometheus"})


@pytest.fixture
def everything(kubectl: Kubectl, tmp_path: Path) -> Iterator[Path]:
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


def test_applied_again_without_a_change_everything_is_unchanged(kubectl: Kubectl, everything: Path) -> None:
    kubectl.run("apply", "-k", str(everything))
    said = kubectl.run("apply", "-k", str(everything)).splitlines()
    assert said
    assert [line for line in said if not line.endswith(" unchanged")] == []
