"""Names of Intel's GPUs that the probe and the agent's vendor share."""

from __future__ import annotations

VENDOR = "intel"
DRIVERS = ("i915", "xe")
DRIVER = "driver"  # one of these
FUNCTIONS = "virtualFunctions"  # how many a physical function has
