"""The vendor's plugin of vendorplugin.py: as a process beside a stand-in kubelet, as a pod on a real node, or installed
on several nodes as NVIDIA's chart does it.
"""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from support.patience import PATIENCE_SECONDS
from support.preloaded import Running, fork

PROGRAM = Path(__file__).with_name("vendorplugin.py")
PLUGINS = "/var/lib/kubelet/device-plugins"
UNHEALTHY = "/tmp/unhealthy"  # in a memory volume of its pod
CHART_NAMESPACE = "nvidia-device-plugin"
CHART_DAEMONSET = "nvdp-nvidia-device-plugin"
CHART_TERMS = (  # any of them, each a label and its value
    ("feature.node.kubernetes.io/pci-10de.present", "true"),
    ("feature.node.kubernetes.io/cpu-model.vendor_id", "NVIDIA"),
    ("nvidia.com/gpu.present", "true"),
)
PROGRAMS = "/programs"  # in a pod: the image has none of NVIDIA's programs


class VendorProcess:
    """Runs inside a `with`; `unhealthy(...)` sets which ids it calls so."""

    def __init__(self, folder: Path, plugin_folder: Path, ids: Sequence[str], *arguments: str) -> None:
        self.log = folder / "vendor.log"
        self._unhealthy = folder / "vendor-unhealthy"
        self._arguments = [
            f"--ids={','.join(ids)}",
            f"--folder={plugin_folder}",
            f"--unhealthy={self._unhealthy}",
            *arguments,
        ]
        self._process: Running | None = None

    def __enter__(self) -> Self:
        self._process = fork("support.vendorplugin", self._arguments, os.environ, self.log)
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        print(self.log.read_text())  # pytest shows it when the test fails

    def unhealthy(self, *ids: str) -> None:
        new = self._unhealthy.with_suffix(".new")
        new.write_text("\n".join(ids))
        new.replace(self._unhealthy)

    def end(self) -> None:
        """SIGTERM, as a pod's end."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(PATIENCE_SECONDS)


def pod(
    name: str, node: str, ids: Sequence[str], *, namespace: str, image: str, arguments: Sequence[str] = ()
) -> dict[str, Any]:
    """It as a pod: any image with Python and grpcio will do; what it calls Unhealthy is in the file UNHEALTHY there."""
    flags = [f"--ids={','.join(ids)}", f"--unhealthy={UNHEALTHY}", *arguments]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": "vendor"}},
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 5,
            "automountServiceAccountToken": False,
            "tolerations": [{"operator": "Exists"}],
            "containers": [
                {
                    "name": "plugin",
                    "image": image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["python3", "-u", "-c", PROGRAM.read_text(), *flags],
                    "securityContext": {
                        "runAsUser": 0,
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    "volumeMounts": [
                        {"name": "device-plugins", "mountPath": PLUGINS},
                        {"name": "tmp", "mountPath": "/tmp"},
                    ],
                }
            ],
            "volumes": [
                {"name": "device-plugins", "hostPath": {"path": PLUGINS, "type": "Directory"}},
                {"name": "tmp", "emptyDir": {"medium": "Memory"}},
            ],
        },
    }


def chart(
    command: Mapping[str, Sequence[str]], *, image: str, configs: Mapping[str, str]
) -> tuple[dict[str, Any], ...]:
    """What `helm install nvdp` makes with `config.map` set, as far as others can see it, around the small plugin.

    `command`: the plugin's arguments on each node. Namespace, names, affinity, variables and the volume of the
    ConfigMap are those of the chart's templates (v0.20.0), and so are the programs' names; config-manager does nothing.
    """
    cases = "".join(f"{node}) set -- {' '.join(arguments)} ;; " for node, arguments in command.items())
    programs = {
        "nvidia-device-plugin": f'case "$NODE_NAME" in {cases} esac; exec python3 -u {PROGRAMS}/program.py "$@"',
        "config-manager": "exec sleep infinity",
    }
    install = f'printf %s "$PROGRAM" > {PROGRAMS}/program.py\n' + "".join(
        f"printf '#!/bin/sh\\n%s' {shlex.quote(text)} > {PROGRAMS}/{name}\nchmod +x {PROGRAMS}/{name}\n"
        for name, text in programs.items()
    )
    labels = {"app.kubernetes.io/name": "nvidia-device-plugin", "app.kubernetes.io/instance": "nvdp"}
    node_name = {"fieldRef": {"fieldPath": "spec.nodeName"}}
    terms = [{"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]} for key, value in CHART_TERMS]
    [container] = pod("", "", (), namespace="", image=image)["spec"]["containers"]
    programs_mount = {"name": "programs", "mountPath": PROGRAMS}
    container |= {
        "name": "nvidia-device-plugin-ctr",
        "command": [f"{PROGRAMS}/nvidia-device-plugin"],
        "env": [
            {"name": "MPS_ROOT", "value": "/run/nvidia/mps"},
            {"name": "DEVICE_LIST_STRATEGY", "value": "envvar"},
            {"name": "CONFIG_FILE", "value": "/config/config.yaml"},
            {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
            {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility"},
            {"name": "NODE_NAME", "valueFrom": node_name},
        ],
        "volumeMounts": [*container["volumeMounts"], programs_mount],
    }
    init = {
        "name": "programs",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", install],
        "env": [{"name": "PROGRAM", "value": PROGRAM.read_text()}],
        "volumeMounts": [programs_mount],
    }
    spec = pod("", "", (), namespace="", image=image)["spec"] | {
        "containers": [
            container,
            {
                "name": "nvidia-device-plugin-sidecar",
                "image": image,
                "imagePullPolicy": "IfNotPresent",
                "command": [f"{PROGRAMS}/config-manager"],
                "env": [
                    {"name": "CONFIG_FILE_SRCDIR", "value": "/available-configs"},
                    {"name": "DEFAULT_CONFIG", "value": "default"},
                    {"name": "FALLBACK_STRATEGIES", "value": "named,single"},
                ],
                "volumeMounts": [{"name": "available-configs", "mountPath": "/available-configs"}, programs_mount],
            },
        ],
        "initContainers": [init],
        "terminationGracePeriodSeconds": 1,  # sleep knows no SIGTERM
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}},
    }
    del spec["nodeName"]
    spec["volumes"] += [
        {"name": "available-configs", "configMap": {"name": f"{CHART_DAEMONSET}-configs"}},
        {"name": "programs", "emptyDir": {}},
    ]
    return (
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": CHART_NAMESPACE}},
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": f"{CHART_DAEMONSET}-configs", "namespace": CHART_NAMESPACE},
            "data": dict(configs),
        },
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": CHART_DAEMONSET, "namespace": CHART_NAMESPACE, "labels": labels},
            "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}},
        },
    )
