"""What the chart promises to those who install it: bad values are refused in words, good ones arrive."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from dashboards.files import BOARDS, path
from helmchart.values import FLAGS, OF_THE_CHART, REMOVED, FlagRule, absolute, probe_rules, rules, written
from nodedevices_common import __version__, guard
from nodedevices_common.errors import InputError
from nodedevices_operator import settings as operator_settings
from nodedevices_plugin.settings.file import ConfigError
from nodedevices_plugin.settings.flags import parse
from nodedevices_plugin.settings.options import variables as agents_variables
from support import helm
from support.repository import ROOT

SCHEMA = json.loads((helm.CHART / "values.schema.json").read_text())
needs_helm = pytest.mark.skipif(helm.helm() is None, reason="no helm: `make cluster-tools` builds one")


@pytest.fixture(scope="module")
def custom() -> dict[tuple[str, str], dict[str, Any]]:
    done = helm.template({**helm.CUSTOM, "crds": {"enabled": False}}, "--no-hooks")
    assert done.returncode == 0, done.stderr
    documents = yaml.load_all(done.stdout, Loader=yaml.CSafeLoader)
    return {(one["kind"], one["metadata"]["name"]): one for one in documents if one}


Rendered = Mapping[tuple[str, str], dict[str, Any]]


def as_reviewed(name: str, shown: str) -> None:
    """UPDATE_GOLDEN=1 writes it anew."""
    golden = Path(__file__).with_name(f"{name}.golden.txt")
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(shown)
    assert shown == golden.read_text()


def pod(custom: Rendered, kind: str, name: str) -> dict[str, Any]:
    spec: dict[str, Any] = custom[kind, name]["spec"]["template"]["spec"]
    return spec


def containers(spec: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in spec["containers"]}


@needs_helm
def test_helm_lint_has_nothing_to_say() -> None:
    done = helm.run("lint", "--strict", "--quiet", str(helm.CHART))
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stdout + done.stderr


@needs_helm
def test_each_wrong_value_is_refused_with_its_place() -> None:
    wrong = {
        "agnet": {},
        "agent": {"flags": {"mig-strategy": "some", "mig-stratgy": "none", "telemetry": "yes"}, "tolerations": "all"},
        "operator": {"replicas": "two", "flags": {"dry-run": True}},
        "components": {"mps": {"enable": True}, "observe": {"enabled": "true"}, "gdrcopy": {"enabled": True}},
        "image": {"pullPolicy": "Sometimes", "registry": "https://registry.example.com/team"},
        "kubelet": {"rootDir": "kubelet"},
    }
    said = helm.template(wrong).stderr
    for place, what in (
        ("", "agnet"),
        ("/agent/flags", "mig-stratgy"),
        ("/agent/flags/mig-strategy", "'none', 'single', 'mixed'"),
        ("/agent/flags/telemetry", "boolean"),
        ("/agent/tolerations", "array"),
        ("/operator/replicas", "integer"),
        ("/operator/flags", "dry-run"),
        ("/components/mps", "enable"),
        ("/components/observe/enabled", "boolean"),
        ("/components", "gdrcopy"),
        ("/image/pullPolicy", "'Always', 'IfNotPresent', 'Never'"),
        ("/image/registry", "https://registry.example.com/team"),
        ("/kubelet/rootDir", "pattern"),
    ):
        assert re.search(rf"at '{place}': .*{what}", said), (place, what, said)


def mappings(schema: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    if schema.get("type") == "object":
        yield place, schema
    for name, one in schema.get("properties", {}).items():
        yield from mappings(one, f"{place}.{name}")


def test_no_place_of_the_schema_takes_a_key_that_it_does_not_name() -> None:
    free = {place for place, one in mappings(SCHEMA) if one["additionalProperties"] is not False}
    ours = {place for place in free if not place.endswith(("resources", "nodeSelector", "abels", "nnotations"))}
    assert ours == {
        *(".global", ".operator.affinity", ".components.namedConfigs.configs", ".components.deviceFiles.files"),
    }


@pytest.mark.parametrize("program", FLAGS)
def test_every_flag_of_a_program_is_a_value_or_set_by_another_one(program: str) -> None:
    known = {each.name for each in FLAGS[program]() if each.flag}
    given = SCHEMA["properties"][program]["properties"]["flags"]["properties"]
    assert {name for name, about in given.items() if about} == known - OF_THE_CHART  # {}: one of before, refused


@needs_helm
def test_values_that_cannot_work_together_are_all_named_with_what_would_be_right() -> None:
    done = helm.template(
        {
            "agent": {
                "flags": {"device-list-strategy": ["cdi-cri", "envvar"]},
                "env": [{"name": "DEVICE_LIST_STRATEGY", "value": "cdi-cri"}],
            },
            "operator": {
                "replicas": 2,
                "flags": {"leader-elect": False},
                "env": [{"name": "NODEDEVICES_LEADER_ELECT", "value": "false"}],
            },
            "components": {
                **{name: {"enabled": True} for name in (*REMOVED, "driverDirectory")},
                "deviceFiles": {"enabled": True, "files": {"onload.json": {}}},
                "operatorNamespace": {"enabled": True, "name": helm.NAMESPACE},
                "extenderScheduler": {"enabled": True},
            },
        }
    )
    assert done.returncode != 0
    as_reviewed("refused", "\n".join(line for line in done.stderr.splitlines() if line.startswith("  - ")) + "\n")


# Of a flag that is needed, or not to be there, in a rule.
SAMPLES: Mapping[str, str] = {
    "config-file": "/etc/nodedevices/config.yaml",
    "default-config": "a",
    "fallback-strategies": "single",
    "simulated": "h100 x 2",
    **dict.fromkeys(guard.ONLY_WITH, "/etc/metrics/file"),
}
BY_COMPONENT: Mapping[str, str] = {
    "config-dir": "namedConfigs",
    "devices-dir": "deviceFiles",
}
RULES: Mapping[str, Sequence[FlagRule]] = {
    "agent": (*rules(), *probe_rules()),
    "operator": tuple(FlagRule(when=name, needs=(other,)) for name, other in guard.ONLY_WITH.items()),
}


def with_needs(terms: tuple[str, ...], rules: Sequence[FlagRule]) -> tuple[str, ...]:
    """What is given, with all that it needs."""
    for rule in rules:
        if rule.when in terms and rule.needs and not set(rule.needs) & set(terms):
            return with_needs((*terms, rule.needs[0]), rules)
    return terms


def both_refuse(program: str, terms: Sequence[str]) -> tuple[list[str], list[str]]:
    """What the program, and the chart, say of flags, variables and components."""
    flags, variables, components = dict[str, list[str]](), dict[str, str](), dict[str, Any]()
    arguments = []
    for term in terms:
        name, _, value = term.partition("=")
        value = value or SAMPLES.get(name, "/etc/file")
        if name in BY_COMPONENT:
            components[BY_COMPONENT[name]] = {"enabled": True}
            arguments.append(f"--{name}={value}")
        elif name in agents_variables():
            variables[name] = value
        else:
            flags.setdefault(name, []).append(value)
    arguments += [f"--{name}={','.join(values)}" for name, values in flags.items()]
    env = [{"name": name, "value": value} for name, value in variables.items()]
    given = {name: values if len(values) > 1 else values[0] for name, values in flags.items()}
    values = {program: {"flags": given, "env": env}, "components": components}
    done = helm.template({**values, "crds": {"enabled": False}})
    by_chart = re.findall(r"^  - (.*)$", done.stderr, re.MULTILINE)
    assert (done.returncode != 0) == bool(by_chart), done.stderr
    try:
        if program == "agent":
            parse(arguments, {"NODE_NAME": "n1", **variables})
        else:
            operator_settings.read(arguments, variables)
    except InputError as error:
        return list(error.problems), by_chart
    return [], by_chart


@needs_helm
@pytest.mark.parametrize(
    ("program", "rule"),
    [
        pytest.param(program, rule, id=f"{program} {rule.when}{' needs' if rule.needs else ''}")
        for program, rules in RULES.items()
        for rule in rules
    ],
)
def test_what_a_program_refuses_together_the_chart_refuses_and_nothing_else(program: str, rule: FlagRule) -> None:
    good = with_needs((rule.when,), RULES[program])
    assert both_refuse(program, good) == ([], [])
    name = rule.when.partition("=")[0]
    place = f"{program}.env: {name}" if name in agents_variables() else f"{program}.flags.{name}"
    wrong = [(rule.when,)] * bool(rule.needs) + [(*good, term) for term in rule.excludes[:1]]
    for terms in wrong:
        by_program, by_chart = both_refuse(program, terms)
        assert by_program, terms
        assert [each for each in by_chart if each.startswith(f"{place}: ")], (terms, by_chart)


@needs_helm
def test_a_flag_of_before_is_refused_with_what_does_it_now() -> None:
    flags = {"rdma-config-file": "/r", "cdi-dir": "/c", "log-format": "json", "simulated-file": "/s"}
    done = helm.template({"agent": {"flags": flags}, "operator": {"flags": {"metrics-cert-file": "/c"}}})
    said = dict(re.findall(r"^  - (\w+\.flags\.[\w-]+): no longer a flag; (.*)$", done.stderr, re.MULTILINE))
    assert said == {
        "agent.flags.rdma-config-file": "give components.deviceFiles",
        "agent.flags.cdi-dir": "leave it out, since the chart gives it",
        "agent.flags.log-format": "give the variable NODEDEVICES_LOG_FORMAT in env",
        "agent.flags.simulated-file": "give the flag simulated",
        "operator.flags.metrics-cert-file": "give the flag metrics-tls-dir",
    }


@needs_helm
def test_values_and_variables_that_a_program_refuses_are_refused_by_the_chart() -> None:
    paths = dict.fromkeys(absolute(), "etc/file")
    others = {
        "resource-prefix": "nvidia",
        "container-mount-dir": ["/opt/limiter", "/opt/../etc"],
        "sriov-resource-prefix": "Intel",
        "simulated": "h100 x",
    }
    assert others.keys() | {"probe", "rdma-required", "added-probes"} == written().keys()
    flags = {name: value for name, value in (paths | others).items() if name not in OF_THE_CHART}
    env = [
        {"name": "MIG_STRATEGY", "value": "some"},
        {"name": "DEFAULT_CONFIG", "value": "a"},
        {"name": "NODEDEVICES_NO_SUCH_THING", "value": "1"},
        {"name": "NODEDEVICES_CDI_DIR", "value": "/run/cdi"},
        {"name": "NODEDEVICES_ADD_PROBE_MINE", "value": "generic,acme=unix:/run/acme.sock"},
        {"name": "NODEDEVICES_KUBELET_DIR", "value": "kubelet"},
        {"name": "NODEDEVICES_RDMA_REQUIRED", "value": "none,umad"},
        {"name": "NODEDEVICES_ADD_PROBE_OTHER", "value": "My_probe=/bin/probe"},
        {"name": "NODEDEVICES_OPERATOR_SERVICE_HOST", "value": "10.0.0.1"},
        {"name": "NVIDIA_DRIVER_ROOT", "value": ""},
        {"name": "PATH", "value": "somewhere"},
    ]
    done = helm.template({"agent": {"flags": {**flags, "probe": "simulated"}, "env": env}})
    said = dict(re.findall(r"^  - (\w+\.(?:flags\.[\w-]+|env: \w+)): (.*)$", done.stderr, re.MULTILINE))
    assert said.keys() == (
        {f"agent.env: {each['name']}" for each in env[:8]} | {f"agent.flags.{name}" for name in flags}
    )
    assert said["agent.flags.container-mount-dir"].startswith("/opt/../etc is not allowed")
    assert said["agent.env: NODEDEVICES_CDI_DIR"].endswith("would not start; give NODEDEVICES_CDI_SPEC_DIRS")
    assert said["agent.env: MIG_STRATEGY"] == "some is not allowed; give none or single or mixed"
    assert said["agent.env: NODEDEVICES_ADD_PROBE_MINE"] == "generic needs components.deviceFiles"
    needs = {"simulated": "simulated"}
    for name, value in (paths | others).items():
        text = ",".join(value) if isinstance(value, list) else value
        with pytest.raises(ConfigError, match=f"{name}: "):
            parse([f"--{name}={text}", f"--probe={needs.get(name, 'nvml')}"], {"NODE_NAME": "n1"})


@needs_helm
def test_the_chart_takes_what_a_program_takes_however_it_is_written() -> None:
    flags = {
        "probe": ["auto", "simulated", "mine=/bin/probe --all"],
        "simulated": " H100 x 2,u250 ",
        "sriov-resource-prefix": "intel",
    }
    env = {"NODEDEVICES_RDMA_REQUIRED": "umad, uverbs,"}
    done = helm.template({"agent": {"flags": flags, "env": [{"name": name, "value": env[name]} for name in env]}})
    assert done.returncode == 0, done.stderr
    parse(
        [f"--{name}={','.join(value) if isinstance(value, list) else value}" for name, value in flags.items()],
        {"NODE_NAME": "n1", **env},
    )


@needs_helm
def test_a_variable_whose_value_is_elsewhere_is_refused_for_nothing() -> None:
    source = {"configMapKeyRef": {"name": "mine", "key": "k"}}
    names = ("NODEDEVICES_PROBE", "NODEDEVICES_SIMULATED", "NVIDIA_DRIVER_ROOT")
    env = [{"name": name, "valueFrom": source} for name in names]
    done = helm.template({"agent": {"env": env}})
    assert done.returncode == 0, done.stderr


@needs_helm
def test_a_flag_takes_the_place_of_its_variable() -> None:
    env = [{"name": "NODEDEVICES_PROBE", "value": "generic"}, {"name": "NODEDEVICES_SIMULATED", "value": "x"}]
    done = helm.template({"agent": {"flags": {"probe": "simulated", "simulated": "h100"}, "env": env}})
    assert done.returncode == 0, done.stderr


@needs_helm
def test_one_operator_without_a_lease_is_never_rolled_out_beside_another(custom: Rendered) -> None:
    assert helm.CUSTOM["operator"]["flags"]["leader-elect"] is False
    assert custom["Deployment", "nodedevices-operator"]["spec"]["strategy"] == {"type": "Recreate"}


@needs_helm
def test_what_the_operator_needs_to_reach_the_api_server_have_its_hooks_too() -> None:
    env = [{"name": "KUBERNETES_SERVICE_HOST", "value": "10.0.0.1"}]
    given = yaml.safe_dump({"operator": {"env": env}})
    done = helm.run("template", "x", str(helm.CHART), "--namespace", helm.NAMESPACE, "--values", "-", given=given)
    pods = {
        item["metadata"]["name"]: item["spec"].get("template", item)["spec"]
        for item in yaml.safe_load_all(done.stdout)
        if item and item["kind"] in {"Pod", "Job", "Deployment"}
    }
    assert set(pods) == {"nodedevices-check", "nodedevices-operator", "nodedevices-operator-cleanup"}
    assert all(env[0] in each["env"] for spec in pods.values() for each in spec["containers"])


@needs_helm
def test_the_operators_namespace_stays_with_the_record_that_is_in_it(custom: Rendered) -> None:
    assert custom["Namespace", "nodedevices-operator"]["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert "nodedevices-actions" in (helm.CHART / "README.md").read_text()


class Once(yaml.SafeLoader):
    """Refuses a map that has a key twice, of which each parser takes another one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key) for key, _ in node.value]
        assert len(keys) == len(set(keys)), keys
        return super().construct_mapping(node, deep)


NAMED = "123"  # as a number it is another name, or none
TEXTS: dict[str, Any] = {
    "kubelet": {"rootDir": "/data #1"},
    "agent": {"priorityClassName": "on", "nodeSelector": {"kubernetes.io/os": "linux"}},
    "operator": {"priorityClassName": "on", "nodeSelector": {"kubernetes.io/os": "linux"}},
    "components": {
        **{name: {"enabled": True} for name in ("openshift", "prometheus")},
        "operatorNamespace": {"enabled": True, "name": NAMED},
        "mps": {"enabled": True, "root": "/mps #1", "nodeSelector": {"kubernetes.io/os": "linux"}},
        "driverRoot": {"enabled": True, "path": "/root #1"},
        "runtimeClassNvidia": {"enabled": True, "name": "no"},
    },
    "criticalPodsQuota": {"enabled": True},
}


@needs_helm
def test_every_text_is_rendered_as_it_was_given_and_every_key_once() -> None:
    done = helm.template(TEXTS, "--namespace", "456")
    assert done.returncode == 0, done.stderr
    found = [each for each in yaml.load_all(done.stdout, Once) if each]
    namespaces = {str(each["metadata"].get("namespace", "")) for each in found}
    assert namespaces == {"", NAMED, "456"}
    assert all(isinstance(each["metadata"].get("namespace", ""), str) for each in found)
    workloads = [each["spec"]["template"]["spec"] for each in found if each["kind"] in {"DaemonSet", "Deployment"}]
    assert {spec["priorityClassName"] for spec in workloads} >= {"on"}
    assert {spec.get("runtimeClassName") for spec in workloads} == {None, "no"}
    paths = {volume["hostPath"]["path"] for spec in workloads for volume in spec["volumes"] if "hostPath" in volume}
    assert paths >= {"/data #1/pod-resources", "/mps #1", "/mps #1/shm", "/root #1"}


@needs_helm
@pytest.mark.parametrize(
    "values",
    [
        {"commonLabels": {"app.kubernetes.io/managed-by": "x"}},
        {"agent": {"podLabels": {"app.kubernetes.io/name": "x"}}},
        {"operator": {"podLabels": {"app.kubernetes.io/component": "x"}}},
        {"components": {"prometheus": {"labels": {"helm.sh/chart": "x"}}}},
    ],
    ids=str,
)
def test_labels_of_the_charts_own_are_refused(values: dict[str, Any]) -> None:
    assert helm.template(values).returncode != 0


@needs_helm
def test_images_come_from_the_registry_by_tag_or_digest(custom: Rendered) -> None:
    for spec in (pod(custom, "DaemonSet", "nodedevices-agent"), pod(custom, "DaemonSet", "nodedevices-mps")):
        images = {each["image"] for each in (*spec["containers"], *spec.get("initContainers", ()))}
        assert images == {f"registry.example.com/team/nodedevices-agent:1.2.3@sha256:{'0' * 64}"}
        assert spec["imagePullSecrets"] == [{"name": "pull"}]
    [operator] = pod(custom, "Deployment", "nodedevices-operator")["containers"]
    assert (operator["image"], operator["imagePullPolicy"]) == (
        "registry.example.com/team/nodedevices-operator:1.2.3",
        "Always",
    )


@needs_helm
def test_flags_reach_the_programs_as_they_read_them(custom: Rendered) -> None:
    agent = containers(pod(custom, "DaemonSet", "nodedevices-agent"))["agent"]
    read = parse([*agent["args"], "--node-name=n"], {})
    assert read.telemetry is True
    assert (read.given["mig-strategy"], read.given["device-list-strategy"]) == ("mixed", ("envvar", "cdi-cri"))
    assert read.given["cdi-annotation-prefix"] == "1073741824", "whole, and no 1.073741824e+09"
    operator = containers(pod(custom, "Deployment", "nodedevices-operator"))["operator"]
    settings = operator_settings.read(operator["args"], {})
    assert (settings.leader_elect, settings.log_level) == (False, "debug")


@needs_helm
def test_the_kubelets_root_moves_the_pod_resources_socket_and_not_the_device_plugins_folder(custom: Rendered) -> None:
    """The device-plugin folder is a constant in the kubelet (pluginapi.DevicePluginPath), whatever --root-dir says."""
    volumes = pod(custom, "DaemonSet", "nodedevices-agent")["volumes"]
    paths = {each["name"]: each["hostPath"]["path"] for each in volumes if "hostPath" in each}
    assert paths["device-plugins"] == "/var/lib/kubelet/device-plugins"
    assert paths["pod-resources"] == "/var/lib/k0s/kubelet/pod-resources"


@needs_helm
def test_where_agents_run_and_how_many_change_at_once_is_the_owners_choice(custom: Rendered) -> None:
    agent = custom["DaemonSet", "nodedevices-agent"]["spec"]
    assert agent["updateStrategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": "10%"}
    spec = agent["template"]["spec"]
    assert spec["nodeSelector"] == {"kubernetes.io/os": "linux", "pool": "gpu"}
    required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert required["nodeSelectorTerms"][0]["matchExpressions"] == [
        {"key": "nodedevices.io/agent", "operator": "NotIn", "values": ["away"]},
        {"key": "nvidia.com/gpu.present", "operator": "Exists"},
    ]
    assert pod(custom, "DaemonSet", "nodedevices-mps")["nodeSelector"]["mps"] == "true"


@needs_helm
def test_what_is_switched_off_is_not_there(custom: Rendered) -> None:
    there = set(custom)
    assert ("NetworkPolicy", "nodedevices-operator") in there
    assert not there & {
        ("NetworkPolicy", "nodedevices-agent"),
        ("PodDisruptionBudget", "nodedevices-operator"),
        ("ClusterRole", "nodedevices-view"),
        ("ClusterRole", "nodedevices-admin"),
    }


@needs_helm
def test_files_of_components_come_from_values(custom: Rendered) -> None:
    def content(name: str, key: str) -> str:
        text: str = custom["ConfigMap", name]["data"][key]
        return text

    files = helm.CUSTOM["components"]
    devices = files["deviceFiles"]["files"]
    assert yaml.safe_load(content("nodedevices-devices", "generic.yaml")) == devices["generic.yaml"]
    assert json.loads(content("nodedevices-devices", "NameCustomize.json")) == devices["NameCustomize.json"]
    assert content("device-plugin-configs", "default").strip() == files["namedConfigs"]["configs"]["default"].strip()


@needs_helm
def test_a_dashboard_has_the_labels_and_the_folder_that_grafanas_sidecar_looks_for(custom: Rendered) -> None:
    for board in BOARDS:
        made = custom["ConfigMap", f"nodedevices-dashboard-{board.name}"]
        labels, annotations = made["metadata"]["labels"], made["metadata"]["annotations"]
        assert (labels["grafana_dashboard"], labels["dashboards"]) == ("1", "gpu"), "another label is one more"
        assert annotations == {"grafana_folder": "GPUs"}
        assert made["data"] == {path(board).name: (ROOT / path(board)).read_text()}


@needs_helm
def test_objects_of_the_owner_are_installed_with_templates_in_them(custom: Rendered) -> None:
    assert {("ConfigMap", "of-nodedevices"), ("ConfigMap", "as-text")} <= set(custom)


@needs_helm
def test_labels_of_the_owner_are_on_every_object_and_in_no_selector(custom: Rendered) -> None:
    for key, one in custom.items():
        if key[1] not in {"of-nodedevices", "as-text"}:
            labels = one["metadata"]["labels"]
            assert (labels["team"], labels["app.kubernetes.io/part-of"]) == ("gpu", "nodedevices"), key
            assert '"team"' not in json.dumps(one.get("spec", {})), key
    for kind, name in (("PodMonitor", "nodedevices-agent"), ("PrometheusRule", "nodedevices")):
        assert custom[kind, name]["metadata"]["labels"]["release"] == "prom"


def notes_and_hooks(values: Mapping[str, Any]) -> list[str]:
    arguments = ("install", "nodedevices", str(helm.CHART), "--namespace", helm.NAMESPACE, "--dry-run=client")
    done = helm.run(*arguments, "--values", "-", given=yaml.safe_dump(dict(values)))
    assert done.returncode == 0, done.stderr
    hooks = done.stdout.split("\nHOOKS:\n")[1].split("\nMANIFEST:\n")[0]
    notes = done.stdout.split("\nNOTES:\n")[1]
    lines = [line.rstrip() for line in f"{hooks}\nNOTES:\n{notes}".splitlines()]  # helm 4.1 and 4.3 differ in blanks
    return [line for line in lines if line]


@needs_helm
def test_what_the_owner_reads_and_what_hooks_do_is_as_reviewed() -> None:
    """By default, and what differs with values. All else is held by the equality with kustomize."""
    default, custom = notes_and_hooks({}), notes_and_hooks(helm.CUSTOM)
    as_reviewed("default", "\n".join(default) + "\n")
    differs = difflib.unified_diff(default, custom, "default", "custom", lineterm="", n=1)
    as_reviewed("custom", "\n".join(differs) + "\n")


def rights(text: str) -> set[tuple[str, str, str]]:
    """(group, resource, verb) of every rule of the cluster roles."""
    return {
        (group, resource, verb)
        for one in yaml.safe_load_all(text)
        if one and one["kind"] == "ClusterRole"
        for rule in one["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@needs_helm
@pytest.mark.parametrize("components", [{}, {"clusterProperties": {"enabled": True}}], ids=str)
def test_the_clean_up_may_do_nothing_that_the_operator_may_not(components: dict[str, Any]) -> None:
    cleanup, operator = (
        helm.template({"components": components}, "--show-only", f"templates/{name}.yaml").stdout
        for name in ("cleanup", "operator-rbac")
    )
    assert rights(cleanup) < rights(operator)
    assert rights(cleanup)
    looks = ("about.k8s.io", "clusterproperties", "list") in rights(cleanup)
    assert looks is ("--cluster-properties" in cleanup) is bool(components)
    assert "--agents-gone" in cleanup


@needs_helm
@pytest.mark.parametrize("moved", [False, True], ids=["together", "operator apart"])
def test_the_admission_policies_are_about_the_accounts_of_this_release_and_no_other(moved: bool) -> None:
    wanted = ("clusterProperties", *(("operatorNamespace",) if moved else ()))
    done = helm.template({"components": {each: {"enabled": True} for each in wanted}}, "--no-hooks")
    objects = [one for one in yaml.load_all(done.stdout, Loader=yaml.CSafeLoader) if one]
    accounts = {
        one["metadata"]["name"]: f"system:serviceaccount:{one['metadata']['namespace']}:{one['metadata']['name']}"
        for one in objects
        if one["kind"] == "ServiceAccount"
    }
    policies = {one["metadata"]["name"]: one for one in objects if one["kind"] == "ValidatingAdmissionPolicy"}
    assert len(policies) == 5
    for name, policy in policies.items():
        [condition] = policy["spec"]["matchConditions"]
        account = accounts["nodedevices-agent" if name == "nodedevices-own-node-only" else "nodedevices-operator"]
        assert condition["expression"] == f"request.userInfo.username == '{account}'"


@needs_helm
def test_the_chart_has_the_version_of_the_project() -> None:
    chart = yaml.safe_load((helm.CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)
