"""Checks of controllers, each in a thread of its own: one that hangs is its own pool's matter.

A controller counts as unreachable after so many failures in a row, and as reachable after one success. A check that
does not return within its time (a name server that does not answer, a server that sends its answer byte by byte) is a
failure, too. Until the first ones have decided, checks follow each other quickly and nothing is known.
"""

from __future__ import annotations

import contextlib
import http.client
import math
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from nodedevices_common import __version__

from nodedevices_probe.remote.config import ControllerCheck, split_address

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
    kind: Callable[..., http.client.HTTPConnection] = http.client.HTTPConnection
    options: dict[str, object] = {}
    if url.scheme == "https":  # as the kubelet does: nothing is told, and nothing taken from the answer
        kind, options = http.client.HTTPSConnection, {"context": ssl._create_unverified_context()}  # noqa: S323
    connection = kind(url.hostname, url.port, timeout=check.timeout_seconds, **options)
    with contextlib.closing(connection):
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

    def start(self) -> None:
        threading.Thread(target=self._run, name="check", daemon=True).start()

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
            period = FIRST_PERIOD_SECONDS if self.reachable is None else self.check.period_seconds
            self._ended.wait(period)
