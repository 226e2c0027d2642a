"""`nodedevices-mps mount-shm`: the clients' /dev/shm, a tmpfs below the MPS root with its own size.

Daemon and clients of MPS meet in one /dev/shm (NVIDIA's plugin mounts the same). Without its own size a container
could fill the host's /run. Half of the machine's memory, as the kernel gives a tmpfs. One that is there stays: running
containers have it.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from nodedevices_common.errors import OperationError

from nodedevices_plugin.mps import files
from nodedevices_plugin.mps.control import for_containers
from nodedevices_plugin.sharing import mps

FALLBACK_KIB = 65536  # 64 MiB, as container runtimes give
OPTIONS = "rw,nosuid,nodev,noexec,relatime,mode=1777"


class ShmError(OperationError):
    """It cannot be mounted; the text says why."""


def mount(root: Path, *, meminfo: Path = Path("/proc/meminfo")) -> bool:
    """Mount it, unless it is mounted; True when it had to be. Raises ShmError."""
    folder = root / mps.SHARED_MEMORY
    try:
        with files.folder(root, mps.SHARED_MEMORY):
            if folder.is_mount():
                return False
    except OSError as error:
        raise ShmError(f"{folder}: {error.strerror or error}") from error
    options = f"{OPTIONS},size={size_kib(_read(meminfo))}k"
    done = subprocess.run(  # noqa: S603
        ["mount", "-t", "tmpfs", "-o", options, "shm", str(folder)],  # noqa: S607  the image's own
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    if done.returncode != 0:
        raise ShmError(f"{folder}: {done.stderr.strip() or f'mount: status {done.returncode}'}")
    for_containers(str(folder))
    return True


def size_kib(meminfo: str) -> int:
    """Half of MemTotal."""
    for line in meminfo.splitlines():
        fields = line.split()
        if fields[:1] == ["MemTotal:"] and len(fields) > 1 and fields[1].isdecimal():
            return max(FALLBACK_KIB, int(fields[1]) // 2)
    return FALLBACK_KIB


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
