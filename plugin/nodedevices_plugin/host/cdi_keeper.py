"""CDI on this node behind one interface: the folder, container toolkits' specifications, vendors' programs and our own
files. pipeline.access decides what is needed; this module checks and writes the files, for each vendor whose devices
may have CDI names (vendors.cdi).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from nodedevices_plugin.host.cdi_files import CdiFiles, CdiFolder
from nodedevices_plugin.host.cdi_program import FIRST_PATIENCE_SECONDS, LATER_PATIENCE_SECONDS, ProgramSpec, generate
from nodedevices_plugin.host.cdi_toolkit import ToolkitSpecs
from nodedevices_plugin.host.machine import LocalMachine, Machine
from nodedevices_plugin.pipeline.access import Access
from nodedevices_plugin.runtime.threads import Worker
from nodedevices_plugin.vendors import cdi
from nodedevices_plugin.vendors.cdi import CdiEnvironment, CdiNeeds, Document, SpecRequest
from nodedevices_plugin.vendors.registry import VENDORS, Vendors


class CdiKeeper:
    """Keeps the CDI files of all vendors. `on_change` is called on the loop when `environments` may have changed."""

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
        self._folder = CdiFolder(folder, worker=looks, on_change=on_change)
        self._vendors = {
            name: _OfVendor(
                ToolkitSpecs(spec_folders, source, worker=looks, on_change=on_change),
                CdiFiles(folder, source, worker=files),
                on_change=on_change,
                machine=machine or LocalMachine(),
            )
            for name, vendor in vendors.cdi_vendors().items()
            if (source := vendor.cdi_source) is not None
        }
        self._one_at_a_time = asyncio.Lock()

    @property
    def parts(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """Background tasks for the agent to run, by name."""
        toolkits = {f"cdi {name}": vendor.toolkit.run for name, vendor in self._vendors.items()}
        return {"cdi-folder": self._folder.run, **toolkits}

    @property
    def problem(self) -> str:
        """Why a file of ours is not up to date. Empty: all are."""
        return "; ".join(vendor.files.problem for vendor in self._vendors.values() if vendor.files.problem)

    @property
    def environments(self) -> Mapping[str, CdiEnvironment]:
        """The CDI environment of each vendor on this node, by vendor."""
        return {name: vendor.environment(self._folder.problem) for name, vendor in self._vendors.items()}

    async def first(self) -> None:
        """Read the state at the start, unless it takes too long."""
        looks = (vendor.files.first() for vendor in self._vendors.values())
        await asyncio.gather(self._folder.first(), *looks, return_exceptions=True)

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
