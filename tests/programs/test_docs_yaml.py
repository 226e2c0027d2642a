"""Every piece of YAML in the documentation is what it says it is: read by our own models and parsers, not by eye.

A code block counts, fenced or indented, and so does what a shell block feeds to a command (`<<END`). What it is follows
from its keys; a piece that is none of the known kinds fails, so that a new kind gets its own check.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from nodedevices_api.conditions import NODE_READY, POD_DEVICE_HEALTHY
from nodedevices_api.devicepolicy import DevicePolicy
from nodedevices_api.errors import parse
from nodedevices_api.sections import SECTION_NAMES, Sections
from nodedevices_operator.records.kinds import REASON
from nodedevices_plugin.model import DRA_DRIVER
from nodedevices_plugin.settings import file
from nodedevices_plugin.vendors import xilinx as card_names
from nodedevices_plugin.vendors.nic import onload, rdma_config, sriov_config
from nodedevices_probe.generic import config as generic_config
from nodedevices_probe.remote import config as remote_config
from nodedevices_probe.simulated import probe as simulated_probe
from support import vendor
from support.kustomize import ROOT, default_without_crds, kubectl, render

OWN_FILE = {"version", "flags", "resources", "sharing", "imex"}
SIMULATED = {"profile", "devices", "events", "links", "driver", "machine"}
KUSTOMIZATION = {"apiVersion", "kind", "resources", "components", "patches", "images"}
CLONE = "../nodedevices/"  # where the pages say that this repository is
CRD = "CustomResourceDefinition"
TOLERATED = {"key": "readiness.k8s.io/nodedevices-not-ready", "operator": "Exists"}
VALUES_SCHEMA = json.loads((ROOT / "manifests" / "chart" / "values.schema.json").read_text())
SECTION_KEYS = {re.sub(r"_(.)", lambda found: found[1].upper(), name) for name in SECTION_NAMES}
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?<=\n\n)(?: {4}.*\n|\n(?= {4}))+")
VARIABLE = re.compile(r"\$(\w+)")  # of a shell, in what it feeds to a command
HERE = re.compile(r"<<'?END'?\n(.*?)\nEND$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Piece:
    page: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pieces() -> Iterator[Piece]:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "manifests").rglob("*.md")]
    for page in sorted(pages):
        name, text = str(page.relative_to(ROOT)), page.read_text()

        def piece(start: int, found: str, name: str = name, text: str = text) -> Piece:
            return Piece(name, text.count("\n", 0, start) + 1, found)

        shell: list[tuple[int, str]] = []
        for block in FENCED.finditer(text):
            if block[1] == "yaml":
                yield piece(block.start(2), block[2])
            elif block[1] == "sh":
                shell.append((block.start(2), block[2]))
        prose = FENCED.sub(lambda found: "\n" * found[0].count("\n"), text)
        for block in INDENTED.finditer(prose):
            outdented = re.sub(r"^ {4}", "", block[0], flags=re.MULTILINE)
            at = prose.count("\n", 0, block.start()) + 1
            if "<<" in outdented:
                yield from (Piece(name, at, found) for found in HERE.findall(outdented))
            elif is_yaml(outdented):
                yield Piece(name, at, outdented)
        for start, script in shell:
            yield from (piece(start + found.start(), found[1]) for found in HERE.finditer(script))


def is_yaml(text: str) -> bool:
    """Of an indented block, which may be anything: whether it reads as a mapping or a list of mappings."""
    try:
        documents = list(yaml.safe_load_all(text))
    except yaml.YAMLError:
        return False
    return any(isinstance(each, dict) or (isinstance(each, list) and isinstance(each[0], dict)) for each in documents)


ALL = list(pieces())


@pytest.mark.parametrize("piece", ALL, ids=str)
def test_every_piece_of_yaml_is_what_it_says(piece: Piece) -> None:
    if "${" in piece.text:  # written by a shell
        assert "kind: Kustomization" in piece.text
        return
    filled = VARIABLE.sub(lambda found: "1" if found[1].isdigit() else found[1].lower(), piece.text)
    for text in re.split(r"^---$", filled, flags=re.MULTILINE):
        check(yaml.load(text, Loader=EveryKeyOnce), text)


class EveryKeyOnce(yaml.SafeLoader):
    """Refuses what kubectl takes silently: a key that occurs twice, of which the last one wins."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"a key occurs twice: {keys}"
        return super().construct_mapping(node, deep)


def check(document: Any, text: str) -> None:
    if isinstance(document, list):
        document = {"patches": document}
    kind, keys = document.get("kind"), set(document)
    if kind == "DevicePolicy":
        policy(document)
    elif isinstance(document.get("components"), dict):
        chart_values(document, VALUES_SCHEMA)
    elif kind in {"Application", "HelmRelease"}:
        spec = document["spec"]
        chart_values(spec["values"] if kind == "HelmRelease" else spec["source"]["helm"]["valuesObject"], VALUES_SCHEMA)
    elif kind == "Kustomization" and document["apiVersion"].startswith("kustomize.toolkit.fluxcd.io/"):
        assert {each["kind"] for each in document["spec"]["healthCheckExprs"]} == {"DevicePolicy", "NodeDevices"}
    elif kind == "Kustomization" or keys <= {"patches", "components", "images"}:
        kustomization(document)
    elif kind == "ConfigMap" and document["metadata"]["name"] == "argocd-cm":
        assert all(key.startswith("resource.customizations.health.nodedevices.io_") for key in document["data"])
    elif kind == "ConfigMap":
        assert document["metadata"] == {"name": "device-plugin-configs", "namespace": "nodedevices-system"}
        for content in document["data"].values():
            file.parse(content.encode())
    elif kind == "ResourceQuota":
        critical_pods_quota(document)
    elif kind == "ClusterConfiguration":
        kubeadm(document)
    elif kind in {"ClusterRole", "ClusterRoleBinding"}:
        may_watch_pods(document)
    elif kind == "NodeReadinessRule":
        readiness(document)
    elif kind == "DeschedulerPolicy":
        descheduler(document)
    elif kind in {"DeviceClass", "ResourceClaim"}:  # tests/e2e/test_e2e_dra.py has both on a real scheduler
        assert document["apiVersion"] == "resource.k8s.io/v1"
        assert DRA_DRIVER in text
    elif kind == "DaemonSet":  # a patch
        render_with(patches=[{"patch": text}], components=["mps"])
    elif kind == "Pod":
        for container in document["spec"]["containers"]:
            assert set(container) <= {"name", "image", "command", "args", "resources"}
            assert container["resources"].keys() in ({"limits"}, {"claims"})
            assert all(type(number) is int for number in container["resources"].get("limits", {}).values())
            claims = [claim["name"] for claim in document["spec"].get("resourceClaims", ())]
            assert [claim["name"] for claim in container["resources"].get("claims", ())] == claims
    elif keys in ({"agent"}, {"operator"}):
        chart_values(document, VALUES_SCHEMA)
        assert document.get("operator", {"tolerations": [TOLERATED]}) == {"tolerations": [TOLERATED]}
    elif keys == {"updateStrategy", "affinity"}:  # values of NVIDIA's chart
        stays = {"key": "nodedevices.io/takeover", "operator": "NotIn", "values": ["done", "back"]}
        required = document["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert required["nodeSelectorTerms"] == [
            {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}, stays]}
            for key, value in vendor.CHART_TERMS
        ]
    elif kind == "Job":
        check({"podFailurePolicy": document["spec"]["podFailurePolicy"]}, text)
        assert document["spec"]["template"]["spec"]["restartPolicy"] == "Never", "else there is no podFailurePolicy"
    elif keys == {"podFailurePolicy"}:
        [rule] = document["podFailurePolicy"]["rules"]
        assert [each["type"] for each in rule["onPodConditions"]] == [POD_DEVICE_HEALTHY]
    elif keys == {"readinessGates"}:
        assert document["readinessGates"] == [{"conditionType": POD_DEVICE_HEALTHY}]
    elif keys == {"apiVersion", "providers"}:  # of Grafana's dashboards
        [provider] = document["providers"]
        assert (set(provider), provider["type"]) == ({"name", "folder", "type", "options"}, "file")
    elif document.get("version") == "v1":
        assert keys <= OWN_FILE
        file.parse(text.encode())
    elif all(key.count("-") >= 2 for key in keys):  # NameCustomize.json
        assert len(card_names.parse(text.encode()).aliases) == len(keys)
    elif keys <= SECTION_KEYS:
        parse(Sections, document)
    elif keys == {"devices"} and all(
        each.keys() & {"preset", "groups", "paths", "usb"} for each in document["devices"]
    ):
        assert generic_config.parse(text.encode()).devices
    elif keys == {"pools"}:
        assert remote_config.parse(text.encode()).pools
    elif keys <= SIMULATED:
        simulated_probe.parse(text.encode(), node="node-a")
    elif keys == {"configList"}:
        rdma_config.parse(text.encode())
    elif keys == {"resourceList"}:
        sriov_config.parse(text.encode())
    elif "maxPodsPerNode" in keys:
        onload.parse(text.encode())
    elif keys >= {"resourceName", "selectors"}:
        rdma_config.parse(json.dumps({"configList": [document]}).encode())
    else:
        raise AssertionError(f"what is it? {sorted(keys)}: give it a check")


def policy(document: dict[str, Any]) -> None:
    spec = parse(DevicePolicy, document).spec
    if spec.sharing is None and spec.partitions is None:
        return
    # A product's label shows sharing and MIG. A policy that is selected by what it changes goes back and forth.
    selector = spec.node_selector
    assert "nvidia.com/gpu.product" not in (selector.match_labels or {})
    for each in selector.match_expressions or ():
        if each.key == "nvidia.com/gpu.product":
            plain = {value for value in each.values or () if not value.endswith("-SHARED")}
            assert {f"{value}-SHARED" for value in plain} <= set(each.values or ())


def kustomization(document: dict[str, Any]) -> None:
    assert set(document) <= KUSTOMIZATION
    for path in [*document.get("resources", []), *(document.get("components") or [])]:
        assert path.startswith(CLONE)
        assert (ROOT / path.removeprefix(CLONE) / "kustomization.yaml").is_file(), path
    components = [path.rpartition("/")[2] for path in document.get("components") or []]
    if any("group" in patch.get("target", {}) for patch in document.get("patches", [])):
        return  # what it leaves is for test_manifests.py
    for patch in document.get("patches", []):
        found = yaml.safe_load(patch["patch"])
        if of_the_agent(found):
            continue  # what it does is for test_platforms_page.py
        if isinstance(found, dict):
            own_scheduler(found)
            components.append("extender-scheduler")
            continue
        if patch["target"]["kind"] == "ValidatingAdmissionPolicy":
            continue  # and this for test_manifests.py
        if patch["target"] == {"kind": "Deployment", "name": "nodedevices-operator"}:
            assert found == [{"op": "add", "path": "/spec/template/spec/tolerations", "value": [TOLERATED]}]
            continue
        assert patch["target"] in ({"kind": "DaemonSet", "name": "nodedevices-agent"}, {"kind": CRD})
        for step in found:
            assert step.keys() == {"op", "path", "value"}
            assert step["op"] == "add"
    images = document.get("images", [])
    if not document.get("patches") and not images:
        return  # what components do is for test_chart_equals_kustomize.py
    rendered = render_with(patches=document.get("patches", []), components=components, images=images)
    if images:
        for image in images_of(rendered):
            assert "/" in image, f"{image}: an image that is not from the reader's registry"
    for patch in document.get("patches", []):
        found = yaml.safe_load(patch["patch"])
        if isinstance(found, dict) and not of_the_agent(found) and rendered:
            [config] = [
                each
                for each in rendered
                if each["metadata"]["name"].startswith("nodedevices-scheduler-") and each["kind"] == "ConfigMap"
            ]
            assert {name: text.rstrip() for name, text in config["data"].items()} == {
                name: text.rstrip() for name, text in found["data"].items()
            }


def of_the_agent(patch: Any) -> bool:
    """Whether it is a merge into the agent's DaemonSet."""
    return isinstance(patch, dict) and (patch["kind"], patch["metadata"]["name"]) == ("DaemonSet", "nodedevices-agent")


def own_scheduler(patch: dict[str, Any]) -> None:
    """A configuration of the second scheduler: the component's, with other names of it and of resources."""
    assert (patch["kind"], patch["metadata"]["name"]) == ("ConfigMap", "nodedevices-scheduler")
    [(name, text)] = patch["data"].items()
    config = yaml.load(text, Loader=EveryKeyOnce)
    ours = yaml.safe_load((ROOT / "manifests/components/extender-scheduler" / name).read_text())
    for each in (config, ours):
        [profile], [extender] = each["profiles"], each["extenders"]
        assert profile.pop("schedulerName")
        assert all(resource.keys() == {"name", "ignoredByScheduler"} for resource in extender.pop("managedResources"))
    assert config == ours


def kubeadm(document: dict[str, Any]) -> None:
    """The flag and the mount that docs/scheduler-extender.md adds to kube-scheduler's manifest, as kubeadm has them."""
    assert (document["apiVersion"], set(document)) == (
        "kubeadm.k8s.io/v1beta4",
        {"apiVersion", "kind", "scheduler"},
    )
    [flag], [volume] = document["scheduler"]["extraArgs"], document["scheduler"]["extraVolumes"]
    assert flag["name"] == "config"
    assert flag["value"] == f"{volume['mountPath']}/scheduler-config.yaml"
    assert volume["hostPath"] == volume["mountPath"]
    assert (volume["readOnly"], volume["pathType"]) == (True, "Directory")


def may_watch_pods(document: dict[str, Any]) -> None:
    """What the agent's account needs for shares of computing power (nodedevices_plugin/inputs/cluster.py), no more."""
    assert document["metadata"] == {"name": "nodedevices-agent-pods"}
    if document["kind"] == "ClusterRole":
        assert document["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]
        return
    base = yaml.safe_load_all((ROOT / "manifests" / "base" / "agent" / "rbac.yaml").read_text())
    [ours] = [one for one in base if one["kind"] == "ClusterRoleBinding"]
    assert document["subjects"] == ours["subjects"]
    assert document["roleRef"] == ours["roleRef"] | {"name": "nodedevices-agent-pods"}


def readiness(document: dict[str, Any]) -> None:
    """Pods wait for the operator's condition, once; the operator does not: on a cluster of new nodes alone it would
    wait for what it writes itself. tests/integration/test_node_readiness.py has the rule on a real API server."""
    spec = document["spec"]
    assert spec["conditions"] == [{"type": NODE_READY, "requiredStatus": "True"}]
    assert spec["enforcementMode"] == "bootstrap-only"
    assert spec["taint"] == {"key": TOLERATED["key"], "effect": "NoSchedule"}, "the controller evicts no pod"


def descheduler(document: dict[str, Any]) -> None:
    """Of all pods it deletes those that the operator announces as rejected, and what it does is enabled."""
    [profile] = document["profiles"]
    [plugin] = profile["pluginConfig"]
    assert document["apiVersion"] == "descheduler/v1alpha2"
    assert profile["plugins"] == {"deschedule": {"enabled": [plugin["name"]]}}
    assert (plugin["name"], plugin["args"]["reasons"]) == ("RemoveFailedPods", [REASON])
    assert plugin["args"].keys() == {"reasons", "minPodLifetimeSeconds"}


def critical_pods_quota(document: dict[str, Any]) -> None:
    """It lets every pod of ours be made where critical ones are limited to kube-system."""
    [scope] = document["spec"]["scopeSelector"]["matchExpressions"]
    assert (scope["scopeName"], scope["operator"]) == ("PriorityClass", "In")
    used = {
        found[1]
        for part in ("base", "components")
        for manifest in (ROOT / "manifests" / part).rglob("*.yaml")
        for found in re.finditer(r"^ *priorityClassName: (\S+)", manifest.read_text(), re.MULTILINE)
    }
    assert set(scope["values"]) == used


def chart_values(values: dict[str, Any], schema: dict[str, Any]) -> None:
    """Every key is one of the chart's."""
    for name, value in values.items():
        assert name in schema["properties"], f"{name}: not a value of manifests/chart"
        if isinstance(value, dict) and "properties" in schema["properties"][name]:
            chart_values(value, schema["properties"][name])


def images_of(objects: list[dict[str, Any]]) -> Iterator[str]:
    for each in objects:
        if each["kind"] in {"DaemonSet", "Deployment"}:
            for container in each["spec"]["template"]["spec"]["containers"]:
                yield container["image"]


def render_with(
    *, patches: list[dict[str, Any]], components: list[str], images: Sequence[dict[str, Any]] = ()
) -> list[dict[str, Any]]:
    """As the reader's own kustomization, where there is a kubectl to render it with."""
    binary = kubectl()
    if binary is None:
        return []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "nodedevices").symlink_to(ROOT)
        own = folder / "mine"
        own.mkdir()
        of_crds = any(each.get("target") == {"kind": CRD} for each in patches)
        base = own / CLONE / "manifests/overlays/default" if of_crds else default_without_crds()
        document = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": [os.path.relpath(base, own.resolve())],
            "components": [f"{CLONE}manifests/components/{each}" for each in components],
            "patches": patches,
            "images": list(images),
        }
        (own / "kustomization.yaml").write_text(yaml.safe_dump(document))
        objects = render(own, binary)
        assert objects
        return objects


def test_the_pages_have_yaml_at_all() -> None:
    pages = {each.page for each in ALL}
    assert {f"docs/{name}.md" for name in ("sharing", "injection", "operations", "simulated-devices")} <= pages
    assert "docs/migrate-from-nvidia.md" in pages
