"""What a service account may do: the token of one of its pods, a kubeconfig of it, and raw requests with it.

A token is bound to a pod as the kubelet requests it, so the API server puts the pod's node into it. Requests are made
as a program would make them: `kubectl patch` reads first, which an account may not be allowed to.
"""

from __future__ import annotations

import base64
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from support.kubectl import Kubectl
from support.patience import CLUSTER_PATIENCE_SECONDS

APPLY, MERGE, STRATEGIC, JSON = (
    "application/apply-patch+yaml",  # JSON is YAML
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/json-patch+json",
)


class Refused(Exception):  # noqa: N818 - reads as what happened
    """The API server said no, and this is what it said."""

    def __init__(self, what: str, code: int, said: str) -> None:
        super().__init__(f"{what}: {code}: {said}")
        self.code = code


def token_of_pod(kubectl: Kubectl, account: str, *, namespace: str, node: str) -> str:
    """The token of a pod `token-of-ACCOUNT` of that account on that node, which is created where it is missing."""
    name = f"token-of-{account}"
    spec = {"nodeName": node, "serviceAccountName": account, "containers": [{"name": "main", "image": "none"}]}
    kubectl.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}, "spec": spec})
    return kubectl.token(account, namespace, pod=name)


def kubeconfig(admin: Path, path: Path, token: str) -> Path:
    """cluster-admin's kubeconfig at `path`, but with this token."""
    config = yaml.safe_load(admin.read_text())
    config["users"] = [{"name": each["name"], "user": {"token": token}} for each in config["users"]]
    path.write_text(json.dumps(config))
    return path


@dataclass(frozen=True)
class Account:
    """The API server, called with one token."""

    server: str
    trust: ssl.SSLContext
    token: str

    @classmethod
    def of(cls, admin: Path, token: str) -> Account:
        cluster = yaml.safe_load(admin.read_text())["clusters"][0]["cluster"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        return cls(cluster["server"], ssl.create_default_context(cadata=authority), token)

    def patch(
        self,
        path: str,
        body: Mapping[str, Any] | Sequence[Any],
        kind: str = MERGE,
        *,
        manager: str = "",
        dry: bool = False,
    ) -> dict[str, Any]:
        """The object afterwards. Server-side apply is by force."""
        force = "&force=true" if kind == APPLY else ""
        query = f"?fieldManager={manager or 'tests'}{force}{'&dryRun=All' if dry else ''}"
        return self.request("PATCH", path + query, body, kind)

    def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | Sequence[Any] | None = None,
        kind: str = "application/json",
    ) -> dict[str, Any]:
        """The answer's object. Raises Refused."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": kind}
        request = urllib.request.Request(self.server + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, context=self.trust, timeout=CLUSTER_PATIENCE_SECONDS) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except urllib.error.HTTPError as error:
            said = json.loads(error.read()).get("message", "")
            raise Refused(f"{method} {path}", error.code, said) from error
