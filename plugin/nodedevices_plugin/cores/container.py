"""Tells a container its part of shared computing power: by a variable where that is certain at its allocation, and
always by a file, which is written before it starts (host.allocation_files)."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import PurePosixPath

from nodedevices_plugin.model import ContainerEdits, Mount

CONTAINER_PATH = "/etc/nodedevices"
FILE = "allocation.json"
VARIABLE = "NODEDEVICES_CORES"


def key(ids: Collection[str]) -> str:
    """The name of the folder of one container's ids."""
    return hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest()[:32]


def edits(folder: str, ids: Collection[str], cores: int | None) -> ContainerEdits:
    """`cores`: None where it is not certain."""
    variables = {} if cores is None else {VARIABLE: str(cores)}
    mount = Mount(container_path=CONTAINER_PATH, host_path=str(PurePosixPath(folder, key(ids))), read_only=True)
    return ContainerEdits(envs=variables, mounts=(mount,))
