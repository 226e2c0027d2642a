"""manifests/from-nvidia/take-along: NVIDIA's DaemonSets, as its chart, its GPU operator and people write them, to ours.

The real script runs, with a kubectl that answers from files. What it wrote is rendered where there is a kubectl. What
decides is its jq program, which is pure: many DaemonSets are read by one.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.kustomize import ROOT, kubectl, render
from support.patience import PATIENCE_SECONDS

SCRIPT = "nodedevices/manifests/from-nvidia/take-along"
PROGRAM = ROOT / "manifests" / "from-nvidia" / "take-along.jq"
ANSWERS = """#!/bin/sh
case "$4" in
  daemonset) cat "$ANSWERS/daemonset.json" ;;
  configmap) [ ! -e "$ANSWERS/$5.json" ] || cat "$ANSWERS/$5.json" ;;
  *) exit 1 ;;
esac
"""
BY_CDI = "flags: {plugin: {deviceListStrategy: [cdi-annotations]}}"
SHARED = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}\n"


def daemonset(*containers: dict[str, Any], **pod: Any) -> dict[str, Any]:
    return {"metadata": {"name": "nvdp"}, "spec": {"template": {"spec": {"containers": containers, **pod}}}}


def config_map(name: str, data: dict[str, str]) -> dict[str, Any]:
    return {"metadata": {"name": name}, "data": data}


def read(
    *daemonsets: dict[str, Any], folder: Path, maps: dict[str, dict[str, str]], reviewed: str = ""
) -> list[dict[str, Any]]:
    """What the script makes of each of these."""
    (given := folder / "maps.json").write_text("".join(json.dumps(config_map(*each)) for each in maps.items()))
    done = subprocess.run(
        ["jq", "-c", "--slurpfile", "maps", str(given), "--arg", "reviewed", reviewed, "-f", str(PROGRAM)],
        input="".join(map(json.dumps, daemonsets)),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


@dataclass
class Cluster:
    folder: Path
    said: str = ""

    def has(self, *containers: dict[str, Any], maps: dict[str, dict[str, str]] | None = None, **pod: Any) -> None:
        (self.folder / "daemonset.json").write_text(json.dumps(daemonset(*containers, **pod)))
        for name, data in (maps or {}).items():
            (self.folder / f"{name}.json").write_text(json.dumps(config_map(name, data)))

    def take(self, reviewed: str = "") -> int:
        environment = {
            "PATH": f"{self.folder}:{os.environ['PATH']}",
            "ANSWERS": str(self.folder),
            "NVIDIA_NAMESPACE": "nvidia",
            "NVIDIA_DAEMONSET": "nvdp",
            "AGENT_IMAGE": "registry.example.com:5000/team/nodedevices-agent:0.1.0",
            "OPERATOR_IMAGE": "registry.example.com:5000/team/nodedevices-operator:0.1.0",
            "OVERLAY": "default",
            "REVIEWED": reviewed,
        }
        done = subprocess.run(
            [f"./{SCRIPT}"],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        self.said = done.stdout + done.stderr
        return done.returncode

    def written(self, name: str) -> Any:
        return yaml.safe_load((self.folder / "my-nodedevices" / name).read_text())

    def taken(self) -> dict[str, str]:
        [container] = self.written("from-nvidia.json")["spec"]["template"]["spec"]["containers"]
        return {one["name"]: one["value"] for one in container["env"]}

    def components(self) -> set[str]:
        return {one.rpartition("/")[2] for one in self.written("kustomization.yaml")["components"]}

    def agent(self) -> dict[str, Any]:
        """Our DaemonSet as it would be installed."""
        binary = kubectl()
        if binary is None:
            pytest.fail("no kubectl: `make cluster-tools` builds one")
        objects = render(self.folder / "my-nodedevices", binary)
        return next(
            one for one in objects if one["metadata"]["name"] == "nodedevices-agent" and one["kind"] == "DaemonSet"
        )


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    (tmp_path / "nodedevices").symlink_to(ROOT)
    program = tmp_path / "kubectl"
    program.write_text(ANSWERS)
    program.chmod(0o755)
    return Cluster(tmp_path)


def env(**values: str) -> list[dict[str, Any]]:
    return [{"name": name, "value": value} for name, value in values.items()]


def manager(volume: str = "available-configs") -> dict[str, Any]:
    return {
        "name": "sidecar",
        "command": ["config-manager"],
        "env": env(CONFIG_FILE_SRCDIR="/available-configs", CONFIG_FILE_DST="/config/config.yaml", DEFAULT_CONFIG="a"),
        "volumeMounts": [
            {"name": volume, "mountPath": "/available-configs"},
            {"name": "config", "mountPath": "/config"},
        ],
    }


def volumes(**maps: str) -> list[dict[str, Any]]:
    return [{"name": name.replace("_", "-"), "configMap": {"name": value}} for name, value in maps.items()]


def test_the_charts_variables_and_named_configurations_come_along(cluster: Cluster) -> None:
    main = {"name": "ctr", "command": ["nvidia-device-plugin"], "env": env(MPS_ROOT="/run/nvidia/mps", FOREIGN="1")}
    cluster.has(
        main, manager(), volumes=volumes(available_configs="c"), maps={"c": {"a": "version: v1\n", "b": SHARED}}
    )
    assert cluster.take() == 0, cluster.said
    assert cluster.taken() == {"MPS_ROOT": "/run/nvidia/mps", "DEFAULT_CONFIG": "a"}
    assert cluster.written("configs.json")["data"] == {"a": "version: v1\n", "b": SHARED}
    assert cluster.components() == {"observe", "named-configs"}
    assert "FOREIGN" in cluster.said


def test_the_gpu_operator_names_the_volume_after_the_configmap_and_starts_by_a_script(cluster: Cluster) -> None:
    entry = {"name": "nvidia-device-plugin-entrypoint", "mountPath": "/bin/entrypoint.sh", "subPath": "entrypoint.sh"}
    main = {
        "name": "nvidia-device-plugin",
        "command": ["/bin/sh", "-c"],
        "args": ["/bin/entrypoint.sh"],
        "env": env(PASS_DEVICE_SPECS="true", MIG_STRATEGY="single", CONFIG_FILE="/config/config.yaml"),
        "volumeMounts": [entry],
    }
    given = volumes(nvidia_device_plugin_entrypoint="e", plugin_config="plugin-config")
    maps = {"e": {"entrypoint.sh": "exec nvidia-device-plugin"}, "plugin-config": {"a": SHARED}}
    cluster.has(main, manager("plugin-config"), volumes=given, maps=maps)
    assert cluster.take() == 1
    assert "container nvidia-device-plugin runs sh" in cluster.said
    assert not (cluster.folder / "my-nodedevices" / "kustomization.yaml").exists()
    reviewed = "nvidia-device-plugin nvidia-device-plugin-entrypoint"
    assert f"REVIEWED='{reviewed}'" in cluster.said
    assert cluster.take(reviewed) == 0, cluster.said
    assert cluster.written("configs.json")["data"] == {"a": SHARED}
    assert cluster.taken() == {"PASS_DEVICE_SPECS": "true", "MIG_STRATEGY": "single", "DEFAULT_CONFIG": "a"}
    assert cluster.components() == {"observe", "named-configs", "mig"}


def test_the_one_file_of_a_static_manifest_comes_along_as_that_file(cluster: Cluster) -> None:
    maps = {"mine": {"my.yaml": SHARED, "other": "x"}}

    def mounted(**mount: str) -> dict[str, Any]:
        return {"name": "ctr", "args": ["--config-file=/cfg/my.yaml"], "volumeMounts": [{"name": "cfg", **mount}]}

    by_sub_path = daemonset(mounted(mountPath="/cfg/my.yaml", subPath="my.yaml"), volumes=volumes(cfg="mine"))
    [found] = read(by_sub_path, folder=cluster.folder, maps=maps)
    assert (found["stop"], found["configs"]) == ([], {"config.yaml": SHARED})
    cluster.has(mounted(mountPath="/cfg"), volumes=volumes(cfg="mine"), maps=maps)
    assert cluster.take() == 0, cluster.said
    assert cluster.written("configs.json")["data"] == {"config.yaml": SHARED}
    containers = cluster.agent()["spec"]["template"]["spec"]["containers"]
    [container] = [each for each in containers if each["name"] == "agent"]
    assert {"name": "CONFIG_FILE", "value": "/config/config.yaml"} in container["env"]
    assert {"name": "config", "mountPath": "/config", "readOnly": True} in container["volumeMounts"]


def test_flags_come_along_as_variables_and_outrank_them(cluster: Cluster) -> None:
    args = [
        "--mig-strategy",
        "mixed",
        "-pass-device-specs",
        "--device-list-strategy=envvar",
        "--device-list-strategy=cdi-cri",
    ]
    main = {
        "name": "ctr",
        "command": ["/usr/bin/nvidia-device-plugin", "--driver-root=/run/nvidia/driver"],
        "args": args,
    }
    cluster.has(main | {"env": env(MIG_STRATEGY="none")}, runtimeClassName="nvidia")
    assert cluster.take("cdi") == 0, cluster.said
    assert cluster.taken() == {
        "MIG_STRATEGY": "mixed",
        "PASS_DEVICE_SPECS": "true",
        "DEVICE_LIST_STRATEGY": "envvar,cdi-cri",
        "NVIDIA_DRIVER_ROOT": "/run/nvidia/driver",
    }
    assert cluster.components() == {"observe", "mig", "cdi", "driver-root", "runtimeclass-nvidia"}
    assert "component mig: MIG_STRATEGY is mixed\n" in cluster.said
    assert "DEVICE_LIST_STRATEGY=envvar,cdi-cri\n" in cluster.said
    spec = cluster.agent()["spec"]["template"]["spec"]
    assert spec["containers"][0]["image"].startswith("registry.example.com:5000/")
    assert spec["runtimeClassName"] == "nvidia"
    [root] = [one for one in spec["volumes"] if one["name"] == "driver-root"]
    assert root["hostPath"]["path"] == "/run/nvidia/driver"


NEEDS = {
    "flags: {migStrategy: 'mixed'}": "mig",
    '{"flags": {"plugin": {"deviceListStrategy": ["cdi-annotations"]}}}': "cdi",
    "flags:\n  plugin:\n    deviceListStrategy:\n    - cdi-cri\n": "cdi",
    "sharing:\n  mps:\n    resources: []\n": "mps",
    "flags: {nvidiaDriverRoot: /run/nvidia/driver}": "driver-root",
    "# migStrategy: mixed\nflags: {migStrategy: none, mpsRoot: /x, nvidiaDriverRoot: /}": "",
}


def test_what_a_named_configuration_needs_is_installed(tmp_path: Path) -> None:
    maps = {f"c{number}": {"a": SHARED, "b": text} for number, text in enumerate(NEEDS)}
    given = [daemonset(manager(), volumes=volumes(available_configs=name)) for name in maps]
    found = read(*given, folder=tmp_path, maps=maps, reviewed="cdi")
    assert [each["stop"] for each in found] == [[]] * len(NEEDS)
    expected = [{"observe", "named-configs", component} - {""} for component in NEEDS.values()]
    assert [set(each["components"]) for each in found] == expected
    for component in set.union(*expected):
        assert (ROOT / "manifests" / "components" / component / "kustomization.yaml").exists()


def test_it_stops_with_a_sentence_at_what_it_does_not_understand(tmp_path: Path) -> None:
    secret = [{"name": "s", "secret": {"secretName": "s"}}]
    cases: list[tuple[str, dict[str, Any], list[dict[str, Any]]]] = [
        ("ctr", {"envFrom": [{"configMapRef": {"name": "x"}}]}, []),
        ("MIG_STRATEGY", {"env": [{"name": "MIG_STRATEGY", "valueFrom": {"configMapKeyRef": {}}}]}, []),
        ("CONFIG_FILE", {"env": env(CONFIG_FILE="/cfg/$(NODE_NAME)")}, []),
        ("CONFIG_FILE", {"env": env(CONFIG_FILE="/cfg/a.yaml")}, []),
        ("CONFIG_FILE_SRCDIR", {"env": env(CONFIG_FILE_SRCDIR="/cfg")}, []),
        ("no-such-flag", {"args": ["--no-such-flag=1"]}, []),
        ("word", {"args": ["word"]}, []),
        ("cdi", {"env": env(DEVICE_LIST_STRATEGY="cdi-annotations")}, []),
        ("ctr", {"command": ["sh", "-c", "exec nvidia-device-plugin"]}, []),
        ("odd", {"volumeMounts": [{"name": "odd", "mountPath": "/odd"}]}, volumes(odd="odd")),
        ("s", {"volumeMounts": [{"name": "s", "mountPath": "/s"}]}, secret),
    ]
    given = [daemonset({"name": "ctr", **container}, volumes=mounted) for _, container, mounted in cases]
    found = read(*given, folder=tmp_path, maps={"odd": {"a": "b"}})
    for (name, container, _), one in zip(cases, found, strict=True):
        assert name in {each["name"] for each in one["stop"]}, container
    looked = " ".join({name for name, *_ in cases})
    assert {str(each["stop"]) for each in read(*given, folder=tmp_path, maps={}, reviewed=looked)} == {"[]"}


def test_mps_with_a_folder_of_its_own_and_two_values_of_a_setting_are_reported(cluster: Cluster) -> None:
    main = {"name": "ctr", "env": env(MPS_ROOT="/mps", DEFAULT_CONFIG="b")}
    text = "sharing: {mps: {resources: []}}"
    cluster.has(main, manager(), volumes=volumes(available_configs="c"), maps={"c": {"a": text}})
    assert cluster.take() == 1
    assert "DEFAULT_CONFIG has several values: a, b" in cluster.said
    assert "MPS_ROOT is /mps" in cluster.said


def test_where_containers_get_gpus_by_cdi_it_stops_and_says_what_must_be_on_the_nodes(cluster: Cluster) -> None:
    cluster.has(manager(), volumes=volumes(available_configs="c"), maps={"c": {"a": SHARED, "b": BY_CDI}})
    assert cluster.take() == 1
    assert "cdi: containers get their GPUs by CDI (a CDI strategy in b)" in cluster.said
    assert "/var/run/cdi/nvidia.yaml" in cluster.said
    assert "REVIEWED='cdi'" in cluster.said


def test_a_kustomization_that_is_there_is_nobodys_to_overwrite(cluster: Cluster) -> None:
    cluster.has({"name": "ctr"})
    assert cluster.take() == 0, cluster.said
    before = (cluster.folder / "my-nodedevices" / "kustomization.yaml").read_text()
    assert cluster.take() == 1
    assert "already" in cluster.said
    assert (cluster.folder / "my-nodedevices" / "kustomization.yaml").read_text() == before
