"""Finds the built-in probes whose hardware this node has, every few seconds while `auto` is configured.

Hardware and drivers may come later: a hot-plugged card, a module that an operator's DaemonSet loads. A kind that was
found stays found while the agent runs: its probe has to report a card that has gone as missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import structlog
from nodedevices_common.periodic import Periodic

from nodedevices_plugin.host.machine import LocalMachine, MachineError
from nodedevices_plugin.runtime.threads import Worker

log = structlog.get_logger(__name__)

CHECK_SECONDS = 10.0
RETRY_SECONDS = 1.0  # after a failure: the probe server may only just be starting
FIRST_CHECK_SECONDS = 1.0  # a file system that hangs must not keep the node's devices away


class FoundHardware(Periodic):
    """`found`: the names of the kinds; None before the first check. `on_change` is called on the loop when it grows, or
    when `problem` is something else: why it may be old; empty: it is not.

    `check`: the kinds that are there now, and why, by name. It is called on the worker's thread, and raises
    MachineError.
    """

    def __init__(
        self,
        *,
        worker: Worker,
        on_change: Callable[[], None],
        check: Callable[[], Mapping[str, str]] | None = None,
    ) -> None:
        super().__init__(
            self._check,
            seconds=lambda: (RETRY_SECONDS if self._problem else CHECK_SECONDS) if self._wanted else None,
            patience_seconds=FIRST_CHECK_SECONDS,
        )
        self._worker = worker
        self._on_change = on_change
        self._present = check or LocalMachine().hardware
        self._wanted = False
        self._problem = ""
        self.found: frozenset[str] | None = None

    def want(self, wanted: bool) -> None:
        """Check from now on, or no longer."""
        if wanted and not self._wanted:
            self.soon()
        self._wanted = wanted

    @property
    def problem(self) -> str:
        return self._problem if self._wanted else ""

    async def _check(self) -> None:
        try:
            present = await self._worker.run(self._present)
        except MachineError as error:
            was, self._problem = self._problem, str(error)
            if self.problem and self.problem != was:
                log.warning("hardware not searched, what was found last counts", error=self.problem)
                self._on_change()
            return
        cured, self._problem = bool(self._problem), ""
        before = self.found or frozenset()
        new = {name: why for name, why in present.items() if name not in before}
        for name, why in new.items():
            log.info("hardware found", probe=name, why=why)
        if new or cured or self.found is None:
            self.found = before | new.keys()
            self._on_change()
