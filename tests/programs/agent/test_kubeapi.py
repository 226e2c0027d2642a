"""The agent's client against servers on loopback: odd answers end no thread unseen, and new credentials are taken."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from nodedevices_kube.errors import ApiError
from nodedevices_plugin.status.client import UNREADABLE, ChangedItem, KubeStore, ListedItems
from support.authority import TestAuthority
from support.patience import PATIENCE_SECONDS

EMPTY_LIST = b'{"kind": "NodeDevicesList", "metadata": {"resourceVersion": "1"}, "items": []}'


@dataclass
class Answers:
    """What the server says to a LIST, and the lines of a watch, after which the stream ends."""

    listed: bytes = EMPTY_LIST
    watched: bytes = b""
    tokens: list[str] = field(default_factory=list)  # as they came in


@contextlib.contextmanager
def serving(answers: Answers, certificate: Path | None = None, port: int = 0) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(answers.watched if "watch=" in self.path else answers.listed)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            extra = {"authentication.kubernetes.io/node-uid": ["node-uid"]}
            self._send(json.dumps({"status": {"userInfo": {"extra": extra}}}).encode())

        def _send(self, body: bytes) -> None:
            answers.tokens.append(self.headers.get("Authorization", ""))
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def kubeconfig(path: Path, server: str, *, token: str = "first", **cluster: str) -> str:
    """Written as an editor and a kubelet do: another file in the place."""
    content: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "u", "user": {"token": token}}],
    }
    new = path.with_suffix(".new")
    new.write_text(json.dumps(content))
    new.replace(path)
    return str(path)


# --- the watch --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "answers",
    [
        Answers(watched=b'{"type": "MODIFIED", "object": null}\n'),
        Answers(watched=b'{"type": "MODIFIED", "object": {"metadata": null}}\n'),
        Answers(watched=b'{"type": "ERROR", "object": "gone"}\n'),
        Answers(watched=b"[]\n"),
        Answers(listed=b'{"kind": "NodeDevicesList", "metadata": null, "items": []}'),
        Answers(listed=b'{"kind": "NodeDevicesList", "metadata": {"resourceVersion": "1"}, "items": 7}'),
    ],
    ids=lambda answers: (answers.watched or answers.listed).decode().strip(),
)
async def test_an_answer_that_makes_no_sense_ends_the_watch_with_an_error(answers: Answers, tmp_path: Path) -> None:
    with serving(answers) as port:
        store = KubeStore(kubeconfig(tmp_path / "config", f"http://127.0.0.1:{port}"))
        async with asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises(ApiError, match=r"(watch|list) NodeDevices") as refused:
                async for _ in store.watch("n1"):
                    pass
        assert refused.value.status == UNREADABLE


async def test_pods_come_as_a_list_and_then_one_by_one(tmp_path: Path) -> None:
    def pod(name: str) -> dict[str, Any]:
        return {"metadata": {"name": name, "resourceVersion": "2"}}

    events = [{"type": "ADDED", "object": pod("b")}, {"type": "BOOKMARK", "object": pod("")}]
    events += [{"type": "DELETED", "object": pod("a")}, {"type": "ERROR", "object": {"code": 410, "message": "old"}}]
    answers = Answers(
        listed=json.dumps({"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": [pod("a")]}).encode(),
        watched=b"".join(json.dumps(each).encode() + b"\n" for each in events),
    )
    with serving(answers) as port:
        store = KubeStore(kubeconfig(tmp_path / "config", f"http://127.0.0.1:{port}"))
        events_of = store.watch_pods("n1", lambda item: str(item["metadata"]["name"]))
        async with asyncio.timeout(PATIENCE_SECONDS):
            found = [await anext(events_of) for _ in range(3)]
            with pytest.raises(ApiError, match="watch pods: 410 old") as refused:
                await anext(events_of)
    assert found == [ListedItems(("a",)), ChangedItem("b"), ChangedItem("a", gone=True)]
    assert refused.value.status == 410


# --- credentials that change ------------------------------------------------------------------------------------------
async def test_a_certificate_authority_that_changed_is_trusted_without_a_restart(tmp_path: Path) -> None:
    old, new = TestAuthority(tmp_path, "old"), TestAuthority(tmp_path, "new")
    trusted = tmp_path / "ca.crt"
    trusted.write_bytes(old.certificate.read_bytes())
    with serving(Answers(), old.server()) as port:
        config = kubeconfig(tmp_path / "config", f"https://127.0.0.1:{port}", **{"certificate-authority": str(trusted)})
        store = KubeStore(config)
        assert await store.node_uid() == "node-uid"
    with serving(Answers(), new.server(), port):
        with pytest.raises(
            ApiError, match=r"no answer: .* its certificate is not trusted: unable to get local issuer"
        ) as refused:
            await store.node_uid()
        assert refused.value.status == 0
        trusted.write_bytes(new.certificate.read_bytes())
        assert await store.node_uid() == "node-uid"


async def test_a_kubeconfig_that_changed_is_read_again(tmp_path: Path) -> None:
    old, new = TestAuthority(tmp_path, "old"), TestAuthority(tmp_path, "new")

    def data(authority: TestAuthority) -> dict[str, str]:
        return {"certificate-authority-data": base64.b64encode(authority.certificate.read_bytes()).decode()}

    answers = Answers()
    with serving(answers, old.server()) as port:
        store = KubeStore(kubeconfig(tmp_path / "config", f"https://127.0.0.1:{port}", **data(old)))
        assert await store.node_uid() == "node-uid"
    with serving(answers, new.server(), port):
        kubeconfig(tmp_path / "config", f"https://127.0.0.1:{port}", token="second", **data(new))
        assert await store.node_uid() == "node-uid"
    assert answers.tokens == ["Bearer first", "Bearer second"]
