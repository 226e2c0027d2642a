"""Names of remote pools that the probe and the agent's vendor share."""

from __future__ import annotations

VENDOR = "remote"
TYPE = "pool"
OPTION = "remote-config-file"  # of the agent, and passed on to the probe
POOL = "pool"  # the `name` in the file
CONTROLLER = "controller"
UNREACHABLE = "controllerUnreachable"  # in readings.conditions
UNCHECKED = "controllerUnchecked"  # the same: not known yet
