"""Renders our chart with a helm: that of HELM in the environment, of `make cluster-tools`, or of the PATH."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from cluster.rig import binaries
from support.kustomize import ROOT
from support.patience import CLUSTER_PATIENCE_SECONDS

CHART = ROOT / "manifests" / "chart"
NAMESPACE = "nodedevices-system"

# What people set: each value is to be seen in what is rendered.
CUSTOM: dict[str, Any] = {
    "image": {"registry": "registry.example.com/team/", "tag": "1.2.3", "pullPolicy": "Always"},
    "imagePullSecrets": [{"name": "pull"}],
    "commonLabels": {"team": "gpu"},
    "kubelet": {"rootDir": "/var/lib/k0s/kubelet"},
    "people": {"enabled": False},
    "agent": {
        "image": {"digest": "sha256:" + "0" * 64},
        "flags": {
            "mig-strategy": "mixed",
            "device-list-strategy": ["envvar", "cdi-cri"],
            "telemetry": True,
            "cdi-annotation-prefix": 1073741824,
            "probe": ["nvml", "acme=unix:/run/acme.sock"],
        },
        "env": [{"name": "XID_CONFIG", "value": "1"}],
        "updateStrategy": {"maxUnavailable": "10%"},
        "nodeSelector": {"pool": "gpu"},
        "nodeExpressions": [{"key": "nvidia.com/gpu.present", "operator": "Exists"}],
        "networkPolicy": {"enabled": False},
    },
    "operator": {
        "replicas": 1,
        "flags": {"leader-elect": False, "log-level": "debug"},
        "volumes": [{"name": "metrics", "secret": {"secretName": "nodedevices-metrics"}}],
        "volumeMounts": [{"name": "metrics", "mountPath": "/etc/nodedevices-metrics"}],
        "podAnnotations": {"note": "here"},
        "podDisruptionBudget": {"enabled": False},
        "tolerations": [{"key": "readiness.k8s.io/nodedevices-not-ready", "operator": "Exists"}],
    },
    "components": {
        "cdi": {"enabled": True},
        "allHardware": {"enabled": True},
        "driverRoot": {"enabled": True, "path": "/run/nvidia/driver"},
        "deviceFiles": {
            "enabled": True,
            "files": {"generic.yaml": {"devices": [{"name": "serial"}]}, "NameCustomize.json": {"a": "b"}},
        },
        "namedConfigs": {"enabled": True, "configs": {"default": "version: v1\nflags:\n  migStrategy: none\n"}},
        "prometheus": {
            "enabled": True,
            "labels": {"release": "prom"},
            "dashboardLabels": {"dashboards": "gpu"},
            "dashboardAnnotations": {"grafana_folder": "GPUs"},
        },
        "operatorNamespace": {"enabled": True},
        "mps": {"enabled": True, "nodeSelector": {"mps": "true"}},
    },
    "criticalPodsQuota": {"enabled": True},
    "extraObjects": [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "of-{{ .Release.Name }}"}},
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: as-text}",
    ],
}


def helm() -> str | None:
    """A helm, or None."""
    built = binaries.HELM.path
    return os.environ.get("HELM") or (str(built) if built.exists() else shutil.which("helm"))


def run(
    *arguments: str, given: str = "", kubeconfig: Path | None = None, seconds: float = CLUSTER_PATIENCE_SECONDS
) -> subprocess.CompletedProcess[str]:
    """`kubeconfig`: of the cluster, where it may ask one."""
    binary = helm()
    assert binary is not None
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig or os.devnull)}
    command = [binary, *arguments]
    return subprocess.run(
        command, input=given, capture_output=True, text=True, timeout=seconds, check=False, env=environment
    )


def template(values: Mapping[str, Any], *more: str) -> subprocess.CompletedProcess[str]:
    """What `helm install` would send with these values; its stderr says why it would not."""
    arguments = ("template", "nodedevices", str(CHART), "--namespace", NAMESPACE, "--values", "-", *more)
    return run(*arguments, given=yaml.safe_dump(dict(values)))
