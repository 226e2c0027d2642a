"""The API server's address, its CA and our token; and whether any of them has changed on the disk.

A bound token is renewed by the kubelet before its hour is over, and the cluster's CA can be replaced while we run: both
are files that change under a running process. They are checked every few seconds, and read again at once
when the API server refuses us or cannot be trusted (client.py). Nothing here depends on the wall clock. A file that
cannot be used, such as one half written, leaves what was in use.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kubernetes.aio import client, config
from kubernetes.aio.config import incluster_config
from msgspec import Struct
from nodedevices_common.errors import OperationError

MAX_CALLS = 32  # at once; two cores of API server answer about 600 small writes a second (measured with 32 at once)

_config: Any = config  # untyped functions
_incluster: Any = incluster_config


class CredentialsError(OperationError):
    """Credentials that cannot be read or used; the text says where they come from."""


class Credentials(Struct, frozen=True):
    """A Configuration of kubernetes.aio, and what it was made of. The same trust and token need no new connection."""

    configuration: Any
    trust: tuple[object, ...]  # the CA and the client certificate, by content
    token: str
    files: list[Path]  # that they come from, and that may change


async def load(kubeconfig: str | None) -> Credentials:
    """From the file, else from the pod's service account. CredentialsError when they cannot be read."""
    configuration = client.Configuration(retries=False, connection_pool_maxsize=MAX_CALLS)
    try:
        if kubeconfig:
            await _config.load_kube_config(
                config_file=kubeconfig, client_configuration=configuration, persist_config=False
            )
        else:
            _config.load_incluster_config(client_configuration=configuration, try_refresh_token=False)
        trust = (configuration.host, configuration.verify_ssl, *map(_content, _certificates(configuration)))
    except (config.ConfigException, OSError, ValueError) as error:
        where = f"kubeconfig {kubeconfig}" if kubeconfig else "the pod's service account (or give --kubeconfig)"
        raise CredentialsError(f"load credentials from {where}: {error}") from error
    paths = (kubeconfig or _incluster.SERVICE_TOKEN_FILENAME, *_certificates(configuration))
    return Credentials(configuration, trust, header(configuration), [Path(path) for path in paths if path])


def header(configuration: Any) -> str:
    """Return the Authorization header; empty: none."""
    return configuration.api_key.get("BearerToken") or configuration.api_key.get("authorization") or ""


def _certificates(configuration: Any) -> tuple[str | None, ...]:
    return configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file


def _content(path: str | None) -> bytes:
    return Path(path).read_bytes() if path else b""
