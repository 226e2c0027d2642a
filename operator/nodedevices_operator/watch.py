"""kopf in a thread and an event loop of its own, started again whenever it ends.

At its end kopf cancels every task of its loop that it does not know, and it ends on errors that are ordinary to us (a
CRD deleted, a bad answer to a watch). In a loop of its own neither can reach the rest of the operator. What crosses
over are frozen records, in order.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Callable, Mapping
from typing import Any, cast

import kopf
import structlog

from nodedevices_operator.cache import Kind, Record, read
from nodedevices_operator.handlers import make_registry, make_settings
from nodedevices_operator.kube import MANAGER

Arrived = Callable[[Kind, bool, Record], None]

RESTART_SECONDS = (1.0, 30.0)  # grows while kopf keeps ending
STEADY_SECONDS = 60.0  # having run so long, it starts at the first delay again
JOIN_SECONDS = 5.0

log = structlog.get_logger()


class Watch:
    """The watches of NodeDevices, DevicePolicies and Nodes. Made and used in the operator's loop."""

    def __init__(self, kubeconfig: str | None, arrived: Arrived, restarted: Callable[[], None]) -> None:
        self._kubeconfig = kubeconfig
        self._arrived = arrived
        self._restarted = restarted
        self._home = asyncio.get_running_loop()
        self._ending = threading.Event()
        self.started = False
        self._kopf: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self._thread = threading.Thread(target=self._run, name="kopf", daemon=True)
        for name in ("kopf", "kopf.objects", "kopf.activities"):
            logging.getLogger(name).setLevel(logging.WARNING)  # it logs every event at INFO
        logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)  # that signals are not its business

    def start(self) -> None:
        """Begin; once only."""
        if not self.started:
            self.started = True
            self._thread.start()

    def restart(self) -> None:
        """End the present watches; the thread begins new ones, which list everything first."""
        running = self._kopf
        if running is not None:
            loop, stop = running
            loop.call_soon_threadsafe(stop.set)

    async def stop(self) -> None:
        """End for good; waits a little for the connections to be closed."""
        self._ending.set()
        self.restart()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, JOIN_SECONDS)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    # --- in the thread -----------------------------------------------------------------------------------------------
    def _run(self) -> None:
        failures = 0
        while not self._ending.is_set():
            try:
                with asyncio.Runner() as runner:
                    began = runner.get_loop().time()
                    runner.run(self._operate())
                    lasted = runner.get_loop().time() - began
            except Exception as error:  # whatever ended it, the watches must go on
                lasted = 0.0
                log.warning("watch ended", error=f"{type(error).__name__}: {error}"[:500])
            self._kopf = None
            failures = 0 if lasted > STEADY_SECONDS else failures + 1
            first, most = RESTART_SECONDS
            if not self._ending.wait(min(most, first * 2.0 ** min(failures, 8)) * random.uniform(0.8, 1.2)):
                self._post(self._restarted)

    async def _operate(self) -> None:
        stop = asyncio.Event()
        self._kopf = (asyncio.get_running_loop(), stop)
        if self._ending.is_set():
            return
        await kopf.operator(
            registry=make_registry(self._deliver, self._kubeconfig),
            settings=make_settings(),
            clusterwide=True,
            standalone=True,
            identity=cast("Any", MANAGER),  # else kopf asks for the user's name, and our uid has none in the image
            stop_flag=stop,
        )

    def _deliver(self, kind: Kind, deleted: bool, raw: Mapping[str, Any]) -> None:
        self._post(self._arrived, kind, deleted, read(kind, raw))

    def _post(self, callback: Callable[..., None], *arguments: Any) -> None:
        try:
            self._home.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:  # the operator's loop is closed: the process is ending
            self._ending.set()
