"""The resource names that clusters with NVIDIA's plugin use today.

NVIDIA's plugin is stricter with names in its configuration file than Kubernetes is (resource_names): 63 characters for
the whole name, and a DNS-1123 subdomain after the slash.
"""

from __future__ import annotations

from nodedevices_plugin.model import resource_names

DEFAULT_PREFIX = "nvidia.com"


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
