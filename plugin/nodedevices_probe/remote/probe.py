"""Remote pools: those of a configuration file, each one device, with what checks of their controllers found.

The file may change at any time. Until there was a good one, the probe says nothing, so that pools which the agent
remembers stay; one that cannot be used later changes nothing, and the lines say what is wrong with it. Nothing is said
either, for some seconds, until the first checks have shown which controllers can be reached.

Each check runs in a thread of its own: one that hangs is its own pool's matter. A controller counts as unreachable
after so many failures in a row, and as reachable after one success. A check that does not return within its time (a
name server that does not answer, a server that sends its answer byte by byte) is a failure, too. Until the first ones
have decided, checks follow each other quickly and nothing is known.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import math
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import urlsplit

from nodedevices_api.bounds import MAX_DEVICE_NAME
from nodedevices_common import __version__

from nodedevices_probe.files import WatchedFile
from nodedevices_probe.loop import NO_DRIVER, Source, SourceFacts
from nodedevices_probe.protocol import DeviceFact, Driver, DriverState, Readings, problem, text
from nodedevices_probe.remote import CONTROLLER, POOL, TYPE, UNCHECKED, UNREACHABLE, VENDOR
from nodedevices_probe.remote.config import ControllerCheck, RemoteConfig, RemotePool, parse, split_address
from nodedevices_probe.source import attributes

# --- checks -----------------------------------------------------------------------------------------------------------
FIRST_PERIOD_SECONDS = 1.0
GRACE_SECONDS = 1.0  # beyond the timeout, which is of one operation on the socket


def attempt(check: ControllerCheck) -> str:
    """Why the controller cannot be reached; "" where it can. May take longer than the timeout."""
    try:
        return _http(check) if check.http else _tcp(check)
    except (OSError, http.client.HTTPException, ValueError) as error:
        return f"{error.strerror or error}" if isinstance(error, OSError) else f"{type(error).__name__}: {error}"


def _tcp(check: ControllerCheck) -> str:
    address = split_address(check.tcp)
    if address is None:
        return "no address"
    with socket.create_connection(address, timeout=check.timeout_seconds):
        return ""


def _http(check: ControllerCheck) -> str:
    url = urlsplit(check.http)
    connect: Callable[..., http.client.HTTPConnection] = http.client.HTTPConnection
    if url.scheme == "https":  # as the kubelet does: nothing is told, and nothing taken from the answer
        connect = partial(http.client.HTTPSConnection, context=ssl._create_unverified_context())  # noqa: S323
    with contextlib.closing(connect(url.hostname, url.port, timeout=check.timeout_seconds)) as connection:
        path = (url.path or "/") + (f"?{url.query}" if url.query else "")
        connection.request("GET", path, headers={"User-Agent": f"nodedevices-probe/{__version__}"})
        status = connection.getresponse().status
    return "" if 200 <= status < 400 else f"it answers with status {status}"


@dataclass(slots=True, kw_only=True)
class Checker:
    """The checks of one controller, once `start` was called. `try_once`: as `attempt`."""

    check: ControllerCheck
    try_once: Callable[[ControllerCheck], str] = attempt
    clock: Callable[[], float] = time.monotonic
    reachable: bool | None = None  # None: not known
    problem: str = ""
    _failures: int = 0
    _began: float = math.inf  # of the check that is under way
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ended: threading.Event = field(default_factory=threading.Event)

    def start(self) -> Checker:
        """Begin, and return itself."""
        threading.Thread(target=self._run, name="check", daemon=True).start()
        return self

    def end(self) -> None:
        self._ended.set()

    def state(self) -> tuple[bool | None, str]:
        """Return whether it can be reached (None: not known), and what is wrong."""
        with self._lock:
            late = self.clock() - self._began
            room = self.check.timeout_seconds + GRACE_SECONDS
            if late > room and self._failures + late // room >= self.check.failures:
                return False, "the check does not return"
            return self.reachable, self.problem

    def step(self) -> None:
        """Check once."""
        with self._lock:
            self._began = self.clock()
        problem = self.try_once(self.check)
        with self._lock:
            late = self.clock() - self._began > self.check.timeout_seconds + GRACE_SECONDS
            self._began = math.inf
            problem = problem or ("it took too long" if late else "")
            self._failures = self._failures + 1 if problem else 0
            if not problem:
                self.reachable, self.problem = True, ""
            elif self._failures >= self.check.failures:
                self.reachable, self.problem = False, problem

    def _run(self) -> None:
        while not self._ended.is_set():
            self.step()
            self._ended.wait(FIRST_PERIOD_SECONDS if self.reachable is None else self.check.period_seconds)


# --- pools ------------------------------------------------------------------------------------------------------------
FIRST_SECONDS = 10.0  # the agent waits 15 s for a probe's first line


@dataclass(slots=True, kw_only=True)
class RemoteSource(Source):
    """`make`: what checks a controller from now on."""

    file: WatchedFile[RemoteConfig]
    make: Callable[[ControllerCheck], Checker] = lambda check: Checker(check=check).start()
    poll_seconds: float = 1.0
    name: str = "remote"
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
        problems += [
            problem("ControllerUnreachable", f"{name}: its controller cannot be reached: {why}")
            for name, (reachable, why) in states.items()
            if reachable is False
        ]
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
    return DeviceFact(
        id=f"pool:{pool.name.replace('/', ':')}",
        name=f"pool-{short}"[:MAX_DEVICE_NAME].strip("-"),
        index=index,
        type=TYPE,
        vendor=VENDOR,
        extra=attributes(said),
        readings=Readings(conditions={True: (), False: (UNREACHABLE,), None: (UNCHECKED,)}[reachable]),
    )


def source(options: argparse.Namespace) -> RemoteSource:
    return RemoteSource(file=WatchedFile(path=options.file, parse=parse), poll_seconds=options.interval_seconds)
