"""/metrics, /healthz and /readyz, and a port for the kubelet's probes alone.

/healthz is about this process only: an API server that is away is no reason to be restarted. /readyz says whether it
sees the cluster: everything was listed, the last LIST was complete and the watches run; and if not, why.
"""

from __future__ import annotations

from collections.abc import Callable

from nodedevices_common import http
from nodedevices_common.address import Address
from nodedevices_common.guard import Guard
from nodedevices_common.http import HttpHandler, HttpServer, Response

HealthCheck = Callable[[], str]  # empty: all is well; else what is wrong


def servers(
    metrics: Address,
    probes: Address,
    *,
    scrape: Callable[[], bytes],
    healthy: HealthCheck,
    ready: HealthCheck,
    guard: Guard | None = None,
) -> list[HttpServer]:
    """Both, listening. OSError when an address, or a file of the guard, cannot be had."""
    checks = {"/healthz": _answer(healthy), "/readyz": _answer(ready)}
    made = http.servers(metrics, probes, scrape=scrape, checks=checks, guard=guard)
    for server in made:
        server.listen()
    return made


def _answer(check: HealthCheck) -> HttpHandler:
    def respond() -> Response:
        wrong = check()
        return Response(503 if wrong else 200, (wrong or "ok").encode())

    return respond
