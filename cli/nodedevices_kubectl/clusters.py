"""Several clusters at once: each is read in a thread of its own, and one that does not answer costs three seconds.

What is bounded is the wait for a cluster's first page, its login plugin included; a cluster that answers may take as
long as its pages do. An answer that comes too late is not waited for, and its thread ends with the program.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Event, Thread

from nodedevices_common.errors import NodeDevicesError, OperationError
from nodedevices_common.raw import Raw

from nodedevices_kubectl import objects
from nodedevices_kubectl.session import Session

SECONDS = 3.0


class ClustersError(OperationError):
    """Some of several clusters could not be read; what the others said is shown."""


@dataclass(frozen=True, slots=True)
class Answer:
    """`problem`: why nothing is known of it; empty: it is. `refused`: it answered, and that one may not read it.
    `installed`: whether it has our kinds at all."""

    context: str
    items: Sequence[Raw] = ()
    problem: str = ""
    refused: bool = False
    installed: bool = True

    @property
    def state(self) -> str:
        if self.problem:
            return "Forbidden" if self.refused else "Unreachable"
        return "Answered" if self.installed else "NotInstalled"


class _Reading:
    def __init__(self, session: Session, names: Sequence[str], selector: str) -> None:
        self._session, self._names, self._selector = session, names, selector
        self._answer = Answer("")
        self._began, self._ended = Event(), Event()
        Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        context = self._session.context_name
        try:
            self._answer = Answer(context, self._read())
        except NodeDevicesError as error:
            absent = bool(getattr(error, "no_such_kind", False))
            refused = getattr(error, "status", 0) in {401, 403}
            problem = Answer(context, problem=str(error), refused=refused)
            self._answer = Answer(context, installed=False) if absent else problem
        finally:
            self._session.close()
            self._ended.set()
            self._began.set()

    def _read(self) -> list[Raw]:
        api = self._session.api
        api.page_read = lambda _: self._began.set()
        if not self._names:
            return api.list_all(objects.NODE_DEVICES, selector=self._selector)[0]
        found = []
        for name in self._names:
            item = api.find(objects.at(objects.NODE_DEVICES, name))
            if item is not None:  # else it may be a node of another cluster
                found.append(item)
            self._began.set()
        return found

    def answer(self, deadline: float, seconds: float) -> Answer:
        if not self._began.wait(max(0.0, deadline - time.monotonic())):
            return Answer(self._session.context_name, problem=f"no answer within {seconds:g} s")
        self._ended.wait()
        return self._answer


def read_all(
    session: Session, contexts: Sequence[str], names: Sequence[str], selector: str, seconds: float = SECONDS
) -> list[Answer]:
    """The NodeDevices of each cluster, in the order of the contexts."""
    deadline = time.monotonic() + seconds
    readings = [_Reading(session.beside(context, seconds), names, selector) for context in contexts]
    return [reading.answer(deadline, seconds) for reading in readings]
