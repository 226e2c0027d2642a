"""What agents measure, asked of each of them through the API server's proxy to its pod.

A few are asked at a time, each with a time limit, and all together with another one. An agent that does not answer
costs its own node's readings.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from nodedevices_common.errors import NodeDevicesError
from nodedevices_common.raw import Raw, mapping, mappings, text

from nodedevices_kubectl import objects
from nodedevices_kubectl.session import Session
from nodedevices_kubectl.views import facts

AT_ONCE = 8
SECONDS = 3.0  # for one agent
ALL_SECONDS = 60.0
_PORT = "http"  # name of the port of the metrics


@dataclass(frozen=True, slots=True)
class Answer:
    """`problem`: why there are no metrics."""

    metrics: str = ""
    problem: str = ""


class _Asking:
    """Threads with a connection each."""

    def __init__(self, session: Session, seconds: float) -> None:
        self._session, self._end = session, time.monotonic() + seconds
        self._own = threading.local()
        self._opened: list[Session] = []

    def ask(self, path: str) -> Answer:
        if time.monotonic() >= self._end:
            return Answer(problem=f"not asked: {ALL_SECONDS:g} s are over; name fewer nodes")
        try:
            return Answer(self._mine().api.text(path))
        except NodeDevicesError as error:
            return Answer(problem=str(error))

    def _mine(self) -> Session:
        found: Session | None = getattr(self._own, "session", None)
        if found is None:
            found = self._own.session = self._session.beside(self._session.context_name, SECONDS)
            self._opened.append(found)
        return found

    def close(self) -> None:
        for session in self._opened:
            session.close()


def read(session: Session, namespace: str, names: frozenset[str]) -> dict[str, Answer]:
    """What the agents of these nodes answer, by node. A node without a pod of ours is not in it."""
    paths: dict[str, str] = {}
    for pod in session.api.list_all(objects.pods(namespace), selector=facts.AGENTS)[0]:
        node, port = text(mapping(pod.get("spec")).get("nodeName")), _port(pod)
        if node in names and port is not None:
            name = text(mapping(pod.get("metadata")).get("name"))
            paths[node] = objects.through_pod(namespace, name, port, "metrics")
    return _answers(session, paths)


def _answers(session: Session, paths: Mapping[str, str]) -> dict[str, Answer]:
    asking = _Asking(session, ALL_SECONDS)
    try:
        with ThreadPoolExecutor(AT_ONCE) as threads:
            return dict(zip(paths, threads.map(asking.ask, paths.values()), strict=True))
    finally:
        asking.close()


def _port(pod: Raw) -> int | None:
    for container in mappings(mapping(pod.get("spec")).get("containers")):
        for port in mappings(container.get("ports")):
            number = port.get("containerPort")
            if port.get("name") == _PORT and isinstance(number, int):
                return number
    return None
