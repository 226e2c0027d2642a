"""The API server's client of one cluster, from what a person gave: a context, a file. Pages, names, patches, and what a
refusal means for a person.

Exec plugins of a kubeconfig (client.authentication.k8s.io/v1) are run once each, with the terminal as kubectl gives it;
a token is kept for this run of ours alone, and never shown.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from nodedevices_api import API_VERSION
from nodedevices_common import __version__
from nodedevices_common.loading import quickly
from nodedevices_common.raw import Raw, mapping, mappings, text
from nodedevices_common.text import nearest, show
from nodedevices_kube import kubeconfig
from nodedevices_kube.client import JSON, Client
from nodedevices_kube.connection import Answer, Connection
from nodedevices_kube.errors import ApiError, KubeconfigError
from nodedevices_kube.kubeconfig import Cluster, Context

from nodedevices_kubectl import objects

PAGE = 500
FIELD_MANAGER = "kubectl-nodedevices"
_NAMES_ONLY = f"{JSON};as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,{JSON}"
USER_AGENT = f"kubectl-nodedevices/{__version__}"
EXEC_SECONDS = 120  # a person may have to log in with a browser
_EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")

T = TypeVar("T")


def find_context(explicit: str, name: str, environment: Mapping[str, str]) -> Context:
    """The context of this name, or none given: the current one, or this pod's."""
    found = kubeconfig.find(explicit or None, environment)
    if found is None and not name:
        return kubeconfig.of_service_account(environment)
    if found is None:
        raise KubeconfigError(f"--context {name}: there is no kubeconfig; give --kubeconfig")
    return found.context(name)


def find_contexts(explicit: str, named: Sequence[str], environment: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """The contexts of these names; none named: all that there are, one for each API server. And words about it."""
    found = kubeconfig.find(explicit or None, environment)
    if found is None:
        raise KubeconfigError("several contexts: there is no kubeconfig; give --kubeconfig")
    if named:
        for name in named:
            if name not in found.contexts:
                raise KubeconfigError(f"--contexts {name}: there is no such context{nearest(name, found.contexts)}")
        return list(dict.fromkeys(named)), []
    chosen: dict[str, str] = {}  # server -> context
    words = []
    for name in sorted(found.contexts, key=lambda name: name != found.current):  # the current one counts
        server = found.server(name) or f"context {name}"
        if server in chosen:
            words.append(f"{name} is the same cluster as {chosen[server]} ({server}).")
        else:
            chosen[server] = name
    if not chosen:
        raise KubeconfigError("--all-contexts: the kubeconfig has no context")
    return sorted(chosen.values()), words


def connect(context: Context, environment: Mapping[str, str], seconds: float = 0.0) -> Api:
    """Nothing is sent yet; an exec plugin is run. `seconds`: the longest to wait for an answer, and nobody is
    asked to log in; 0: as usual."""
    known = kubeconfig.credentials(context, partial(log_in, environment=environment, ask=not seconds))
    limits = {"connect_seconds": seconds, "answer_seconds": seconds} if seconds else {}
    return Api(Connection(context.cluster, known, environment, user_agent=USER_AGENT, **limits), context.name)


# --- the client -------------------------------------------------------------------------------------------------------
class Api(Client):
    def __init__(self, connection: Connection, context: str) -> None:
        super().__init__(connection)
        self.context = context
        self.page = PAGE

    def find(self, path: str) -> Raw | None:
        """Return the object; None: there is none of this name."""
        try:
            return self.get(path)
        except ApiError as error:
            if not error.absent:
                raise
        return None

    def text(self, path: str) -> str:
        """Return what is no object, such as a pod's answer through the API server's proxy."""
        return self._send("GET", path, None, None, {"Accept": "text/plain"}).decode(errors="replace")

    def list_all(self, collection: str, *, selector: str = "", fields: str = "") -> tuple[list[Raw], str]:
        """Every object, page by page, and the resourceVersion from which a watch goes on."""
        return self.read_all(collection, lambda item: item, selector=selector, fields=fields)

    def _pages(
        self, collection: str, query: Mapping[str, str], accept: str, read: Callable[[Raw], T]
    ) -> tuple[list[T], str]:
        with quickly():  # nothing in an object refers to itself
            return super()._pages(collection, query, accept, read)

    def names(self, collection: str, *, selector: str = "") -> list[str]:
        """The names of all objects, without what is in them."""
        return self.read_all(
            collection,
            lambda item: text(mapping(item.get("metadata")).get("name")),
            selector=selector,
            accept=_NAMES_ONLY,
        )[0]

    def merge(self, path: str, change: Mapping[str, Any], *, dry_run: bool = False) -> Raw:
        patch = "application/merge-patch+json"
        return self.write("PATCH", path, change, manager=FIELD_MANAGER, content_type=patch, dry_run=dry_run)

    def create(self, path: str, body: Mapping[str, Any], *, dry_run: bool = False) -> Raw:
        return self.write("POST", path, body, manager=FIELD_MANAGER, dry_run=dry_run)

    def try_write(self, collection: str, body: Mapping[str, Any], version: str) -> None:
        """Let the API server check an object that would be written, and write nothing. `version`: of the object that is
        there; empty: there is none. Raises ApiError with what it refuses."""
        given = mapping(body.get("metadata"))
        about = {key: given[key] for key in ("name", "labels", "annotations") if key in given}
        if version:
            whole = {**body, "metadata": {**about, "resourceVersion": version}}
            self.write(
                "PUT", objects.at(collection, text(about.get("name"))), whole, manager=FIELD_MANAGER, dry_run=True
            )
        else:
            self.create(collection, {**body, "metadata": about}, dry_run=True)

    def _refusal(self, method: str, path: str, answer: Answer) -> ApiError:
        status, message, advice = answer.status, answer.message, ""
        ours = path.startswith(f"{objects.OURS}/")
        if status == 401:
            message = f"it does not accept these credentials (context {self.context}): {message or 'Unauthorized'}"
        elif status == 403 and not answer.said:
            message = f"{method} {path} is forbidden: {message}"
        if status == 403 and ours:
            role = "nodedevices-view" if method == "GET" else "nodedevices-admin"
            advice = (
                f"This needs the cluster role {role} in the whole cluster; a RoleBinding is not enough. To grant it: "
                f"kubectl create clusterrolebinding NAME --clusterrole={role} --user=USER"
            )
        elif status == 404 and ours and not answer.names_object:
            message = f"it has no {path.removeprefix(f'{objects.OURS}/').partition('/')[0]} ({API_VERSION})"
            advice = f"Is NodeDevices installed in the cluster of context {self.context}? docs/operations.md says how."
        return ApiError(
            f"API server {self.server}: {message or f'{method} {path}: HTTP {status}'}",
            status=status,
            retry_after=answer.retry_after,
            names_object=answer.names_object,
            advice=advice,
        )


# --- exec plugins ----------------------------------------------------------------------------------------------------
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
    extensions = {extension.get("name"): extension for extension in mappings(mapping(cluster.raw).get("extensions"))}
    info = {
        "server": cluster.server,
        "certificate-authority-data": base64.b64encode(cluster.authority).decode(),
        "insecure-skip-tls-verify": cluster.insecure,
        "tls-server-name": cluster.tls_name,
        "proxy-url": cluster.proxy,
        "config": mapping(extensions.get("client.authentication.k8s.io/exec")).get("extension"),
    }
    return {key: value for key, value in info.items() if value}
