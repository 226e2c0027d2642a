"""Which of the optional device nodes and files of drivers exist, on the host as far as it is mounted.

Where the driver's root is mounted and has a /dev of its own, that /dev counts, as for NVIDIA's plugin; links in it lead
where they lead on the host. A folder that cannot be read counts as empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from nodedevices_probe.node.roots import inside

MAX_OF_A_KIND = 256


def existing(driver_root: Path, patterns: Iterable[str]) -> frozenset[str]:
    """Those that are there, as paths from the root (`/dev/nvidiactl`). `patterns`: paths, the last part a glob."""
    wanted = dict.fromkeys(patterns)
    return frozenset(path for pattern in wanted for path in islice(_found(driver_root, pattern), MAX_OF_A_KIND))


def _found(driver_root: Path, pattern: str) -> Iterator[str]:
    try:
        mounted = inside(driver_root, pattern.split("/")[1])
        root = driver_root if mounted is not None and mounted.is_dir() else Path("/")
        folder, _, name = pattern.rpartition("/")
        place = inside(root, folder)
        if place is None:
            return
        names = sorted(path.name for path in place.glob(name)) if "*" in name else [name]
        for file in names:
            if inside(root, f"{folder}/{file}") is not None:
                yield f"{folder}/{file}"
    except OSError:
        return
