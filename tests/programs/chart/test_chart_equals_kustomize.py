"""The chart installs what the kustomization does, object by object; each component's value is that component.

Different by intent, and named here: helm makes the release's namespace itself; hooks are helm's alone; the chart gives
every object the four labels that helm's conventions ask for, and part-of, which kustomize's components leave out; the
chart's admission policies know accounts by their exact names, kustomize's by a pattern, each with a test of its own;
kustomize adds a hash to the name of a ConfigMap that it generates.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import helm
from support.kustomize import ROOT, kubectl, rendered

MANIFESTS = ROOT / "manifests"
KUBECTL = kubectl()
CHARTS_LABELS = {
    "app.kubernetes.io/part-of",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/version",
    "helm.sh/chart",
}
# All, in an order that kustomize needs: what says where the hardware is comes first, what changes others comes last.
COMPONENTS = (
    *("all-hardware", "device-files", "driver-root", "cdi", "cluster-properties"),
    *("extender-host", "extender-scheduler", "dra", "kmsg", "mig", "mps"),
    *("named-configs", "observe", "openshift", "prometheus", "runtimeclass-nvidia"),
    *("driver-directory", "operator-namespace"),
)
# All of the base but the CRDs, which no component changes and which take three quarters of kubectl's time.
BASE = ("agent", "operator", "people", "admission")

Objects = dict[tuple[str, str, str], dict[str, Any]]

pytestmark = [
    pytest.mark.skipif(helm.helm() is None, reason="no helm: `make cluster-tools` builds one"),
    pytest.mark.skipif(KUBECTL is None, reason="no kubectl: `make cluster-tools` builds one"),
]


def value_of(component: str) -> str:
    camel = re.sub(r"-(\w)", lambda found: found[1].upper(), component)
    return {"runtimeclassNvidia": "runtimeClassNvidia"}.get(camel, camel)


def objects(stream: str) -> Objects:
    """By kind, namespace and name."""
    found = {}
    for one in yaml.load_all(stream, Loader=yaml.CSafeLoader):
        if one:
            comparable(one)
            found[one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]] = one
    return found


def comparable(one: dict[str, Any]) -> None:
    """Without what is helm's alone: the chart's labels, and that helm keeps the operator's namespace; and with lists in
    an order where the order means nothing."""
    metadata = one["metadata"]
    if one["kind"] == "Namespace":
        metadata.pop("annotations", None)
    labels = metadata.get("labels", {})
    metadata["labels"] = {name: value for name, value in labels.items() if name not in CHARTS_LABELS}
    if one["kind"] == "ValidatingAdmissionPolicy":
        [condition] = one["spec"]["matchConditions"]
        condition["expression"] = re.findall(r"nodedevices-(?:agent|operator)", condition["expression"])[-1]
    spec = one.get("spec", {}).get("template", {}).get("spec", {})
    for container in (*spec.get("containers", ()), *spec.get("initContainers", ())):
        for part, by in (("env", "name"), ("volumeMounts", "mountPath")):
            container.get(part, []).sort(key=lambda each, by=by: each[by])
    for part in ("containers", "volumes"):
        spec.get(part, []).sort(key=lambda each: each["name"])


def assert_same(chart: Objects, kustomize: Objects) -> None:
    """A difference is shown as text, with the object's name."""
    lines = [
        line
        for key in sorted({*chart, *kustomize})
        if chart.get(key) != kustomize.get(key)
        for line in (
            "/".join(key),
            *difflib.unified_diff(
                shown(kustomize.get(key)), shown(chart.get(key)), "kustomize", "chart", "", "", 4, ""
            ),
        )
    ]
    assert not lines, "\n".join(lines)


def shown(one: dict[str, Any] | None) -> list[str]:
    return [] if one is None else yaml.safe_dump(one).splitlines()


def of_chart(values: Mapping[str, Any], *, crds: bool = False) -> Objects:
    done = helm.template({"crds": {"enabled": crds, "keep": False}, **values}, "--no-hooks")
    assert done.returncode == 0, done.stderr
    return objects(done.stdout)


def of_kustomize(folder: Path) -> Objects:
    assert KUBECTL is not None
    stream = re.sub(r"\b(nodedevices-scheduler)-[a-z0-9]{10}$", r"\1", rendered(folder, KUBECTL), flags=re.MULTILINE)
    found = objects(stream)
    found.pop(("Namespace", "", helm.NAMESPACE), None)
    return found


def with_components(names: Sequence[str], folder: Path) -> Objects:
    relative = os.path.relpath(MANIFESTS, folder.resolve())
    components = [f"{relative}/components/{each}" for each in names]
    images = [{"name": f"nodedevices-{part}", "newTag": "0.1.0"} for part in ("agent", "operator")]
    parts = [f"{relative}/base/{each}" for each in BASE]
    made = {"resources": parts, "components": components, "images": images}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(made))
    return of_kustomize(folder)


def values_of(components: Sequence[str]) -> dict[str, Any]:
    values: dict[str, dict[str, Any]] = {value_of(each): {"enabled": True} for each in components}
    if "extenderScheduler" in values:
        values["extenderScheduler"]["image"] = "kube-scheduler"
    return {"components": values}


def test_the_defaults_are_the_default_overlay() -> None:
    assert_same(of_chart({}, crds=True), of_kustomize(MANIFESTS / "overlays" / "default"))


def installed_in(number: int) -> list[str]:
    """The components of one of seven installations. Each is in three, and in other three than any other component: so
    of any two there is an installation with the first and without the second, whichever is named first."""
    triples = list(zip(COMPONENTS, combinations(range(7), 3), strict=False))
    assert len(triples) == len(COMPONENTS)
    chosen = {name for name, numbers in triples if number in numbers}
    return [each for each in COMPONENTS if each in chosen]


@pytest.mark.parametrize("number", range(7))
def test_the_components_of_the_chart_are_those_of_kustomize(number: int, tmp_path: Path) -> None:
    names = installed_in(number)
    assert_same(of_chart(values_of(names)), with_components(names, tmp_path))


def test_no_part_of_the_base_is_left_out_of_the_comparison() -> None:
    assert {each.name for each in (MANIFESTS / "base").iterdir() if each.is_dir()} == set(BASE)


def test_every_component_is_a_value_and_every_value_a_component() -> None:
    assert set(COMPONENTS) == {each.name for each in (MANIFESTS / "components").iterdir() if each.is_dir()}
    values = yaml.safe_load((helm.CHART / "values.yaml").read_text())
    assert set(values["components"]) == set(map(value_of, COMPONENTS))
