"""All probes of the agent: which run, where each one's lines come from, and which lines no step has seen yet.

Of one probe process only the latest line waits, with the events that no step has taken: a probe repeats its events, but
of equal ones only the newest, whose count begins after the one before. Where a line replaced one that no step had
taken, the arrival of the first counts, because faults are timed by it. The last line of an earlier
process waits as well: the new process does not repeat its events. Each step takes one line, the one that has waited
the longest.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from msgspec import Struct
from msgspec.structs import replace
from nodedevices_probe.protocol import MAX_EVENTS, Snapshot
from nodedevices_probe.registry import KINDS
from nodedevices_probe.serving.requests import INTERVAL

from nodedevices_plugin.inputs.probe_child import Spare
from nodedevices_plugin.inputs.probe_sessions import ProbeProcess, ProbeSocket
from nodedevices_plugin.inputs.probe_source import ProbeSource
from nodedevices_plugin.settings.flags import Local
from nodedevices_plugin.settings.probes import ProbeSpec, name_of, read

log = structlog.get_logger(__name__)


PROGRAM = "nodedevices-probe"
MAX_EVENTS_WAITING = 4 * MAX_EVENTS  # of one line: what a flood of one event brings in some ten seconds
MAX_WAITING = 8  # lines of one probe, of as many processes


class Line(Struct, frozen=True):
    """A line, the probe that wrote it, and when it came (time.monotonic())."""

    probe: str
    snapshot: Snapshot
    arrived: float


class _Running(Struct, frozen=True):
    """A probe that runs, and what is configured of it."""

    text: str
    source: ProbeSource
    task: asyncio.Task[None]


def of_server(command: Sequence[str]) -> tuple[str, ...]:
    """The arguments of a built-in probe with flags of a person's choice, which a probe server runs as any other; none:
    the command is another program, or has a flag that no server takes, such as a path."""
    if len(command) < 2 or Path(command[0]).name != PROGRAM or command[1] not in KINDS:
        return ()
    arguments = [command[1]]
    for word in command[2:]:
        if word.startswith("--") or not arguments[-1].startswith("--") or "=" in arguments[-1]:
            arguments.append(word)
        else:
            arguments[-1] += f"={word}"
    kind = KINDS[arguments[0]]
    taken = {*kind.passed_on, *kind.choices, INTERVAL} - kind.opens
    flags = (argument.removeprefix("--").partition("=")[0] for argument in arguments[1:])
    return tuple(arguments) if taken.issuperset(flags) else ()


class Probes:
    """`driver_root`: where the driver's root is mounted in this container, as configured now. `files`: paths of the
    device files that are there, by name. `on_line` is called on the loop when a line came. `keep` runs a part of the
    agent until it is cancelled (Supervisor). `spare` becomes the first probe with a process of ours that `use` names at
    first, and is ended where there is none."""

    def __init__(
        self,
        local: Local,
        *,
        driver_root: Callable[[], Path],
        files: Callable[[], Mapping[str, str]] = dict,
        on_line: Callable[[], None],
        keep: Callable[[str, Callable[[], Awaitable[None]]], Coroutine[Any, Any, None]],
        spare: Spare | None = None,
    ) -> None:
        self._local = local
        self._driver_root = driver_root
        self._files = files
        self._on_line = on_line
        self._keep = keep
        self._spare = spare
        self._lines: list[Line] = []  # the longest waiting first
        self._wants_use = False
        self._running: dict[str, _Running] = {}  # by probe, the first one first
        self._ending: set[asyncio.Task[None]] = set()

    def use(self, texts: Sequence[str]) -> None:
        """Run these probes as configured (settings.probes): start new ones, end those that are not among them, and hand
        on no further line of these."""
        if list(texts) != [running.text for running in self._running.values()]:
            self._change(texts)
        if self._spare is not None:
            self._spare.end()
            self._spare = None

    def _change(self, texts: Sequence[str]) -> None:
        log.info("probes configured", probes=[name_of(text) for text in texts])
        before = {running.text: (name, running) for name, running in self._running.items()}
        for name, gone in (before[text] for text in before if text not in texts):
            self._lines = [line for line in self._lines if line.probe != name]
            gone.task.cancel()
            self._ending.add(gone.task)
            gone.task.add_done_callback(self._ending.discard)
        self._running = {name_of(text): before[text][1] if text in before else self._start(text) for text in texts}

    async def stop(self) -> None:
        """End all of them."""
        self.use(())
        await asyncio.gather(*self._ending, return_exceptions=True)

    @property
    def sources(self) -> Mapping[str, ProbeSource]:
        return {name: running.source for name, running in self._running.items()}

    def take(self) -> Line | None:
        """The line that has waited the longest."""
        return self._lines.pop(0) if self._lines else None

    @property
    def more(self) -> bool:
        """True when another line waits."""
        return bool(self._lines)

    @property
    def errors(self) -> Mapping[str, str | None]:
        """Return by probe why it does not report."""
        return {name: source.last_error for name, source in self.sources.items()}

    def problem(self) -> str | None:
        """Return why probes do not report, in one text."""
        several = len(self.sources) > 1
        return "; ".join(f"{name}: {why}" if several else why for name, why in self.errors.items() if why) or None

    def want(self, *, use: bool) -> None:
        """Ask all probes who uses the devices, or no longer."""
        self._wants_use = use
        for source in self.sources.values():
            source.want(use=use)

    def _start(self, text: str) -> _Running:
        [spec], _ = read([text])
        source = self._source(spec)
        source.want(use=self._wants_use)
        task = asyncio.create_task(self._keep(f"probe {spec.name}", source.run), name=f"probe {spec.name}")
        return _Running(text, source, task)

    def _source(self, spec: ProbeSpec) -> ProbeSource:
        on_snapshot = partial(self._received, spec.name)
        if spec.socket:
            return ProbeSocket(spec.socket, name=spec.name, on_snapshot=on_snapshot)
        built_in = of_server(spec.command)
        arguments = (lambda: built_in) if built_in else partial(self._arguments, spec.name)
        if self._local.probe_server and (built_in or not spec.command):
            return ProbeSocket(self._local.probe_server, arguments, name=spec.name, on_snapshot=on_snapshot)
        if spec.command:
            return ProbeProcess(name=spec.name, on_snapshot=on_snapshot, command=spec.command)
        spare, self._spare = self._spare, None
        return ProbeProcess(arguments, name=spec.name, on_snapshot=on_snapshot, spare=spare)

    def _received(self, probe: str, snapshot: Snapshot) -> None:
        waiting = [(at, line) for at, line in enumerate(self._lines) if line.probe == probe]
        if waiting and waiting[-1][1].snapshot.instance == snapshot.instance:
            at, line = waiting[-1]
            self._lines[at] = replace(line, snapshot=_with_events_of(line.snapshot, snapshot))
        else:
            self._lines.append(Line(probe, snapshot, time.monotonic()))
            if len(waiting) >= MAX_WAITING:  # of a probe that is a new process all the time: what has nothing to lose
                at, _ = next((pair for pair in waiting if not pair[1].snapshot.events), waiting[0])
                del self._lines[at]
        self._on_line()

    def _arguments(self, name: str) -> list[str]:
        """Return the arguments of a built-in probe."""
        now = {"node-name": self._local.node_name, "driver-root-ctr-path": str(self._driver_root())}
        return KINDS[name].arguments({**self._local.probe_options, **self._files(), **now})


def _with_events_of(replaced: Snapshot, line: Snapshot) -> Snapshot:
    """Return the line with the events of the one that it replaces and that it does not repeat; the newest, of too
    many."""
    repeated = {event.sequence for event in line.events}
    missing = tuple(event for event in replaced.events if event.sequence not in repeated)
    return dataclasses.replace(line, events=(*missing, *line.events)[-MAX_EVENTS_WAITING:]) if missing else line
