"""The command nodedevices-mps: `run` (the default) until a SIGTERM, `mount-shm` once before it."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import structlog
from nodedevices_common import __version__, logs

from nodedevices_plugin.mps import shm
from nodedevices_plugin.mps.control import Control
from nodedevices_plugin.mps.runner import Runner
from nodedevices_plugin.sharing.mps import CONTAINER_ROOT

log = structlog.get_logger(__name__)

PERIOD_SECONDS = 0.5


def main(arguments: Sequence[str] | None = None) -> int:
    """0 after a SIGTERM or a mount, 1 when it cannot be mounted, 2 for a wrong command line."""
    given = _parser().parse_args(arguments)
    logs.configure(given.log_level, given.log_format)
    if given.command == "mount-shm":
        try:
            new = shm.mount(given.root)
        except shm.ShmError as error:
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
        default=CONTAINER_ROOT,
        metavar="DIR",
        help=f"the MPS root in this container (default: {CONTAINER_ROOT})",
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
