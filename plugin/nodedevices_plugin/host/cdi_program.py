"""Runs a vendor's program that makes a CDI specification, such as nvidia-ctk. On a worker thread: it calls the driver.

The vendor decides its arguments and which results are acceptable (vendors.cdi.SpecRequest). It is run where the
hardware is (machine); this module reads what it prints.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import structlog
from nodedevices_probe.programs import ProgramError

from nodedevices_plugin.host.machine import LocalMachine, Machine
from nodedevices_plugin.runtime.threads import Worker
from nodedevices_plugin.vendors import cdi_schema
from nodedevices_plugin.vendors.cdi import Document, SpecRequest

log = structlog.get_logger(__name__)

RETRY_SECONDS = 60.0
FIRST_PATIENCE_SECONDS = 5.0  # while nothing is offered yet
LATER_PATIENCE_SECONDS = 0.25  # and afterwards, when a fault may be waiting to be reported


def generate(request: SpecRequest, machine: Machine | None = None) -> dict[str, Any]:
    """The spec that it makes. Raises ProgramError. Blocks."""
    tool = request.program.name
    printed = (machine or LocalMachine()).run(request.program, request.arguments, driver_root=request.driver_root)
    try:
        document = json.loads(printed.text)
    except (ValueError, RecursionError) as error:
        raise ProgramError(f"{tool}: its output is not JSON: {error}") from error
    wrong = cdi_schema.problems(document)
    if wrong:
        raise ProgramError(f"{tool}: its output is not valid: {'; '.join(wrong[:3])}")
    try:
        return request.accepted(document, printed.driver_root)
    except ValueError as error:
        raise ProgramError(f"{tool}: its output {error}") from error


class ProgramSpec:
    """One vendor's spec by its program, on its own thread. `on_change`: called on the loop when it has answered.

    made: the latest good one, and names: of the devices in it, while it was made for the latest request. problem: why
    there is none for that; then it is tried again after a minute.
    """

    def __init__(
        self, *, on_change: Callable[[], None] = lambda: None, make: Callable[[SpecRequest], dict[str, Any]] = generate
    ) -> None:
        self._worker = Worker("cdi-program")
        self._on_change = on_change
        self._make = make
        self._request: SpecRequest | None = None
        self._running: asyncio.Future[dict[str, Any]] | None = None
        self._started_at = 0.0  # time.monotonic()
        self.made: Document | None = None
        self.names: frozenset[str] = frozenset()
        self.problem = ""

    def current(self, request: SpecRequest | None) -> Document | None:
        """Return the program's specification for this request, if it made one."""
        return self.made if request is not None and request == self._request and self.names else None

    async def want(self, request: SpecRequest, *, patience_seconds: float) -> None:
        """Runs it, where it has not run for that or has failed since; returns with the result, or after a moment."""
        failed = self._running is None and time.monotonic() - self._started_at >= RETRY_SECONDS
        if request != self._request or (failed and not self.names):
            self._request, self._started_at = request, time.monotonic()
            self.names, self.problem = frozenset(), ""
            running = self._running = self._worker.submit(lambda: self._make(request))
            running.add_done_callback(partial(self._answered, request))
            await asyncio.wait((running,), timeout=patience_seconds)
            await asyncio.sleep(0)  # its callback

    def _answered(self, request: SpecRequest, answer: asyncio.Future[dict[str, Any]]) -> None:
        if request != self._request or answer.cancelled():
            return
        self._running = None
        error = answer.exception()
        if error is None:
            self.made, self.problem = answer.result(), ""
            self.names = frozenset(str(device["name"]) for device in self.made["devices"])
            log.info(f"{request.program.name} generated the CDI specification", devices=len(self.names))
        elif isinstance(error, ProgramError):
            self.problem = str(error)
            log.info(f"{request.program.name} failed to generate a CDI specification", why=self.problem)
        else:
            self.problem = f"{request.program.name}: {error}"
            log.error(f"{request.program.name} failed to generate a CDI specification", exc_info=error)
        self._on_change()
