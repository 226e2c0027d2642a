"""The API server's client beside a server with given answers: connections, refusals, streams, proxies, tokens."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from nodedevices_kube import kubeconfig
from nodedevices_kube.client import Client
from nodedevices_kube.connection import Connection
from nodedevices_kube.errors import ApiError, KubeconfigError
from nodedevices_kube.kubeconfig import Cluster, Context, Credentials, User
from support.cases import cases
from support.patience import PATIENCE_SECONDS

OBJECT = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class Server:
    """Gives one answer a connection, and closes it."""

    def __init__(self, listening: socket.socket, answers: tuple[bytes, ...]) -> None:
        self._listening, self._answers = listening, answers
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        self.heads: list[str] = []  # of the requests
        self.closed = threading.Semaphore(0)  # released after each connection

    def serve(self) -> None:
        for answer in self._answers:
            connection, _ = self._listening.accept()
            with connection:
                head = b""
                while b"\r\n\r\n" not in head:
                    head += connection.recv(65536)
                self.heads.append(head.decode())
                connection.sendall(answer)
            self.closed.release()


@contextmanager
def serving(*answers: bytes) -> Iterator[Server]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = Server(listening, answers)
        thread = threading.Thread(target=server.serve, daemon=True)
        thread.start()
        yield server
        thread.join(PATIENCE_SECONDS)


def client_of(server: str, environment: Mapping[str, str] | None = None) -> Client:
    return Client(Connection(Cluster(server), Credentials(), environment or {}, user_agent="a test"))


def test_a_write_takes_no_connection_that_was_closed_and_a_refusal_has_the_servers_words_and_wait() -> None:
    with serving(OBJECT, OBJECT) as server, closing(client_of(server.url)) as client:
        client.get("/version")
        assert server.closed.acquire(timeout=PATIENCE_SECONDS)
        client.apply("/nodes/n1", {}, manager="a test")
    assert [head.split()[0] for head in server.heads] == ["GET", "PATCH"]
    said = json.dumps({"kind": "Status", "message": "slow down"}).encode()
    answer = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 7\r\nContent-Length: %d\r\n\r\n%s" % (len(said), said)
    with serving(answer) as server, closing(client_of(server.url)) as client, pytest.raises(ApiError) as refused:
        client.get("/version")
    assert (str(refused.value), refused.value.status, refused.value.retry_after) == ("429 slow down", 429, 7.0)


def test_a_redirect_is_not_followed() -> None:
    with (
        serving(OBJECT) as elsewhere,
        serving(f"HTTP/1.1 302 Found\r\nLocation: {elsewhere.url}/\r\nContent-Length: 0\r\n\r\n".encode()) as server,
    ):
        with closing(client_of(server.url)) as client, pytest.raises(ApiError) as refused:
            client.get("/version")
        with closing(client_of(elsewhere.url)) as client:
            client.get("/mine")
    assert refused.value.status == 302
    assert [head.split()[1] for head in elsewhere.heads] == ["/mine"]


def test_a_watch_that_breaks_ends_after_the_last_whole_event_and_a_proxy_is_asked_for_the_server() -> None:
    event = {"type": "ADDED", "object": {"metadata": {"name": "a"}}}
    lines = b"%s\n\n%s" % (json.dumps(event).encode(), json.dumps(event).encode()[:20])
    with serving(b"HTTP/1.1 200 OK\r\n\r\n" + lines) as server, closing(client_of(server.url)) as client:
        assert list(client.watch("/nodes", "1")) == [("ADDED", event["object"])]
    with serving(b"HTTP/1.1 403 Forbidden\r\n\r\n") as proxy:
        environment = {"HTTP_PROXY": proxy.url.replace("//", "//me:word@")}
        with closing(client_of("http://api.example:6443", environment)) as client, pytest.raises(ApiError) as refused:
            client.get("/version")
    assert str(refused.value) == "API server http://api.example:6443: Tunnel connection failed: 403 Forbidden"
    assert proxy.heads[0].startswith("CONNECT api.example:6443 ")
    assert "Proxy-Authorization: Basic bWU6d29yZA==" in proxy.heads[0]


@cases("server", "https://", "https://n1:port", "https://n1:65536", "https://[n1")
def test_an_address_that_is_none_is_refused_before_anything_is_sent(server: str) -> None:
    with pytest.raises(KubeconfigError, match="give SCHEME://HOST:PORT"):
        client_of(server)


def context_of(user: User) -> Context:
    return Context("c", "default", Cluster("https://n1"), user)


@cases("token", "se\ncret", "se\u20accret")
def test_a_token_that_no_header_may_have_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(KubeconfigError) as refused:
        kubeconfig.credentials(context_of(User(token=token)))
    assert str(refused.value) == "context c: what it has for Authorization has characters that no header has"


def test_an_exec_plugin_is_run_for_who_can_log_in_alone() -> None:
    user = User(command={"command": "login"})
    assert kubeconfig.credentials(context_of(user), lambda *_: {"token": "t"}).headers == {"Authorization": "Bearer t"}
    with pytest.raises(KubeconfigError, match="context c: exec: not possible here"):
        kubeconfig.credentials(context_of(user))


@pytest.mark.parametrize(
    ("host", "server"), [("10.0.0.1", "https://10.0.0.1:443"), ("fd00::1", "https://[fd00::1]:443")]
)
def test_a_pod_knows_its_api_server_by_the_service(tmp_path: Path, host: str, server: str) -> None:
    for name in ("ca.crt", "namespace", "token"):
        (tmp_path / name).write_text(name)
    found = kubeconfig.of_service_account({"KUBERNETES_SERVICE_HOST": host}, tmp_path)
    assert (found.cluster.server, found.cluster.authority, found.namespace) == (server, b"ca.crt", "namespace")
    assert kubeconfig.credentials(found).headers == {"Authorization": "Bearer token"}


def test_a_pod_without_an_authority_trusts_nobody(tmp_path: Path) -> None:
    for name in ("ca.crt", "namespace", "token"):
        (tmp_path / name).touch()
    with pytest.raises(KubeconfigError, match=r"ca\.crt is empty"):
        kubeconfig.of_service_account({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, tmp_path)
    with pytest.raises(KubeconfigError, match="KUBERNETES_SERVICE_HOST is not set"):
        kubeconfig.of_service_account({}, tmp_path)
