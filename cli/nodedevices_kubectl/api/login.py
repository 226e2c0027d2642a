"""Exec plugins of a kubeconfig (client.authentication.k8s.io/v1): each is run once, with the terminal as kubectl gives
it; its token is kept for this run of ours alone, and never shown.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nodedevices_common.raw import Raw, mapping, mappings, text
from nodedevices_common.text import show
from nodedevices_kube.errors import KubeconfigError
from nodedevices_kube.kubeconfig import Cluster, Context

EXEC_SECONDS = 120  # a person may have to log in with a browser
_EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


def log_in(context: Context, command: Raw, *, environment: Mapping[str, str], ask: bool) -> Raw:
    """Return the status of the ExecCredential that the plugin prints. `ask`: it may ask the person at the terminal."""
    version = text(command.get("apiVersion"))
    program = text(command.get("command"))
    what = f"context {context.name}: exec plugin {program}"
    if version not in _EXEC_VERSIONS:
        raise KubeconfigError(f"{what}: apiVersion {show(version)}: give {_EXEC_VERSIONS[0]}")
    mode = text(command.get("interactiveMode"))
    interactive = ask and mode != "Never" and sys.stdin.isatty()
    if mode == "Always" and not interactive:
        raise KubeconfigError(f"{what}: interactiveMode Always: there is no terminal to ask for input")
    spec: dict[str, Any] = {"interactive": interactive}
    if command.get("provideClusterInfo") is True:
        spec["cluster"] = _cluster_info(context.cluster)
    given = {text(variable.get("name")): text(variable.get("value")) for variable in mappings(command.get("env"))}
    info = {"apiVersion": version, "kind": "ExecCredential", "spec": spec}
    hint = text(command.get("installHint"))
    hint = f"\n{hint}" if hint else ""
    found = shutil.which(program, path={**os.environ, **environment}.get("PATH"))
    if found is None or not Path(found).is_absolute():  # by a PATH with `.` in it; kubectl refuses it, too
        raise KubeconfigError(f"{what}: no such program outside the current folder{hint}")
    arguments = command.get("args")
    try:
        done = subprocess.run(  # noqa: S603 - the user's own kubeconfig names it, as for kubectl
            [found, *(map(str, arguments) if isinstance(arguments, list) else ())],
            env={**os.environ, **environment, **given, "KUBERNETES_EXEC_INFO": json.dumps(info)},
            stdin=None if interactive else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=EXEC_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KubeconfigError(f"{what}: {error}{hint}") from error
    if done.returncode != 0:
        raise KubeconfigError(f"{what}: it ended with exit code {done.returncode}")
    try:
        status = mapping(mapping(json.loads(done.stdout)).get("status"))
    except ValueError as error:
        raise KubeconfigError(f"{what}: it printed no ExecCredential") from error
    if not status.get("token") and not status.get("clientCertificateData"):
        raise KubeconfigError(f"{what}: its ExecCredential has neither a token nor a client certificate")
    return status


def _cluster_info(cluster: Cluster) -> dict[str, Any]:
    info: dict[str, Any] = {"server": cluster.server}
    if cluster.authority:
        info["certificate-authority-data"] = base64.b64encode(cluster.authority).decode()
    if cluster.insecure:
        info["insecure-skip-tls-verify"] = True
    if cluster.tls_name:
        info["tls-server-name"] = cluster.tls_name
    if cluster.proxy:
        info["proxy-url"] = cluster.proxy
    for extension in mappings(mapping(cluster.raw).get("extensions")):
        if extension.get("name") == "client.authentication.k8s.io/exec":
            info["config"] = extension.get("extension")
    return info
