"""One HTTP connection to an API server, kept for the next request; TLS as the kubeconfig says.

Every request has a time limit, and none is sent twice. One connection is for one thread.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import selectors
import socket
import ssl
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.message import Message
from functools import cached_property
from urllib.parse import SplitResult, unquote, urlsplit

from nodedevices_common.errors import retry_after_seconds
from nodedevices_common.raw import Raw, mapping, text
from nodedevices_common.text import show

from nodedevices_kube.errors import ApiError, KubeconfigError
from nodedevices_kube.kubeconfig import Cluster, Credentials

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 60.0
SILENT_SECONDS = 150.0  # a watch has a bookmark every minute; one that is silent for longer is half open
MAX_LINE_BYTES = 8 << 20  # of a watch; etcd takes objects of 1.5 MiB
MAX_ANSWER_BYTES = 512 << 20  # a page of 500 NodeDevices as large as etcd takes them


@dataclass(frozen=True)
class Answer:
    status: int
    data: bytes
    headers: Message

    @property
    def retry_after(self) -> float | None:
        return retry_after_seconds(self.headers.get("Retry-After"))

    @property
    def names_object(self) -> bool:
        return bool(text(mapping(self.said.get("details")).get("name")))

    @cached_property
    def said(self) -> Raw:
        """The Status object of a refusal; empty where the answer has none."""
        try:
            return mapping(json.loads(self.data))
        except ValueError:
            return {}

    @property
    def message(self) -> str:
        return text(self.said.get("message")) or self.data[:300].decode(errors="replace").strip()


class _Tls(http.client.HTTPSConnection):
    """Checks the certificate for `tls_name`: the host's, or what the kubeconfig has as `tls-server-name`."""

    tls_name = ""

    def connect(self) -> None:
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
        user_agent: str,
        connect_seconds: float = CONNECT_SECONDS,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        """`environment`: has the proxy, where the kubeconfig has none. Raises KubeconfigError."""
        self.server = cluster.server
        self._tls_name = cluster.tls_name
        self._url = _url(cluster.server, f"server {show(cluster.server)}")
        self._headers = {"User-Agent": user_agent, **credentials.headers}
        self._proxy = _proxy(cluster, self._url, environment)
        self._tls = _tls(cluster, credentials) if self._url.scheme == "https" else None
        self._connect_seconds, self._answer_seconds = connect_seconds, answer_seconds
        self._kept: http.client.HTTPConnection | None = None

    def exchange(
        self, method: str, target: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Return the answer, whatever its status. Raises ApiError when there is none."""
        with self._explained():
            sent = {"Accept-Encoding": "gzip", **(headers or {})}
            answer = self._send(method, target, body, sent, self._answer_seconds)
            data = answer.read(MAX_ANSWER_BYTES + 1)
            if len(data) > MAX_ANSWER_BYTES:
                raise http.client.HTTPException(f"an answer of more than {MAX_ANSWER_BYTES >> 20} MiB")
            if answer.getheader("Content-Encoding") == "gzip":
                try:
                    data = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS).decompress(data, MAX_ANSWER_BYTES)
                except zlib.error as error:
                    raise http.client.HTTPException(f"an answer that is not gzip: {error}") from error
        return Answer(answer.status, data, answer.headers)

    @contextmanager
    def stream(self, target: str, headers: Mapping[str, str]) -> Iterator[tuple[Answer, Iterator[bytes]]]:
        """A watch: the answer, with its body where it is a refusal, and its lines as they come. The lines end where the
        server ends them, or a broken connection or a long silence does. Nothing else is sent over its connection."""
        with self._explained():
            began = self._send("GET", target, None, {**headers, "Accept-Encoding": "identity"}, SILENT_SECONDS)
            data = b"" if began.status == http.client.OK else began.read(MAX_LINE_BYTES)
        connection, self._kept = self._kept, None
        try:
            yield Answer(began.status, data, began.headers), _lines(began)
        finally:
            if connection is not None:
                connection.close()
            began.close()

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def _send(
        self, method: str, target: str, body: bytes | None, headers: Mapping[str, str], seconds: float
    ) -> http.client.HTTPResponse:
        if self._kept is None or _has_ended(self._kept.sock):
            self.close()
            self._kept = self._open()
        self._kept.sock.settimeout(seconds)
        self._kept.request(method, self._url.path.rstrip("/") + target, body, {**self._headers, **headers})
        return self._kept.getresponse()

    def _open(self) -> http.client.HTTPConnection:
        host, port = self._url.hostname or "", self._url.port
        first = (self._proxy.hostname or "", self._proxy.port) if self._proxy is not None else (host, port)
        if self._tls is None:
            connection = http.client.HTTPConnection(*first, timeout=self._connect_seconds)
        else:
            connection = _Tls(*first, timeout=self._connect_seconds, context=self._tls)
            connection.tls_name = self._tls_name or host
        if self._proxy is not None:
            connection.set_tunnel(host, port or (80 if self._tls is None else 443), _proxy_headers(self._proxy))
        connection.connect()
        return connection

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise ApiError for what goes wrong in this block, with a new connection for the next request."""
        try:
            yield
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            self.close()
            if isinstance(error, ssl.SSLCertVerificationError):
                why = f"its certificate is not trusted: {error.verify_message}"
                why += "; see certificate-authority in the kubeconfig, or a pod's ca.crt"
            elif isinstance(error, TimeoutError):
                why = "no answer in time"
            elif isinstance(error, socket.gaierror):
                why = f"{self._url.hostname}: {error.strerror}"
            else:
                why = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
            raise ApiError(f"API server {self.server}: {why}") from error


def _has_ended(kept: socket.socket | None) -> bool:
    """True when the server has closed the connection: only its end makes it readable before the next request."""
    if kept is None:
        return True
    with selectors.DefaultSelector() as selector:
        selector.register(kept, selectors.EVENT_READ)
        return bool(selector.select(0))


def _lines(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    line = b""
    try:
        while (line := answer.readline(MAX_LINE_BYTES)).endswith(b"\n"):
            if line.strip():
                yield line
    except (OSError, http.client.HTTPException):
        return
    if len(line) == MAX_LINE_BYTES:
        raise ApiError(f"a line of more than {MAX_LINE_BYTES} bytes", status=200)


def _url(given: str, what: str) -> SplitResult:
    with suppress(ValueError):
        url = urlsplit(given)
        if url.hostname and url.port != 0:  # to read the port is to check it
            return url
    raise KubeconfigError(f"{what}: give SCHEME://HOST:PORT")


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
        if not given or _without_proxy(url.hostname or "", environment, url.port):
            return None
    proxy = _url(given if "://" in given else f"http://{given}", "the proxy")
    if proxy.scheme != "http":
        raise KubeconfigError(f"proxy {proxy.scheme}://{proxy.hostname}: only http:// proxies are possible here")
    return proxy


def _without_proxy(host: str, environment: Mapping[str, str], port: int | None = None) -> bool:
    """True for what $NO_PROXY names (hosts, also with their port, domains with all below them, networks, or `*`), and
    for this machine."""
    if host in {"localhost", "127.0.0.1", "::1"}:  # as Go does
        return True
    for word in (environment.get("no_proxy") or environment.get("NO_PROXY") or "").split(","):
        entry = word.strip().lower().lstrip(".")
        if entry and (entry in {"*", host, f"{host}:{port}"} or host.endswith(f".{entry}") or _within(host, entry)):
            return True
    return False


def _within(host: str, network: str) -> bool:
    if "/" not in network:
        return False
    from ipaddress import ip_address, ip_network  # noqa: PLC0415 - few have a network there

    with suppress(ValueError):
        return ip_address(host) in ip_network(network, strict=False)
    return False


def _proxy_headers(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    word = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(word.encode()).decode()}"}
