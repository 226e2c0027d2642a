"""The same rows as of pods, of the pods' own status alone: for those who may read a namespace, and no NodeDevices.

What the operator marks (the condition DeviceHealthy), what the kubelet says of each device that a container has
(allocatedResourcesStatus, KEP-4680), and what the container asks for. Which device of the node that is, and what would
help, is in none of these.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodedevices_common.raw import Raw, mapping, mappings, text
from nodedevices_common.table import Row

from nodedevices_kubectl.views import facts

MARK = "nodedevices.io/DeviceHealthy"  # as nodedevices_api.conditions has it; a test compares
_ENDED = frozenset({"Succeeded", "Failed"})
_MARKED = {"True": facts.HEALTHY, "False": facts.UNHEALTHY}


def rows(pod: Raw) -> Iterator[Row]:
    """Yield the pod's row, if it asks for devices, and has not ended."""
    about, status = mapping(pod.get("metadata")), mapping(pod.get("status"))
    asked = _asked(pod)
    if not asked or text(status.get("phase")) in _ENDED or not text(mapping(pod.get("spec")).get("nodeName")):
        return
    allocated = [
        (text(container.get("name")), text(resource.get("name")), device)
        for key in ("initContainerStatuses", "containerStatuses")
        for container in mappings(status.get(key))
        for resource in mappings(container.get("allocatedResourcesStatus"))
        for device in mappings(resource.get("resources"))
    ]
    mark = facts.condition(pod, MARK)
    healths = [text(device.get("health")) for _, _, device in allocated]
    health = _MARKED.get(text(mark.get("status")), facts.UNKNOWN)
    if not mark:
        health = min(filter(None, healths), key=_rank, default=facts.UNKNOWN)
    ids = list(dict.fromkeys(text(device.get("resourceID")) for _, _, device in allocated))
    namespace, name = text(about.get("namespace")), text(about.get("name"))
    yield Row(
        f"pod/{name}",
        {
            "namespace": namespace,
            "pod": name,
            "node": text(mapping(pod.get("spec")).get("nodeName")),
            "devices": ids,
            "ids": ids,
            "health": health,
            "reason": text(mark.get("reason")) if health != facts.HEALTHY else "",
            "message": text(mark.get("message")),
            "recoveryAction": "",
            "resources": sorted({resource for _, resource in asked}),
            "containers": sorted({container for container, _ in asked}),
            "shares": None,
            "since": text(status.get("startTime")),  # the kubelet gives devices as it admits a pod
        },
        key=f"{namespace}/{name}",
    )


def _asked(pod: Raw) -> list[tuple[str, str]]:
    """Return the containers with the extended resources that they ask for."""
    spec = mapping(pod.get("spec"))
    return [
        (text(container.get("name")), resource)
        for key in ("initContainers", "containers")
        for container in mappings(spec.get(key))
        for resource in mapping(mapping(container.get("resources")).get("limits"))
        if "/" in resource and "kubernetes.io/" not in resource
    ]


def _rank(state: str) -> int:
    return facts.WORST.index(state) if state in facts.WORST else facts.WORST.index(facts.UNKNOWN)
