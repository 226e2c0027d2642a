"""One run of a command: what it was given, its clock and streams, and the API server's client, made when it is needed.

What a program reads goes through `out`; words for people through `say`, which escapes control characters.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, TextIO, TypeVar

from nodedevices_common.raw import Raw
from nodedevices_common.text import printable
from nodedevices_kube.errors import ApiError

from nodedevices_kubectl import objects

if TYPE_CHECKING:
    from nodedevices_kube.kubeconfig import Context

    from nodedevices_kubectl.api import Api


PROGRAM = "kubectl nodedevices"
SAME_TIME = timedelta(seconds=5)  # the header has whole seconds, and an answer takes some time


COLOURS = ("auto", "always", "never")
T = TypeVar("T")


@dataclass(frozen=True)
class Machine:
    """What a run has of the machine that it runs on; tests give their own."""

    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    stdout: TextIO = field(default_factory=lambda: sys.stdout)
    stderr: TextIO = field(default_factory=lambda: sys.stderr)
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    sleep: Callable[[float], None] = time.sleep


def _colours(choice: str, machine: Machine) -> bool:
    """Whether to write colours: https://no-color.org, and never into a file or a pipe unless asked to."""
    if choice != "auto":
        return choice == "always"
    environment = machine.environment
    return machine.stdout.isatty() and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"


def allowed(read: Callable[[], T]) -> T | None:
    """Return what is read; None: this person may not read it."""
    try:
        return read()
    except ApiError as error:
        if error.status != 403:
            raise
    return None


class Session:
    def __init__(
        self, machine: Machine, *, kubeconfig: str = "", context: str = "", color: str = "auto", seconds: float = 0.0
    ) -> None:
        self._machine = machine
        self._kubeconfig = kubeconfig
        self.context_name = context  # as it was given; empty: the current one
        self._ahead = timedelta()  # of the API server's clock
        self.sleep = machine.sleep
        self.colours = _colours(color, machine)
        self._progress_shown = False
        self._seconds = seconds  # to wait for the API server at most; 0: as long as it may take

    def now(self) -> datetime:
        """The time by the clock of the API server, where that has answered; its objects' times are compared with it."""
        return self._machine.now() + self._ahead

    def _dated(self, header: str) -> None:
        from email.utils import parsedate_to_datetime  # noqa: PLC0415 - http.client has it

        with suppress(TypeError, ValueError):
            ahead = parsedate_to_datetime(header) - self._machine.now()
            self._ahead = ahead if abs(ahead) > SAME_TIME else timedelta()

    def out(self, line: str) -> None:
        self._clear_progress()
        self._machine.stdout.write(line + "\n")

    def flush(self) -> None:
        self._machine.stdout.flush()

    def say(self, line: str) -> None:
        self._clear_progress()
        self._machine.stderr.write(printable(line) + "\n")

    def beside(self, context: str, seconds: float) -> Session:
        """The same for another context. Nobody is asked to log in there, and no progress is shown."""
        return Session(self._machine, kubeconfig=self._kubeconfig, context=context, color="never", seconds=seconds)

    def contexts(self, named: Sequence[str]) -> tuple[list[str], list[str]]:
        """The contexts of these names, or none named: those of the kubeconfig, one for each cluster; and what is to be
        said of it."""
        from nodedevices_kubectl import api as opening  # noqa: PLC0415

        return opening.find_contexts(self._kubeconfig, named, self._machine.environment)

    @cached_property
    def context(self) -> Context:
        from nodedevices_kubectl import api as opening  # noqa: PLC0415 - --help and completion need none of it

        return opening.find_context(self._kubeconfig, self.context_name, self._machine.environment)

    @cached_property
    def api(self) -> Api:
        from nodedevices_kubectl import api as opening  # noqa: PLC0415

        api = opening.connect(self.context, self._machine.environment, self._seconds)
        api.dated = self._dated
        if self._machine.stderr.isatty() and not self._seconds:
            api.page_read = self._progress
        return api

    def node(self, name: str) -> Raw:
        """The NodeDevices of a node. Where there is none: an error that says which there are."""
        from nodedevices_kubectl.views import find  # noqa: PLC0415

        found = self.api.find(objects.at(objects.NODE_DEVICES, name))
        if found is None:
            raise find.unknown_node(name, self.api.names(objects.NODE_DEVICES))
        return found

    def listed(self, collection: str, *, selector: str = "", fields: str = "") -> list[Raw] | None:
        """Every object; None: this person may not read them."""
        return allowed(lambda: self.api.list_all(collection, selector=selector, fields=fields)[0])

    def close(self) -> None:
        if "api" in self.__dict__:
            self.api.close()

    def _progress(self, count: int) -> None:
        if count >= 500:
            self._machine.stderr.write(f"\r{count} read ")
            self._machine.stderr.flush()
            self._progress_shown = True

    def _clear_progress(self) -> None:
        if self._progress_shown:
            self._machine.stderr.write("\r\033[K")
            self._machine.stderr.flush()
            self._progress_shown = False
