"""The driver's library, calls of NVML that cannot hurt the probe, whatever they return, and the driver's events.

The library is searched for below the mounted driver root, as NVIDIA's plugin looks for it, else where the system's
loader finds it. pynvml opens it by its soname. One that was loaded by its path before has that soname, so the loader
gives pynvml the same. It may come at any time, with a driver container; what is loaded stays for the life of the
process.

An old driver lacks functions, a card lacks features, a container lacks rights, a GPU falls off the bus between two
calls: each of these is an answer ("not known") about one device and never an exception. Only a driver that has gone as
a whole is one, since then every call fails.

Events are waited for in a thread, which writes them into the EventLog. One monitor covers a fixed set of GPUs; when the
set changes, or waiting fails, a new one is started first and the old one stopped, so that no event falls between them
(one that both see is counted twice, which harms nothing). A GPU whose events cannot be had is named in `unmonitored`. A
thread that hangs in the driver is left behind: it is a daemon, and it shares nothing with the next monitor but the log.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml
from nodedevices_api.bounds import INT32_MAX
from nodedevices_common.errors import OperationError

from nodedevices_probe.loop import EventKey, EventLog
from nodedevices_probe.node.roots import inside
from nodedevices_probe.protocol import MAX_MESSAGE, text

# --- the library ------------------------------------------------------------------------------------------------------
NAME = "libnvidia-ml.so.1"
FOLDERS = (  # in the order of NVIDIA's plugin v0.20.0
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
)


@dataclass(slots=True)
class Library:
    """`root`: where the driver's root is mounted; with "" or "/" only the loader looks. `problem`: what was found there
    and could not be loaded."""

    root: str = ""
    problem: str = ""
    _loaded: bool = False

    def load(self) -> None:
        """Load the library; called before every attempt to initialise NVML."""
        if self._loaded or self.root in {"", "/"}:
            return
        path = find(Path(self.root))
        self.problem = ""
        if path is not None:
            try:
                ctypes.CDLL(str(path))
                self._loaded = True
            except OSError as error:
                self.problem = str(error)

    def missing(self) -> str:
        """Why there is none, where the loader found none either."""
        if self.problem:
            return self.problem
        where = "" if self.root in {"", "/"} else f"neither below {self.root} nor "
        return f"{NAME} is {where or 'not '}where the system searches for libraries"


def find(root: Path) -> Path | None:
    """Return the library below that root."""
    found = (inside(root, f"{folder}/{NAME}") for folder in FOLDERS)
    return next((path for path in found if path is not None and path.is_file()), None)


# --- calls ------------------------------------------------------------------------------------------------------------
DRIVER_GONE = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    }
)
# "This card, this driver or this container does not have it": says nothing about the device's health.
NOT_AVAILABLE = frozenset(
    {
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_NOT_FOUND,
        pynvml.NVML_ERROR_INSUFFICIENT_SIZE,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_NO_DATA,
        pynvml.NVML_ERROR_VGPU_ECC_NOT_SUPPORTED,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_DEPRECATED,
        pynvml.NVML_ERROR_NOT_READY,
    }
)


class DriverGoneError(OperationError):
    """The driver as a whole answers no more. `code` is NVML's."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(describe(code))


def describe(code: int) -> str:
    """NVML's text for a return code; works without the library."""
    return str(pynvml.NVMLError(code))


@dataclass(slots=True)
class NvmlCalls:
    """NVML calls for one device, and what went wrong in them. After "GPU is lost" nothing more is called for it."""

    lost: bool = False
    error: str | None = None
    refused: str | None = None  # the last call that failed, and why
    code: int = pynvml.NVML_SUCCESS  # its return code

    def call(self, function: str, *arguments: Any, telemetry: bool = False) -> Any:
        """The function's result; None when it failed. A failed `telemetry` call is no error of the device."""
        if self.lost:
            return None
        try:
            return getattr(pynvml, function)(*arguments)
        except pynvml.NVMLError as error:
            self.judge(function, error.value, telemetry=telemetry)
        except UnicodeDecodeError:
            if not telemetry:
                self._failed(function, "the result is not text")
        return None

    def needed(self, function: str, *arguments: Any) -> Any:
        """The function's result. Without it the device would seem to be another one, so that no answer, for whatever
        reason, is an error of the device."""
        result = self.call(function, *arguments)
        if result is None and not self.lost:
            self.error = self.error or self.refused
        return result

    def judge(self, function: str, code: int, *, telemetry: bool = False) -> bool:
        """Take note of a return code; True for success. Raises DriverGoneError."""
        if code == pynvml.NVML_SUCCESS:
            return True
        self.refused, self.code = text(f"{function}: {describe(code)}", MAX_MESSAGE), code
        if code in DRIVER_GONE:
            raise DriverGoneError(code)
        if code == pynvml.NVML_ERROR_GPU_IS_LOST:
            self.lost = True
        elif code not in NOT_AVAILABLE and not telemetry:
            self._failed(function, describe(code))
        return False

    def _failed(self, function: str, why: str) -> None:
        self.error = self.error or text(f"{function}: {why}", MAX_MESSAGE)


# --- events -----------------------------------------------------------------------------------------------------------
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
            while not self._stop.is_set():
                with contextlib.suppress(pynvml.NVMLError_Timeout):
                    self._record(pynvml.nvmlEventSetWait_v2(self._set, WAIT_MILLISECONDS))
        except pynvml.NVMLError as error:
            self.failed = describe(error.value)
        except Exception as error:  # the thread may not end unseen: no XID would be seen any more
            self.failed = f"{type(error).__name__}: {error}"
        if self.failed:
            self._log.wake.set()  # the next poll sees what is wrong and starts another monitor
        with contextlib.suppress(pynvml.NVMLError):  # when the driver has gone, the set has too
            pynvml.nvmlEventSetFree(self._set)

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
