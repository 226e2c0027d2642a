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
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from nodedevices_common import __version__, loading
from nodedevices_common.address import Address, listening, parse_address

from nodedevices_probe import auto
from nodedevices_probe.files import CheckError
from nodedevices_probe.kind import DEVICES_DIR, DRIVER_ROOT, ProbeKind
from nodedevices_probe.listening import Listener, bound, end_with_parent, socket_path
from nodedevices_probe.loop import MAX_WANTED_BYTES, LineLoop, SourceFacts, follow, say, write_all
from nodedevices_probe.node.roots import Roots
from nodedevices_probe.registry import KINDS, PROGRAMS

EXIT_UNUSABLE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None, kinds: Mapping[str, ProbeKind] = KINDS) -> int:
    parser = _parser(kinds)
    options = parser.parse_args(arguments)
    try:
        if options.serves:
            return _serve(options, kinds)
        write = partial(write_all, _line_descriptor(parser, options.fd))
        return auto.run(options, write, kinds) if options.source is None else _observe(options, write)
    except CheckError as error:
        parser.exit(EXIT_USAGE, f"nodedevices-probe: {error}\n")
    except BrokenPipeError:
        return 0  # the reader of our lines has gone
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _observe(options: argparse.Namespace, write: Callable[[bytes], None]) -> int:
    if options.fd is not None:
        end_with_parent()  # if it has ended already, the next write fails with a closed pipe
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
        loop.write, loop.is_read = listener.write, lambda: bool(listener.clients)
    elif options.fd is not None and sys.stdin is not None:  # None: whatever descriptor 0 is, it is no input
        threading.Thread(target=_follow_input, args=[loop], name="wanted", daemon=True).start()
    if options.once:
        return _report_problems(loop.once())
    loop.run()
    return 0


def _report_problems(facts: SourceFacts) -> int:
    """The exit status of --once: 1 where the file that was named could not be used, so that a script can check one."""
    unusable = [problem for problem in facts.problems if problem.code in {"FileInvalid", "FileMissing"}]
    for problem in unusable:
        say(problem.message)
    return EXIT_UNUSABLE if unusable else 0


def _follow_input(loop: LineLoop) -> None:
    with contextlib.suppress(OSError):
        follow(lambda: os.read(0, MAX_WANTED_BYTES), loop.want)


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
    commands = parser.add_subparsers(required=True, metavar=" | ".join((*kinds, auto.NAME, SERVE)))
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
    every.add_argument("--once", action="store_true", help="as of each probe; there is no other way")
    auto.add_arguments(every, kinds)
    every.set_defaults(source=None, fd=None)
    server = commands.add_parser(SERVE, help="run the others for an agent in another container")
    _add_serving(server, kinds)
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


# --- serving ----------------------------------------------------------------------------------------------------------
# `serve` runs probes for an agent that has no hardware in its container. The agent, started with `--probe-server
# unix:PATH`, decides which probes run, and connects for each (serving.requests). Paths are not its to choose: they are
# options of this command, called as the agent's are, with the same variables.
SERVE = "serve"
HEALTH_ADDRESS = ":9738"
# Where an option of the agent has other variables than NODEDEVICES_<its name>, and a default.
VARIABLES = {DRIVER_ROOT: ("DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT")}
DEFAULTS = {DRIVER_ROOT: "/driver-root"}


def served_options(kinds: Mapping[str, ProbeKind]) -> tuple[str, ...]:
    """Return the agent's options that name paths which probes open."""
    opened = {
        DEVICES_DIR if kind.passed_on[flag] in kind.files else kind.passed_on[flag]
        for kind in kinds.values()
        for flag in kind.opens
    }
    return tuple(sorted(opened | {DRIVER_ROOT}))


def variables(option: str) -> tuple[str, ...]:
    return VARIABLES.get(option, (f"NODEDEVICES_{option.upper().replace('-', '_')}",))


def _add_serving(parser: argparse.ArgumentParser, kinds: Mapping[str, ProbeKind]) -> None:
    parser.add_argument(
        "--listen", type=socket_path, required=True, metavar="unix:PATH", help="where the agent connects"
    )
    parser.add_argument(
        "--health-address",
        type=_address,
        default=HEALTH_ADDRESS,
        metavar="HOST:PORT",
        help=f"where /healthz is served for the kubelet; 'off' for nowhere (default: {HEALTH_ADDRESS})",
    )
    for option in served_options(kinds):
        given = (os.environ.get(variable, "") for variable in variables(option))
        parser.add_argument(
            f"--{option}",
            default=next(filter(None, given), DEFAULTS.get(option, "")),
            metavar="PATH",
            help=f"as the agent's --{option} [${' or $'.join(variables(option))}]",
        )


def _serve(options: argparse.Namespace, kinds: Mapping[str, ProbeKind]) -> int:
    """Serve until a signal. Raises CheckError where it cannot listen."""
    # Loaded by no probe that runs alone.
    from nodedevices_probe.serving.requests import Allowed, perform  # noqa: PLC0415
    from nodedevices_probe.serving.server import BACKLOG, ProbeServer  # noqa: PLC0415

    given = {name.replace("_", "-"): value for name, value in vars(options).items()}
    paths = {option: str(given[option]) for option in served_options(kinds) if given[option]}
    path, address = options.listen, options.health_address
    try:  # before the other socket is there: an agent that sees that one sees a server that is well
        health = None if address is None else listening(address)
    except OSError as error:
        raise CheckError(f"--health-address {address}: {error.strerror or error}") from error
    server = ProbeServer(
        listening=bound(path, BACKLOG),
        health=health,
        allowed=Allowed(kinds=kinds, programs=PROGRAMS, paths=paths),
        perform=partial(perform, probe=lambda arguments: main(arguments, kinds), kinds=kinds, known_programs=PROGRAMS),
    )
    say(f"serving at unix:{path}")
    try:
        server.run()
    finally:
        path.unlink(missing_ok=True)
    return 0


def _address(value: str) -> Address | None:
    try:
        return None if value == "off" else parse_address(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}; or off") from None


if __name__ == "__main__":
    sys.exit(main())
