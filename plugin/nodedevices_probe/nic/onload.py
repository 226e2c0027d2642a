"""Onload, by what its kernel modules make: character devices that programs with libonload open.

It is of the machine, and each Solarflare card with the driver sfc needs it. A driver's character device is in
/proc/devices once its module is loaded (sfc_char, onload); its node in /dev is udev's.
"""

from __future__ import annotations

import re

from nodedevices_probe.nic.attributes import ONLOAD_MISSING, ONLOAD_NODES
from nodedevices_probe.nic.models import SOLARFLARE
from nodedevices_probe.node.roots import Roots

DRIVER = "sfc"
MAX_BYTES = 1 << 16  # of /proc/devices
_LINE = re.compile(r"\s*[0-9]{1,4} ([a-z0-9_]{1,64})\s*")


def missing(roots: Roots) -> bool:
    """True when something of it is not loaded, or has no node."""
    characters = roots.read("proc/devices", MAX_BYTES).partition("Block devices:")[0]
    loaded = {match[1] for match in map(_LINE.fullmatch, characters.splitlines()) if match}
    return any(each.removeprefix("/dev/") not in loaded or not roots.has_node(each) for each in ONLOAD_NODES)


def conditions(vendor: str, driver: str, *, is_missing: bool) -> tuple[str, ...]:
    """Return the conditions of a physical function, for its readings. `vendor`: its PCI vendor."""
    concerned = vendor == SOLARFLARE and driver == DRIVER
    return (ONLOAD_MISSING,) if concerned and is_missing else ()
