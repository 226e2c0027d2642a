"""HTTP for the scheduler and for people, by aiohttp, which kubernetes.aio brings.

    POST /scheduler/filter, /scheduler/prioritize     extender/v1
    GET  /scheduler/inspect[/NODE]                    who has what, in Aliyun's JSON; under /gpushare-scheduler, too
    GET  /healthz, /readyz, /version, /metrics

A client can cost only a bounded part of memory and time (ServerLimits): a body has a size and a time, and so
many are read and so many answered at once; of those that are read the oldest makes room for a new one, so that slow
clients delay no other. A connection that sends no complete request is closed. What cannot be read is a 400 that says
what would be right.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import orjson
import structlog
from aiohttp import web
from msgspec import Struct
from nodedevices_common import __version__
from nodedevices_common.address import Address
from nodedevices_common.errors import InputError
from nodedevices_common.http import METRICS_TEXT, HttpHandler, Response

from nodedevices_operator.extender.verbs import Verbs, read_arguments
from nodedevices_operator.metrics import ExtenderMetrics
from nodedevices_operator.process import answer

STOP_SECONDS = 5.0  # for the answers that are being made
JSON = "application/json"
VERSION = orjson.dumps({"version": __version__})

log = structlog.get_logger()


class ServerLimits(Struct, frozen=True):
    """Bounds of what requests may cost."""

    body_bytes: int = 3 << 20  # a pod has 1.5 MiB at most (etcd), and 20,000 names of 70 characters the rest
    reading: int = 16  # bodies at once
    answering: int = (
        2  # requests at once: JSON in memory is up to 25 times its text; a scheduler sends one after another
    )
    body_seconds: float = 10.0  # until a body is complete
    idle_seconds: float = 90.0  # until a request is complete up to its body


LIMITS = ServerLimits()
WHOLE_NODES = ServerLimits(body_bytes=64 << 20, reading=2)  # 5,000 whole Nodes are 46 MiB


class Server:
    """Serves on the running loop."""

    def __init__(
        self,
        address: Address,
        *,
        verbs: Verbs,
        metrics: ExtenderMetrics,
        scrape: Callable[[], bytes],
        limits: ServerLimits = LIMITS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address = address
        self._verbs = verbs
        self._metrics = metrics
        self._scrape = scrape
        self._limits = limits
        self._clock = clock
        self._reading: dict[asyncio.Timeout, None] = {}  # bodies that are being read, the oldest first
        self._answering = asyncio.Semaphore(limits.answering)
        self._too_large = False  # was logged
        self.port = 0  # the one that is listened on

    async def start(self) -> None:
        """Listen. OSError when the address cannot be had."""
        application = web.Application(client_max_size=self._limits.body_bytes)
        application.add_routes(
            [
                web.post("/scheduler/filter", self._measured("filter", self._filter)),
                web.post("/scheduler/prioritize", self._measured("prioritize", self._prioritize)),
                *(
                    web.get(f"/{prefix}/inspect{node}", self._measured("inspect", self._inspect))
                    for prefix in ("scheduler", "gpushare-scheduler")
                    for node in ("", "/{node}")
                ),
                web.get("/healthz", _served(answer(lambda: ""))),
                web.get("/readyz", _served(answer(self._verbs.problem))),
                web.get("/version", _served(lambda: Response(200, VERSION, JSON))),
                web.get("/metrics", _served(lambda: Response(200, self._scrape(), METRICS_TEXT))),
            ]
        )
        self._runner = web.AppRunner(
            application,
            access_log=None,
            auto_decompress=False,  # a small body stays small
            keepalive_timeout=self._limits.idle_seconds,
            shutdown_timeout=STOP_SECONDS,
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, self._address.host, self._address.port).start()
        self.port = int(self._runner.addresses[0][1])
        log.info("serving the scheduler", port=self.port)

    async def run(self) -> None:
        """Serve until cancelled."""
        try:
            await asyncio.Event().wait()
        finally:
            await self._runner.cleanup()

    # --- requests ----------------------------------------------------------------------------------------------------
    def _measured(
        self, verb: str, respond: Callable[[web.Request], Awaitable[web.Response]]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        seconds = self._metrics.seconds.labels(verb)

        async def handle(request: web.Request) -> web.Response:
            response = web.Response(status=500)
            try:
                await self._read(request)
                async with self._answering:
                    began = self._clock()
                    response = await respond(request)
                    seconds.observe(self._clock() - began)
            except TimeoutError:
                most = f"{self._limits.body_seconds:.0f} s or less where many come"
                response = web.Response(status=408, text=f"the body did not come in time, {most}\n")
            except InputError as error:
                response = web.Response(status=400, text=f"{error}\n")
            except web.HTTPRequestEntityTooLarge as error:
                response = web.Response(status=error.status, text=error.text)
                if not self._too_large:
                    self._too_large = True
                    log.warning(
                        "a body is too large: set nodeCacheCapable in the scheduler's configuration, so that it sends "
                        "names, or give --whole-nodes",
                        verb=verb,
                        most_bytes=self._limits.body_bytes,
                    )
            finally:
                self._metrics.requests.labels(verb, str(response.status)).inc()
            return response

        return handle

    async def _read(self, request: web.Request) -> None:
        """Read the body, which the request keeps. TimeoutError when it takes too long, or others have no room."""
        if len(self._reading) >= self._limits.reading:
            oldest = next(iter(self._reading))
            del self._reading[oldest]
            if not oldest.expired():
                oldest.reschedule(asyncio.get_running_loop().time())
        async with asyncio.timeout(self._limits.body_seconds) as limit:
            self._reading[limit] = None
            try:
                await request.read()
            finally:
                self._reading.pop(limit, None)

    async def _filter(self, request: web.Request) -> web.Response:
        arguments = read_arguments(await request.read())
        found = await self._verbs.filter(arguments)
        nodes = self._metrics.nodes
        for result, count in (
            ("passed", len(found.passed) - found.unknown),
            ("unknown", found.unknown),
            ("failed", len(found.failed)),
            ("unresolvable", len(found.never)),
        ):
            nodes.labels(result).inc(count)
        return web.Response(body=found.answer(arguments), content_type=JSON)

    async def _prioritize(self, request: web.Request) -> web.Response:
        return web.Response(body=self._verbs.prioritize(read_arguments(await request.read())), content_type=JSON)

    async def _inspect(self, request: web.Request) -> web.Response:
        name = request.match_info.get("node", "")
        found = await self._verbs.inspect(name)
        status = 404 if name and not found["nodes"] else 200
        return web.Response(status=status, body=orjson.dumps(found), content_type=JSON)


def _served(handler: HttpHandler) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(_: web.Request) -> web.Response:
        made = handler()
        return web.Response(status=made.status, body=made.body, headers={"Content-Type": made.content_type})

    return handle
