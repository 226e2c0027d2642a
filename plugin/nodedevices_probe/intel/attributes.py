"""What the probe and the agent's vendor both name of Intel's GPUs."""

from __future__ import annotations

VENDOR = "intel"
DRIVERS = ("i915", "xe")
DRIVER = "driver"  # one of these
FUNCTIONS = "virtualFunctions"  # how many a physical function has
