"""Keeps the state file up to date, and knows which state is on the disk.

At most one write is under way; newer states wait, and the latest is written next. A write that fails is tried again
after ten seconds; one that does not return is reported and never waited for: a disk that hangs must not keep a fault
from the kubelet. A change that must not happen before it is saved (of what is offered) waits for `saved`, which changes
only when a write has returned.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import structlog

from nodedevices_plugin.pipeline.state import State, StateError, StateFile, same_but_times
from nodedevices_plugin.runtime.threads import Worker
from nodedevices_plugin.settings.effective import Effective, understood
from nodedevices_plugin.settings.flags import Local
from nodedevices_plugin.status.metrics import AgentMetrics

log = structlog.get_logger(__name__)

FIRST_SECONDS = 0.25  # as long a new fault waits for a write of the state file before it is sent to the kubelet
TIMES_SECONDS = 10.0  # at most so often a write for nothing but newer evidence of a known fault
RETRY_SECONDS = 10.0
END_SECONDS = 1.0  # of the agent, which its pod gives 30 s
HANGS_SECONDS = 5.0  # until a write that does not return is reported


class StateKeeper:
    """One state file. `on_written` is called after each write, also after a failed one."""

    def __init__(
        self,
        path: Path,
        *,
        metrics: AgentMetrics,
        on_written: Callable[[], None],
        local: Local,
        first_seconds: float = FIRST_SECONDS,
    ) -> None:
        self._local = local
        self._first_seconds = first_seconds
        self.worker = Worker("state-file")  # its own: what hangs elsewhere must not keep a verdict from being saved
        self.saved: Effective | None = None  # the configuration that the file has
        self.problem: str | None = None  # why it cannot be written
        self.lost: str | None = None  # why it could not be read at the start
        self._file = StateFile(path)
        self._metrics = metrics
        self._on_written = on_written
        self._written = State()  # by the last write, or the one under way
        self._written_at = 0.0
        self._writing: asyncio.Future[None] | None = None

    def load(self) -> State:
        """Read the file; an empty state, with the reason in `lost`, where it cannot be used."""
        try:
            state = self._file.load()
        except StateError as error:
            self.lost = f"at start: {error}"
            self._metrics.state_errors.inc()
            log.warning("state file unusable, starting without it", error=str(error))
            return State()
        problem = self._file.unread
        _, of_configuration = understood(state.applied, self._local.modes, self._local.vendors)
        if of_configuration:
            problem = "; ".join(filter(None, (of_configuration, problem or self._file.keep_aside())))
        if problem:
            self.lost = f"at start: {problem}"
            self._metrics.state_errors.inc()
            log.warning("parts of the state file unusable", error=problem)
        else:
            self._written = state
        if state.verdicts:
            log.info(
                "verdicts restored from the state file",
                devices={key: verdict.reason for key, verdict in state.verdicts.items()},
            )
        return state

    async def keep(self, state: State, now: float) -> float | None:
        """Save it where it differs. `now`: time.monotonic(). Returns when to call again, when something is left."""
        if self._writing is not None and not same_but_times(state, self._written):
            await asyncio.wait((self._writing,), timeout=max(0.0, self._written_at + self._first_seconds - now))
        if self._writing is not None:
            if (hangs_at := self._written_at + HANGS_SECONDS) > now:
                return hangs_at
            self._not_written("a write has not returned; the disk may be hanging")
            return None
        if state == self._written:
            return None
        urgent = not same_but_times(state, self._written)
        pause = RETRY_SECONDS if self.problem else 0.0 if urgent else TIMES_SECONDS
        due = self._written_at + pause
        if due > now:
            return due
        self._written, self._written_at = state, now
        writing = self._writing = self.worker.submit(lambda: self._file.save(state))
        writing.add_done_callback(partial(self._on_done, state))
        if urgent:
            await asyncio.wait((writing,), timeout=self._first_seconds)
        return None

    async def end(self, state: State) -> None:
        """Save what waits for its time, at the agent's end; a disk that hangs is not waited for."""
        with contextlib.suppress(TimeoutError, StateError):
            async with asyncio.timeout(END_SECONDS):
                if self._writing is not None:
                    await asyncio.wait((self._writing,))
                if state != self._written:
                    await self.worker.run(lambda: self._file.save(state))

    def _on_done(self, state: State, writing: asyncio.Future[None]) -> None:
        self._writing = None
        self._on_written()
        if writing.cancelled():
            return
        error = writing.exception()
        if error is None:
            self.saved, _ = understood(state.applied, self._local.modes, self._local.vendors)
            if self.problem is not None:
                log.info("state file writes succeed again")
            self.problem = None
            self._metrics.state_writes.inc()
            return
        self._metrics.state_errors.inc()
        self._not_written(str(error))
        self._written = State()

    def _not_written(self, why: str) -> None:
        if why != self.problem:
            log.warning("state file not written, a restart of the agent would lose the change", error=why)
        self.problem = why
