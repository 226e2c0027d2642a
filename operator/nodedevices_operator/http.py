"""/metrics, /healthz and /readyz, and a port for the kubelet's probes alone.

/healthz is about this process only: an API server that is away is no reason to be restarted. /readyz says whether it
sees the cluster: everything was listed, the last LIST was complete and the watches run; and if not, why.
"""

from __future__ import annotations

from collections.abc import Callable

from nodedevices_common.http import PROBES_PER_SECOND, Address, Answer, Handler, HttpServer

MAX_PORT = 65535
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Check = Callable[[], str]  # empty: all is well; else what is wrong


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
    return Address(host.strip("[]"), int(port))


def servers(
    http: Address, health: Address, *, metrics: Callable[[], bytes], healthy: Check, ready: Check
) -> list[HttpServer]:
    """Both, listening. OSError when an address cannot be had."""

    def answer(check: Check) -> Handler:
        def respond() -> Answer:
            wrong = check()
            return Answer(503 if wrong else 200, (wrong or "ok").encode())

        return respond

    checks = {"/healthz": answer(healthy), "/readyz": answer(ready)}
    scrape: dict[str, Handler] = {"/metrics": lambda: Answer(200, metrics(), METRICS_TYPE)}
    made = [
        HttpServer("metrics and health", http, scrape | checks),
        HttpServer("the kubelet's probes", health, checks, per_second=PROBES_PER_SECOND),
    ]
    for each in made:
        each.listen()
    return made
