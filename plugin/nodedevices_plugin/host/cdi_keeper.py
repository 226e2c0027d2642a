"""CDI on this node behind one interface: the folder, container toolkits' specifications, vendors' programs and our own
files. pipeline.access decides what is needed; this module checks and writes the files, for each vendor whose devices
may have CDI names (vendors.cdi).

A vendor's program that makes a specification, such as nvidia-ctk, runs on a worker thread, since it calls the driver,
and where the hardware is (machine). The vendor decides its arguments and which results are acceptable
(vendors.cdi.SpecRequest).
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from nodedevices_common.periodic import Periodic
from nodedevices_probe.programs import ProgramError

from nodedevices_plugin.host.cdi_files import CHECK_SECONDS, PATIENCE_SECONDS, CdiFiles, ToolkitSpecs, unwritable
from nodedevices_plugin.host.machine import Machine
from nodedevices_plugin.pipeline.access import Access
from nodedevices_plugin.runtime.threads import Worker
from nodedevices_plugin.vendors import cdi, cdi_schema
from nodedevices_plugin.vendors.cdi import CdiEnvironment, CdiNeeds, Document, SpecRequest
from nodedevices_plugin.vendors.registry import VENDORS, Vendors

log = structlog.get_logger(__name__)

RETRY_SECONDS = 60.0
FIRST_PATIENCE_SECONDS = 5.0  # while nothing is offered yet
LATER_PATIENCE_SECONDS = 0.25  # and afterwards, when a fault may be waiting to be reported


def generate(request: SpecRequest, machine: Machine | None = None) -> dict[str, Any]:
    """The spec that it makes. Raises ProgramError. Blocks."""
    tool = request.program.name
    printed = (machine or Machine()).run(request.program, request.arguments, driver_root=request.driver_root)
    try:
        document = json.loads(printed.text)
        if wrong := cdi_schema.problems(document):
            raise ValueError(f"is not valid: {'; '.join(wrong[:3])}")
        return request.accepted(document, printed.driver_root)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ProgramError(f"{tool}: its output is not JSON: {error}") from error
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


class CdiKeeper:
    """Keeps the CDI files of all vendors. `on_change` is called on the loop when `environments` may have changed.

    unwritable: why no file can be written, checked every few seconds, since the folder may be mounted read-only, or not
    at all; empty: no obstacle is known.
    """

    def __init__(
        self,
        folder: Path,
        spec_folders: Sequence[Path],
        *,
        files: Worker,
        looks: Worker,
        on_change: Callable[[], None],
        vendors: Vendors = VENDORS,
        machine: Machine | None = None,
    ) -> None:
        self.unwritable = ""
        self._folder, self._looks, self._on_change = folder, looks, on_change
        self._look = Periodic(self._check_folder, seconds=CHECK_SECONDS, patience_seconds=PATIENCE_SECONDS)
        self._vendors = {
            name: _OfVendor(
                ToolkitSpecs(spec_folders, source, worker=looks, on_change=on_change),
                CdiFiles(folder, source, worker=files),
                on_change=on_change,
                machine=machine or Machine(),
            )
            for name, vendor in vendors.cdi_vendors().items()
            if (source := vendor.cdi_source) is not None
        }
        self._one_at_a_time = asyncio.Lock()

    @property
    def parts(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """Background tasks for the agent to run, by name."""
        toolkits = {f"cdi {name}": vendor.toolkit.run for name, vendor in self._vendors.items()}
        return {"cdi-folder": self._look.run, **toolkits}

    @property
    def problem(self) -> str:
        """Why a file of ours is not up to date. Empty: all are."""
        return "; ".join(vendor.files.problem for vendor in self._vendors.values() if vendor.files.problem)

    @property
    def environments(self) -> Mapping[str, CdiEnvironment]:
        """The CDI environment of each vendor on this node, by vendor."""
        return {name: vendor.environment(self.unwritable) for name, vendor in self._vendors.items()}

    async def first(self) -> None:
        """Read the state at the start, unless it takes too long."""
        looks = (vendor.files.first() for vendor in self._vendors.values())
        await asyncio.gather(self._look.first(), *looks, return_exceptions=True)

    async def ready(self) -> None:
        """Read container toolkits' specifications from now on; return when they were read once, or soon."""
        await asyncio.gather(*(vendor.toolkit.ready() for vendor in self._vendors.values()))

    async def request(self, requests: Mapping[str, SpecRequest], *, first: bool) -> None:
        """Run vendors' programs, where one has not run for the same request. Returns with the results, or after a
        moment. first: while nothing is offered yet there is time."""
        patience = FIRST_PATIENCE_SECONDS if first else LATER_PATIENCE_SECONDS
        due = ((self._vendors[name], request) for name, request in requests.items())
        await asyncio.gather(*(vendor.program.want(request, patience_seconds=patience) for vendor, request in due))

    async def keep(self, access: Access, *, free: Callable[[], bool] = lambda: False) -> None:
        """Write our files, from the best source. free: whether it is known that no pod has a device, so that files
        which are no longer needed may be removed; without it they stay."""
        async with self._one_at_a_time:
            requests = {name: needs.request for name, needs in access.cdi.items() if needs.request is not None}
            await self.request(requests, first=False)
            for name, vendor in self._vendors.items():
                await vendor.keep(access.cdi.get(name) or CdiNeeds(), free=free())

    async def _check_folder(self) -> None:
        why = await self._looks.run(partial(unwritable, self._folder))
        if why != self.unwritable:
            self.unwritable = why
            self._on_change()


class _OfVendor:
    """The CDI parts of one vendor."""

    def __init__(
        self, toolkit: ToolkitSpecs, files: CdiFiles, *, on_change: Callable[[], None], machine: Machine
    ) -> None:
        self.toolkit = toolkit
        self.files = files
        self.program = ProgramSpec(on_change=on_change, make=partial(generate, machine=machine))

    def environment(self, unwritable: str) -> CdiEnvironment:
        sources = [source is not None and cdi.whole(source) for source in self._sources()]
        return CdiEnvironment(
            unwritable=unwritable,
            toolkit=self.toolkit.devices,
            toolkit_libraries=bool(self.toolkit.devices) and sources[0],
            toolkit_problem=self.toolkit.problem,
            made=self.program.names,
            made_problem=self.program.problem,
            kept=any(sources),
        )

    async def keep(self, needs: CdiNeeds, *, free: bool) -> None:
        made = self.program.current(needs.request)
        specs = cdi.choose(needs.specs, made, self._sources(), nodes_will_do=needs.nodes_will_do)
        await self.files.keep(specs, free=free)

    def _sources(self) -> tuple[Document | None, ...]:
        """Return possible sources of the driver's libraries, the best first."""
        return (self.toolkit.source, self.program.made, self.files.before)
