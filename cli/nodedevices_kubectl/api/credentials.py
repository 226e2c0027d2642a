"""What a user of a kubeconfig authenticates with: headers, and a client certificate.

An exec plugin (client.authentication.k8s.io/v1) is run once, with the terminal as kubectl gives it; its token is kept
for this run of ours alone, and never shown.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nodedevices_common.raw import Raw, mapping, mappings, text
from nodedevices_common.text import show

from nodedevices_kubectl.api.errors import KubeconfigError
from nodedevices_kubectl.api.kubeconfig import Cluster, Context

EXEC_SECONDS = 120  # a person may have to log in with a browser
_EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


@dataclass(frozen=True, slots=True)
class Credentials:
    headers: Mapping[str, str] = field(repr=False, default_factory=dict)
    certificate: bytes = field(repr=False, default=b"")
    key: bytes = field(repr=False, default=b"")


def of_context(context: Context, environment: Mapping[str, str], *, ask: bool = True) -> Credentials:
    """`ask`: an exec plugin may ask the person at the terminal."""
    user = context.user
    token, certificate, key = user.token, user.certificate, user.key
    if user.token_file is not None:
        try:
            token = user.token_file.read_text().strip()
        except OSError as error:
            raise KubeconfigError(f"context {context.name}: tokenFile {user.token_file}: {error.strerror}") from error
    if user.command is not None and not (token or certificate):
        status = _run(context, user.command, environment, ask=ask)
        token = text(status.get("token"))
        certificate = text(status.get("clientCertificateData")).encode()
        key = text(status.get("clientKeyData")).encode()
    headers = {}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    elif user.name:
        word = base64.b64encode(f"{user.name}:{user.password}".encode()).decode()
        headers["Authorization"] = f"Basic {word}"
    if user.act_as:
        headers["Impersonate-User"] = user.act_as
    if user.act_as_uid:
        headers["Impersonate-Uid"] = user.act_as_uid
    if len(user.act_as_groups) > 1:
        raise KubeconfigError(f"context {context.name}: as-groups: give one group; more are not possible here")
    if user.act_as_groups:
        headers["Impersonate-Group"] = user.act_as_groups[0]
    return Credentials(headers, certificate, key)


def _run(context: Context, command: Raw, environment: Mapping[str, str], *, ask: bool) -> Raw:
    """The status of the ExecCredential that the plugin prints."""
    version = text(command.get("apiVersion"))
    program = text(command.get("command"))
    what = f"context {context.name}: exec plugin {program}"
    if version not in _EXEC_VERSIONS:
        raise KubeconfigError(f"{what}: apiVersion {show(version)}: give {_EXEC_VERSIONS[0]}")
    mode = text(command.get("interactiveMode"))
    interactive = ask and mode != "Never" and sys.stdin.isatty()
    if mode == "Always" and not interactive:
        raise KubeconfigError(f"{what}: interactiveMode Always: there is no terminal to ask at")
    spec: dict[str, Any] = {"interactive": interactive}
    if command.get("provideClusterInfo") is True:
        spec["cluster"] = _cluster_info(context.cluster)
    given = {text(each.get("name")): text(each.get("value")) for each in mappings(command.get("env"))}
    info = {"apiVersion": version, "kind": "ExecCredential", "spec": spec}
    found = shutil.which(program, path={**os.environ, **environment}.get("PATH"))
    if found is None or not Path(found).is_absolute():  # by a PATH with `.` in it; kubectl refuses it, too
        hint = text(command.get("installHint"))
        raise KubeconfigError(
            f"{what}: no such program in another folder than this one" + (f"\n{hint}" if hint else "")
        )
    raw_arguments = command.get("args")
    arguments = [str(each) for each in raw_arguments] if isinstance(raw_arguments, list) else []
    try:
        done = subprocess.run(  # noqa: S603 - the user's own kubeconfig names it, as for kubectl
            [found, *arguments],
            env={**os.environ, **environment, **given, "KUBERNETES_EXEC_INFO": json.dumps(info)},
            stdin=None if interactive else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=EXEC_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        hint = text(command.get("installHint"))
        raise KubeconfigError(f"{what}: {error}" + (f"\n{hint}" if hint else "")) from error
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
    for each in mappings(mapping(cluster.raw).get("extensions")):
        if each.get("name") == "client.authentication.k8s.io/exec":
            info["config"] = each.get("extension")
    return info
