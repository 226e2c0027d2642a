"""The device that an entry of a class or bus of sysfs is of: the one in whose folder it stands, by the path that it
links to.

class/net/eth0          -> devices/pci0000:00/0000:00:03.0/virtio2/net/eth0
class/net/enp3s0f0s88   -> devices/pci0000:00/.../0000:03:00.0/mlx5_core.sf.2/net/enp3s0f0s88
class/infiniband/rxe0   -> devices/virtual/infiniband/rxe0

A mock of sysfs may have folders in the place of these links, as NVIDIA's mock of InfiniBand has (k8s-test-infra,
pkg/network/mockib): such an entry is of the device that its own link `device` names, if it has one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from nodedevices_probe.node.roots import Roots
from nodedevices_probe.node.sysfs import PCI_DEVICE

# <driver>.<type>.<number> of the auxiliary bus. A sub-function is a device of its own; other types (mlx5_core.rdma.0,
# ice.roce.0) are parts of their device.
AUXILIARY = re.compile(r"[A-Za-z0-9_]{1,32}\.([A-Za-z0-9_-]{1,32})\.[0-9]{1,9}")
SUB_FUNCTION = "sf"


@dataclass(frozen=True, slots=True)
class SysfsOwner:
    """`pci`: the nearest PCI function; "" for what has none. `auxiliary`: a sub-function below it."""

    pci: str = ""
    auxiliary: str = ""


def owner(roots: Roots, path: str) -> SysfsOwner | None:
    """Return the owner of the entry of this path, which is a link, or a folder of a mock; None: it is gone."""
    link = roots.target(path)
    if not link and not roots.exists(path):
        return None
    found = SysfsOwner()
    for part in link[:-1] if link else roots.target(f"{path}/device"):
        if PCI_DEVICE.fullmatch(part):
            found = SysfsOwner(part)
        elif auxiliary_type(part) == SUB_FUNCTION:
            found = SysfsOwner(found.pci, part)
    return found


def auxiliary_type(name: str) -> str:
    """Return the type in a name of the auxiliary bus; "" for others."""
    match = AUXILIARY.fullmatch(name)
    return match[1] if match else ""
