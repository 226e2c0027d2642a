"""Objects read, written and deleted without a process: a kubectl takes a seventh of a second of CPU, and tests do so
thousands of times. Only for clusters of our own, whose kubeconfig is JSON with a client certificate in it.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import ssl
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from support.patience import CLUSTER_PATIENCE_SECONDS

MOST_TRIES = 10  # as client-go has it, of what the server refuses for now: 429 while it reads a collection, say
_THREAD = threading.local()  # server -> its connection: a new one costs five times what a request does
OURS = "/apis/nodedevices.io/v1alpha1"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
DRA = "/apis/resource.k8s.io/v1"
# Kind, in small letters -> its collection.
COLLECTIONS = {
    "node": "/api/v1/nodes",
    "namespace": "/api/v1/namespaces",
    "pod": "/api/v1/namespaces/{namespace}/pods",
    "event": "/api/v1/namespaces/{namespace}/events",
    "configmap": "/api/v1/namespaces/{namespace}/configmaps",
    "serviceaccount": "/api/v1/namespaces/{namespace}/serviceaccounts",
    "daemonset": "/apis/apps/v1/namespaces/{namespace}/daemonsets",
    "deployment": "/apis/apps/v1/namespaces/{namespace}/deployments",
    "statefulset": "/apis/apps/v1/namespaces/{namespace}/statefulsets",
    "job": "/apis/batch/v1/namespaces/{namespace}/jobs",
    "poddisruptionbudget": "/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets",
    "service": "/api/v1/namespaces/{namespace}/services",
    "clusterrole": f"{RBAC}/clusterroles",
    "clusterrolebinding": f"{RBAC}/clusterrolebindings",
    "role": f"{RBAC}/namespaces/{{namespace}}/roles",
    "rolebinding": f"{RBAC}/namespaces/{{namespace}}/rolebindings",
    "validatingadmissionpolicy": f"{ADMISSION}/validatingadmissionpolicies",
    "validatingadmissionpolicybinding": f"{ADMISSION}/validatingadmissionpolicybindings",
    "lease": "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases",
    "resourceclaim": f"{DRA}/namespaces/{{namespace}}/resourceclaims",
    "resourceslice": f"{DRA}/resourceslices",
    "deviceclass": f"{DRA}/deviceclasses",
    "nodedevices": f"{OURS}/nodedevices",
    "devicepolicy": f"{OURS}/devicepolicies",
}
ALSO = {"nd": "nodedevices", "dp": "devicepolicy", "devicepolicies": "devicepolicy", "pdb": "poddisruptionbudget"}
DELETE_OPTIONS = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
PATCHES = {
    "apply": "application/apply-patch+yaml",  # JSON is YAML
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
}


class DirectError(Exception):
    """The API server did not answer (code 0), or refused."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


class _Connection(http.client.HTTPSConnection):
    """Ends with the thread that has it."""

    def __del__(self) -> None:
        self.close()


@dataclass(frozen=True)
class Direct:
    server: str
    context: ssl.SSLContext

    def get(self, kind: str, name: str, namespace: str | None) -> dict[str, Any] | None:
        """The object, or None when there is none of that name."""
        try:
            return self.request("GET", path(kind, name, namespace))
        except DirectError as error:
            if error.code == 404 and f'{name}" not found' in str(error):  # not where the whole kind is gone
                return None
            raise

    def items(self, kind: str, namespace: str | None, *, labels: str, fields: str) -> list[dict[str, Any]]:
        """Of one namespace, or of all; without apiVersion and kind."""
        query = urllib.parse.urlencode({"labelSelector": labels, "fieldSelector": fields})
        items: list[dict[str, Any]] = self.request("GET", f"{collection(kind, namespace)}?{query}")["items"]
        return items

    def create(self, thing: Mapping[str, Any], *, dry: bool) -> dict[str, Any]:
        place = collection(thing["kind"], thing["metadata"].get("namespace", "default"))
        query = f"?fieldManager=kubectl-create&fieldValidation=Strict{'&dryRun=All' if dry else ''}"
        return self.request("POST", place + query, thing)

    def apply(self, thing: Mapping[str, Any], *, manager: str, subresource: str = "") -> None:
        """Server-side, by force, with unknown fields refused, as `kubectl apply` has it."""
        metadata = thing["metadata"]
        place = path(thing["kind"], metadata["name"], metadata.get("namespace"), subresource)
        self.request(
            "PATCH", f"{place}?fieldManager={manager}&force=true&fieldValidation=Strict", thing, PATCHES["apply"]
        )

    def patch(
        self,
        kind: str,
        name: str,
        namespace: str | None,
        change: Mapping[str, Any],
        *,
        how: str,
        manager: str,
        subresource: str,
    ) -> None:
        place = path(kind, name, namespace, subresource)
        self.request("PATCH", f"{place}?fieldManager={manager}&fieldValidation=Strict", change, PATCHES[how])

    def token(self, account: str, namespace: str, *, pod: str, seconds: int) -> str:
        """One of a service account, as `kubectl create token` has it made; `pod`: it ends with that pod."""
        bound = {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": pod}} if pod else {}
        head = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
        place = path("serviceaccount", account, namespace, "token")
        made = self.request("POST", place, {**head, "spec": {"audiences": None, "expirationSeconds": seconds, **bound}})
        return str(made["status"]["token"])

    def delete(self, kind: str, name: str, namespace: str | None) -> str:
        """Its uid; empty when there is none of that name. It may take a while to be gone."""
        found = self.get(kind, name, namespace)
        if found is not None:
            try:
                self.request("DELETE", path(kind, name, namespace), DELETE_OPTIONS)
            except DirectError as error:  # it may have gone meanwhile
                if error.code != 404:
                    raise
        return "" if found is None else str(found["metadata"]["uid"])

    def delete_all(self, kind: str, namespace: str, *, labels: str) -> None:
        """At once, without a grace period."""
        query = urllib.parse.urlencode({"labelSelector": labels, "gracePeriodSeconds": 0})
        self.request("DELETE", f"{collection(kind, namespace)}?{query}", DELETE_OPTIONS)

    def clear(self) -> None:
        """No NodeDevices, DevicePolicy, Node or pod is left."""
        pods = self.request("GET", "/api/v1/pods")["items"]
        for namespace in {each["metadata"]["namespace"] for each in pods}:
            self.request("DELETE", f"/api/v1/namespaces/{namespace}/pods?gracePeriodSeconds=0")
        for path in ("/api/v1/nodes", f"{OURS}/nodedevices", f"{OURS}/devicepolicies"):
            with contextlib.suppress(DirectError):  # a CRD that a test took away
                self.request("DELETE", path)

    def request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, content: str = "application/json"
    ) -> dict[str, Any]:
        """The answer's object, tried again as kubectl does when the server says when. Raises DirectError."""
        data = None if body is None else json.dumps(body).encode()
        headers = {} if data is None else {"Content-Type": content}
        for left in reversed(range(MOST_TRIES)):
            try:
                status, text, again = self._exchange(method, path, data, headers)
            except (OSError, http.client.HTTPException) as error:
                raise DirectError(f"{method} {path}: {error}") from error
            if not again or not left:
                break
            time.sleep(again)
        said = text.decode(errors="replace")
        if status < http.HTTPStatus.BAD_REQUEST:
            found: dict[str, Any] = json.loads(said)
            return found
        with contextlib.suppress(ValueError, AttributeError):
            said = json.loads(said).get("message", said)
        raise DirectError(f"{method} {path}: {status}: {said[:2000]}", status)

    def _exchange(
        self, method: str, path: str, data: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, bytes, int]:
        """Status, body and Retry-After's seconds, 0 for none. By the thread's connection; by a new one where the server
        has closed it meanwhile."""
        kept: dict[str, _Connection] = _THREAD.__dict__
        while True:
            reused = self.server in kept
            connection = kept.pop(self.server, None) or self._connect()
            try:
                connection.request(method, path, data, dict(headers))
                answer = connection.getresponse()
                text = answer.read()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                if not reused or isinstance(error, TimeoutError):
                    raise
            else:
                kept[self.server] = connection
                return answer.status, text, int(answer.headers.get("Retry-After", 0))

    def _connect(self) -> _Connection:
        at = urllib.parse.urlsplit(self.server)
        return _Connection(at.hostname or "", at.port, context=self.context, timeout=CLUSTER_PATIENCE_SECONDS)


def singular(kind: str) -> str:
    """As COLLECTIONS has it, whatever word for it kubectl takes."""
    small = kind.lower()
    return ALSO.get(small, small if small in COLLECTIONS else small.removesuffix("s"))


def collection(kind: str, namespace: str | None) -> str:
    """Where these objects are, in one namespace or in all."""
    place = COLLECTIONS[singular(kind)]
    return place.format(namespace=namespace) if namespace else place.replace("/namespaces/{namespace}", "")


def path(kind: str, name: str, namespace: str | None, subresource: str = "") -> str:
    return f"{collection(kind, namespace or 'default')}/{name}{subresource and '/' + subresource}"


def reach(kubeconfig: Path, kind: str) -> Direct | None:
    """How to reach objects of this kind; None where only kubectl knows."""
    if singular(kind) not in COLLECTIONS:
        return None
    try:
        return _opened(kubeconfig, kubeconfig.stat().st_mtime_ns)
    except OSError:
        return None


@cache
def _opened(kubeconfig: Path, _written: int) -> Direct | None:
    try:
        known = json.loads(kubeconfig.read_text())
        cluster, user = known["clusters"][0]["cluster"], known["users"][0]["user"]
        authority, certificate, key = (
            base64.b64decode(of[name]).decode()
            for of, name in (
                (cluster, "certificate-authority-data"),
                (user, "client-certificate-data"),
                (user, "client-key-data"),
            )
        )
    except (OSError, ValueError, LookupError, TypeError):
        return None
    context = ssl.create_default_context(cadata=authority)
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as pair:
        pair.write(certificate + key)
        pair.flush()
        context.load_cert_chain(pair.name)
    return Direct(cluster["server"], context)
