"""The command nodedevices-mps: `run` (the default) until a SIGTERM, `mount-shm` once before it.

`mount-shm` mounts the clients' /dev/shm, a tmpfs below the MPS root with its own size. Daemon and clients of MPS meet
in one /dev/shm (NVIDIA's plugin mounts the same). Without its own size a container could fill the host's /run. Half of
the machine's memory, as the kernel gives a tmpfs. One that is there stays: running containers have it.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import structlog
from nodedevices_common import __version__, logs
from nodedevices_common.errors import OperationError

from nodedevices_plugin.mps.control import Control, for_containers, open_folder
from nodedevices_plugin.mps.runner import Runner
from nodedevices_plugin.sharing import mps

log = structlog.get_logger(__name__)

PERIOD_SECONDS = 0.5
OPTIONS = "rw,nosuid,nodev,noexec,relatime,mode=1777"


class ShmError(OperationError):
    """It cannot be mounted; the text says why."""


def mount(root: Path) -> bool:
    """Mount it, unless it is mounted; True when it had to be. Raises ShmError."""
    folder = root / mps.SHARED_MEMORY
    try:
        with open_folder(root, mps.SHARED_MEMORY):
            if folder.is_mount():
                return False
    except OSError as error:
        raise ShmError(f"{folder}: {error.strerror or error}") from error
    options = f"{OPTIONS},size={half_of_memory_kib()}k"
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


def half_of_memory_kib() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2048


def main(arguments: Sequence[str] | None = None) -> int:
    """0 after a SIGTERM or a mount, 1 when it cannot be mounted, 2 for a wrong command line."""
    given = _parser().parse_args(arguments)
    logs.configure(given.log_level, given.log_format)
    if given.command == "mount-shm":
        try:
            new = mount(given.root)
        except ShmError as error:
            print(f"nodedevices-mps: {error}", file=sys.stderr)  # noqa: T201  a command's answer to its user
            return 1
        log.info("shared memory", root=str(given.root), mounted_now=new)
        return 0
    run(given.root)
    return 0


def run(root: Path) -> None:
    """Until SIGTERM or SIGINT; then every daemon ends."""
    over = threading.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: over.set())
    log.info("MPS runner starting", version=__version__, root=str(root))
    runner = Runner(root, Control(str(root)))
    while not over.wait(PERIOD_SECONDS):
        try:
            runner.step(time.monotonic())
        except Exception:
            # A bug of ours. The end of this container would be the end of every daemon and its clients.
            log.exception("reconciliation failed; running daemons continue")
    runner.stop()
    log.info("MPS runner stopped")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nodedevices-mps",
        allow_abbrev=False,
        description="Runs NVIDIA's MPS control daemons that the agent of this node wants.",
    )
    parser.add_argument(
        "command",
        nargs="?",
        choices=("run", "mount-shm"),
        default="run",
        help="run: the daemons, until SIGTERM (default); mount-shm: their shared memory at ROOT/shm, once before it",
    )
    parser.add_argument(
        "--root",
        type=_folder,
        default=mps.CONTAINER_ROOT,
        metavar="DIR",
        help=f"the MPS root in this container (default: {mps.CONTAINER_ROOT})",
    )
    parser.add_argument("--log-level", choices=logs.LEVELS, default="info")
    parser.add_argument("--log-format", choices=logs.FORMATS, default="auto")
    parser.add_argument("--version", action="version", version=f"nodedevices-mps {__version__}")
    return parser


def _folder(value: str) -> Path:
    """Nothing is made or mounted where a wrong word points to."""
    if not Path(value).is_dir():
        raise argparse.ArgumentTypeError(f"{value!r} is not a folder; give the MPS root, mounted from the host")
    return Path(value)


if __name__ == "__main__":
    raise SystemExit(main())
