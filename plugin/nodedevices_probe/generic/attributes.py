"""Names of generic devices that the probe and the agent's vendor share."""

from __future__ import annotations

VENDOR = "generic"
TYPE = "generic"
OPTION = "generic-config-file"  # of the agent, and passed on to the probe
ENTRY = "entry"  # the `name` in the file
SHAPE = "entryShape"  # of its group (config.shape): parts mean something only together with it
PARTS = "parts"  # of which part of the group each of the device nodes is: "0,1,1"
EXCLUSIVE = "exclusiveNodes"  # so many of the device nodes, the first ones, are this device's alone
MATCH = "match"  # what the wildcards stand for
SERIAL = "serial"  # of a USB device
PORT = "usbPort"  # where it is plugged in: 1-1.4
MOUNTS = "mounts"  # which of the group's parts are there and are mounted: "2,3"


def mount_of(part: int) -> str:
    """The attribute with the host's path of a mounted part, where its wildcards leave several."""
    return f"path{part}"
