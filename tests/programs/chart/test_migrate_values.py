"""manifests/migrate-values: values of another chart to ours, or a stop.

The names of the values are those of that chart's values.yaml: NVIDIA's device plugin's of v0.20.0 below, the others as
recorded in other_charts, with repository and commit.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from functools import cache, reduce
from pathlib import Path
from typing import Any

import pytest
import yaml
from nodedevices_api.devicepolicy import DevicePolicy
from nodedevices_api.errors import parse
from support import helm
from support.kustomize import ROOT
from support.patience import PATIENCE_SECONDS

SCRIPT = ROOT / "manifests" / "migrate-values"
CHARTS = ("gpu-operator", "amd", "hami")
# What a person has to look at on the nodes before the GPU operator's defaults mean anything for our chart.
LOOKED = "cdi.enabled driver.enabled"
OBSERVES = {"observe": {"enabled": True}}
SHARED = "version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}\n"
# The defaults of that chart, which `helm get values --all` prints, and that mean nothing for ours.
DEFAULTS: dict[str, Any] = {
    "config": {"name": "", "map": {}, "default": "", "fallbackStrategies": ["named", "single"]},
    "migStrategy": None,
    "image": {"repository": "nvcr.io/nvidia/k8s-device-plugin", "pullPolicy": "IfNotPresent", "tag": ""},
    "updateStrategy": {"type": "RollingUpdate"},
    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "priorityClassName": "system-node-critical",
    "componentSelectorLabels": {"enabled": False},
    "devicePlugin": {
        "enabled": True,
        "containers": {"main": {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}},
    },
    "gfd": {"enabled": False, "nameOverride": "gpu-feature-discovery", "securityContext": {"privileged": True}},
    "nfd": {"master": {"config": {"extraLabelNs": ["nvidia.com"]}}},
    "mps": {"root": "/run/nvidia/mps", "enableHostPID": True},
    "cdi": {"nvidiaHookPath": None},
}
GIVEN: dict[str, Any] = {
    "config": {"map": {"default": SHARED}, "default": "default", "fallbackStrategies": ["single"]},
    "migStrategy": "mixed",
    "failOnInitError": "false",
    "deviceListStrategy": "envvar,volume-mounts",
    "deviceIDStrategy": "index",
    "compatWithCPUManager": True,
    "nvidiaDriverRoot": "/run/nvidia/driver",
    "gdrcopyEnabled": True,
    "imagePullSecrets": [{"name": "pull"}],
    "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}},
    "podAnnotations": {"a.b/c": "d"},
    "runtimeClassName": "nvidia",
    "nodeSelector": {"pool.example.com/gpu": "true"},
    "mps": {"root": "/var/mps"},
    "devicePlugin": {"containers": {"main": {"env": [{"name": "DP_DISABLE_HEALTHCHECKS", "value": "xids"}]}}},
    "gfd": {"enabled": True},
}

pytestmark = pytest.mark.skipif(shutil.which("jq") is None, reason="no jq: `make cluster-tools` installs it")


@cache
def run(text: str, *arguments: str, reviewed: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SCRIPT, *arguments],
        input=text,
        env={**os.environ, "REVIEWED": reviewed},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def migrate(values: object, *arguments: str, reviewed: str = "") -> tuple[dict[str, Any], str]:
    """What it wrote, {} for nothing, and what it said; without arguments the chart is NVIDIA's plugin's."""
    done = run(json.dumps(values), *(arguments or ("nvidia",)), reviewed=reviewed)
    assert (done.returncode == 0) is bool(done.stdout), done.stderr
    return (json.loads(done.stdout) if done.stdout else {}), done.stderr


def defaults(chart: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "other_charts" / f"{chart}.yaml").read_text())
    return found


def test_values_that_are_understood_are_those_of_our_chart_with_the_components_that_they_need() -> None:
    values, said = migrate(GIVEN)
    assert values == {
        "imagePullSecrets": [{"name": "pull"}],
        "agent": {
            "flags": {
                "default-config": "default",
                "fallback-strategies": ["single"],
                "mig-strategy": "mixed",
                "fail-on-init-error": False,
                "device-list-strategy": ["envvar", "volume-mounts"],
                "device-id-strategy": "index",
                "pass-device-specs": True,
                "driver-root": "/run/nvidia/driver",
                "gdrcopy-enabled": True,
            },
            "env": [{"name": "DP_DISABLE_HEALTHCHECKS", "value": "xids"}],
            "updateStrategy": {"type": "RollingUpdate", "maxUnavailable": "10%"},
            "podAnnotations": {"a.b/c": "d"},
        },
        "components": {
            **OBSERVES,
            "namedConfigs": {"enabled": True, "configs": {"default": SHARED}},
            "mig": {"enabled": True},
            "driverRoot": {"enabled": True, "path": "/run/nvidia/driver"},
            "runtimeClassNvidia": {"enabled": True, "name": "nvidia"},
            "mps": {"root": "/var/mps", "enabled": True},
        },
    }
    assert re.findall(r"^not taken: ([\w.]+)", said, re.MULTILINE) == ["nodeSelector", "gfd.enabled"]


@pytest.mark.skipif(helm.helm() is None, reason="no helm: `make cluster-tools` builds one")
def test_what_it_writes_is_taken_by_our_chart() -> None:
    values, _ = migrate(GIVEN)
    done = helm.template(values, "--show-only", "templates/agent-daemonset.yaml")
    assert done.returncode == 0, done.stderr


def test_the_defaults_of_that_chart_change_nothing_but_who_serves() -> None:
    values, _ = migrate(DEFAULTS)
    assert values["components"] == OBSERVES
    assert values["agent"] == {
        "updateStrategy": {"type": "RollingUpdate"},
        "priorityClassName": "system-node-critical",
    }
    assert migrate(None)[0] == {"components": OBSERVES}


def test_how_a_configuration_is_chosen_is_taken_along_with_a_configuration_alone() -> None:
    chosen = {"default": "a", "fallbackStrategies": ["named", "single"]}
    flags = {"default-config": "a", "fallback-strategies": ["named", "single"]}
    for given in ({"map": {"a": "version: v1\n"}}, {"name": "my-configs"}):
        assert migrate({"config": chosen | given})[0]["agent"]["flags"] == flags
    assert "agent" not in migrate({"config": chosen | {"name": "", "map": {}}})[0]


def test_nodes_that_their_selector_leaves_out_are_said_to_be_served_in_the_end() -> None:
    _, said = migrate({"nodeSelector": {"pool": "gpu"}})
    assert "not taken: nodeSelector: our agent runs on every Linux node, so it also serves the nodes" in said


@pytest.mark.parametrize("values", [{"config": {}}, {"config": {}, "unknown": 1}], ids=["understood", "not understood"])
def test_the_pages_lines_stop_with_the_one_that_failed_and_none_installs_in_serve(values: Any, tmp_path: Path) -> None:
    lines = (ROOT / "docs" / "migrate-values.md").read_text().split("\n\n")[2]
    (tmp_path / "nodedevices").symlink_to(ROOT)
    fake = tmp_path / "bin" / "helm"
    fake.parent.mkdir()
    fake.write_text(f"#!/bin/sh\n[ $1 = -n ] && echo '{json.dumps(values)}' || echo \"$@\" > installed\n")
    fake.chmod(0o755)
    path = f"{fake.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", lines],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    installed = tmp_path / "installed"
    assert installed.exists() is (done.returncode == 0) is ("unknown" not in values), done.stderr
    assert "--set components.observe.enabled=true" in lines, "an empty file of an earlier run does not install in Serve"


def test_a_config_map_of_ones_own_is_named_with_where_it_goes() -> None:
    values, said = migrate({"config": {"name": "my-configs"}})
    assert values["components"]["namedConfigs"] == {"enabled": True}
    assert "copy my-configs there" in said


@pytest.mark.parametrize("text", ["", "config:\n  name: x\n", "[]"])
def test_what_are_no_values_is_refused_in_words(text: str) -> None:
    done = run(text, "nvidia")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("migrate-values: ")


def test_the_gpu_operators_defaults_are_its_plugins_settings_and_the_rest_goes_on() -> None:
    values, said = migrate(defaults("gpu-operator"), "gpu-operator", reviewed=LOOKED)
    assert values == {
        "agent": {
            "flags": {
                "pass-device-specs": True,
                "mig-strategy": "single",
                "driver-root": "/run/nvidia/driver",
                "device-list-strategy": ["cdi-annotations", "cdi-cri"],
                "nvidia-cdi-hook-path": "/usr/local/nvidia/toolkit/nvidia-cdi-hook",
            },
            "priorityClassName": "system-node-critical",
            "updateStrategy": {"type": "RollingUpdate", "maxUnavailable": 1},
        },
        "components": {
            **OBSERVES,
            "mig": {"enabled": True},
            "driverRoot": {"enabled": True, "path": "/run/nvidia/driver"},
            "cdi": {"enabled": True},
            "runtimeClassNvidia": {"enabled": True, "name": "nvidia"},
        },
    }
    on = next(line for line in said.splitlines() if line.endswith(": the GPU operator keeps managing it"))
    assert {"driver", "toolkit", "dcgm", "dcgmExporter", "validator"} <= set(re.findall(r"[\w.-]+", on))
    assert "after all nodes are taken over, set both to false there" in said


def test_the_gpu_operators_own_settings_come_along() -> None:
    data = {"default": "version: v1\nflags: {migStrategy: mixed}\n", "mps": SHARED}
    given = {
        "driver": {"enabled": False},
        "cdi": {"enabled": False},
        "mig": {"strategy": "none"},
        "gds": {"enabled": True},
        "gdrcopy": {"enabled": True},
        "platform": {"openshift": True},
        "hostPaths": {"kubeletRootDir": "/var/lib/k0s/kubelet"},
        "daemonsets": {"labels": {"team": "gpu"}, "rollingUpdate": {"maxUnavailable": "10%"}},
        "devicePlugin": {
            "imagePullSecrets": ["pull"],
            "config": {"create": True, "name": "plugin-configs", "default": "default", "data": data},
            "mps": {"root": "/var/mps"},
            "env": [
                {"name": "DEVICE_LIST_STRATEGY", "value": "volume-mounts"},
                {"name": "DP_DISABLE_HEALTHCHECKS", "value": "xids"},
            ],
        },
    }
    values, said = migrate(given, "gpu-operator")
    assert values["agent"]["flags"] == {
        "pass-device-specs": True,
        "mig-strategy": "none",
        "gds-enabled": True,
        "mofed-enabled": True,
        "gdrcopy-enabled": True,
        "default-config": "default",
        "device-list-strategy": ["volume-mounts"],
    }
    assert values["components"] == {
        **OBSERVES,
        "runtimeClassNvidia": {"enabled": True, "name": "nvidia"},
        "namedConfigs": {"enabled": True, "configs": data},
        "mig": {"enabled": True},
        "mps": {"root": "/var/mps", "enabled": True},
        "openshift": {"enabled": True},
    }
    assert values["kubelet"] == {"rootDir": "/var/lib/k0s/kubelet"}
    assert values["imagePullSecrets"] == [{"name": "pull"}]
    assert values["agent"]["podLabels"] == {"team": "gpu"}
    assert values["agent"]["env"] == [{"name": "DP_DISABLE_HEALTHCHECKS", "value": "xids"}]
    assert values["agent"]["updateStrategy"]["maxUnavailable"] == "10%"
    assert "copy plugin-configs" not in said
    elsewhere = migrate(
        {"driver": {"enabled": False}, "devicePlugin": {"config": {"name": "mine"}}}, "gpu-operator", reviewed=LOOKED
    )
    assert elsewhere[0]["components"]["namedConfigs"] == {"enabled": True}
    assert "copy mine there" in elsewhere[1]


def test_amds_defaults_are_the_components_by_which_its_gpus_are_found() -> None:
    values, _ = migrate(defaults("amd"), "amd", reviewed=LOOKED)
    assert values == {
        "agent": {"updateStrategy": {"type": "RollingUpdate", "maxUnavailable": 1}},
        "components": {
            **OBSERVES,
            "allHardware": {"enabled": True},
        },
    }


def test_amds_labeller_is_a_policy_and_the_label_that_ours_has_not_is_named() -> None:
    given = {"labeller": {"enabled": True}}
    assert "not taken: amd.com/gpu.family" in migrate(given, "amd")[1]
    assert [policy["spec"] for policy in migrate(given, "amd", "--policies")[0]["items"]] == [
        {"nodeSelector": {}, "labels": {"featureDiscovery": True}}
    ]


def test_hamis_defaults_share_by_policy_and_what_ours_has_not_is_said() -> None:
    values, said = migrate(defaults("hami"), "hami", reviewed=LOOKED)
    assert values["components"] == OBSERVES
    assert values["agent"]["flags"] == {
        "mig-strategy": "none",
        "pass-device-specs": False,
        "device-list-strategy": ["envvar"],
    }
    assert "libvgpu.so" in said
    assert "HAMi's scheduler and webhook" in said
    assert "THEIRS=gpu=on" in said
    assert "apply the ClusterRole of docs/sharing-memory.md" in said
    policies, _ = migrate(defaults("hami"), "hami", "--policies")
    assert {one["metadata"]["name"]: one["spec"].get("sharing") for one in policies["items"]} == {
        "gpushare": {
            "strategy": "memory",
            "resources": [{"name": "nvidia.com/gpu", "memoryUnit": "256Mi", "cores": True, "packing": "spread"}],
        },
        "whole-gpus": None,
    }


def test_hamis_own_settings_come_along() -> None:
    given = {
        "global": {"imagePullSecrets": ["pull"], "labels": {"team": "gpu"}},
        "scheduler": {"defaultSchedulerPolicy": {"gpuSchedulerPolicy": "binpack"}},
        "devicePlugin": {
            "enableNumaTopology": True,
            "runtimeClassName": "nvidia",
            "nvidiaDriverRoot": "/run/nvidia/driver",
            "gdrcopyEnabled": True,
            "image": {"pullSecrets": ["another"]},
        },
    }
    values, said = migrate(given, "hami")
    assert values["imagePullSecrets"] == [{"name": "another"}, {"name": "pull"}]
    assert values["commonLabels"] == {"team": "gpu"}
    assert values["agent"]["flags"]["driver-root"] == "/run/nvidia/driver"
    assert values["components"]["runtimeClassNvidia"] == {"enabled": True, "name": "nvidia"}
    assert "must set it themselves" in said
    entry = migrate(given, "hami", "--policies")[0]["items"][0]["spec"]["sharing"]["resources"][0]
    assert entry == {"name": "nvidia.com/gpu", "memoryUnit": "256Mi", "cores": True, "numa": True}


@pytest.mark.parametrize("chart", CHARTS)
def test_the_values_say_which_chart_they_are_of_and_its_defaults_need_not_be_given(chart: str) -> None:
    whole = run(json.dumps(defaults(chart)), reviewed=LOOKED)
    assert whole.returncode == 0, whole.stderr
    assert json.loads(whole.stdout) == migrate({}, chart, reviewed=LOOKED)[0]


@pytest.mark.skipif(helm.helm() is None, reason="no helm: `make cluster-tools` builds one")
@pytest.mark.parametrize("chart", CHARTS)
def test_defaults_of_another_chart_give_values_that_our_chart_takes(chart: str) -> None:
    values, _ = migrate(defaults(chart), chart, reviewed=LOOKED)
    done = helm.template(values, "--show-only", "templates/agent-daemonset.yaml")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("chart", ["nvidia", *CHARTS])
def test_policies_are_what_our_api_takes(chart: str) -> None:
    given = {"nvidia": {"gfd": {"enabled": True}}, "amd": {"labeller": {"enabled": True}}}.get(chart, {})
    policies, _ = migrate(given, chart, "--policies", reviewed=LOOKED)
    assert [parse(DevicePolicy, policy).spec for policy in policies["items"]]


STOPS: dict[str, dict[str, Any]] = {
    "nvidia": {
        "sharing.strategy": "mps",
        "config.maps.a": "b",
        "config.map": {"a": "flags: {plugin: {deviceListStrategy: [cdi-annotations]}}"},
        "config.name": "other",
        "deviceDiscoveryStrategy": "tegra",
        "deviceListStrategy": ["cdi-cri"],
        "LD_PRELOAD": None,  # a variable
    },
    "gpu-operator": {
        "devicePlugins.enabled": True,
        "devicePlugin.config.file": "x",
        "devicePlugin.args": ["--mig-strategy=none"],
        "sandboxWorkloads.enabled": True,
        "cdi.nriPluginEnabled": True,
        "gpuCluster.deployCR": True,
        "clusterPolicy.deployCR": False,
    },
    "amd": {"dp.args": ["-resource_naming_strategy=mixed"], "labeler.enabled": True},
    "hami": {
        "devicePlugin.memoryScaling": 2,
        "devicePlugin.deviceMemoryScaling": 1.5,
        "devicePlugin.deviceCoreScaling": 2,
        "devicePlugin.preConfiguredDeviceMemory": 131072,
        "devicePlugin.createRuntimeClass": True,
        "devicePlugin.nodeConfiguration.config": '{"nodeconfig": [{"name": "n1"}]}',
        "devicePlugin.extraArgs": ["-v=4", "--flag"],
        "devicePlugin.pluginPath": "/var/snap/device-plugins",
        "scheduler.overwriteEnv": "true",
        "scheduler.defaultMem": 5000,
        "scheduler.defaultSchedulerPolicy.gpuSchedulerPolicy": "topology-aware",
        "devices.ascend.enabled": True,
        "devices.iluvatar.enabled": True,
        "device-config.content": "nvidia: {}",
    },
}


@pytest.mark.parametrize("chart", STOPS)
def test_what_another_chart_has_and_ours_cannot_have_stops_with_its_name_until_a_person_has_looked(chart: str) -> None:
    given: dict[str, Any] = {}
    for name, value in STOPS[chart].items():
        *above, last = name.split(".")
        reduce(lambda values, key: values.setdefault(key, {}), above, given)[last] = value
    if given.pop("LD_PRELOAD", 0) is None:
        given["devicePlugin"] = {"containers": {"main": {"env": [{"name": "LD_PRELOAD", "value": "x"}]}}}
    written, said = migrate(given, chart, reviewed=LOOKED)
    assert not written
    assert set(re.findall(r"^([\w.-]+): ", said, re.MULTILINE)) == {*STOPS[chart], "migrate-values"}
    assert f"REVIEWED='{' '.join(sorted(STOPS[chart]))}'" in said
    assert migrate(given, chart, reviewed=" ".join([LOOKED, *STOPS[chart]]))[0]["components"]["observe"]["enabled"]


@pytest.mark.parametrize(
    ("values", "arguments", "why"),
    [
        ({}, (), "the chart of these values is unknown: give one of"),
        ({"devicePlugin": {"enabled": True}}, (), "the chart of these values is unknown: give one of"),
        ({"dp": {}, "scheduler": {}}, (), "these values have keys of several charts: give one of amd hami"),
        ({}, ("gpu-operators",), "gpu-operators: give one of amd gpu-operator hami nvidia"),
        ({}, ("lib/migrate",), "lib/migrate: give one of"),
        ({}, ("amd", "hami"), "hami: give one of"),
        ({"operator": "x"}, (), "a value has another type than in the chart gpu-operator"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_values_of_no_one_chart_are_refused_in_words(values: Any, arguments: tuple[str, ...], why: str) -> None:
    done = run(json.dumps(values), *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"migrate-values: {why}" in done.stderr


@pytest.mark.parametrize("chart", CHARTS)
def test_the_page_says_of_every_top_level_value_what_becomes_of_it(chart: str) -> None:
    page = (ROOT / "docs" / "migrate-values.md").read_text()
    assert [key for key in defaults(chart) if not re.search(rf"`{re.escape(key)}\b", page)] == []
