"""What the manifests promise a cluster's owner, read from what `kubectl apply -k` would send.

Rendered by kubectl when there is one; without it the same promises are read from the base's files, which holds for all
but the overlays (those tests say so). The golden file makes every change of what users install visible in a review:
UPDATE_GOLDEN=1 writes it anew. What a component adds as objects stands in its own files.
"""

from __future__ import annotations

import difflib
import os
import pickle
import re
import tempfile
import textwrap
from argparse import ArgumentParser
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from nodedevices_api import conditions as names
from nodedevices_operator import settings as operator_settings
from nodedevices_operator.concerns.fleet_gate import NAME as RECORD
from nodedevices_operator.desired.labels import LEFT_OUT
from nodedevices_operator.extender import settings as extender_settings
from nodedevices_operator.records.names import LEASE_NAME
from nodedevices_plugin.settings.flags import parse
from nodedevices_plugin.settings.options import by_name
from nodedevices_plugin.settings.probes import together
from nodedevices_plugin.vendors.nic.vendor import FOLDER
from nodedevices_plugin.vendors.nvidia.vendor import DRIVER
from nodedevices_probe.amd.exporter import SOCKET
from nodedevices_probe.main import HEALTH_ADDRESS as HEALTH_ADDRESS_OF_SERVER
from nodedevices_probe.registry import KINDS
from support.kustomize import ROOT, default_without_crds, kubectl, render

MANIFESTS = ROOT / "manifests"
CRD = "CustomResourceDefinition"
GOLDEN = Path(__file__).with_name("default.golden.yaml")
KUBECTL = kubectl()

needs_kubectl = pytest.mark.skipif(KUBECTL is None, reason="no kubectl: `make cluster-tools` builds one")

PARTS = ("agent", "probe")
LIBRARIES = {"PATH", "LD_LIBRARY_PATH"}  # where programs and libraries are: of mps and driver-directory, as these say
# What that component sets.
OF_DRIVER_DIRECTORY = {"DEVICE_LIST_STRATEGY", "DRIVER_ROOT_CTR_PATH", "PATH", "LD_LIBRARY_PATH"}

# Everything that each part may do. A rule that is not here is not granted; one that is here is used by the code.
GRANTED = {
    "nodedevices-agent": {
        ("nodedevices.io", "nodedevices"): {"list", "watch", "create", "patch"},
        ("nodedevices.io", "nodedevices/status"): {"patch"},
    },
    "nodedevices-operator": {
        ("nodedevices.io", "nodedevices"): {"get", "list", "watch", "patch"},
        ("nodedevices.io", "nodedevices/status"): {"patch"},
        ("nodedevices.io", "devicepolicies"): {"get", "list", "watch"},
        ("nodedevices.io", "devicepolicies/status"): {"patch"},
        ("", "nodes"): {"get", "list", "watch", "patch"},
        ("", "nodes/status"): {"patch"},
        ("", "pods"): {"get", "list", "watch"},
        ("", "pods/status"): {"patch"},
        ("", "pods/eviction"): {"create"},
        ("", "events"): {"create"},
    },
    "nodedevices-view": {
        ("nodedevices.io", kind): {"get", "list", "watch"} for kind in ("nodedevices", "devicepolicies")
    },
    "nodedevices-admin": {
        ("nodedevices.io", "devicepolicies"): {
            *("get", "list", "watch"),
            *("create", "update", "patch", "delete", "deletecollection"),
        },
        ("nodedevices.io", "nodedevices"): {"get", "list", "watch", "update", "patch", "delete"},
    },
}


@cache
def pickled_overlay(name: str, binary: str) -> bytes:
    """Tests change what they get, and to parse the CRDs takes longer than to render them."""
    return pickle.dumps(render(MANIFESTS / "overlays" / name, binary))


def overlay(name: str) -> list[dict[str, Any]]:
    if KUBECTL is not None:
        found: list[dict[str, Any]] = pickle.loads(pickled_overlay(name, KUBECTL))
        return found
    files = sorted((MANIFESTS / "base").rglob("*.yaml"))
    objects = [one for file in files for one in yaml.safe_load_all(file.read_text()) if one]
    return [one for one in objects if one["kind"] != "Kustomization"]


@pytest.fixture(scope="module")
def default() -> list[dict[str, Any]]:
    return overlay("default")


def of_kind(objects: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    return {one["metadata"]["name"]: one for one in objects if one["kind"] == kind}


def workloads(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for one in objects if one["kind"] in {"DaemonSet", "Deployment"}]


def pod(workload: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = workload["spec"]["template"]["spec"]
    return spec


def container(spec: dict[str, Any], name: str = "agent") -> dict[str, Any]:
    found: dict[str, Any]
    [found] = [each for each in spec["containers"] if each["name"] == name]
    return found


def agent_pod(objects: list[dict[str, Any]]) -> dict[str, Any]:
    return pod(of_kind(objects, "DaemonSet")["nodedevices-agent"])


def test_each_part_may_do_exactly_what_is_listed(default: list[dict[str, Any]]) -> None:
    granted = {
        name: {
            (group, resource): set(rule["verbs"])
            for rule in role["rules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
        }
        for name, role in of_kind(default, "ClusterRole").items()
    }
    assert granted == GRANTED


def test_who_may_view_reads_both_kinds_and_no_usual_role_writes_them(default: list[dict[str, Any]]) -> None:
    aggregated = {
        name: set(role["metadata"]["labels"]) - {"app.kubernetes.io/part-of"}
        for name, role in of_kind(default, "ClusterRole").items()
    }
    assert {name: labels for name, labels in aggregated.items() if labels} == {
        "nodedevices-view": {"rbac.authorization.k8s.io/aggregate-to-view"}
    }


def test_the_operator_writes_one_config_map_and_one_lease_and_those_in_its_own_namespace(
    default: list[dict[str, Any]],
) -> None:
    [(name, role)] = of_kind(default, "Role").items()
    assert (name, role["metadata"]["namespace"]) == ("nodedevices-operator", "nodedevices-system")
    assert role["rules"] == [
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [RECORD], "verbs": ["get", "patch", "watch"]},
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
        {
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "resourceNames": [LEASE_NAME],
            "verbs": ["get", "patch"],
        },
    ]
    binding = of_kind(default, "RoleBinding")[name]
    assert binding["roleRef"] == {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": name, "namespace": "nodedevices-system"}]


def test_no_role_grants_a_wildcard_a_secret_or_exec(default: list[dict[str, Any]]) -> None:
    for role in of_kind(default, "ClusterRole").values():
        for rule in role["rules"]:
            named = {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
            assert not named & {"*", "secrets", "pods/exec", "escalate", "bind", "impersonate"}


def test_nobody_else_is_bound_to_our_roles(default: list[dict[str, Any]]) -> None:
    for name, binding in of_kind(default, "ClusterRoleBinding").items():
        assert binding["roleRef"]["name"] == name
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": name, "namespace": "nodedevices-system"}]


def test_no_container_has_a_privilege(default: list[dict[str, Any]]) -> None:
    for workload in workloads(default):
        spec = pod(workload)
        assert not any(spec.get(key) for key in ("hostNetwork", "hostPID", "hostIPC"))
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for one in [*spec["containers"], *spec.get("initContainers", [])]:
            context = one["securityContext"]
            assert context["privileged"] is False
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"] == {"drop": ["ALL"]}


def test_the_agent_sees_two_directories_of_the_node_and_writes_one(default: list[dict[str, Any]]) -> None:
    spec = agent_pod(default)
    paths = {one["name"]: one["hostPath"]["path"] for one in spec["volumes"] if "hostPath" in one}
    mounts = {one["name"]: one.get("readOnly", False) for one in container(spec)["volumeMounts"]}
    assert {path: mounts[name] for name, path in paths.items()} == {
        "/var/lib/kubelet/device-plugins": False,
        "/var/lib/kubelet/pod-resources": True,
    }


def test_the_hardware_is_in_one_container_and_the_kubelets_sockets_and_the_token_in_the_other(
    default: list[dict[str, Any]],
) -> None:
    spec = agent_pod(default)
    agent, probe = container(spec), container(spec, "probe")
    here = {each["name"]: each for each in spec["volumes"]}
    kinds = {each["name"]: {*here[each["name"]]} - {"name"} for each in probe["volumeMounts"]}
    assert kinds == {"probe-server": {"emptyDir"}, "probe-tmp": {"emptyDir"}}, "nothing of the kubelet's, and no token"
    values = {one["name"]: {each["name"]: each.get("value") for each in one["env"]} for one in (agent, probe)}
    assert values["probe"] == {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "utility"}
    assert values["agent"]["NVIDIA_VISIBLE_DEVICES"] == "void"
    [shared] = {each["name"] for each in agent["volumeMounts"]} & {each["name"] for each in probe["volumeMounts"]}
    assert here[shared]["emptyDir"] == {"medium": "Memory", "sizeLimit": "1Mi"}
    inside = {one["name"]: next(m for m in one["volumeMounts"] if m["name"] == shared) for one in (agent, probe)}
    assert inside["agent"] == {**inside["probe"], "readOnly": True}, "it connects, and puts no file before a probe"
    server = values["agent"]["NODEDEVICES_PROBE_SERVER"]
    assert probe["command"] == ["nodedevices-probe", "serve", "--listen", server]
    served = parse(["--node-name=n"], {"NODEDEVICES_PROBE_SERVER": server}).probe_server
    assert str(Path(served).parent) == inside["probe"]["mountPath"]
    assert (probe["image"], probe["securityContext"]) == (agent["image"], agent["securityContext"])


def test_no_token_is_mounted_that_is_not_bound_and_short_lived(default: list[dict[str, Any]]) -> None:
    for account in of_kind(default, "ServiceAccount").values():
        assert account["automountServiceAccountToken"] is False
    for workload in workloads(default):
        spec = pod(workload)
        assert spec["automountServiceAccountToken"] is False
        sources = [source for one in spec["volumes"] for source in one.get("projected", {}).get("sources", [])]
        seconds = [one["serviceAccountToken"]["expirationSeconds"] for one in sources if "serviceAccountToken" in one]
        assert seconds == [3600]


def test_every_container_has_probes_and_bounds(default: list[dict[str, Any]]) -> None:
    for workload in workloads(default):
        for one in pod(workload)["containers"]:
            assert one["livenessProbe"]["httpGet"]["path"] == "/healthz"
            # That a node serves its devices is the agent's to say.
            ready = one.get("readinessProbe", {}).get("httpGet", {}).get("path")
            assert ready == (None if one["name"] == "probe" else "/readyz")
            assert "memory" in one["resources"]["limits"]
            assert {"cpu", "memory"} <= set(one["resources"]["requests"])


def serving(workload: dict[str, Any]) -> dict[str, Any]:
    """The container that serves metrics."""
    return container(pod(workload), workload["metadata"]["name"].removeprefix("nodedevices-"))


def test_the_kubelets_probes_have_a_port_of_their_own_that_no_pod_may_reach(default: list[dict[str, Any]]) -> None:
    policies = of_kind(default, "NetworkPolicy")
    for workload in workloads(default):
        one = serving(workload)
        ports = {each["name"]: each["containerPort"] for each in one["ports"]}
        assert ports["http"] != ports["health"]
        assert {one[probe]["httpGet"]["port"] for probe in ("livenessProbe", "readinessProbe")} == {"health"}
        policy = policies[workload["metadata"]["name"]]["spec"]
        assert (
            policy["podSelector"]["matchLabels"].items() <= workload["spec"]["template"]["metadata"]["labels"].items()
        )
        assert policy["policyTypes"] == ["Ingress"]
        [rule] = policy["ingress"]
        assert rule["ports"] == [{"protocol": "TCP", "port": "http"}]
        assert rule["from"] == [{"namespaceSelector": {"matchLabels": {"nodedevices.io/metrics": "enabled"}}}]


def test_the_ports_of_the_manifests_are_the_programs_defaults(default: list[dict[str, Any]]) -> None:
    from nodedevices_operator import settings
    from nodedevices_plugin.settings.options import HEALTH_ADDRESS, HTTP_ADDRESS

    expected = {
        "nodedevices-agent": (HTTP_ADDRESS, HEALTH_ADDRESS),
        "nodedevices-operator": (settings.HTTP_ADDRESS, settings.HEALTH_ADDRESS),
    }
    for workload in workloads(default):
        found = tuple(f":{each['containerPort']}" for each in serving(workload)["ports"])
        assert found == expected[workload["metadata"]["name"]]
    probe = container(agent_pod(default), "probe")
    [port] = probe["ports"]
    assert f":{port['containerPort']}" == HEALTH_ADDRESS_OF_SERVER
    assert probe["livenessProbe"]["httpGet"]["port"] == port["name"]


def leaves_at(workload: dict[str, Any]) -> list[dict[str, Any]]:
    required = pod(workload)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    [term] = required["nodeSelectorTerms"]
    expressions: list[dict[str, Any]] = term["matchExpressions"]
    return expressions


def test_the_admission_policy_is_about_agents_wherever_they_are_installed(default: list[dict[str, Any]]) -> None:
    policy = of_kind(default, "ValidatingAdmissionPolicy")["nodedevices-own-node-only"]
    assert policy["spec"]["failurePolicy"] == "Fail"
    [condition] = policy["spec"]["matchConditions"]
    [pattern] = re.findall(r"username\.matches\('(.*)'\)$", condition["expression"])
    for namespace, name, agent in (
        ("nodedevices-system", "nodedevices-agent", True),
        ("gpu-tools", "my-nodedevices-agent-2", True),
        ("nodedevices-system", "nodedevices-operator", False),
        ("kube-system", "generic-garbage-collector", False),
    ):
        assert bool(re.search(pattern, f"system:serviceaccount:{namespace}:{name}")) is agent
    assert not re.search(pattern, "system:node:nodedevices-agent")
    binding = of_kind(default, "ValidatingAdmissionPolicyBinding")["nodedevices-own-node-only"]
    assert binding["spec"] == {"policyName": "nodedevices-own-node-only", "validationActions": ["Deny"]}


@pytest.mark.parametrize("name", [f"nodedevices-operator-own-{what}" for what in ("keys", "fields", "record")])
def test_the_operators_policies_are_about_it_wherever_it_is_installed(default: list[dict[str, Any]], name: str) -> None:
    policy = of_kind(default, "ValidatingAdmissionPolicy")[name]["spec"]
    assert policy["failurePolicy"] == "Fail"
    [condition] = policy["matchConditions"]
    [pattern] = re.findall(r"username\.matches\('(.*)'\)$", condition["expression"])
    for account, operator in (
        ("nodedevices-system:nodedevices-operator", True),
        ("nodedevices-operator:nodedevices-operator", True),
        ("gpu-tools:my-nodedevices-operator-2", True),
        ("nodedevices-operator:nodedevices-agent", False),
        ("nodedevices-operator:default", False),
    ):
        assert bool(re.search(pattern, f"system:serviceaccount:{account}")) is operator
    binding = of_kind(default, "ValidatingAdmissionPolicyBinding")[name]
    assert binding["spec"] == {"policyName": name, "validationActions": ["Deny"]}


AGENTS = {
    names.READY,
    names.DEVICES_HEALTHY,
    names.CONFIG_APPLIED,
    names.HOLDERS_KNOWN,
    names.ALLOCATED_ONCE,
    names.EXPECTED_DEVICES,
    names.SLICES_PUBLISHED,
}
OF_POLICIES = {names.ACCEPTED, names.APPLIED, names.CONFLICTED, names.ROLLED_OUT, names.ACTIONS_STOPPED}


def test_what_is_the_operators_in_a_node_devices_is_the_same_in_every_policy(default: list[dict[str, Any]]) -> None:
    policies = of_kind(default, "ValidatingAdmissionPolicy")
    theirs, own = (
        {each["name"]: each["expression"] for each in policies[name]["spec"]["variables"]}
        for name in ("nodedevices-own-node-only", "nodedevices-operator-own-fields")
    )
    for expression in (own["conditions"], theirs["operatorConditions"]):
        assert set(yaml.safe_load(expression)) == set(names.REASONS) - AGENTS - OF_POLICIES


def test_the_labels_that_the_operator_leaves_out_are_those_it_may_not_write(default: list[dict[str, Any]]) -> None:
    policy = of_kind(default, "ValidatingAdmissionPolicy")["nodedevices-operator-own-fields"]["spec"]
    [own] = [each["expression"] for each in policy["variables"] if each["name"] == "otherLabels"]
    [pattern] = re.findall(r"key\.matches\(\s*'(.*?)'\)", own)
    domains = "|".join(each.replace(".", "[.]") for each in LEFT_OUT)
    assert pattern == f"^([^/]*[.])?({domains})/"
    [message] = [it["messageExpression"] for it in policy["validations"] if "otherLabels ==" in it["expression"]]
    assert [domain for domain in LEFT_OUT if domain not in message] == []


@needs_kubectl
def test_another_namespace_and_other_names_are_a_line_each_in_a_kustomization(tmp_path: Path) -> None:
    """With every component: tests/integration/test_agent_bounds.py tries what is installed so."""
    components = {folder.name for folder in (MANIFESTS / "components").iterdir()}
    components -= {"operator-namespace"}  # two namespaces, which cannot both be called so
    document = installation(sorted(components), tmp_path) | {
        "namespace": "gpu-tools",
        "namePrefix": "my-",
        "resources": [os.path.relpath(MANIFESTS / "overlays" / "demo", tmp_path.resolve())],
    }
    objects = [it for it in render_from(document, tmp_path) if it["kind"] != CRD]
    assert "nodedevices-system" not in yaml.safe_dump(objects)
    for part in ("agent", "operator"):
        binding = of_kind(objects, "ClusterRoleBinding")[f"my-nodedevices-{part}"]
        account = of_kind(objects, "ServiceAccount")[f"my-nodedevices-{part}"]["metadata"]
        assert binding["roleRef"]["name"] == f"my-nodedevices-{part}"
        [subject] = binding["subjects"]
        assert (subject["name"], subject["namespace"]) == (account["name"], account["namespace"])
        assert account["namespace"] == "gpu-tools"
    bound = of_kind(objects, "ValidatingAdmissionPolicyBinding")["my-nodedevices-own-node-only"]
    assert bound["spec"]["policyName"] in of_kind(objects, "ValidatingAdmissionPolicy")
    constraints = of_kind(objects, "ClusterRole")["my-nodedevices-agent-scc"]["rules"][0]
    assert constraints["resourceNames"] == ["my-nodedevices-agent"]


@needs_kubectl
def test_the_page_on_security_has_the_patch_for_exact_names(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    [block] = re.findall(r"^    patches:\n(?:    .*\n)+", page, re.MULTILINE)
    document = yaml.safe_load(textwrap.dedent(block)) | installation(("cluster-properties",), tmp_path)
    policies = of_kind(render_from({**document, "namePrefix": "my-"}, tmp_path), "ValidatingAdmissionPolicy")
    assert len(policies) == 5
    for name, policy in policies.items():
        account = "agent" if name.endswith("own-node-only") else "operator"
        [condition] = policy["spec"]["matchConditions"]
        exact = f"system:serviceaccount:nodedevices-system:nodedevices-{account}"
        assert condition["expression"] == f"request.userInfo.username == '{exact}'"


@needs_kubectl
def test_the_overlay_brings_the_crds_and_nothing_else_differs_without_them(default: list[dict[str, Any]]) -> None:
    """So that most tests do without."""
    assert set(of_kind(default, CRD)) == {"nodedevices.nodedevices.io", "devicepolicies.nodedevices.io"}
    assert [each for each in default if each["kind"] != CRD] == with_components()


@needs_kubectl
def test_demo_is_default_with_simulated_devices_and_nothing_else(default: list[dict[str, Any]]) -> None:
    demo = overlay("demo")
    agent = of_kind(demo, "DaemonSet")["nodedevices-agent"]
    assert agent["spec"].pop("minReadySeconds") == 0
    agent["spec"]["minReadySeconds"] = of_kind(default, "DaemonSet")["nodedevices-agent"]["spec"]["minReadySeconds"]
    spec = pod(agent)
    probe = container(spec, "probe")
    volumes = [one for one in spec["volumes"] if one["name"] == "simulated"]
    assert volumes == [{"name": "simulated", "hostPath": {"path": "/var/lib/nodedevices", "type": "DirectoryOrCreate"}}]
    mounts = [one for one in probe["volumeMounts"] if one["name"] == "simulated"]
    assert mounts == [{"name": "simulated", "mountPath": "/var/lib/nodedevices", "readOnly": True}]
    spec["volumes"].remove(volumes[0])
    probe["volumeMounts"].remove(mounts[0])
    for one in (probe, container(spec)):
        kept = {"NODEDEVICES_PROBE_SERVER"}
        one["env"] = [it for it in one["env"] if it["name"] in kept or not it["name"].startswith("NODEDEVICES_")]
    for objects in (demo, default):
        sort(objects)
    assert demo == default


def sort(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A merge changes the order of what it touches, which means nothing but for who is first."""
    for workload in workloads(objects):
        spec = pod(workload)
        for one in spec["containers"]:
            for part, by in (("env", "name"), ("volumeMounts", "mountPath")):
                if part in one:
                    one[part].sort(key=lambda each, by=by: each[by])
        for part in ("containers", "volumes"):
            spec.get(part, []).sort(key=lambda each: each["name"])
    return objects


def same_as_default(changed: list[dict[str, Any]]) -> bool:
    """Nothing else was changed."""
    return sort(changed) == sort(with_components())


@cache
def pickled(components: tuple[str, ...], binary: str) -> bytes:
    with tempfile.TemporaryDirectory() as name:
        return pickle.dumps(render_from(installation(components, Path(name)), Path(name), binary))


def render_from(kustomization: dict[str, Any], folder: Path, binary: str | None = KUBECTL) -> list[dict[str, Any]]:
    assert binary is not None
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return render(folder, binary)


def installation(components: Iterable[str], folder: Path) -> dict[str, Any]:
    """The default overlay with components in this order, as a user's own kustomization in this folder has it."""
    return {
        "resources": [os.path.relpath(default_without_crds().resolve(), folder.resolve())],
        "components": [os.path.relpath(MANIFESTS / "components" / each, folder.resolve()) for each in components],
    }


def with_components(*names: str) -> list[dict[str, Any]]:
    """What is installed with them, but for the CRDs, which no component touches."""
    assert KUBECTL is not None
    found: list[dict[str, Any]] = pickle.loads(pickled(names, KUBECTL))
    return found


@needs_kubectl
def test_the_operator_namespace_component_moves_the_operator_and_restricts_what_is_there() -> None:
    changed = with_components("operator-namespace")
    here = of_kind(changed, "Namespace")
    levels = {name: it["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] for name, it in here.items()}
    assert levels == {"nodedevices-system": "privileged", "nodedevices-operator": "restricted"}
    changed.remove(here["nodedevices-operator"])
    moved = 0
    for one in changed:
        metadata = one["metadata"]
        if metadata.get("namespace") == "nodedevices-operator":
            assert metadata["name"] == "nodedevices-operator"
            metadata["namespace"] = "nodedevices-system"
            moved += 1
        for subject in one.get("subjects", []):
            assert (subject["namespace"] == "nodedevices-operator") is (subject["name"] == "nodedevices-operator")
            subject["namespace"] = "nodedevices-system"
    assert moved >= 4, "account, Deployment, network policy, disruption budget"
    assert same_as_default(changed)


@needs_kubectl
def test_with_the_operator_in_a_namespace_of_its_own_every_reference_leads_somewhere() -> None:
    changed = with_components("prometheus", "operator-namespace")
    accounts = {
        (it["metadata"]["namespace"], it["metadata"]["name"]) for it in changed if it["kind"] == "ServiceAccount"
    }
    assert ("nodedevices-operator", "nodedevices-operator") in accounts
    pods_at = [(it["metadata"]["namespace"], it["spec"]["template"]) for it in workloads(changed)]
    for namespace, template in pods_at:
        assert (namespace, template["spec"]["serviceAccountName"]) in accounts
    for one in changed:
        for subject in one.get("subjects", []):
            assert (subject["namespace"], subject["name"]) in accounts
        selector = one.get("spec", {}).get("podSelector" if one["kind"] == "NetworkPolicy" else "selector")
        if one["kind"] in {"Service", "PodDisruptionBudget", "NetworkPolicy", "PodMonitor"}:
            wanted = selector.get("matchLabels", selector).items()
            selected = [
                namespace for namespace, template in pods_at if wanted <= template["metadata"]["labels"].items()
            ]
            assert selected == [one["metadata"]["namespace"]], one["metadata"]
    scrape = yaml.safe_load((MANIFESTS / "components" / "prometheus" / "scrape.yaml").read_text())
    [discovery] = scrape["scrape_configs"][0]["kubernetes_sd_configs"]
    assert set(discovery["namespaces"]["names"]) == {namespace for namespace, _ in pods_at}


@needs_kubectl
def test_the_component_cluster_properties_gives_the_switch_and_its_rights_and_nothing_else() -> None:
    changed = with_components("cluster-properties")
    rules = of_kind(changed, "ClusterRole")["nodedevices-operator"]["rules"]
    assert rules.pop() == {
        "apiGroups": ["about.k8s.io"],
        "resources": ["clusterproperties"],
        "verbs": ["get", "list", "create", "patch", "delete"],
    }
    operator = pod(of_kind(changed, "Deployment")["nodedevices-operator"])["containers"][0]
    variable = "NODEDEVICES_CLUSTER_PROPERTIES"
    assert operator.pop("env") == [{"name": variable, "value": "true"}]
    assert operator_settings.read([], {variable: "true"}).cluster_properties
    admission = "nodedevices-operator-own-properties"
    policy = of_kind(changed, "ValidatingAdmissionPolicy")[admission]
    binding = of_kind(changed, "ValidatingAdmissionPolicyBinding")[admission]
    own_keys = of_kind(changed, "ValidatingAdmissionPolicy")["nodedevices-operator-own-keys"]["spec"]
    assert policy["spec"]["matchConditions"] == own_keys["matchConditions"]
    assert policy["spec"]["failurePolicy"] == "Fail"
    assert binding["spec"] == {"policyName": admission, "validationActions": ["Deny"]}
    assert [each for each in changed if each not in (policy, binding)] == with_components()


@needs_kubectl
def test_the_openshift_component_allows_host_paths_and_uid_0_and_names_the_selinux_type() -> None:
    changed = with_components("openshift")
    agent = pod(of_kind(changed, "DaemonSet")["nodedevices-agent"])
    assert agent["securityContext"].pop("seLinuxOptions") == {"type": "container_device_plugin_t"}
    constraints = of_kind(changed, "SecurityContextConstraints")["nodedevices-agent"]
    assert {name for name, value in constraints.items() if value is True} == {
        "allowHostDirVolumePlugin",
        "readOnlyRootFilesystem",
    }
    assert (constraints["allowedCapabilities"], constraints["requiredDropCapabilities"]) == ([], ["ALL"])
    assert {one for volume in agent["volumes"] for one in volume if one != "name"} <= set(constraints["volumes"])
    [rule] = of_kind(changed, "ClusterRole")["nodedevices-agent-scc"]["rules"]
    assert (rule["resourceNames"], rule["verbs"]) == (["nodedevices-agent"], ["use"])


def of_the_nic_probe(option: str) -> str:
    parser = ArgumentParser()
    KINDS["nic"].add_arguments(parser)
    return str(getattr(parser.parse_args([]), option))


@needs_kubectl
def test_the_driver_directory_component_keeps_the_agent_without_privileges_and_its_probe_apart() -> None:
    changed = with_components("driver-directory")
    spec = agent_pod(changed)
    agent, probe = container(spec), container(spec, "probe")
    here = {each["name"]: each for each in spec["volumes"]}
    defaults = by_name()
    assert here["driver"]["hostPath"]["path"] == defaults["driver-directory"].default
    inside = {each["name"]: each["mountPath"] for each in probe["volumeMounts"]}
    assert (inside["driver"], inside["host-dev"]) == (DRIVER, "/dev")
    own, of_probe = (
        {each["name"]: each["value"] for each in one["env"] if each["name"] in OF_DRIVER_DIRECTORY}
        for one in (agent, probe)
    )
    given = parse(["--node-name=n"], own).given
    assert (given["device-list-strategy"], given["driver-root-ctr-path"]) == (("driver-directory",), inside["driver"])
    assert of_probe == {"DRIVER_ROOT_CTR_PATH": inside["driver"]}, "both containers are given the same"
    [added_to_image] = re.findall(
        r"^ENV PATH=(.*):[$]PATH ", (ROOT / "plugin" / "Dockerfile").read_text(), re.MULTILINE
    )
    programs = own["PATH"].split(":")
    assert ":".join(programs[:2]) == added_to_image
    assert programs[-1] == f"{DRIVER}/bin"
    assert probe["securityContext"] == {"privileged": True, "readOnlyRootFilesystem": True}


@needs_kubectl
def test_the_mps_daemons_run_from_the_drivers_folder_and_with_the_agents_runtime_class() -> None:
    found = of_kind(with_components("mps", "driver-directory", "runtimeclass-nvidia"), "DaemonSet")
    assert {name: pod(each)["runtimeClassName"] for name, each in found.items()} == {
        "nodedevices-agent": "nvidia",
        "nodedevices-mps": "nvidia",
    }
    agent, mps = container(pod(found["nodedevices-agent"])), container(pod(found["nodedevices-mps"]), "mps")
    for one in (agent, mps):
        variables = {each["name"]: each.get("value") for each in one["env"]}
        assert variables["PATH"].endswith(":/usr/local/nvidia/bin")
        assert variables["LD_LIBRARY_PATH"] == "/usr/local/nvidia/lib64"
        where = {each["mountPath"]: each for each in one["volumeMounts"]}
        assert (where["/usr/local/nvidia"]["name"], where["/usr/local/nvidia"]["readOnly"]) == ("driver", True)
    assert {"/dev", "/dev/shm", "/mps"} <= {each["mountPath"] for each in mps["volumeMounts"]}


def environment_of(component: str) -> dict[str, str]:
    """What a component gives the agent's container."""
    document = yaml.safe_load((MANIFESTS / "components" / component / "kustomization.yaml").read_text())
    patches = [yaml.safe_load(each["patch"]) for each in document["patches"]]
    containers = [one for patch in patches for one in patch["spec"]["template"]["spec"].get("containers", ())]
    return {each["name"]: each["value"] for one in containers if one["name"] == "agent" for each in one.get("env", ())}


def test_no_two_components_give_the_agent_the_same_variable_so_that_their_order_decides_nothing() -> None:
    by_variable: dict[str, list[str]] = {}
    for each in sorted((MANIFESTS / "components").glob("*/kustomization.yaml")):
        names = {name for name in re.findall(r"name: ([A-Z][A-Z0-9_]+)", each.read_text()) if name not in LIBRARIES}
        for name in names:
            by_variable.setdefault(name, []).append(each.parent.name)
    assert "NODEDEVICES_ADD_PROBE_ALL_HARDWARE" in by_variable
    assert {name: parts for name, parts in by_variable.items() if len(parts) > 1} == {}


def test_the_components_that_say_which_probes_run_do_so() -> None:
    """Each file brings its probe beside those: tests/unit/agent/test_several_probes.py."""
    agent = container(agent_pod(overlay("default")))
    environment = {each["name"]: each["value"] for each in agent["env"] if "value" in each}
    for component, run in (("all-hardware", ("auto",)), ("device-files", ("nvml",))):
        local = parse(["--node-name=n"], environment | environment_of(component))
        assert together(None, local.added_probes) == (run, [])


@needs_kubectl
def test_the_folder_of_a_driver_container_is_one_patch_away(tmp_path: Path) -> None:
    """As docs/injection.md has it."""
    folder = {"name": "driver-root", "hostPath": {"path": "/run/nvidia/driver", "type": "DirectoryOrCreate"}}
    patch = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "nodedevices-agent", "namespace": "nodedevices-system"},
        "spec": {"template": {"spec": {"volumes": [folder]}}},
    }
    document = installation(["driver-root"], tmp_path) | {"patches": [{"patch": yaml.safe_dump(patch)}]}
    spec = agent_pod(render_from(document, tmp_path))
    assert [each for each in spec["volumes"] if each["name"] == "driver-root"] == [folder]


@needs_kubectl
def test_the_mps_component_keeps_the_privileges_out_of_the_agent() -> None:
    changed = with_components("mps")
    runner = of_kind(changed, "DaemonSet")["nodedevices-mps"]
    spec = pod(runner)
    assert spec["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in spec
    assert runner["spec"]["updateStrategy"] == {"type": "OnDelete"}
    assert leaves_at(runner) == [{"key": "nodedevices.io/mps", "operator": "NotIn", "values": ["away"]}]
    commands = [each["command"] for each in (*spec["initContainers"], *spec["containers"])]
    assert commands == [["nodedevices-mps", "mount-shm"], ["nodedevices-mps"]]


@needs_kubectl
def test_without_the_prometheus_operator_its_kinds_are_one_patch_away(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "alerts.md").read_text()
    [block] = re.findall(r"^    patches:\n(?:    .*\n)+", page, re.MULTILINE)
    left = render_from(yaml.safe_load(textwrap.dedent(block)) | installation(["prometheus"], tmp_path), tmp_path)
    operators = [one for one in with_components("prometheus") if one["apiVersion"].startswith("monitoring.")]
    assert [one for one in with_components("prometheus") if one not in left] == operators
    assert operators


@needs_kubectl
def test_what_prometheus_scrapes_are_the_ports_of_our_pods() -> None:
    added = with_components("prometheus")
    monitors, services = of_kind(added, "PodMonitor"), of_kind(added, "Service")
    for workload in workloads(overlay("default")):
        name, labels = workload["metadata"]["name"], workload["spec"]["template"]["metadata"]["labels"]
        monitor, service = monitors[name]["spec"], services[name]["spec"]
        assert monitor["selector"]["matchLabels"].items() <= labels.items()
        assert service["selector"].items() <= labels.items()
        [endpoint], [port] = monitor["podMetricsEndpoints"], service["ports"]
        one = serving(workload)
        assert (endpoint["port"], port["targetPort"]) == ("http", "http")
        assert {"name": "http", "containerPort": port["port"], "protocol": "TCP"} in [
            {"protocol": "TCP", **each} for each in one["ports"]
        ]
        assert endpoint["honorLabels"] is True


# --- the scheduler extender ------------------------------------------------------------------------------------------
EXTENDERS = ("extender-host", "extender-scheduler")
SHARED = ["nodedevices.io/gpu-memory", "aliyun.com/gpu-mem", "tencent.com/vcuda-memory"]  # names that presets give
READS_NODE_DEVICES = {"apiGroups": ["nodedevices.io"], "resources": ["nodedevices"], "verbs": ["list", "watch"]}
READS_PODS = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}


def added_by(name: str) -> list[dict[str, Any]]:
    before = with_components()
    return [each for each in with_components(name) if each not in before]


@needs_kubectl
@pytest.mark.parametrize("name", EXTENDERS)
def test_an_extender_has_no_privilege_a_short_lived_token_probes_and_bounds(name: str) -> None:
    added = added_by(name)
    test_no_token_is_mounted_that_is_not_bound_and_short_lived(added)
    [workload] = workloads(added)
    spec = pod(workload)
    assert bool(spec.get("hostNetwork")) == (name == "extender-host")
    assert not any("hostPath" in each for each in spec["volumes"])
    context = spec["securityContext"]
    assert (context["runAsNonRoot"], context["seccompProfile"]) == (True, {"type": "RuntimeDefault"})
    for one in spec["containers"]:
        assert one["securityContext"] == {
            "privileged": False,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"livenessProbe", "readinessProbe"} <= set(one)
        assert "memory" in one["resources"]["limits"]
        assert {"cpu", "memory"} <= set(one["resources"]["requests"])


@needs_kubectl
def test_the_extender_is_on_every_node_of_the_control_plane_whatever_its_label_has_as_value() -> None:
    [workload] = workloads(added_by("extender-host"))
    spec = pod(workload)
    assert spec["nodeSelector"] == {"kubernetes.io/os": "linux"}
    assert spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] == {
        "nodeSelectorTerms": [
            {"matchExpressions": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}]}
        ]
    }
    assert spec["tolerations"] == [{"operator": "Exists"}]


@needs_kubectl
@pytest.mark.parametrize("name", EXTENDERS)
def test_an_extenders_flags_are_the_programs_and_its_probes_reach_it(name: str) -> None:
    [workload] = workloads(added_by(name))
    extender = container(pod(workload), "extender")
    assert extender["command"] == ["nodedevices-operator", "extender"]
    found = extender_settings.read(extender["args"], {each["name"]: each["value"] for each in extender.get("env", ())})
    assert found.address == extender_settings.read([], {}).address
    ports = {each["name"]: each["containerPort"] for each in extender["ports"]}
    assert (ports["http"], ports["health"]) == (found.http_address.port, found.health_address.port)
    for kind in ("livenessProbe", "readinessProbe"):
        probe = extender[kind]["httpGet"]
        assert (probe["port"], probe.get("host", "")) == ("health", found.health_address.host)


@needs_kubectl
@pytest.mark.parametrize("name", EXTENDERS)
def test_an_extender_may_read_node_devices_and_pods_and_nothing_else(name: str) -> None:
    added = added_by(name)
    [(role, found)] = of_kind(added, "ClusterRole").items()
    bound = {each["roleRef"]["name"] for each in of_kind(added, "ClusterRoleBinding").values()}
    [account] = of_kind(added, "ServiceAccount")
    assert pod(workloads(added)[0])["serviceAccountName"] == account
    for binding in (*of_kind(added, "ClusterRoleBinding").values(), *of_kind(added, "RoleBinding").values()):
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": "nodedevices-system"}]
    if name != "extender-scheduler":
        assert (found["rules"], bound, of_kind(added, "Role")) == ([READS_NODE_DEVICES, READS_PODS], {role}, {})
        return
    assert found["rules"] == [READS_NODE_DEVICES]
    assert bound == {role, "system:kube-scheduler", "system:volume-scheduler"}
    [leases] = of_kind(added, "Role").values()
    config = yaml.safe_load((MANIFESTS / "components" / name / "scheduler-config.yaml").read_text())
    assert leases["rules"] == [
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
        {
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "resourceNames": [config["leaderElection"]["resourceName"]],
            "verbs": ["get", "update"],
        },
    ]


@pytest.mark.parametrize("name", EXTENDERS)
def test_a_scheduler_goes_on_without_the_extender_and_sends_names_only(name: str) -> None:
    config = yaml.safe_load((MANIFESTS / "components" / name / "scheduler-config.yaml").read_text())
    assert (config["apiVersion"], config["kind"]) == ("kubescheduler.config.k8s.io/v1", "KubeSchedulerConfiguration")
    [extender] = config["extenders"]
    assert (extender["ignorable"], extender["nodeCacheCapable"]) == (True, True)
    assert (extender["filterVerb"], extender["prioritizeVerb"], "bindVerb" in extender) == (
        "filter",
        "prioritize",
        False,
    )
    assert extender["managedResources"] == [{"name": each, "ignoredByScheduler": False} for each in SHARED]
    scheme, _, rest = extender["urlPrefix"].partition("://")
    host, _, path = rest.partition("/")
    assert path == "scheduler"
    assert (scheme, host) == ("http", str(extender_settings.read([], {}).address))


@needs_kubectl
def test_the_second_scheduler_reads_its_own_configuration_and_its_lease_is_in_its_namespace() -> None:
    added = added_by("extender-scheduler")
    spec = pod(workloads(added)[0])
    scheduler = next(each for each in spec["containers"] if each["name"] == "scheduler")
    [(name, config)] = of_kind(added, "ConfigMap").items()
    assert {"name": "config", "configMap": {"name": name}} in spec["volumes"]
    [mounted] = [each["mountPath"] for each in scheduler["volumeMounts"] if each["name"] == "config"]
    assert f"--config={mounted}/{next(iter(config['data']))}" in scheduler["args"]
    assert "--leader-elect-resource-namespace=$(NAMESPACE)" in scheduler["args"]
    assert [each["name"] for each in scheduler["env"]] == ["NAMESPACE"]


@needs_kubectl
@pytest.mark.parametrize("name", ["prometheus", *EXTENDERS])
def test_what_comes_with_a_component_of_its_own_objects_changes_no_other(name: str) -> None:
    changed = with_components(name)
    assert [each for each in with_components() if each not in changed] == []


OF_THE_AGENT = (
    *("all-hardware", "cdi", "device-files", "driver-root", "kmsg", "mig", "named-configs", "observe"),
    "runtimeclass-nvidia",
)


@needs_kubectl
def test_what_components_mount_is_where_programs_look_for_it() -> None:
    spec = agent_pod(with_components(*OF_THE_AGENT))
    agent, probe = (
        {each["name"]: each["mountPath"] for each in container(spec, name)["volumeMounts"]} for name in PARTS
    )
    root = by_name()["driver-root-ctr-path"].default
    assert (probe["driver-root"], probe["host-dev"]) == (root, f"{root}/dev")
    for name in ("sys", "net"):
        assert probe[f"host-{name}"] == of_the_nic_probe(f"host_{name}_ctr_path")
    assert (probe["amd-exporter"], agent["device-info"]) == (f"/{Path(SOCKET).parent}", FOLDER)
    variable = {"NODEDEVICES_DEVICES_DIR": agent["device-files"]}
    assert agent["device-files"] == probe["device-files"] == parse(["--node-name=n"], variable).devices_dir


def dumped(objects: Iterable[dict[str, Any]]) -> str:
    return yaml.safe_dump_all(objects, sort_keys=True, width=120)


def as_reviewed(golden: Path, text: str) -> None:
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text(), f"{golden.name} differs: UPDATE_GOLDEN=1 writes it anew"


@needs_kubectl
def test_what_users_install_is_what_was_reviewed() -> None:
    as_reviewed(GOLDEN, dumped(with_components()))


@needs_kubectl
def test_what_a_component_adds_is_what_was_reviewed() -> None:
    default = dumped(sort(with_components())).splitlines()
    differences = [
        re.sub("^@@.*", "@@", line)
        for name in (*OF_THE_AGENT, "driver-directory", "mps", "openshift")
        for line in difflib.unified_diff(
            default, dumped(sort(with_components(name))).splitlines(), "default", name, lineterm="", n=2
        )
    ]
    as_reviewed(GOLDEN.with_name("components.golden.diff"), "\n".join(differences) + "\n")
