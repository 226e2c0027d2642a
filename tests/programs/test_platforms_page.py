"""docs/platforms.md: its values are the chart's, its patch does what the value does, its images are all there are."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import helm
from support.kustomize import ROOT, kubectl, render

PAGE = (ROOT / "docs" / "platforms.md").read_text()
KUBECTL = kubectl()
VALUES = yaml.safe_load((helm.CHART / "values.yaml").read_text())


def test_every_value_that_the_page_names_is_a_value_of_the_chart() -> None:
    named = re.findall(r"(?:`|--set )((?:components|kubelet|criticalPodsQuota)\.[\w.]+)", PAGE)
    assert len(named) >= 10
    for path in named:
        found: Any = VALUES
        for key in path.split("."):
            assert key in found, path
            found = found[key]


def pod_resources(objects: list[dict[str, Any]]) -> str:
    [agent] = [one for one in objects if one["kind"] == "DaemonSet"]
    volumes = {one["name"]: one for one in agent["spec"]["template"]["spec"]["volumes"]}
    path: str = volumes["pod-resources"]["hostPath"]["path"]
    return path


@pytest.mark.skipif(
    KUBECTL is None or helm.helm() is None, reason="no kubectl or helm: `make cluster-tools` builds both"
)
def test_the_patch_for_the_kubelets_folder_does_what_the_value_does(tmp_path: Path) -> None:
    block = re.search(r"(?:^ {4}.*\n)+", PAGE[PAGE.index("    patches:") :], re.MULTILINE)
    assert block is not None
    patches = yaml.safe_load(block[0])["patches"]
    relative = os.path.relpath(ROOT / "manifests" / "base" / "agent", tmp_path.resolve())
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump({"resources": [relative], "patches": patches}))
    assert KUBECTL is not None
    done = helm.template({"crds": {"enabled": False}, "kubelet": {"rootDir": "/var/lib/k0s/kubelet"}}, "--no-hooks")
    of_chart = [one for one in yaml.load_all(done.stdout, Loader=yaml.CSafeLoader) if one]
    assert pod_resources(render(tmp_path, KUBECTL)) == pod_resources(of_chart)


def test_the_images_of_the_page_are_all_that_the_manifests_name() -> None:
    files = (ROOT / "manifests").glob("[bc]*/**/*.yaml")
    parts = [path.read_text() for path in files if "chart" not in path.parts]
    named = {image for text in parts for image in re.findall(r"^ +(?:- )?image: ([^\s:]+)", text, re.MULTILINE)}
    table = PAGE.partition("| image | of | when |")[2].partition("\n\n")[0]
    assert named == set(re.findall(r"^\| `([\w-]+)`", table, re.MULTILINE))
