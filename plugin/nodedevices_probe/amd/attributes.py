"""Names of AMD's GPUs that the probe and the agent's vendor share."""

from __future__ import annotations

VENDOR = "amd"
EXPORTER_UNHEALTHY = "exporterUnhealthy"  # a condition: what AMD's device metrics exporter says
KFD_NODE = "/dev/kfd"  # which all programs open
PROFILE = "partitionProfile"  # cpx_nps4, as AMD's resources are called; of a GPU that can be partitioned
