"""Reads several devices side by side, each for a bounded time: one that hangs in the kernel keeps no other waiting.

A read that hangs cannot be ended from outside. Its thread is left alone until it returns; meanwhile the device is
"not answering" and is not read again, so that one broken device costs one thread and not one with every poll.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

READ_SECONDS = 2.0
T = TypeVar("T")


class _Reading(threading.Thread, Generic[T]):
    def __init__(self, read: Callable[[], T]) -> None:
        super().__init__(daemon=True)
        self._read = read
        self.result: T | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self._read()
        except BaseException as error:  # raised where the result is asked for
            self.error = error


@dataclass(slots=True, kw_only=True)
class BoundedReads(Generic[T]):
    """`seconds`: for all of one call together."""

    seconds: float = READ_SECONDS
    _hanging: dict[str, _Reading[T]] = field(default_factory=dict)

    def read(self, jobs: Mapping[str, Callable[[], T]]) -> dict[str, T | None]:
        """Return each job's result; None: it, or an earlier one of that key, has not returned. Raises what a job
        raises."""
        deadline = time.monotonic() + self.seconds
        started = {}
        for key, job in jobs.items():
            hanging = self._hanging.pop(key, None)
            if hanging is not None and hanging.is_alive():
                self._hanging[key] = hanging
                continue
            started[key] = _Reading(job)
            started[key].start()
        found: dict[str, T | None] = dict.fromkeys(jobs)
        for key, reading in started.items():
            reading.join(max(0.0, deadline - time.monotonic()))
            if reading.is_alive():
                self._hanging[key] = reading
            elif reading.error is not None:
                raise reading.error
            else:
                found[key] = reading.result
        return found
