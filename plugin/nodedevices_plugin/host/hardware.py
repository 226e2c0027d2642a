"""Finds the built-in probes whose hardware this node has, every few seconds while `auto` is configured.

Hardware and drivers may come later: a hot-plugged card, a module that an operator's DaemonSet loads. A kind that was
found stays found while the agent runs: its probe has to report a card that has gone as missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import structlog
from nodedevices_common.periodic import Periodic
from nodedevices_probe.node.presence import Hardware as Machine
from nodedevices_probe.node.roots import Roots
from nodedevices_probe.registry import KINDS

from nodedevices_plugin.runtime.worker import Worker

log = structlog.get_logger(__name__)

CHECK_SECONDS = 10.0
FIRST_CHECK_SECONDS = 1.0  # a file system that hangs must not keep the node's devices away


class FoundHardware(Periodic):
    """`found`: the names of the kinds; None before the first check. `on_change` is called on the loop when it grows.

    `check`: the kinds that are there now, and why, by name. It is called on the worker's thread.
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
            seconds=lambda: CHECK_SECONDS if self._wanted else None,
            patience_seconds=FIRST_CHECK_SECONDS,
        )
        self._worker = worker
        self._on_change = on_change
        self._present = check or present
        self._wanted = False
        self.found: frozenset[str] | None = None

    def want(self, wanted: bool) -> None:
        """Check from now on, or no longer."""
        if wanted and not self._wanted:
            self.soon()
        self._wanted = wanted

    async def _check(self) -> None:
        present = await self._worker.run(self._present)
        before = self.found or frozenset()
        new = {name: why for name, why in present.items() if name not in before}
        for name, why in new.items():
            log.info("hardware found", probe=name, why=why)
        if new or self.found is None:
            self.found = before | new.keys()
            self._on_change()


def present(root: Path = Path("/")) -> dict[str, str]:
    """Return the kinds whose hardware is there now, each with the reason."""
    machine = Machine(Roots(root))
    found = {name: kind.present(machine) for name, kind in KINDS.items()}
    return {name: why for name, why in found.items() if why}
