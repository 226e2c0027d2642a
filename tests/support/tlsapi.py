"""A TLS server that answers what kopf and the operator's client request of an API server, with a CA and a token of its
own.

It knows one Node and our two kinds without objects. `rotate` gives it a certificate of a new CA; `token` is the only
one that it takes.
"""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web
from support.authority import TestAuthority


class TlsApi:
    """Usable as an async context manager. `kubeconfig` names `ca` and `token_file`, which `hand_out` writes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runner: web.AppRunner | None = None
        self._port = 0
        self._generation = 0
        self.token = "first"
        self.ca = folder / "ca.crt"
        self.token_file = folder / "token"
        self.kubeconfig = folder / "kubeconfig"
        self.watches: list[str] = []  # collections, each time that one is watched
        self.refused = 0  # for their token
        self.calls = 0  # calls
        self.retry_after = 0  # seconds; above 0: every call is one too many

    async def __aenter__(self) -> TlsApi:
        await self.rotate()
        self.hand_out()
        cluster = {"server": f"https://127.0.0.1:{self._port}", "certificate-authority": str(self.ca)}
        made = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"tokenFile": str(self.token_file)}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        self.kubeconfig.write_text(yaml.safe_dump(made))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def hand_out(self) -> None:
        """Put the present CA and token where the clients read them, as the kubelet does."""
        self.ca.write_bytes(self._authority.certificate.read_bytes())
        self.token_file.write_text(self.token)

    async def rotate(self) -> None:
        """Go on at the same address with a certificate of a new CA; every connection ends."""
        await self.stop()
        self._generation += 1
        self._authority = TestAuthority(self._folder, f"ca-{self._generation}")
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self._authority.server())
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        app.router.add_post("/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, ssl_context=context)
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    # --- what it answers ---------------------------------------------------------------------------------------------
    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.calls += 1
        if self.retry_after:
            return web.json_response(
                {"message": "slow down"}, status=429, headers={"Retry-After": str(self.retry_after)}
            )
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if (scheme.lower(), token) != ("bearer", self.token):
            self.refused += 1
            return web.json_response({"kind": "Status", "message": "Unauthorized"}, status=401)
        if request.query.get("watch"):
            self.watches.append(request.path.rpartition("/")[2])
            response = web.StreamResponse()
            await response.prepare(request)
            while request.transport is not None:
                await response.write(b"\n")
                await asyncio.sleep(0.05)
            return response
        return web.json_response(self._body(request.path))

    @staticmethod
    def _body(path: str) -> dict[str, Any]:
        verbs = ["list", "watch", "get", "patch"]
        match path:
            case "/api":
                return {"versions": ["v1"]}
            case "/apis":
                version = {"groupVersion": "nodedevices.io/v1alpha1", "version": "v1alpha1"}
                return {"groups": [{"name": "nodedevices.io", "preferredVersion": version, "versions": [version]}]}
            case "/api/v1":
                kinds = {"namespaces": "Namespace", "nodes": "Node"}
                return {"resources": [_resource(name, kind, verbs) for name, kind in kinds.items()]}
            case "/apis/nodedevices.io/v1alpha1":
                kinds = {"nodedevices": "NodeDevices", "devicepolicies": "DevicePolicy"}
                return {"resources": [_resource(name, kind, verbs) for name, kind in kinds.items()]}
        node = {"metadata": {"name": "n1", "uid": "u", "resourceVersion": "1"}, "status": {}}
        items = [node] if path.endswith("/nodes") else []
        return {"kind": "SomeList", "metadata": {"resourceVersion": "5"}, "items": items}


def _resource(name: str, kind: str, verbs: list[str]) -> dict[str, Any]:
    return {"name": name, "singularName": name, "kind": kind, "namespaced": False, "verbs": verbs}
