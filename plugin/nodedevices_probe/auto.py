"""`nodedevices-probe auto`: the probes of what is in this machine, each in its own process, their lines as one stream.

Every CHECK_SECONDS the machine is checked again, so that hardware or a driver that comes later is noticed; a probe that
was started is never ended before all are. A child that ends is started again. The agent does not use this
command: for `--probe auto` it starts the probes itself, and knows each by its name.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from argparse import ArgumentParser, Namespace
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

from nodedevices_common.backoff import Backoff

from nodedevices_probe.kind import DEVICES_DIR, AgentOptions, Hardware, ProbeKind, never
from nodedevices_probe.loop import EXIT_WANTS_FRESH_PROCESS, say
from nodedevices_probe.node.roots import Roots

NAME = "auto"
HELP = "those of the others whose hardware this machine has, each in a process of its own"
CHECK_SECONDS = 10.0
END_SECONDS = 5.0  # for the children to end after a signal, before they are killed
TICK_SECONDS = 0.2  # how often it is checked whether a child has ended
BACKOFF = Backoff(initial_seconds=0.5, max_seconds=30.0, jitter=0.2)  # before the next child

Write = Callable[[bytes], None]


def add_arguments(parser: ArgumentParser, kinds: Mapping[str, ProbeKind]) -> None:
    """The agent's options that these kinds get values of, by the same names."""
    users = defaultdict[str, list[str]](list)
    for kind in kinds.values():
        options = [DEVICES_DIR] if kind.files else []
        options += [option for option in kind.passed_on.values() if option not in kind.files]
        for option in options if kind.automatic else ():
            users[option].append(kind.name)
    for option, names in sorted(users.items()):
        shown = f"as the agent's --{option}, for {', '.join(names)}"
        parser.add_argument(f"--{option}", nargs="?", const=True, default="", metavar="VALUE", help=shown)


def _nothing(kinds: Mapping[str, ProbeKind]) -> str:
    """Return, for people, that nothing was found."""
    by_hardware = [kind.name for kind in kinds.values() if kind.present is not never]
    by_file = [f"{kind.name} ({kind.files[0]})" for kind in kinds.values() if kind.files and kind.present is never]
    files = f"; {' and '.join(by_file)} run where their file is in --{DEVICES_DIR}" if by_file else ""
    return f"no hardware of {', '.join(by_hardware)} is there{files}"


def run(options: Namespace, write: Write, kinds: Mapping[str, ProbeKind]) -> int:
    """The exit status: of --once the worst of the children's; else 128 and the signal that ended it."""
    running = _Running(options, write, kinds)
    if not running.look():
        say(_nothing(kinds))
    if not options.once:
        return running.run()
    worst = 0
    for name in running.children:
        done = subprocess.run([*_command(kinds[name], options), "--once"], stdout=subprocess.PIPE, check=False)  # noqa: S603
        write(done.stdout)
        worst = max(worst, abs(done.returncode))
    return worst


def wanted(options: Namespace, kinds: Mapping[str, ProbeKind]) -> dict[str, str]:
    """Return the kinds to start, and why, in their order."""
    hardware = Hardware(Roots(options.root))
    return {name: why for name, kind in kinds.items() if (why := kind.wanted(hardware, _given(options, kind)))}


@dataclass(slots=True)
class _Child:
    process: subprocess.Popen[bytes] | None = None
    failures: int = 0
    next_start: float = 0.0  # time.monotonic()


class _Running:
    def __init__(self, options: Namespace, write: Write, kinds: Mapping[str, ProbeKind]) -> None:
        self._options, self._write, self._kinds = options, write, kinds
        self.children: dict[str, _Child] = {}
        self._writing = threading.Lock()  # a line is longer than what a pipe takes in one piece
        self._unread = threading.Event()  # the reader of our lines has gone
        self._signal = 0

    def look(self) -> bool:
        """Take note of the kinds that are wanted now. True when there are any."""
        for name, why in wanted(self._options, self._kinds).items():
            if name not in self.children:
                say(f"starting {name}: {why}")
                self.children[name] = _Child()
        return bool(self.children)

    def run(self) -> int:
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, self._end)
        checked = time.monotonic()
        while not self._signal and not self._unread.wait(TICK_SECONDS):
            if time.monotonic() - checked >= CHECK_SECONDS:
                checked = time.monotonic()
                self.look()
            for name, child in self.children.items():
                self._keep(name, child)
        self._stop(self._signal or signal.SIGTERM)
        return 128 + self._signal if self._signal else 0

    def _keep(self, name: str, child: _Child) -> None:
        """Start it, and again when it has ended."""
        if child.process is not None:
            status = child.process.poll()
            if status is None:
                return
            child.process = None
            child.failures = 0 if status == EXIT_WANTS_FRESH_PROCESS else child.failures + 1
            child.next_start = time.monotonic() + (BACKOFF.after(child.failures) if child.failures else 0.0)
            say(f"{name} ended with status {status}, starting it again")
        if time.monotonic() >= child.next_start:
            command = _command(self._kinds[name], self._options)
            child.process = subprocess.Popen(  # noqa: S603  ours
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
            )
            threading.Thread(target=self._copy, args=[child, child.process.stdout], name=name, daemon=True).start()

    def _copy(self, child: _Child, lines: IO[bytes]) -> None:
        """Copy its lines, whole."""
        with lines:
            for line in lines:
                child.failures = 0
                try:
                    with self._writing:
                        self._write(line)
                except BrokenPipeError:
                    self._unread.set()
                    return

    def _end(self, number: int, _: FrameType | None) -> None:
        self._signal = number

    def _stop(self, number: int) -> None:
        running = [child.process for child in self.children.values() if child.process is not None]
        for process in running:
            process.send_signal(number)
        until = time.monotonic() + END_SECONDS
        for process in running:
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()


def _given(options: Namespace, kind: ProbeKind) -> AgentOptions:
    given = {name.replace("_", "-"): value for name, value in vars(options).items()}
    folder = str(given.get(DEVICES_DIR) or "")
    paths = {name: f"{folder}/{name}" for name in kind.files}
    return given | {name: path if folder and Path(path).exists() else "" for name, path in paths.items()}


def _command(kind: ProbeKind, options: Namespace) -> list[str]:
    command = [sys.executable, "-m", "nodedevices_probe.main", *kind.arguments(defaultdict(str, _given(options, kind)))]
    if options.interval_seconds is not None:
        command.append(f"--interval-seconds={options.interval_seconds:g}")
    return [*command, f"--root={options.root}"]
