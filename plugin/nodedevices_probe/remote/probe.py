"""Remote pools: those of a configuration file, each one device, with what checks of their controllers found.

The file may change at any time. Until there was a good one, the probe says nothing, so that pools which the agent
remembers stay; one that cannot be used later changes nothing, and the lines say what is wrong with it. Nothing is said
either, for some seconds, until the first checks have shown which controllers can be reached.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from nodedevices_api.bounds import MAX_DEVICE_NAME

from nodedevices_probe.events import EventLog
from nodedevices_probe.files.document import WatchedFile
from nodedevices_probe.loop import NO_DRIVER, SourceFacts
from nodedevices_probe.protocol import (
    MAX_MESSAGE,
    Attribute,
    DeviceFact,
    Driver,
    DriverState,
    Problem,
    Readings,
    text,
)
from nodedevices_probe.remote import CONTROLLER, POOL, TYPE, UNCHECKED, UNREACHABLE, VENDOR
from nodedevices_probe.remote.checks import Checker
from nodedevices_probe.remote.config import ControllerCheck, RemoteConfig, RemotePool, parse

FIRST_SECONDS = 10.0  # the agent waits 15 s for a probe's first line


def _started(check: ControllerCheck) -> Checker:
    checker = Checker(check=check)
    checker.start()
    return checker


@dataclass(slots=True, kw_only=True)
class RemoteSource:
    """`make`: what checks a controller from now on."""

    file: WatchedFile[RemoteConfig]
    make: Callable[[ControllerCheck], Checker] = _started
    poll_seconds: float = 1.0
    name: str = "remote"
    events: EventLog = field(default_factory=EventLog)
    clock: Callable[[], float] = time.monotonic
    _checkers: dict[ControllerCheck, Checker] = field(default_factory=dict)
    _began: float | None = None  # with the first good file

    def poll(self) -> SourceFacts:
        self.file.refresh()
        problems = [self.file.problem] if self.file.problem is not None else []
        config = self.file.value
        if config is None:
            return SourceFacts(driver=NO_DRIVER, problems=tuple(problems), silent=True)
        self._began = self.clock() if self._began is None else self._began
        self._follow({pool.check for pool in config.pools})
        states = {pool.name: self._checkers[pool.check].state() for pool in config.pools}
        for name, (reachable, problem) in states.items():
            if reachable is False:
                message = text(f"{name}: its controller cannot be reached: {problem}", MAX_MESSAGE)
                problems.append(Problem(code="ControllerUnreachable", message=message))
        early = self.clock() < self._began + FIRST_SECONDS
        return SourceFacts(
            driver=Driver(state=DriverState.LOADED),
            devices=tuple(_device(index, pool, states[pool.name][0]) for index, pool in enumerate(config.pools)),
            problems=tuple(problems),
            silent=early and any(reachable is None for reachable, _ in states.values()),
        )

    def _follow(self, checks: set[ControllerCheck]) -> None:
        """Pools with the same check have one checker; one whose check is the same keeps what is known."""
        for check in self._checkers.keys() - checks:
            self._checkers.pop(check).end()
        for check in checks - self._checkers.keys():
            self._checkers[check] = self.make(check)


def _device(index: int, pool: RemotePool, reachable: bool | None) -> DeviceFact:
    said = {POOL: pool.name, CONTROLLER: text(pool.controller or pool.check.tcp or pool.check.http)}
    short = re.sub("[^a-z0-9]+", "-", pool.name.rpartition("/")[2].lower()).strip("-")
    conditions = {True: (), False: (UNREACHABLE,), None: (UNCHECKED,)}[reachable]
    return DeviceFact(
        id=f"pool:{pool.name.replace('/', ':')}",
        name=f"pool-{short}"[:MAX_DEVICE_NAME].strip("-"),
        index=index,
        type=TYPE,
        vendor=VENDOR,
        extra={name: Attribute(string=value) for name, value in said.items()},
        readings=Readings(conditions=conditions),
    )


def source(options: argparse.Namespace) -> RemoteSource:
    return RemoteSource(file=WatchedFile(path=options.file, parse=parse), poll_seconds=options.interval_seconds)
