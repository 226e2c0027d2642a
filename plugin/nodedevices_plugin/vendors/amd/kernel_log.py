"""What lines of amdgpu and of PCIe's error reporting in the kernel's log mean for an AMD GPU.

Source: the kernel's drivers/gpu/drm/amd/amdgpu (amdgpu_job.c, amdgpu_device.c, amdgpu_ras.c). A hung ring is most often
the program's doing. A reset ends the programs on the GPU and repairs it; only one that fails leaves it unusable.
Uncorrectable errors change a state by their counter in sysfs (EccUncorrectable): the line adds in which block.
"""

from __future__ import annotations

from collections.abc import Mapping

from nodedevices_probe import kmsg as kinds

from nodedevices_plugin.vendors.faults import Effect, Meaning, pcie_meanings

MEANINGS: Mapping[str, Meaning] = {
    kinds.AMDGPU_RESET_FAILED: Meaning(
        reason="GpuResetFailed",
        effect=Effect.UNHEALTHY,
        message="the driver tried to reset the GPU, and failed (amdgpu)",
        action="RebootNode",
    ),
    kinds.AMDGPU_RESET: Meaning(
        reason="GpuReset",
        effect=Effect.DEGRADED,
        message="the driver has reset the GPU, and ended what ran on it (amdgpu)",
    ),
    kinds.AMDGPU_RING_TIMEOUT: Meaning(
        reason="RingTimeout",
        effect=Effect.NOTICE,
        message="a job on the GPU did not end in time (amdgpu: ring timeout)",
        action="RestartApp",
        repair="ResetDevice",
        domain="Application",
    ),
    kinds.AMDGPU_UNCORRECTABLE: Meaning(
        reason="RasUncorrectable",
        effect=Effect.NOTICE,
        message="the driver has logged uncorrectable errors of the GPU (amdgpu)",
        repair="ResetDevice",
    ),
    **pcie_meanings(),
}
REASONS = tuple(meaning.reason for meaning in MEANINGS.values())
