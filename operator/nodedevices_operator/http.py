"""/metrics, /healthz and /readyz.

/healthz is about this process only: an API server that is away is no reason to be restarted. /readyz says whether it
sees the cluster: everything was listed, the last LIST was complete and the watches run; and if not, why.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web

MAX_PORT = 65535
Check = Callable[[], str]  # empty: all is well; else what is wrong


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen; `host` None is every address of the machine."""

    host: str | None
    port: int

    @property
    def text(self) -> str:
        return f"{self.host or ''}:{self.port}"


def parse_address(text: str) -> Address:
    """`127.0.0.1:9736`, `[::1]:9736` or `:9736`. ValueError with what would be right."""
    host, colon, port = text.rpartition(":")
    if (
        not colon
        or not port.isdigit()
        or int(port) > MAX_PORT
        or (":" in host and not (host[0] == "[" and host[-1] == "]"))
    ):
        raise ValueError(f"{text!r} is no address; write host:port, such as 127.0.0.1:9736, or :9736 for every address")
    return Address(host.strip("[]") or None, int(port))


async def serve(address: Address, *, metrics: Callable[[], bytes], healthy: Check, ready: Check) -> web.AppRunner:
    """Serve until the runner is cleaned up. OSError when the address cannot be had."""

    async def scrape(_: web.Request) -> web.Response:
        return web.Response(body=metrics(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    def answer(check: Check) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def respond(_: web.Request) -> web.Response:
            wrong = check()
            return web.Response(text=wrong or "ok", status=503 if wrong else 200)

        return respond

    app = web.Application()
    app.router.add_get("/metrics", scrape)
    app.router.add_get("/healthz", answer(healthy))
    app.router.add_get("/readyz", answer(ready))
    runner = web.AppRunner(app, access_log=None, handle_signals=False)
    await runner.setup()
    await web.TCPSite(runner, address.host, address.port).start()
    return runner
