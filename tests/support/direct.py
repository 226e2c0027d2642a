"""One object, asked of the API server without a process: a kubectl takes a tenth of a second of CPU, and tests that
wait ask thousands of times. Only for clusters of our own, whose kubeconfig is JSON with a client certificate in it.
"""

from __future__ import annotations

import base64
import json
import ssl
import tempfile
import urllib.error
import urllib.request
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ANSWER_SECONDS = 20
PATHS = {
    "node": "/api/v1/nodes/{name}",
    "pod": "/api/v1/namespaces/{namespace}/pods/{name}",
    **dict.fromkeys(("nodedevices", "nd"), "/apis/nodedevices.io/v1alpha1/nodedevices/{name}"),
    **dict.fromkeys(("devicepolicy", "devicepolicies", "dp"), "/apis/nodedevices.io/v1alpha1/devicepolicies/{name}"),
}


class DirectError(Exception):
    """The API server did not answer, or not with an object."""


@dataclass(frozen=True)
class Direct:
    server: str
    context: ssl.SSLContext

    def get(self, kind: str, name: str, namespace: str | None) -> dict[str, Any] | None:
        """The object, or None when there is none of that name."""
        url = self.server + PATHS[kind].format(name=name, namespace=namespace or "default")
        try:
            with urllib.request.urlopen(url, timeout=ANSWER_SECONDS, context=self.context) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")
            if error.code == 404 and f'{name}\\" not found' in said:  # not where the whole kind is gone
                return None
            raise DirectError(f"{url}: {error.code}: {said[:500]}") from error
        except (OSError, ValueError) as error:
            raise DirectError(f"{url}: {error}") from error


def reach(kubeconfig: Path, kind: str) -> Direct | None:
    """How to ask for objects of this kind; None where only kubectl knows."""
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
