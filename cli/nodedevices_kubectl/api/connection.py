"""One HTTP connection to an API server, kept for the requests of one command; TLS as the kubeconfig says.

Every request has a time limit; a reading one is sent once more where a kept connection turns out to be closed.
"""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import SplitResult, unquote, urlsplit

from nodedevices_common import __version__

from nodedevices_kubectl.api.credentials import Credentials
from nodedevices_kubectl.api.errors import ApiError, KubeconfigError
from nodedevices_kubectl.api.kubeconfig import Cluster

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 60.0
SILENT_SECONDS = 150.0  # a watch has a bookmark every minute
MAX_LINE_BYTES = 8 << 20  # of a watch; etcd takes objects of 1.5 MiB
MAX_ANSWER_BYTES = 512 << 20  # a page of 500 NodeDevices as large as etcd takes them
_CLOSED = (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError)
USER_AGENT = f"kubectl-nodedevices/{__version__}"


class _Tls(http.client.HTTPSConnection):
    """Checks the certificate for `tls-server-name` where the kubeconfig has one."""

    tls_name = ""

    def connect(self) -> None:
        if not self.tls_name:
            super().connect()
            return
        http.client.HTTPConnection.connect(self)
        context: ssl.SSLContext = self._context  # type: ignore[attr-defined]
        self.sock = context.wrap_socket(self.sock, server_hostname=self.tls_name)


class Connection:
    def __init__(
        self,
        cluster: Cluster,
        credentials: Credentials,
        environment: Mapping[str, str],
        *,
        connect_seconds: float = CONNECT_SECONDS,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self._cluster = cluster
        self._url = urlsplit(cluster.server)
        self._headers = {"User-Agent": USER_AGENT, "Accept-Encoding": "gzip", **credentials.headers}
        self._proxy = _proxy(cluster, self._url, environment)
        self._tls = _tls(cluster, credentials) if self._url.scheme == "https" else None
        self._connect_seconds, self._answer_seconds = connect_seconds, answer_seconds
        self._kept: http.client.HTTPConnection | None = None
        self.dated: Callable[[str], None] = lambda _: None  # gets the header Date of each answer

    @property
    def server(self) -> str:
        return self._cluster.server

    def exchange(
        self, method: str, target: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """The answer's status and body. ApiError when there is none."""
        while True:
            kept = self._kept is not None
            try:
                return self._exchange(method, target, body, headers)
            except (OSError, http.client.HTTPException) as error:
                self.close()  # so that the next connection is not a kept one
                if not (kept and method == "GET" and isinstance(error, _CLOSED)):
                    raise self._no_answer(error) from error

    def _exchange(
        self, method: str, target: str, body: bytes | None, headers: Mapping[str, str] | None
    ) -> tuple[int, bytes]:
        if self._kept is None:
            self._kept = self._open()
        self._kept.request(method, self._path(target), body, {**self._headers, **(headers or {})})
        answer = self._kept.getresponse()
        self.dated(answer.getheader("Date", ""))
        data = answer.read(MAX_ANSWER_BYTES + 1)
        if len(data) > MAX_ANSWER_BYTES:
            raise http.client.HTTPException(f"an answer of more than {MAX_ANSWER_BYTES >> 20} MiB")
        if answer.getheader("Content-Encoding") == "gzip":
            try:
                inflate = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
                data = inflate.decompress(data, MAX_ANSWER_BYTES)
            except zlib.error as error:
                raise http.client.HTTPException(f"an answer that is no gzip: {error}") from error
        return answer.status, data

    @contextmanager
    def stream(self, target: str, headers: Mapping[str, str]) -> Iterator[tuple[int, Iterator[bytes]]]:
        """The answer's status, and its lines as they come, over a connection of its own."""
        try:
            connection = self._open()
        except OSError as error:
            raise self._no_answer(error) from error
        try:
            try:
                sent = {**self._headers, **headers, "Accept-Encoding": "identity"}
                connection.request("GET", self._path(target), headers=sent)
                if connection.sock is not None:
                    connection.sock.settimeout(SILENT_SECONDS)
                answer = connection.getresponse()
            except (OSError, http.client.HTTPException) as error:
                raise self._no_answer(error) from error
            yield answer.status, self._lines(answer)
        finally:
            connection.close()

    def _lines(self, answer: http.client.HTTPResponse) -> Iterator[bytes]:
        try:
            while line := answer.readline(MAX_LINE_BYTES):
                yield line
        except (OSError, http.client.HTTPException) as error:
            raise self._no_answer(error) from error

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def _open(self) -> http.client.HTTPConnection:
        host, port = self._url.hostname or "", self._url.port
        first = (self._proxy.hostname or "", self._proxy.port) if self._proxy is not None else (host, port)
        if self._tls is None:
            connection = http.client.HTTPConnection(*first, timeout=self._connect_seconds)
        else:
            connection = _Tls(*first, timeout=self._connect_seconds, context=self._tls)
            connection.tls_name = self._cluster.tls_name
        if self._proxy is not None:
            connection.set_tunnel(host, port or (80 if self._tls is None else 443), _proxy_headers(self._proxy))
        connection.connect()
        connection.sock.settimeout(self._answer_seconds)
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _path(self, target: str) -> str:
        return self._url.path.rstrip("/") + target

    def _no_answer(self, error: Exception) -> ApiError:
        if isinstance(error, ssl.SSLCertVerificationError):
            why = f"its certificate is not trusted: {error.verify_message}; see certificate-authority in the kubeconfig"
        elif isinstance(error, TimeoutError):
            why = "no answer in time"
        elif isinstance(error, socket.gaierror):
            why = f"{self._url.hostname}: {error.strerror}"
        else:
            why = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
        return ApiError(f"API server {self.server}: {why}")


def _tls(cluster: Cluster, credentials: Credentials) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cadata=cluster.authority.decode("ascii") if cluster.authority else None)
    except (ssl.SSLError, ValueError) as error:
        raise KubeconfigError(f"cluster {cluster.server}: certificate-authority: not a PEM certificate") from error
    if cluster.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if credentials.certificate:
        _load_pair(context, credentials, cluster)
    return context


def _load_pair(context: ssl.SSLContext, credentials: Credentials, cluster: Cluster) -> None:
    """OpenSSL reads a client certificate from a file alone: ours is there for this moment, readable by its owner."""
    descriptor, name = tempfile.mkstemp()
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(credentials.certificate + b"\n" + credentials.key)
        context.load_cert_chain(name)
    except ssl.SSLError as error:
        raise KubeconfigError(
            f"cluster {cluster.server}: client-certificate and client-key cannot be used: {error.reason}"
        ) from error
    finally:
        os.unlink(name)  # noqa: PTH108 - no pathlib is loaded for it


def _proxy(cluster: Cluster, url: SplitResult, environment: Mapping[str, str]) -> SplitResult | None:
    """The proxy that the kubeconfig names, else the environment."""
    given = cluster.proxy
    if not given:
        names = (f"{url.scheme}_proxy", f"{url.scheme.upper()}_PROXY")
        given = next((environment[name] for name in names if environment.get(name)), "")
        if not given or _without_proxy(url.hostname or "", environment):
            return None
    proxy = urlsplit(given if "://" in given else f"http://{given}")
    if proxy.scheme != "http":
        raise KubeconfigError(f"proxy {proxy.scheme}://{proxy.hostname}: only http:// proxies are possible here")
    return proxy


def _without_proxy(host: str, environment: Mapping[str, str]) -> bool:
    """True for what $NO_PROXY names (hosts, domains with all below them, networks, or `*`), and for this machine."""
    if host in {"localhost", "127.0.0.1", "::1"}:  # as Go does
        return True
    for each in (environment.get("no_proxy") or environment.get("NO_PROXY") or "").split(","):
        entry = each.strip().lower().lstrip(".")
        if entry and (entry in {"*", host} or host.endswith(f".{entry}") or ("/" in entry and _within(host, entry))):
            return True
    return False


def _within(host: str, network: str) -> bool:
    from ipaddress import ip_address, ip_network  # noqa: PLC0415 - few have a network there

    try:
        return ip_address(host) in ip_network(network, strict=False)
    except ValueError:
        return False


def _proxy_headers(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    import base64  # noqa: PLC0415

    word = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(word.encode()).decode()}"}
