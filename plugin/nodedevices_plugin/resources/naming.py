"""Names of extended resources: the ones that clusters with NVIDIA's plugin use today, and what a name may be.

Kubernetes takes 63 characters after the slash (a node's status is refused as a whole for a longer one). NVIDIA's
configuration file is stricter, 63 for the whole name and a DNS-1123 subdomain after the slash, and so is `from_file`.
"""

from __future__ import annotations

import re

from nodedevices_plugin.resources.errors import PlanError

DEFAULT_PREFIX = "nvidia.com"
SHARED_SUFFIX = ".shared"
MAX_NAME = 63  # after the slash, and in NVIDIA's file as a whole

_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")  # DNS-1123 subdomain


def gpu(prefix: str) -> str:
    """`nvidia.com/gpu`."""
    return f"{prefix}/gpu"


def mig(prefix: str, profile: str) -> str:
    """`nvidia.com/mig-1g.10gb`; the attributes of a profile (`1g.10gb+me`) follow a dot: `mig-1g.10gb.me`."""
    return f"{prefix}/mig-{plain_profile(profile)}"


def plain_profile(profile: str) -> str:
    """A MIG profile as it stands in resource names: `1g.10gb.me` for `1g.10gb+me`."""
    return profile.replace("+", ".")


def shared(name: str) -> str:
    """The name of shares when `renameByDefault` is set: `nvidia.com/gpu.shared`."""
    return name + SHARED_SUFFIX


def check(field: str, name: str) -> str:
    """The name, if the kubelet takes it as that of an extended resource. Raises PlanError."""
    domain, slash, own = name.partition("/")
    if not slash or not own or _DOMAIN.fullmatch(domain) is None:
        raise PlanError(field, _shown(name), "not a resource name; write a domain and a name, such as nvidia.com/gpu")
    if len(own) > MAX_NAME:
        raise PlanError(field, _shown(name), f"{len(own)} characters after the slash; {MAX_NAME} are the most")
    return name


def from_file(field: str, name: str) -> str:
    """The full name that NVIDIA's configuration file means: a name without a domain is one of nvidia.com.

    A name with another domain is taken as it is (NVIDIA's plugin refuses it). Raises PlanError.
    """
    full = name if "/" in name else f"{DEFAULT_PREFIX}/{name}"
    if len(full) > MAX_NAME:
        hint = f"{len(full)} characters with the domain; {MAX_NAME} are the most"
        raise PlanError(field, _shown(full), hint)
    if _DOMAIN.fullmatch(full.partition("/")[2]) is None:
        raise PlanError(field, _shown(full), "after the slash only small letters, digits, - and . inside are allowed")
    return check(field, full)


def _shown(name: str) -> str:
    return name if len(name) <= 2 * MAX_NAME else name[: 2 * MAX_NAME] + "…"
