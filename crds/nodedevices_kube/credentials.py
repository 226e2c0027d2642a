"""What a user of a kubeconfig authenticates with: headers, and a client certificate."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from nodedevices_common.raw import Raw, text

from nodedevices_kube.errors import KubeconfigError
from nodedevices_kube.kubeconfig import Context

Login = Callable[[Context, Raw], Raw]
"""Runs the exec plugin of a context, and returns the status of the ExecCredential that it prints."""


@dataclass(frozen=True, slots=True)
class Credentials:
    headers: Mapping[str, str] = field(repr=False, default_factory=dict)
    certificate: bytes = field(repr=False, default=b"")
    key: bytes = field(repr=False, default=b"")


def for_context(context: Context, login: Login | None = None) -> Credentials:
    """Read the token's file, or run the exec plugin, where there is `login`. Raises KubeconfigError."""
    user = context.user
    token, certificate, key = user.token, user.certificate, user.key
    if user.token_file is not None:
        try:
            token = user.token_file.read_text().strip()
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "not text"
            raise KubeconfigError(f"context {context.name}: tokenFile {user.token_file}: {why}") from error
    if user.command is not None and not (token or certificate):
        if login is None:
            raise KubeconfigError(f"context {context.name}: exec: not possible here; give a token or a certificate")
        status = login(context, user.command)
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
    for name, value in headers.items():
        if not (value.isascii() and value.isprintable()):  # an error of http.client's would show it
            raise KubeconfigError(f"context {context.name}: what it has for {name} has characters that no header has")
    return Credentials(headers, certificate, key)
