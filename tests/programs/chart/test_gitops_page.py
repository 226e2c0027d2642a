"""docs/gitops.md: CRDs that no sync deletes, and what its Lua says of every condition, by Argo CD's interpreter."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster.rig import binaries
from support import gitops, helm
from support.kustomize import ROOT, kubectl, render
from support.patience import PATIENCE_SECONDS

PREFIX = "resource.customizations.health.nodedevices.io_"  # GROUP_KIND, as Argo CD looks it up
KUBECTL = kubectl()


@pytest.mark.skipif(
    KUBECTL is None or helm.helm() is None, reason="no kubectl or helm: `make cluster-tools` builds both"
)
def test_no_sync_deletes_the_crds_whether_they_come_by_the_chart_or_by_the_pages_patch(tmp_path: Path) -> None:
    [patches] = [one["patches"] for one in gitops.blocks() if "patches" in one]
    crds = os.path.relpath(ROOT / "crds", tmp_path.resolve())
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump({"resources": [crds], "patches": patches}))
    assert KUBECTL is not None
    by_kustomize = [one["metadata"]["annotations"] for one in render(tmp_path, KUBECTL)]
    done = helm.template({}, "--show-only", "templates/crd-*.yaml")
    by_chart = [one["metadata"]["annotations"] for one in yaml.load_all(done.stdout, Loader=yaml.CSafeLoader)]
    argo = "argocd.argoproj.io/sync-options"
    assert len(by_chart) == len(by_kustomize) == 2
    assert {each[argo] for each in (*by_chart, *by_kustomize)} == {"Prune=false,Delete=false"}
    assert {each["helm.sh/resource-policy"] for each in by_chart} == {"keep"}
    assert {each["kustomize.toolkit.fluxcd.io/prune"] for each in by_kustomize} == {"disabled"}


def lua(value: Any) -> str:
    """As Argo CD gives an object to a script: a table, without what is null."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"[{json.dumps(key)}] = {lua(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "{" + ", ".join(map(lua, value)) + "}"
    return json.dumps(value)


def said(folder: Path, objects: list[tuple[str, dict[str, Any]]]) -> list[tuple[str, str]]:
    """Status and message of each object, of the check of its kind."""
    checks = gitops.argo_checks()
    lines = [f"local {kind} = function(obj)\n{text}\nend" for kind, text in checks.items()]
    lines += [f"do local h = {kind}({lua(obj)}) print(h.status .. '|' .. h.message) end" for kind, obj in objects]
    script = folder / "health.lua"
    script.write_text("\n".join(lines))
    done = subprocess.run(
        [str(binaries.LUA.path), str(script)], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
    pairs = [line.partition("|") for line in done.stdout.splitlines()]
    return [(status, message) for status, _, message in pairs]


def test_each_check_is_where_argo_looks_for_it_and_of_a_kind_of_ours() -> None:
    [data] = [one["data"] for one in gitops.blocks() if one.get("kind") == "ConfigMap"]
    assert set(data) == {f"{PREFIX}{kind}" for kind in ("DevicePolicy", "NodeDevices")}


needs_lua = pytest.mark.skipif(not binaries.LUA.path.exists(), reason="no Lua: `make cluster-tools` builds one")


@needs_lua
def test_argo_says_of_every_reason_what_the_page_says(tmp_path: Path) -> None:
    cases = list(gitops.cases())
    found = said(tmp_path, [(one.kind, {"metadata": {"generation": 1}, "status": one.status}) for one in cases])
    assert {one.name: status for one, (status, _) in zip(cases, found, strict=True)} == {
        one.name: one.health for one in cases
    }
    for one, (status, message) in zip(cases, found, strict=True):
        kind, _, rest = message.partition(": ")
        if status == gitops.DEGRADED:
            assert rest == f"{one.conditions[kind][1]}: about {kind}", "the condition that is to blame"


@needs_lua
def test_argo_waits_while_nothing_or_an_older_generation_was_seen(tmp_path: Path) -> None:
    of_older = gitops.Case("older", "DevicePolicy", gitops.POLICY, gitops.PROGRESSING).status
    found = said(
        tmp_path,
        [
            ("DevicePolicy", {"metadata": {"generation": 1}}),
            ("DevicePolicy", {"metadata": {"generation": 1}, "status": {}}),
            ("DevicePolicy", {"metadata": {"generation": 2}, "status": of_older}),
            ("NodeDevices", {"metadata": {"generation": 1}}),
            ("NodeDevices", {"metadata": {"generation": 1}, "status": {}}),
        ],
    )
    assert [status for status, _ in found] == [gitops.PROGRESSING] * 5
