"""Waits for the driver's events in a thread and writes them into the EventLog.

One monitor covers a fixed set of GPUs; when the set changes, or waiting fails, a new one is started first and the old
one stopped, so that no event falls between them (one that both see is counted twice, which harms nothing). A GPU
whose events cannot be had is named in `unmonitored`. A thread that hangs in the driver is left behind: it is a daemon,
and it shares nothing with the next monitor but the log.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Mapping
from typing import Any

import pynvml
from nodedevices_api.bounds import INT32_MAX

from nodedevices_probe.loop import EventKey, EventLog
from nodedevices_probe.nvidia.calls import DRIVER_GONE, DriverGoneError, describe

WAIT_MILLISECONDS = 1000
KINDS = {
    pynvml.nvmlEventTypeXidCriticalError: "xid",
    pynvml.nvmlEventMigConfigChange: "mig-config",
    pynvml.nvmlEventTypeSingleBitEccErrorStorm: "ecc-storm",
    pynvml.nvmlEventTypeDramRetirementEvent: "dram-retirement",
    pynvml.nvmlEventTypeDramRetirementFailure: "dram-retirement",
    pynvml.nvmlEventTypeNonFatalPoisonError: "poison",
    pynvml.nvmlEventTypeFatalPoisonError: "poison",
    pynvml.nvmlEventTypeGpuUnavailableError: "gpu-unavailable",
    pynvml.nvmlEventTypeGpuRecoveryAction: "recovery-action",
}
WANTED = sum(KINDS)


class Monitor:
    """Watches these GPUs (id -> handle) until `stop`. Raises DriverGoneError or NVMLError when there are no events."""

    def __init__(self, gpus: Mapping[str, Any], log: EventLog) -> None:
        self.unmonitored: dict[str, str] = {}  # id -> why
        self.failed: str | None = None
        self._log = log
        self._stop = threading.Event()
        self._ids = {_address(handle): identity for identity, handle in gpus.items()}
        self._set = pynvml.nvmlEventSetCreate()
        for identity, handle in gpus.items():
            self._register(identity, handle)
        self._thread = threading.Thread(target=self._wait, name="nvml-events", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; it ends within WAIT_MILLISECONDS unless the driver holds it."""
        self._stop.set()

    def ended(self) -> bool:
        """Stop the thread and wait for it, but not for ever."""
        self.stop()
        self._thread.join(2 * WAIT_MILLISECONDS / 1000)
        return not self._thread.is_alive()

    def _register(self, identity: str, handle: Any) -> None:
        try:
            mask = WANTED & pynvml.nvmlDeviceGetSupportedEventTypes(handle)
            if mask:
                pynvml.nvmlDeviceRegisterEvents(handle, mask, self._set)
            if not mask & pynvml.nvmlEventTypeXidCriticalError:
                self.unmonitored[identity] = "it has no XID events"
        except pynvml.NVMLError as error:
            if error.value in DRIVER_GONE:
                raise DriverGoneError(error.value) from None
            self.unmonitored[identity] = describe(error.value)

    def _wait(self) -> None:
        try:
            self._record_until_stopped()
        except Exception as error:  # the thread may not end unseen: no XID would be seen any more
            self.failed = f"{type(error).__name__}: {error}"
            self._log.wake.set()
        with contextlib.suppress(pynvml.NVMLError):  # when the driver has gone, the set has too
            pynvml.nvmlEventSetFree(self._set)

    def _record_until_stopped(self) -> None:
        while not self._stop.is_set():
            try:
                data = pynvml.nvmlEventSetWait_v2(self._set, WAIT_MILLISECONDS)
            except pynvml.NVMLError as error:
                if error.value == pynvml.NVML_ERROR_TIMEOUT:
                    continue
                self.failed = describe(error.value)
                self._log.wake.set()  # the next poll sees what is wrong and starts another monitor
                break
            self._record(data)

    def _record(self, data: Any) -> None:
        if kind := KINDS.get(data.eventType):
            key = EventKey(
                kind=kind,
                device_id=self._ids.get(_address(data.device)),
                xid=min(data.eventData, INT32_MAX) if kind == "xid" else None,
                gi=_instance(data.gpuInstanceId),
                ci=_instance(data.computeInstanceId),
            )
            self._log.record(key)


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


def _instance(number: int) -> int | None:
    return number if number <= 0xFFFF else None  # 0xFFFFFFFF: the whole GPU
