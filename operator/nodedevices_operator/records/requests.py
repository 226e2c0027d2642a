"""Requests of a pod for extended resources, as the scheduler counts them."""

from __future__ import annotations

from nodedevices_common.pod_requests import INIT, extended_resources, raw_containers
from nodedevices_common.raw import Raw


def pod_requests(spec: Raw) -> dict[str, int]:
    """By resource. The scheduler's rule: all containers with sidecars, or an init container with the sidecars before it
    if that is more."""
    running: dict[str, int] = {}  # sidecars, then with the others
    peak: dict[str, int] = {}
    for kind, container in raw_containers(spec):
        for name, count in extended_resources(container).items():
            at_once = running.get(name, 0) + count
            peak[name] = max(peak.get(name, 0), at_once)
            if kind != INIT:
                running[name] = at_once
    return peak
