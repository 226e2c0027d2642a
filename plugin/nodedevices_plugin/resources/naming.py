"""Names of extended resources: the ones that clusters with NVIDIA's plugin use today, and what a name may be.

One rule, wherever a name stands: what Kubernetes takes for an extended resource. That is 63 characters after the slash
(a node's status is refused as a whole for a longer one), capital letters and _ among them. NVIDIA's plugin is stricter
with its configuration file: 63 for the whole name, and a DNS-1123 subdomain after the slash.
"""

from __future__ import annotations

import re

from nodedevices_plugin.model import PlanError

DEFAULT_PREFIX = "nvidia.com"
SHARED_SUFFIX = ".shared"
MAX_NAME = 63  # after the slash

_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")  # DNS-1123 subdomain
_OWN = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")


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
    if _OWN.fullmatch(own) is None:
        raise PlanError(field, _shown(name), "after the slash only letters, digits, and - _ . inside are allowed")
    return name


def from_file(field: str, name: str) -> str:
    """The full name that NVIDIA's configuration file means: a name without a domain is one of nvidia.com.

    A name with another domain is taken as it is (NVIDIA's plugin refuses it). Raises PlanError.
    """
    return check(field, name if "/" in name else f"{DEFAULT_PREFIX}/{name}")


def _shown(name: str) -> str:
    return name if len(name) <= 2 * MAX_NAME else name[: 2 * MAX_NAME] + "…"
