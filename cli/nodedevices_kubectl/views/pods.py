"""Rows of pods that hold devices on a node: which ones, are they well, and are they used."""

from __future__ import annotations

from collections.abc import Iterator

from nodedevices_api.conditions import POD_DEVICE_HEALTHY
from nodedevices_common.raw import Raw, mapping, mappings, text
from nodedevices_common.table import Column, Kind, Row, first_of

from nodedevices_kubectl.views import facts
from nodedevices_kubectl.views.ages import age

MOST_SHOWN = 4
_ENDED = frozenset({"Succeeded", "Failed"})
_MARKED = {"True": facts.HEALTHY, "False": facts.UNHEALTHY}

KIND = Kind(
    "Pods",
    "pods that hold devices",
    (
        Column("NAMESPACE", "namespace"),
        Column("POD", "pod"),
        Column("NODE", "node"),
        Column("DEVICES", "devices", first_of(MOST_SHOWN)),
        Column("HEALTH", "health", tone=facts.tone),
        Column("REASON", "reason"),
        Column("ACTION", "recoveryAction"),
        Column("HELD-FOR", "since", age),
        Column("RESOURCES", "resources", wide=True),
        Column("CONTAINERS", "containers", wide=True),
        Column("SHARES", "shares", wide=True),
        Column("IDS", "ids", wide=True),
    ),
    state="health",
)


def rows(item: Raw, namespace: str = "") -> Iterator[Row]:
    """The pods of one node, by namespace and name. `namespace` empty: all."""
    held: dict[tuple[str, str], list[tuple[facts.Unit, Raw]]] = {}
    for unit in facts.units(item):
        for holder in unit.holders:
            pod = text(holder.get("namespace")), text(holder.get("pod"))
            if not namespace or pod[0] == namespace:
                held.setdefault(pod, []).append((unit, holder))
    for pod, what in sorted(held.items(), key=lambda pair: pair[0]):
        yield _row(facts.name_of(item), pod, what)


def _row(node: str, pod: tuple[str, str], held: list[tuple[facts.Unit, Raw]]) -> Row:
    healths = [facts.health_for(holder, unit) for unit, holder in held]
    worst = min(healths, key=lambda health: _rank(text(health.get("state"))), default={})
    shares = [number for _, holder in held if (number := facts.number(holder.get("shares"))) is not None]
    return Row(
        f"pod/{pod[1]}",
        {
            "namespace": pod[0],
            "pod": pod[1],
            "node": node,
            "devices": list(dict.fromkeys(unit.name for unit, _ in held)),
            "ids": list(dict.fromkeys(unit.id for unit, _ in held)),
            "health": text(worst.get("state")) or facts.UNKNOWN,
            "reason": text(worst.get("reason")),
            "message": text(worst.get("message")),
            "recoveryAction": facts.action_of(worst),
            "resources": sorted({text(holder.get("resource")) or text(holder.get("claim")) for _, holder in held}),
            "containers": sorted({text(holder.get("container")) for _, holder in held}),
            "shares": sum(shares) if shares else None,
            "since": min((text(holder.get("since")) for _, holder in held), default=""),
        },
        key=f"{pod[0]}/{pod[1]}@{node}",
    )


def _rank(state: str) -> int:
    return facts.WORST.index(state) if state in facts.WORST else facts.WORST.index(facts.UNKNOWN)


# --- by the pod alone ------------------------------------------------------------------------------------------------
def rows_of_pod(pod: Raw) -> Iterator[Row]:
    """Yield the pod's row from its own status alone, if it asks for devices, and has not ended: for those who may read
    a namespace, and no NodeDevices.

    What the operator marks (the condition DeviceHealthy), what the kubelet says of each device that a container has
    (allocatedResourcesStatus, KEP-4680), and what the container asks for. Which device of the node that is, and what
    would help, is in none of these.
    """
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
    mark = facts.condition(pod, POD_DEVICE_HEALTHY)
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


# --- held and not used -----------------------------------------------------------------------------------------------
IDLE_KIND = Kind(
    "Idle",
    "devices that are held and not used",
    (
        Column("NAMESPACE", "namespace"),
        Column("POD", "pod"),
        Column("NODE", "node"),
        Column("DEVICE", "device"),
        Column("MODEL", "model"),
        Column("IDLE", "idle"),
        Column("FOR", "since", age),
        Column("HELD-FOR", "heldSince", age, wide=True),
        Column("CONTAINER", "container", wide=True),
        Column("ID", "id", wide=True),
    ),
    state="idle",
)


def idle_rows(item: Raw, namespace: str = "", *, unknown: bool = False) -> Iterator[Row]:
    """Those of one node. `namespace` empty: all. `unknown`: also those of which it is not known."""
    node = facts.name_of(item)
    for unit in facts.units(item):
        for holder in unit.holders:
            word, where = text(holder.get("idle")), text(holder.get("namespace"))
            if not word or (word == facts.UNKNOWN and not unknown) or (namespace and where != namespace):
                continue
            fields = {
                "namespace": where,
                "pod": text(holder.get("pod")),
                "container": text(holder.get("container")),
                "node": node,
                "device": unit.name,
                "id": unit.id,
                "model": text(mapping(unit.device.get("attributes")).get("productName")),
                "idle": word,
                "since": text(holder.get("idleSince")),
                "heldSince": text(holder.get("since")),
            }
            key = f"{facts.pod_of(holder)}/{fields['container']}@{node}/{unit.id}"
            yield Row(f"pod/{fields['pod']}", fields, key=key)
