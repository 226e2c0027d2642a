"""The command `nodedevices-probe`: observes hardware of one kind and writes what it finds, one JSON line at a time.

Lines go to the descriptor given by --fd, to every client of the socket of --listen, or to the standard output.
Before anything else is loaded, descriptor 1 is made the standard error's, so that a library which prints cannot corrupt
a line. With --fd the probe is the agent's child and ends with it, even when it hangs inside a driver. It exits with 75
when only a new process can go on.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from nodedevices_common import __version__, loading

from nodedevices_probe import auto, wanted
from nodedevices_probe.files import CheckError
from nodedevices_probe.kind import ProbeKind
from nodedevices_probe.listening import Listener, socket_path
from nodedevices_probe.loop import LineLoop, SourceFacts, end_with_parent, write_all
from nodedevices_probe.node.roots import Roots
from nodedevices_probe.registry import KINDS, PROGRAMS
from nodedevices_probe.serving import command as serving

EXIT_UNUSABLE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None, kinds: Mapping[str, ProbeKind] = KINDS) -> int:
    parser = _parser(kinds)
    options = parser.parse_args(arguments)
    if options.serves:
        try:
            return serving.run(options, kinds, PROGRAMS, probe=lambda given: main(given, kinds))
        except CheckError as error:
            parser.exit(EXIT_USAGE, f"nodedevices-probe: {error}\n")
    write = write_all(_line_descriptor(parser, options.fd))
    if options.source is None:
        return auto.run(options, write, kinds)
    if options.fd is not None:
        end_with_parent()  # if it has ended already, the next write fails with a closed pipe
    try:
        with loading.needing("nodedevices-probe", "agent"):
            source = options.source(options)
        loop = LineLoop(
            source=source,
            write=write,
            repeat_seconds=options.interval_seconds,
            boot_id=Roots(options.root).word("proc/sys/kernel/random/boot_id"),
        )
        if options.listen is not None:
            listener = Listener(options.listen, on_client=loop.repeat_line, want=loop.want)
            loop.write, loop.is_read = listener.write, listener.has_clients
        elif options.fd is not None and sys.stdin is not None:  # None: whatever descriptor 0 is, it is no input
            threading.Thread(target=_follow_input, args=[loop], name="wanted", daemon=True).start()
        if options.once:
            return _report_problems(loop.once())
        loop.run()
    except CheckError as error:
        parser.exit(EXIT_USAGE, f"nodedevices-probe: {error}\n")
    except BrokenPipeError:
        return 0  # the reader of our lines has gone
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return 0


def _report_problems(facts: SourceFacts) -> int:
    """The exit status of --once: 1 where the file that was named could not be used, so that a script can check one."""
    unusable = [problem for problem in facts.problems if problem.code in {"FileInvalid", "FileMissing"}]
    for problem in unusable:
        wanted.say(problem.message)
    return EXIT_UNUSABLE if unusable else 0


def _follow_input(loop: LineLoop) -> None:
    with contextlib.suppress(OSError):
        wanted.follow(lambda: os.read(0, wanted.MAX_BYTES), loop.want)


def _parser(kinds: Mapping[str, ProbeKind]) -> argparse.ArgumentParser:
    machine = argparse.ArgumentParser(add_help=False)
    machine.add_argument(
        "--root",
        type=_folder,
        default=Path("/"),
        metavar="DIR",
        help="where /sys, /proc, /dev and /run are (default: /)",
    )
    common = argparse.ArgumentParser(add_help=False, parents=[machine])
    way = common.add_mutually_exclusive_group()
    way.add_argument(
        "--once", action="store_true", help="write one line and exit; try: nodedevices-probe ... --once | jq"
    )
    way.add_argument(
        "--fd", type=_descriptor, metavar="N", help="write lines to this descriptor, and exit with the parent"
    )
    way.add_argument(
        "--listen", type=socket_path, metavar="unix:PATH", help="write lines to every client of this unix socket"
    )
    parser = argparse.ArgumentParser(
        prog="nodedevices-probe", description="Reports this machine's devices, one JSON line at a time."
    )
    parser.add_argument("--version", action="version", version=__version__)
    parser.set_defaults(serves=False)
    commands = parser.add_subparsers(required=True, metavar=" | ".join((*kinds, auto.NAME, serving.NAME)))
    for kind in kinds.values():
        command = commands.add_parser(kind.name, parents=[common], help=kind.help)
        kind.add_arguments(command)
        command.add_argument(
            "--interval-seconds",
            type=_seconds,
            default=kind.interval_seconds,
            metavar="S",
            help=f"interval {kind.interval} (default: {kind.interval_seconds:g})",
        )
        command.set_defaults(source=kind.source)
    every = commands.add_parser(auto.NAME, parents=[machine], help=auto.HELP)
    every.add_argument("--once", action="store_true", help="write one line of each and exit")
    every.add_argument("--interval-seconds", type=_seconds, metavar="S", help="as of each probe; default: its own")
    auto.add_arguments(every, kinds)
    every.set_defaults(source=None, fd=None)
    server = commands.add_parser(serving.NAME, help=serving.HELP)
    serving.add_arguments(server, kinds)
    server.set_defaults(serves=True)
    return parser


def _descriptor(value: str) -> int:
    if not value.isdecimal() or not 3 <= int(value) <= 65535:
        raise argparse.ArgumentTypeError(f"{value!r} is not allowed; give an open file descriptor, 3 or above")
    return int(value)


def _folder(value: str) -> Path:
    if not os.path.isdir(value):  # noqa: PTH112 - raises for nothing
        raise argparse.ArgumentTypeError(f"{value!r} is not allowed; give a folder that is there")
    return Path(value)


def _seconds(value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{value!r} is not allowed; give seconds from 0.1 to 3600")
    return seconds


def _line_descriptor(parser: argparse.ArgumentParser, given: int | None) -> int:
    """Return the descriptor for lines; all else that is printed goes to the standard error."""
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


if __name__ == "__main__":
    sys.exit(main())
