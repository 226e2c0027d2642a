"""The rule for names of extended resources, which is the same everywhere.

It is that of Kubernetes (IsExtendedResourceName in k8s.io/kubernetes pkg/apis/core/v1/helper; the kubelet's Register
asks it). That is 63 characters after the slash (a node's status is refused as a whole for a longer one), capital
letters and _ among them; nothing with `kubernetes.io/` in it or `requests.` before it.
"""

from __future__ import annotations

import re

from nodedevices_api.fields import MAX_RESOURCE_NAME, NOT_EXTENDED, reserved_by_kubernetes
from nodedevices_common.text import clip

from nodedevices_plugin.model import PlanError

MAX_NAME = 63  # after the slash

_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")  # DNS-1123 subdomain
_OWN = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")


def plain_profile(profile: str) -> str:
    """A partition's profile as it stands in resource names, which have no plus: `1g.10gb.me` for `1g.10gb+me`."""
    return profile.replace("+", ".")


def shared(name: str) -> str:
    """The name of shares when `renameByDefault` is set: `nvidia.com/gpu.shared`."""
    return f"{name}.shared"


def wrong(name: str) -> str:
    """Return why the kubelet does not take the name as that of an extended resource; empty: it does."""
    domain, slash, own = name.partition("/")
    if not slash or not own or _DOMAIN.fullmatch(domain) is None:
        return "not a resource name; write a domain and a name, such as nvidia.com/gpu"
    if len(own) > MAX_NAME:
        return f"{len(own)} characters after the slash; {MAX_NAME} are the most"
    if _OWN.fullmatch(own) is None:
        return "after the slash only letters, digits, and - _ . inside are allowed"
    if reserved_by_kubernetes(name):
        return NOT_EXTENDED
    return f"{len(name)} characters; {MAX_RESOURCE_NAME} are the most" if len(name) > MAX_RESOURCE_NAME else ""


def check(field: str, name: str) -> str:
    """The name, if the kubelet takes it. Raises PlanError."""
    if why := wrong(name):
        raise PlanError(field, clip(name, 2 * MAX_NAME + 1), why)
    return name
