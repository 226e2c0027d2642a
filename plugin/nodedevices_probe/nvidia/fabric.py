"""The NVLink fabric of a machine or rack with switches, as the driver of one GPU sees it.

A fabric manager registers each GPU with it, at boot and after a reset. The state stays Completed when the manager dies
later: what says so then is the health mask of newer drivers, and that a GPU which was Completed is not any more.
"""

from __future__ import annotations

import uuid
from ctypes import byref
from dataclasses import dataclass
from typing import Any

import pynvml

from nodedevices_probe.nvidia.calls import NvmlCalls, describe
from nodedevices_probe.protocol import MAX_MESSAGE, text

COMPLETED = "Completed"
STATES = {
    pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED: "NotSupported",
    pynvml.NVML_GPU_FABRIC_STATE_NOT_STARTED: "NotStarted",
    pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS: "InProgress",
    pynvml.NVML_GPU_FABRIC_STATE_COMPLETED: COMPLETED,
}
# Parts of the health mask (nvml.h, NVML_GPU_FABRIC_HEALTH_MASK_*): shift, width, the value that says there is a fault,
# and its name. Left out is whether a partition is assigned: where partitions are given to machines, it is normal that
# none is. A GPU without a partition is not Completed.
_FAULTS = (
    (
        pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_DEGRADED_BW,
        pynvml.NVML_GPU_FABRIC_HEALTH_MASK_WIDTH_DEGRADED_BW,
        pynvml.NVML_GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_TRUE,
        "bandwidthDegraded",
    ),
    (
        pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_RECOVERY,
        pynvml.NVML_GPU_FABRIC_HEALTH_MASK_WIDTH_ROUTE_RECOVERY,
        pynvml.NVML_GPU_FABRIC_HEALTH_MASK_ROUTE_RECOVERY_TRUE,
        "routeRecovery",
    ),
    (
        pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY,
        pynvml.NVML_GPU_FABRIC_HEALTH_MASK_WIDTH_ROUTE_UNHEALTHY,
        pynvml.NVML_GPU_FABRIC_HEALTH_MASK_ROUTE_UNHEALTHY_TRUE,
        "routeUnhealthy",
    ),
    (
        pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ACCESS_TIMEOUT_RECOVERY,
        pynvml.NVML_GPU_FABRIC_HEALTH_MASK_WIDTH_ACCESS_TIMEOUT_RECOVERY,
        pynvml.NVML_GPU_FABRIC_HEALTH_MASK_ACCESS_TIMEOUT_RECOVERY_TRUE,
        "accessTimeoutRecovery",
    ),
    (
        pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_GFM_STATE,
        pynvml.NVML_GPU_FABRIC_HEALTH_MASK_WIDTH_GFM_STATE,
        pynvml.NVML_GPU_FABRIC_HEALTH_MASK_GFM_STATE_DISCONNECTED,
        "managerDisconnected",
    ),
)
_SETUP_SHIFT = pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_INCORRECT_CONFIGURATION
_SETUP_WIDTH = pynvml.NVML_GPU_FABRIC_HEALTH_MASK_WIDTH_INCORRECT_CONFIGURATION
_SETUP_WELL = frozenset(
    {
        pynvml.NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_NOT_SUPPORTED,
        pynvml.NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_NONE,
        pynvml.NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_NO_PARTITION,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    state: str | None = None  # None: the driver does not say
    error: str | None = None
    conditions: tuple[str, ...] = ()
    clique: str = ""  # <cluster uuid>.<clique id>, once the GPU has joined one


def read_fabric(nvml: NvmlCalls, handle: Any) -> Fabric:
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    if nvml.call("nvmlDeviceGetGpuFabricInfoV", handle, byref(info), telemetry=True) is None:
        return Fabric()
    state, cluster = STATES.get(info.state), bytes(info.clusterUuid)
    if state != COMPLETED:  # "must be checked only if state returns complete", says nvml.h of the status
        return Fabric(state=state)
    if info.status != pynvml.NVML_SUCCESS:
        return Fabric(state=state, error=text(describe(info.status), MAX_MESSAGE))
    return Fabric(
        state=state,
        conditions=_conditions(info.healthMask),
        clique=f"{uuid.UUID(bytes=cluster)}.{info.cliqueId}" if any(cluster) else "",
    )


def _conditions(mask: int) -> tuple[str, ...]:
    found = [name for shift, width, fault, name in _FAULTS if mask >> shift & width == fault]
    return (*found, *(("wrongSetup",) if mask >> _SETUP_SHIFT & _SETUP_WIDTH not in _SETUP_WELL else ()))
