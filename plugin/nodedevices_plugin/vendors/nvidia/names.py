"""What clusters with NVIDIA's plugin and DRA driver call things today: resources, and devices in claims.

NVIDIA's plugin is stricter with names in its configuration file than Kubernetes is (resource_names): 63 characters for
the whole name, and a DNS-1123 subdomain after the slash.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from nodedevices_plugin.model import Unit, resource_names
from nodedevices_plugin.model.resource_names import plain

DEFAULT_PREFIX = "nvidia.com"
DRA_DRIVER = "gpu.nvidia.com"
_MIG = "-mig-"
_GOOGLE_SHARE = re.compile(r"(?P<device>nvidia[0-9]{1,4}(/gi[0-9]{1,3})?)/vgpu[0-9]{1,5}")


def gpu(prefix: str) -> str:
    """`nvidia.com/gpu`."""
    return f"{prefix}/gpu"


def mig(prefix: str, profile: str) -> str:
    """`nvidia.com/mig-1g.10gb`; the attributes of a profile (`1g.10gb+me`) follow a dot: `mig-1g.10gb.me`."""
    return f"{prefix}/mig-{resource_names.plain_profile(profile)}"


def from_file(field: str, name: str) -> str:
    """The full name that NVIDIA's configuration file means: a name without a domain is one of nvidia.com.

    A name with another domain is taken as it is (NVIDIA's plugin refuses it). Raises PlanError.
    """
    return resource_names.check(field, name if "/" in name else f"{DEFAULT_PREFIX}/{name}")


def google(unit: Unit) -> Sequence[str]:
    """The id that Google's plugin gives it: `nvidia0`, by the minor number, and `nvidia0/gi3` for a MIG device."""
    minor, part = unit.device.fact.minor, unit.partition
    if minor is None or (part is not None and part.gi is None):
        return ()
    return (f"nvidia{minor}" if part is None else f"nvidia{minor}/gi{part.gi}",)


def without_google_share(name: str) -> str:
    """`nvidia0` for `nvidia0/vgpu2`, and `nvidia0/gi3` for `nvidia0/gi3/vgpu2`: Google's ids of shares."""
    share = _GOOGLE_SHARE.fullmatch(name)
    return name if share is None else share["device"]


def claim(unit: Unit, gpu: str) -> str:
    """`gpu-3`, and for a MIG device its profile and where it starts, which no two of a GPU share."""
    part = unit.partition
    return gpu if part is None else f"{gpu}{_MIG}{plain(part.profile)}-{part.start}"


def claimed(name: str) -> Sequence[str]:
    """Return our names for `gpu-3` or `gpu-3-mig-1g.10gb-19-0`; a MIG device that is not listed counts as its GPU."""
    parent, mig, tail = name.partition(_MIG)
    if not mig:
        return (name,)
    profile, _, start = tail.rpartition("-")
    return (f"{parent}{_MIG}{plain(profile.rpartition('-')[0])}-{start}", parent)
