"""Names of other makers' resources of GPU memory: what a share is where its rule does not say it, and which resource of
computing power goes with it.

The agent has what containers get beside it, by the same names (nodedevices_plugin.sharing.presets).
"""

from __future__ import annotations

from collections.abc import Mapping

ALIYUN = "aliyun.com/gpu-mem"
TENCENT = "tencent.com/vcuda-memory"
MEMORY_UNITS: Mapping[str, str] = {ALIYUN: "1Gi", TENCENT: "256Mi"}  # their plugins' own
CORE_RESOURCES: Mapping[str, str] = {TENCENT: "tencent.com/vcuda-core"}
