"""What a pod requests of extended resources, as the scheduler counts it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nodedevices_api.quantity import whole_units


def pod_request(spec: Mapping[str, Any], name: str) -> int:
    """The scheduler's rule: all containers with sidecars, or an init container with sidecars before it, if larger."""
    sidecars = peak = 0
    for container in spec.get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            sidecars += _request(container, name)
            peak = max(peak, sidecars)
        else:
            peak = max(peak, sidecars + _request(container, name))
    return max(peak, sidecars + sum(_request(container, name) for container in spec.get("containers") or ()))


def extended(spec: Mapping[str, Any], most: int) -> tuple[tuple[str, int], ...]:
    """The extended resources that a pod requests and how many of each, in order of their names; at most `most`."""
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    amounts = [container.get("resources") or {} for container in containers]
    names = {str(name) for each in amounts for kind in ("requests", "limits") for name in each.get(kind) or ()}
    counts = ((name, pod_request(spec, name)) for name in sorted(names) if "/" in name)
    return tuple((name, count) for name, count in counts if count > 0)[:most]


def _request(container: Mapping[str, Any], name: str) -> int:
    resources = container.get("resources") or {}
    value = (resources.get("requests") or {}).get(name) or (resources.get("limits") or {}).get(name) or 0
    return whole_units(value)
