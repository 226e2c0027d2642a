"""The variables that go with another system's resource name, so that its pods run unchanged.

The unit of such a name is in nodedevices_api.presets. Tencent's has no variables: beside NVIDIA_VISIBLE_DEVICES, which
every container with a GPU has, gpu-manager sets LD_LIBRARY_PATH alone, for libraries of its own that are not there.
"""

from __future__ import annotations

from nodedevices_api.presets import ALIYUN

from nodedevices_plugin.sharing.memory.grant import MemoryGrant


def variables(grant: MemoryGrant) -> dict[str, str]:
    """Return the variables; none for a name of no such system."""
    of_name = _VARIABLES.get(grant.resource)
    return of_name(grant) if of_name is not None else {}


def _aliyun(grant: MemoryGrant) -> dict[str, str]:
    """Return those of Aliyun's GPU share. `_POD` has the container's amount: the pod of an Allocate is not known."""
    prefix = "ALIYUN_COM_GPU_MEM"
    return {
        f"{prefix}_IDX": grant.index,
        f"{prefix}_CONTAINER": str(grant.units),
        f"{prefix}_POD": str(grant.units),
        f"{prefix}_DEV": str(grant.device_units),
    }


_VARIABLES = {ALIYUN: _aliyun}
