"""CDI on this node, as the agent sees it and keeps it: the folder, the container toolkit's specifications, nvidia-ctk
and our own files behind one door. What is needed is decided elsewhere (access); here it is looked for, and written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from nodedevices_plugin.host.cdi_files import CdiFiles, CdiFolder
from nodedevices_plugin.host.cdi_toolkit import FIRST_PATIENCE_SECONDS, LATER_PATIENCE_SECONDS, CtkSpec, ToolkitSpecs
from nodedevices_plugin.pipeline.access import Access
from nodedevices_plugin.runtime.worker import Worker
from nodedevices_plugin.vendors.nvidia import cdi_libraries
from nodedevices_plugin.vendors.nvidia.cdi import CdiEnvironment, CtkRequest


class CdiKeeper:
    """`on_change` is called on the loop when `environment` may be another."""

    def __init__(
        self,
        folder: Path,
        spec_folders: Sequence[Path],
        *,
        files: Worker,
        looks: Worker,
        on_change: Callable[[], None],
    ) -> None:
        self.folder = CdiFolder(folder, worker=looks, on_change=on_change)
        self.toolkit = ToolkitSpecs(spec_folders, worker=looks, on_change=on_change)
        self._ctk = CtkSpec(on_change=on_change)
        self._files = CdiFiles(folder, worker=files)
        self._one_at_a_time = asyncio.Lock()

    @property
    def problem(self) -> str:
        """Why a file of ours is not as it should be. Empty: all are."""
        return self._files.problem

    @property
    def environment(self) -> CdiEnvironment:
        """What CDI finds on this node now."""
        sources = [each is not None and cdi_libraries.whole(each) for each in self._sources()]
        return CdiEnvironment(
            unwritable=self.folder.problem,
            toolkit=self.toolkit.devices,
            toolkit_libraries=bool(self.toolkit.devices) and sources[0],
            toolkit_problem=self.toolkit.problem,
            made=self._ctk.names,
            made_problem=self._ctk.problem,
            kept=any(sources),
        )

    async def first(self) -> None:
        """What there is at the start, unless it takes too long."""
        await asyncio.gather(self.folder.first(), self._files.first(), return_exceptions=True)

    async def ask(self, request: CtkRequest, *, first: bool) -> None:
        """nvidia-ctk, where it was not asked the same before. Returns with its answer, or after a moment. first: while
        nothing is offered yet there is time."""
        patience = FIRST_PATIENCE_SECONDS if first else LATER_PATIENCE_SECONDS
        await self._ctk.want(request, patience_seconds=patience)

    async def keep(self, access: Access, *, free: Callable[[], bool]) -> None:
        """Our files as they are to be, from the best source that there is. free: whether it is known that no pod has a
        device, so that what is no longer needed may go."""
        async with self._one_at_a_time:
            if access.request is not None:
                await self.ask(access.request, first=False)
            specs = cdi_libraries.choose(
                access.specs,
                self._ctk.current(access.request),
                self._sources(),
                nodes_will_do=access.nodes_will_do,
            )
            await self._files.keep(specs, free=free())

    def _sources(self) -> tuple[cdi_libraries.Document | None, ...]:
        """Where the driver's libraries may come from, the best first."""
        return (self.toolkit.source, self._ctk.made, self._files.before)
