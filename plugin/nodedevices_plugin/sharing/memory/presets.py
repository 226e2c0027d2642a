"""What a resource's name brings: the variables of the system whose name it is, so that its pods run as they are.

What a share of it is: nodedevices_api.presets. Tencent's brings none: beside NVIDIA_VISIBLE_DEVICES, which every
container with a GPU has, gpu-manager sets LD_LIBRARY_PATH alone, for libraries of its own that are not there.
"""

from __future__ import annotations

from nodedevices_api.presets import ALIYUN

from nodedevices_plugin.sharing.memory.grant import MemoryGrant


def variables(grant: MemoryGrant) -> dict[str, str]:
    """None for a name that is nobody's."""
    of_name = _VARIABLES.get(grant.resource)
    return of_name(grant) if of_name is not None else {}


def _aliyun(grant: MemoryGrant) -> dict[str, str]:
    """Those of Aliyun's GPU share. `_POD` is the container's, as nobody knows whose Allocate it is."""
    prefix = "ALIYUN_COM_GPU_MEM"
    return {
        f"{prefix}_IDX": grant.index,
        f"{prefix}_CONTAINER": str(grant.units),
        f"{prefix}_POD": str(grant.units),
        f"{prefix}_DEV": str(grant.device_units),
    }


_VARIABLES = {ALIYUN: _aliyun}
