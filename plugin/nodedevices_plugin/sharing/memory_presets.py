"""What a resource's name brings: the variables of the system whose name it is, so that its pods run as they are."""

from __future__ import annotations

from nodedevices_plugin.sharing.memory_grant import MemoryGrant

ALIYUN = "aliyun.com/gpu-mem"


def variables(grant: MemoryGrant) -> dict[str, str]:
    """None for a name that is nobody's."""
    return _aliyun(grant) if grant.resource == ALIYUN else {}


def _aliyun(grant: MemoryGrant) -> dict[str, str]:
    """Those of Aliyun's GPU share. `_POD` is the container's, as nobody knows whose Allocate it is."""
    prefix = "ALIYUN_COM_GPU_MEM"
    return {
        f"{prefix}_IDX": grant.index,
        f"{prefix}_CONTAINER": str(grant.units),
        f"{prefix}_POD": str(grant.units),
        f"{prefix}_DEV": str(grant.device_units),
    }
