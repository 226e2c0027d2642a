"""The process of the operator, and that of the extender: tasks, signals, /metrics, /healthz and /readyz, with a port
for the kubelet's probes alone.

/healthz is about this process only: an API server that is away is no reason to be restarted. /readyz says whether it
sees the cluster: everything was listed, the last LIST was complete and the watches run; and if not, why.
"""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from nodedevices_common import http
from nodedevices_common.http import HttpHandler, Response

from nodedevices_operator.settings import Common

HealthCheck = Callable[[], str]  # empty: all is well; else what is wrong


def stop_requested() -> asyncio.Task[Any]:
    """A task that ends at SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return asyncio.create_task(stop.wait())


async def until_one_ends(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Wait until one of the tasks ends; raise what ended it."""
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        if task.done():
            task.result()


async def cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def freeze() -> None:
    """Take what is known out of the garbage collector's sight: it would go through 5,000 nodes for 0.2 s, in the middle
    of a fault or an answer."""
    gc.collect()
    gc.freeze()


def ended(tasks: Iterable[asyncio.Task[None]]) -> str:
    """Say which have ended, which none does by itself; empty: none."""
    names = [task.get_name() for task in tasks if task.done()]
    return f"ended: {', '.join(names)}" if names else ""


def serving(
    settings: Common, *, scrape: Callable[[], bytes], healthy: HealthCheck, ready: HealthCheck
) -> list[asyncio.Task[None]]:
    """The tasks that serve both ports, which listen by now. OSError when an address, or a file of the guard, cannot be
    had."""
    checks = {"/healthz": answer(healthy), "/readyz": answer(ready)}
    servers = http.servers(
        settings.http_address, settings.health_address, scrape=scrape, checks=checks, guard=settings.guard
    )
    for server in servers:
        server.listen()
    return [asyncio.create_task(server.run(), name="http") for server in servers]


def answer(check: HealthCheck) -> HttpHandler:
    def respond() -> Response:
        wrong = check()
        return Response(503 if wrong else 200, (wrong or "ok").encode())

    return respond
