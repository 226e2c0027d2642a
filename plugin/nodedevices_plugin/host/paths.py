"""Finds the optional device nodes and files that exist on the node, every few seconds.

They come and go with kernel modules and services (nvidia-uvm at the first use, an IMEX channel with its daemon), so one
check at the start is not enough. They are looked for where the hardware is (machine).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import structlog
from nodedevices_common.periodic import Periodic

from nodedevices_plugin.host.machine import LocalMachine, Machine, MachineError
from nodedevices_plugin.runtime.threads import Worker
from nodedevices_plugin.vendors.registry import VENDORS, Vendors

log = structlog.get_logger(__name__)

CHECK_SECONDS = 5.0
RETRY_SECONDS = 1.0  # after a failure: the probe server may only just be starting
FIRST_CHECK_SECONDS = 1.0  # a file system that hangs must not keep the node's devices away


class HostPathReader(Periodic):
    """`existing` is what was found last, nothing at first. `problem`: why that may be old; empty: it is not.
    `on_change` is called on the loop when one of them is something else.

    driver_root: where the driver's root is mounted in this container, as configured now. files: the device files'
    contents, which may say what containers get.
    """

    def __init__(
        self,
        driver_root: Callable[[], Path],
        files: Callable[[], Mapping[str, object]],
        *,
        worker: Worker,
        on_change: Callable[[], None],
        vendors: Vendors = VENDORS,
        machine: Machine | None = None,
    ) -> None:
        super().__init__(
            self._check,
            seconds=lambda: RETRY_SECONDS if self.problem else CHECK_SECONDS,
            patience_seconds=FIRST_CHECK_SECONDS,
        )
        self._machine = machine or LocalMachine()
        self._driver_root = driver_root
        self._files = files
        self._vendors = vendors
        self._worker = worker
        self._on_change = on_change
        self.existing: frozenset[str] = frozenset()
        self.problem = ""
        self._unread = True

    async def line_came(self) -> None:
        """Read once more, if nothing could be read yet: a probe's first line shows that its server is there now, and
        the first containers are to get what exists."""
        if self._unread:
            self._unread = False
            await self.first()

    async def _check(self) -> None:
        before = self.existing, self.problem
        patterns = wanted_paths(self._files(), self._vendors)
        try:
            self.existing = await self._worker.run(partial(self._machine.existing, self._driver_root(), patterns))
            self.problem, self._unread = "", False
        except MachineError as error:
            self.problem = str(error)
            if self.problem != before[1]:
                log.warning("optional device nodes not read, those read last count", error=self.problem)
        if (self.existing, self.problem) != before:
            self._on_change()


def wanted_paths(files: Mapping[str, object] | None = None, vendors: Vendors = VENDORS) -> tuple[str, ...]:
    """The optional paths of all vendors, as globs."""
    contents = files or {}
    return tuple(dict.fromkeys(path for vendor in vendors.every for path in vendor.host_paths(contents)))
