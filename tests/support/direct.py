"""Objects read, applied and cleared away without a process: a kubectl takes a tenth of a second of CPU, and tests do so
thousands of times. Only for clusters of our own, whose kubeconfig is JSON with a client certificate in it.
"""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ANSWER_SECONDS = 40
OURS = "/apis/nodedevices.io/v1alpha1"
PATHS = {
    "node": "/api/v1/nodes/{name}",
    "pod": "/api/v1/namespaces/{namespace}/pods/{name}",
    **dict.fromkeys(("nodedevices", "nd"), "/apis/nodedevices.io/v1alpha1/nodedevices/{name}"),
    **dict.fromkeys(("devicepolicy", "devicepolicies", "dp"), "/apis/nodedevices.io/v1alpha1/devicepolicies/{name}"),
}


class DirectError(Exception):
    """The API server did not answer (code 0), or refused."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True)
class Direct:
    server: str
    context: ssl.SSLContext

    def get(self, kind: str, name: str, namespace: str | None) -> dict[str, Any] | None:
        """The object, or None when there is none of that name."""
        try:
            return self.request("GET", PATHS[kind].format(name=name, namespace=namespace or "default"))
        except DirectError as error:
            if error.code == 404 and f'{name}" not found' in str(error):  # not where the whole kind is gone
                return None
            raise

    def apply(self, thing: Mapping[str, Any], *, manager: str, subresource: str = "") -> None:
        """Server-side, by force, with unknown fields refused, as `kubectl apply` has it."""
        metadata = thing["metadata"]
        path = PATHS[thing["kind"].lower()].format(
            name=metadata["name"], namespace=metadata.get("namespace", "default")
        )
        query = f"?fieldManager={manager}&force=true&fieldValidation=Strict"
        self.request("PATCH", f"{path}{subresource and '/' + subresource}{query}", thing)

    def clear(self) -> None:
        """No NodeDevices, DevicePolicy, Node or pod is left."""
        pods = self.request("GET", "/api/v1/pods")["items"]
        for namespace in {each["metadata"]["namespace"] for each in pods}:
            self.request("DELETE", f"/api/v1/namespaces/{namespace}/pods?gracePeriodSeconds=0")
        for path in ("/api/v1/nodes", f"{OURS}/nodedevices", f"{OURS}/devicepolicies"):
            with contextlib.suppress(DirectError):  # a CRD that a test took away
                self.request("DELETE", path)

    def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The answer's object. Raises DirectError."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.server + path, data=data, method=method)
        if data is not None:
            request.add_header("Content-Type", "application/apply-patch+yaml")  # JSON is YAML
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_SECONDS, context=self.context) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")
            with contextlib.suppress(ValueError, AttributeError):
                said = json.loads(said).get("message", said)
            raise DirectError(f"{method} {path}: {error.code}: {said[:2000]}", error.code) from error
        except (OSError, ValueError) as error:
            raise DirectError(f"{method} {path}: {error}") from error


def reach(kubeconfig: Path, kind: str) -> Direct | None:
    """How to get objects of this kind; None where only kubectl knows."""
    if kind not in PATHS:
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
