"""A proxy in front of a real API server whose answers take long, as they do while its etcd is slow.

Each request but a watch waits here and is passed on then, whether or not the client is still there: what was sent may
land long after its sender has given it up. Watches are passed on at once. The proxy has a thread of its own.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ssl
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import yaml
from aiohttp import ClientSession, ClientTimeout, TCPConnector, web
from support.patience import CLUSTER_PATIENCE_SECONDS

DROPPED = ("host", "connection", "transfer-encoding", "content-length")  # of each connection alone


@dataclass(frozen=True, slots=True)
class Sent:
    """A request of the client."""

    method: str
    path: str
    alone: bool  # the client waited for no other one of the same method and path


class SlowApi:
    """Usable as a context manager. `kubeconfig` is the given one with the proxy in place of its server.

    What is recorded in `sent` is added to by the proxy's thread: read it as a copy.
    """

    def __init__(self, real: Path, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        self.sent: list[Sent] = []
        self.most_at_once = 0
        self._real = yaml.safe_load(real.read_text())
        self._seconds = 0.0
        self._held = ""
        self._open: dict[int, web.Request] = {}  # by id(): it has no hash
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="slow-api", daemon=True)
        self._stack = contextlib.AsyncExitStack()
        self._fast = asyncio.Event()

    def slow(self, seconds: float, *, held: str) -> None:
        """From now on each answer takes so long, and those to requests that have `held` in their path until it is fast
        again; what is counted begins anew."""
        self.sent, self.most_at_once = [], 0
        self._seconds, self._held = seconds, held
        self._loop.call_soon_threadsafe(self._fast.clear)

    def fast(self) -> None:
        """All that waits is passed on, and nothing waits any more."""
        self._seconds = 0.0
        self._loop.call_soon_threadsafe(self._fast.set)

    def __enter__(self) -> Self:
        self._thread.start()
        port = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()
        [cluster] = self._real["clusters"]
        made = {**self._real, "clusters": [{**cluster, "cluster": {"server": f"http://127.0.0.1:{port}"}}]}
        self.kubeconfig.write_text(yaml.safe_dump(made))
        return self

    def __exit__(self, *_: object) -> None:
        self.fast()
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(CLUSTER_PATIENCE_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLUSTER_PATIENCE_SECONDS)
        self._loop.close()

    # --- in the proxy's thread ---------------------------------------------------------------------------------------
    async def _start(self) -> int:
        [cluster] = self._real["clusters"]
        self._server: str = cluster["cluster"]["server"]
        authority = base64.b64decode(cluster["cluster"]["certificate-authority-data"]).decode()
        context = ssl.create_default_context(cadata=authority)
        self._api = await self._stack.enter_async_context(
            ClientSession(
                connector=TCPConnector(limit=0, ssl=context), timeout=ClientTimeout(total=None), auto_decompress=False
            )
        )
        app = web.Application(client_max_size=1 << 24)
        app.router.add_route("*", "/{path:.*}", self._pass)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port: int = runner.addresses[0][1]
        return port

    async def _stop(self) -> None:
        await self._stack.aclose()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if "watch" in request.query:
            return await self._exchange(request, body)
        waits = [each for each in self._open.values() if each.transport is not None and not each.transport.is_closing()]
        alone = (request.method, request.path_qs) not in {(each.method, each.path_qs) for each in waits}
        self.sent.append(Sent(request.method, request.path_qs, alone=alone))
        self.most_at_once = max(self.most_at_once, len(waits) + 1)
        self._open[id(request)] = request
        try:
            if self._seconds:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(None if self._held in request.path_qs else self._seconds):
                        await self._fast.wait()
            return await self._exchange(request, body)
        finally:
            del self._open[id(request)]

    async def _exchange(self, request: web.Request, body: bytes) -> web.StreamResponse:
        headers = {key: value for key, value in request.headers.items() if key.lower() not in DROPPED}
        async with self._api.request(
            request.method, self._server + request.raw_path, data=body or None, headers=headers
        ) as answer:
            kept = {key: value for key, value in answer.headers.items() if key.lower() not in DROPPED}
            response = web.StreamResponse(status=answer.status, headers=kept)
            with contextlib.suppress(ConnectionError):  # the client has given it up
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
            return response
