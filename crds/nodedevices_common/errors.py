"""The errors that agent, probes and operator raise themselves: one small tree.

    NodeDevicesError      its text is a sentence for people: the place, what is wrong, what would be right
    ├── InputError        something that was given cannot be used: a flag, a file, an object, a line
    ├── RefusedError      it was understood, and is not possible: a plan, a request of the kubelet's
    └── OperationError    something could not be done: a file, a program, the driver
        └── RequestError  ... a request to the API server, with its HTTP status

A boundary that can name the cause (a caller that shows it in a condition, retries or ends the program) catches the
class of its own module; a branch is caught where several kinds mean the same. Nothing else catches Exception but a
supervisor that logs it as a bug. What the standard library raises is wrapped where it is known what was attempted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from nodedevices_common.text import printable

# A server that answers with more (a load balancer, maintenance in front of the API server) may be gone a minute later;
# faults would go unmarked until then.
MAX_RETRY_AFTER_SECONDS = 60.0


class NodeDevicesError(Exception):
    """Everything that is raised on purpose."""


class InputProblem(str):
    """One thing to correct, as a line for people that knows which place it is about; empty: the whole."""

    __slots__ = ("place",)
    place: str

    def __new__(cls, text: str, place: str = "") -> Self:
        made = super().__new__(cls, printable(text))
        made.place = printable(place)
        return made

    @classmethod
    def at(cls, place: str, text: str) -> Self:
        """Return the problem as `place: text`."""
        return cls(f"{place}: {text}", place)


class InputError(NodeDevicesError, ValueError):
    """Input that is refused; `problems` has one line for each thing to correct, `str()` joins them. `place`: where the
    first of them is; empty where it is about the whole. Keys and values that they name may have control characters in
    them, or half of a character, which no UTF-8 has: those are escaped, so that every log and status can have them."""

    def __init__(self, problems: str | Iterable[str], place: str = "") -> None:
        self.problems: tuple[str, ...] = tuple(map(printable, (problems,) if isinstance(problems, str) else problems))
        self.place = printable(place) or next(
            (it.place for it in self.problems[:1] if isinstance(it, InputProblem)), ""
        )
        super().__init__("; ".join(self.problems))


class RefusedError(NodeDevicesError):
    """The request cannot be granted, and nothing changes."""


class OperationError(NodeDevicesError):
    """Something outside of this process did not do what it should; it may be tried again."""


class RequestError(OperationError):
    """A request to the API server that did not succeed. `status` 0: no answer; 200: one that makes no sense.
    `retry_after`: seconds to wait, as the server said, and no more than MAX_RETRY_AFTER_SECONDS."""

    def __init__(self, message: str, *, status: int = 0, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = None if retry_after is None else min(retry_after, MAX_RETRY_AFTER_SECONDS)


def retry_after_seconds(header: object) -> float | None:
    """Return what a Retry-After header says, at most MAX_RETRY_AFTER_SECONDS; None where it says nothing, or a date."""
    try:
        seconds = float(str(header))
    except ValueError:
        return None
    return min(seconds, MAX_RETRY_AFTER_SECONDS) if seconds >= 0 else None
