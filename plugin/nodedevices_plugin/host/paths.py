"""Finds the optional device nodes and files that exist on the node, every few seconds.

They come and go with kernel modules and services (nvidia-uvm at the first use, an IMEX channel with its daemon), so one
check at the start is not enough. Where the driver's root is mounted and has a /dev of its own, that /dev counts, as for
NVIDIA's plugin; links in it lead where they lead on the host. A folder that cannot be read counts as empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path

from nodedevices_common.periodic import Periodic
from nodedevices_probe.node.rooted import inside

from nodedevices_plugin.runtime.worker import Worker
from nodedevices_plugin.vendors.base import HostPaths
from nodedevices_plugin.vendors.registry import VENDORS, Vendors

CHECK_SECONDS = 5.0
FIRST_CHECK_SECONDS = 1.0  # a file system that hangs must not keep the node's devices away
MAX_OF_A_KIND = 256


class HostPathReader(Periodic):
    """`existing` is what was found last, nothing at first. `on_change` is called on the loop when it is something else.

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
    ) -> None:
        super().__init__(self._check, seconds=CHECK_SECONDS, patience_seconds=FIRST_CHECK_SECONDS)
        self._driver_root = driver_root
        self._files = files
        self._vendors = vendors
        self._worker = worker
        self._on_change = on_change
        self.existing: frozenset[str] = frozenset()

    async def _check(self) -> None:
        existing = await self._worker.run(partial(existing_paths, self._driver_root(), self._files(), self._vendors))
        if existing != self.existing:
            self.existing = existing
            self._on_change()


def existing_paths(
    driver_root: Path, files: Mapping[str, object] | None = None, vendors: Vendors = VENDORS
) -> frozenset[str]:
    """Those of the optional paths that are there, as paths from the root (`/dev/nvidiactl`)."""
    contents = files or {}
    optional = (each for each in vendors.every if isinstance(each, HostPaths))
    wanted = dict.fromkeys(path for each in optional for path in each.host_paths(contents))
    return frozenset(path for pattern in wanted for path in islice(_found(driver_root, pattern), MAX_OF_A_KIND))


def _found(driver_root: Path, pattern: str) -> Iterator[str]:
    try:
        mounted = inside(driver_root, pattern.split("/")[1])
        root = driver_root if mounted is not None and mounted.is_dir() else Path("/")
        folder, _, name = pattern.rpartition("/")
        place = inside(root, folder)
        if place is None:
            return
        names = sorted(each.name for each in place.glob(name)) if "*" in name else [name]
        for each in names:
            if inside(root, f"{folder}/{each}") is not None:
                yield f"{folder}/{each}"
    except OSError:
        return
