"""Installs an overlay on a cluster the way a user does: `kubectl apply -k` on a kustomization that names the images.

Nothing of the manifests is changed but the images' names. `install` returns when the agent's DaemonSet and the
operator's Deployment are ready; `uninstall` removes all of it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from support.kubectl import Kubectl, KubectlError

ROOT = Path(__file__).resolve().parents[2]
NAMESPACE = "nodedevices-system"
AGENT = "daemonset/nodedevices-agent"
OPERATOR = "deployment/nodedevices-operator"
ROLL_OUT_SECONDS = 240  # of two nodes; on a busy machine it takes minutes

Json = dict[str, Any]


def kustomization(folder: Path, images: Mapping[str, str], overlay: str, root: Path = ROOT) -> str:
    """A kustomization in `folder` for the overlay of the sources in `root`, with these images: name in the manifests ->
    full reference."""
    base = os.path.relpath(root / "manifests" / "overlays" / overlay, folder.resolve())
    lines = ["apiVersion: kustomize.config.k8s.io/v1beta1", "kind: Kustomization", "resources:", f"- {base}", "images:"]
    for name, reference in images.items():
        new_name, _, tag = reference.rpartition(":")
        lines += [f"- name: {name}", f"  newName: {new_name}", f"  newTag: {tag!r}"]
    return "\n".join(lines) + "\n"


def apply(kubectl: Kubectl, images: Mapping[str, str], *, overlay: str = "demo", root: Path = ROOT) -> str:
    """What `kubectl apply -k` printed; nothing is waited for."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "kustomization.yaml").write_text(kustomization(folder, images, overlay, root))
        return kubectl.run("apply", "-k", name)


def install(kubectl: Kubectl, images: Mapping[str, str], *, overlay: str = "demo", root: Path = ROOT) -> str:
    """What `kubectl apply -k` printed, once everything is ready."""
    said = apply(kubectl, images, overlay=overlay, root=root)
    rolled_out(kubectl, AGENT, OPERATOR)
    return said


def rolled_out(kubectl: Kubectl, *workloads: str) -> None:
    """Wait until all their pods are new, and ready."""
    flags = ("-n", NAMESPACE, f"--timeout={ROLL_OUT_SECONDS}s")
    for what in workloads:
        kubectl.run("rollout", "status", what, *flags, seconds=ROLL_OUT_SECONDS + 10)


def rendered(kubectl: Kubectl, images: Mapping[str, str], *, overlay: str = "demo", root: Path = ROOT) -> list[Json]:
    """The objects that `apply` applies."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "kustomization.yaml").write_text(kustomization(folder, images, overlay, root))
        return [each for each in yaml.safe_load_all(kubectl.run("kustomize", name)) if each]


def cleanup(kubectl: Kubectl) -> str:
    """`nodedevices-operator cleanup` as docs/operations.md says, with the operator away; what it said."""
    kubectl.run("scale", "-n", NAMESPACE, OPERATOR, "--replicas=0")
    label = "app.kubernetes.io/component=operator"
    kubectl.run(
        "wait",
        "-n",
        NAMESPACE,
        "--for=delete",
        "pod",
        "-l",
        label,
        f"--timeout={ROLL_OUT_SECONDS}s",
        seconds=ROLL_OUT_SECONDS + 10,
    )
    spec = kubectl.json("get", "-n", NAMESPACE, OPERATOR)["spec"]["template"]["spec"]
    [container] = spec["containers"]
    container["args"] = ["cleanup"]
    for probe in ("livenessProbe", "readinessProbe"):
        del container[probe]
    spec["restartPolicy"] = "Never"
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "cleanup", "namespace": NAMESPACE},
        "spec": {"backoffLimit": 0, "template": {"spec": spec}},
    }
    kubectl.apply(job)
    try:
        kubectl.run(
            "wait",
            "-n",
            NAMESPACE,
            "--for=condition=Complete",
            "job/cleanup",
            f"--timeout={ROLL_OUT_SECONDS}s",
            seconds=ROLL_OUT_SECONDS + 10,
        )
    except KubectlError as error:
        said = kubectl.run("logs", "-n", NAMESPACE, "job/cleanup")
        raise AssertionError(f"cleanup failed: {said}") from error
    else:
        said = kubectl.run("logs", "-n", NAMESPACE, "job/cleanup")
    finally:
        kubectl.delete("job", "cleanup", namespace=NAMESPACE)
    return said


def uninstall(kubectl: Kubectl, *, overlay: str = "demo") -> None:
    """Everything that `install` made and our parts wrote, as docs/operations.md says; waits until it is gone."""
    folder = ROOT / "manifests" / "overlays" / overlay
    try:
        kubectl.run("delete", "devicepolicies", "--all")
        cleanup(kubectl)
    finally:
        kubectl.run("delete", "-k", str(folder), "--ignore-not-found", "--wait=true", seconds=ROLL_OUT_SECONDS)
