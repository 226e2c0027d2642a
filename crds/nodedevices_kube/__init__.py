"""The API server's client of agent and command line: kubeconfig, credentials, requests, lists, watches.

Not the official client, which costs memory on every node, and takes longer to load than a command may take to start
(docs/decisions/015-a-client-of-our-own.md). JSON over the standard library's http.client, every call bounded in time,
none sent twice. Certificates are checked, unless a kubeconfig says `insecure-skip-tls-verify`; a redirect is an error,
and a proxy is the kubeconfig's or the environment's.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def at(collection: str, name: str) -> str:
    """Return the path of one object."""
    return f"{collection}/{quote(name, safe='')}"
