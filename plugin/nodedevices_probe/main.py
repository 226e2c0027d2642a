"""The command `nodedevices-probe`: observes hardware of one kind and writes what it finds, one JSON line at a time.

Lines go to the descriptor given by --fd, to every client of the socket of --listen, or to the standard output.
Before anything else is loaded, descriptor 1 is made the standard error's, so that a library which prints cannot corrupt
a line. With --fd the probe is the agent's child and ends with it, even when it hangs inside a driver. It exits with 75
when only a new process can go on.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import platform
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from nodedevices_common import __version__, unix_socket

from nodedevices_probe import wanted
from nodedevices_probe.check import CheckError
from nodedevices_probe.listening import Listener
from nodedevices_probe.loop import Facts, LineLoop, Source, write_all
from nodedevices_probe.sysfs import System

EXIT_UNUSABLE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    write = write_all(_line_descriptor(parser, options.fd))
    if options.fd is not None:
        _die_with_parent()
    try:
        loop = LineLoop(
            source=options.source(options),
            write=write,
            repeat_seconds=options.interval_seconds,
            boot_id=System(options.root).boot_id(),
        )
        if options.listen is not None:
            listener = Listener(options.listen, on_client=loop.say_again, set_interval=loop.set_interval)
            loop.write, loop.is_read = listener.write, listener.has_clients
        elif options.fd is not None and sys.stdin is not None:  # None: whatever descriptor 0 is, it is no input
            threading.Thread(target=_follow_input, args=[loop], name="wanted", daemon=True).start()
        if options.once:
            return _report_problems(loop.once())
        else:
            loop.run()
    except CheckError as error:
        parser.exit(EXIT_USAGE, f"nodedevices-probe: {error}\n")
    except BrokenPipeError:
        return 0  # whoever read our lines has gone
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return 0


def _report_problems(facts: Facts) -> int:
    """The exit status of --once: 1 where the file that was named could not be used, so that a script can check one."""
    unusable = [each for each in facts.problems if each.code in {"FileInvalid", "FileMissing"}]
    for each in unusable:
        print(f"nodedevices-probe: {each.message}", file=sys.stderr)  # noqa: T201 - a command for people
    return EXIT_UNUSABLE if unusable else 0


def _follow_input(loop: LineLoop) -> None:
    with contextlib.suppress(OSError):
        wanted.follow(lambda: os.read(0, wanted.MAX_BYTES), loop.set_interval)


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    way = common.add_mutually_exclusive_group()
    way.add_argument(
        "--once", action="store_true", help="write one line and exit; try: nodedevices-probe ... --once | jq"
    )
    way.add_argument(
        "--fd", type=_descriptor, metavar="N", help="write lines to this descriptor, and exit with the parent"
    )
    way.add_argument(
        "--listen", type=_socket, metavar="unix:PATH", help="write lines to every client of this unix socket"
    )
    common.add_argument(
        "--root", type=Path, default=Path("/"), metavar="DIR", help="where /sys and /proc are (default: /)"
    )
    parser = argparse.ArgumentParser(
        prog="nodedevices-probe", description="Reports this machine's devices, one JSON line at a time."
    )
    parser.add_argument("--version", action="version", version=__version__)
    kinds = parser.add_subparsers(required=True, metavar="nvml | simulated")

    nvml = kinds.add_parser("nvml", parents=[common], help="NVIDIA GPUs, by the driver's library libnvidia-ml.so.1")
    nvml.add_argument(
        "--interval-seconds",
        type=_seconds,
        default=5.0,
        metavar="S",
        help="interval between queries of the driver (default: 5); events are reported at once",
    )
    nvml.add_argument(
        "--driver-root-ctr-path",
        default="/driver-root",
        metavar="DIR",
        help="search the library below this mounted root of the driver first (default: /driver-root)",
    )
    nvml.add_argument(
        "--telemetry", action="store_true", help="read fan, utilization, memory used and clocks, too (default: no)"
    )
    nvml.set_defaults(source=_nvml)

    simulated = kinds.add_parser("simulated", parents=[common], help="devices described by a file, or a known machine")
    what = simulated.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--file", type=Path, metavar="F", help="a YAML file (docs/simulated-devices.md); edits appear at once"
    )
    what.add_argument("--profile", metavar="P", help="a known machine, such as 'h100 x 8'")
    simulated.add_argument(
        "--node-name",
        default=os.environ.get("NODE_NAME") or platform.node() or "node",
        metavar="N",
        help="device ids are made from it (default: $NODE_NAME, or the host's name)",
    )
    simulated.add_argument(
        "--interval-seconds",
        type=_seconds,
        default=1.0,
        metavar="S",
        help="interval after which an unchanged line is repeated (default: 1, at most 5)",
    )
    simulated.set_defaults(source=_simulated)
    return parser


def _simulated(options: argparse.Namespace) -> Source:
    from nodedevices_probe.simulated.probe import FileSource, ProfileSource  # noqa: PLC0415  nor yaml for a real one

    if options.file:
        return FileSource(path=options.file, node=options.node_name)
    try:
        return ProfileSource.of(options.profile, node=options.node_name)
    except CheckError as error:
        raise CheckError(f"argument --{error}") from None


def _nvml(options: argparse.Namespace) -> Source:
    from nodedevices_probe.nvidia.library import Library  # noqa: PLC0415
    from nodedevices_probe.nvidia.probe import NvmlSource  # noqa: PLC0415  a simulated probe needs no pynvml,

    library = Library(options.driver_root_ctr_path)
    return NvmlSource(
        poll_seconds=options.interval_seconds,
        telemetry=options.telemetry,
        system=System(options.root),
        library=library,
    )


def _descriptor(value: str) -> int:
    if not value.isdecimal() or not 3 <= int(value) <= 65535:
        raise argparse.ArgumentTypeError(f"{value!r} is not allowed; give an open file descriptor, 3 or above")
    return int(value)


def _socket(value: str) -> Path:
    try:
        return Path(unix_socket.path_of(value))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _seconds(value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{value!r} is not allowed; give seconds from 0.1 to 3600")
    return seconds


def _line_descriptor(parser: argparse.ArgumentParser, given: int | None) -> int:
    """Where lines go; whatever else is printed goes to the standard error."""
    try:
        descriptor = os.dup(1) if given is None else given
        os.fstat(descriptor)
        os.dup2(2, 1)
    except OSError as error:
        parser.error(
            f"argument --fd: {given}: {error.strerror}" if given is not None else f"no output: {error.strerror}"
        )
    os.set_inheritable(descriptor, False)  # noqa: FBT003
    return descriptor


def _die_with_parent() -> None:
    """The kernel kills us when the agent dies; if it is dead already, the next line meets a closed pipe."""
    prctl: Callable[..., int] = ctypes.CDLL(None, use_errno=True).prctl
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
