"""The rows of what is listed: nodes, devices with their partitions, pods that hold devices, and devices that pods hold
and do not use. Are they well and since when, who holds them, what would help.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from datetime import datetime
from typing import Any

from nodedevices_api import conditions
from nodedevices_common.quantity import from_bytes, to_bytes
from nodedevices_common.raw import Raw, mapping, mappings, number, text
from nodedevices_common.table import NONE, Column, Kind, Row, first_of

from nodedevices_kubectl.views import facts


# --- nodes -----------------------------------------------------------------------------------------------------------
def _free_of_each(value: Any, now: datetime) -> str:
    cells = [f"{resource['name']}={NONE if resource['free'] is None else resource['free']}" for resource in value or ()]
    return ",".join(cells) or NONE


NODES = Kind(
    "Nodes",
    "nodes with devices",
    (
        Column("NAME", "name"),
        Column("STATUS", "status", tone=facts.tone),
        Column("MODEL", "model"),
        Column("DEVICES", "devices"),
        Column("HEALTHY", "healthy"),
        Column("HELD", "held"),
        Column("REASON", "reason"),
        Column("AGE", "created", facts.age),
        Column("OUT-OF-SERVICE", "outOfService", wide=True),
        Column("ACTION", "recoveryAction", wide=True),
        Column("CONFIG", "config", wide=True),
        Column("WITHHELD", "withheld", wide=True),
        Column("FREE", "resources", _free_of_each, wide=True),
        Column("MEM-FREE", "memoryFree", wide=True),
        Column("DRIVER", "driver", wide=True),
        Column("AGENT", "agent", wide=True),
    ),
)


def _state(item: Raw) -> tuple[str, list[str]]:
    """Whether what the object says can be trusted and the node offers devices, and the reasons why not."""
    stale, ready = facts.condition(item, conditions.STALE), facts.condition(item, conditions.READY)
    is_stale, is_ready = stale.get("status") == "True", ready.get("status") == "True"
    reasons = [*([stale.get("reason")] if is_stale else []), *([] if is_ready else [ready.get("reason")])]
    words = {"True": "Ready", "False": "NotReady"}
    return "Stale" if is_stale else words.get(text(ready.get("status")), "Unknown"), list(map(text, reasons))


def _memory_free(status: Raw) -> str:
    """The free memory of resources whose shares are amounts of memory; a node has one such, as a rule."""
    found = []
    for resource in mappings(status.get("resources")):
        unit, free = text(resource.get("unit")), number(resource.get("free"))
        if unit and free is not None:
            with suppress(ValueError):
                found.append(from_bytes(free * to_bytes(unit)))
    return ",".join(found)


def node_row(item: Raw) -> Row:
    status, reasons = _state(item)
    shown = facts.status_of(item)
    summary = mapping(shown.get("summary"))
    drivers = [text(driver.get("version")) for driver in mappings(shown.get("drivers"))]
    counts = {name: number(summary.get(name)) for name in ("devices", "healthy", "degraded", "unhealthy", "held")}
    return Row(
        facts.name_of(item),
        {
            "name": facts.name_of(item),
            "status": status,
            "model": text(summary.get("model")),
            **counts,
            "unknown": number(summary.get("unknown")),
            "outOfService": number(summary.get("unschedulable")),
            "reason": ",".join(dict.fromkeys(filter(None, [*reasons, text(summary.get("reason"))]))),
            "message": text(summary.get("message")),
            "recoveryAction": facts.action_of(summary),
            "config": text(facts.condition(item, conditions.CONFIG_APPLIED).get("reason")),
            "withheld": text(summary.get("withheld")),
            "resources": [
                {
                    "name": text(resource.get("name")),
                    "capacity": number(resource.get("capacity")),
                    "healthy": number(resource.get("healthy")),
                    "allocated": number(resource.get("allocated")),
                    "free": number(resource.get("free")),
                }
                for resource in mappings(shown.get("resources"))
            ],
            "memoryFree": _memory_free(shown),
            "driver": ",".join(driver for driver in drivers if driver),
            "agent": text(mapping(shown.get("agent")).get("version")),
            "created": text(mapping(item.get("metadata")).get("creationTimestamp")),
        },
        key=facts.name_of(item),
    )


# --- devices ---------------------------------------------------------------------------------------------------------
MOST_HOLDERS = 3  # pods in a cell; -o wide and -o json have all


DEVICES = Kind(
    "Devices",
    "devices",
    (
        Column("NODE", "node"),
        Column("DEVICE", "device"),
        Column("MODEL", "model"),
        Column("HEALTH", "health", tone=facts.tone),
        Column("REASON", "reason"),
        Column("SINCE", "since", facts.age),
        Column("ACTION", "recoveryAction"),
        Column("HELD-BY", "heldBy", first_of(MOST_HOLDERS)),
        Column("INDEX", "index", wide=True),
        Column("PROFILE", "profile", wide=True),
        Column("MEMORY", "memory", wide=True),
        Column("PCI", "pciBusID", wide=True),
        Column("NUMA", "numaNode", wide=True),
        Column("OUT-OF-SERVICE", "outOfService", wide=True),
        Column("ID", "id", wide=True),
    ),
    state="health",
)


def device_rows(item: Raw, *, namespace: str = "", unhealthy: bool = False, model: str = "") -> Iterator[Row]:
    """The devices of one node, each followed by its partitions. `namespace`: only those that a pod of it holds.
    `unhealthy`: only those that are not Healthy. `model`: only those with this in their product name."""
    node = facts.name_of(item)
    for unit in facts.units(item):
        fields = _device_fields(node, unit)
        held_there = not namespace or any(pod.partition("/")[0] == namespace for pod in fields["heldBy"])
        well = fields["state"] == facts.HEALTHY
        if held_there and not (unhealthy and well) and model.lower() in fields["model"].lower():
            yield Row(f"{node}/{unit.name}", fields, key=f"{node}/{unit.id}")


def _device_fields(node: str, unit: facts.Unit) -> dict[str, Any]:
    attributes, health = mapping(unit.device.get("attributes")), unit.health
    state, drained = text(health.get("state")) or facts.UNKNOWN, text(unit.device.get("drainedSince"))
    return {
        "node": node,
        "device": unit.name,
        "id": unit.id,
        "partitionOf": facts.Unit(unit.device, unit.device).name if unit.is_partition else "",
        "type": text(unit.device.get("type")),
        "index": number(unit.device.get("index")),
        "vendor": text(attributes.get("vendor")),
        "model": text(attributes.get("productName")),
        "profile": text(unit.raw.get("profile")),
        "memory": text(mapping(unit.raw.get("capacity")).get("memory")),
        "pciBusID": text(attributes.get("pciBusID")),
        "numaNode": number(attributes.get("numaNode")),
        "health": f"{state},{'Drained' if drained else 'OutOfService'}" if unit.out_of_service else state,
        "state": state,
        "reason": text(health.get("reason")),
        "message": text(health.get("message")),
        "since": text(health.get("since")),
        "recoveryAction": facts.action_of(health),
        "outOfService": unit.out_of_service,
        "drainedSince": drained,
        "heldBy": facts.pods_of(unit.holders),
    }


# --- pods ------------------------------------------------------------------------------------------------------------
MOST_DEVICES = 4
_ENDED = frozenset({"Succeeded", "Failed"})
_MARKED = {"True": facts.HEALTHY, "False": facts.UNHEALTHY}

PODS = Kind(
    "Pods",
    "pods that hold devices",
    (
        Column("NAMESPACE", "namespace"),
        Column("POD", "pod"),
        Column("NODE", "node"),
        Column("DEVICES", "devices", first_of(MOST_DEVICES)),
        Column("HEALTH", "health", tone=facts.tone),
        Column("REASON", "reason"),
        Column("ACTION", "recoveryAction"),
        Column("HELD-FOR", "since", facts.age),
        Column("RESOURCES", "resources", wide=True),
        Column("CONTAINERS", "containers", wide=True),
        Column("SHARES", "shares", wide=True),
        Column("IDS", "ids", wide=True),
    ),
    state="health",
)


def pod_rows(item: Raw, namespace: str = "", names: Collection[str] = ()) -> Iterator[Row]:
    """The pods of one node, by namespace and name. `namespace` empty: of all. No `names`: all."""
    held: dict[tuple[str, str], list[tuple[facts.Unit, Raw]]] = {}
    for unit in facts.units(item):
        for holder in unit.holders:
            pod = text(holder.get("namespace")), text(holder.get("pod"))
            if (not namespace or pod[0] == namespace) and (not names or pod[1] in names):
                held.setdefault(pod, []).append((unit, holder))
    for pod, what in sorted(held.items(), key=lambda pair: pair[0]):
        yield _pod_row(facts.name_of(item), pod, what)


def _pod_row(node: str, pod: tuple[str, str], held: list[tuple[facts.Unit, Raw]]) -> Row:
    healths = [facts.health_for(holder, unit) for unit, holder in held]
    worst = min(healths, key=lambda health: _rank(text(health.get("state"))), default={})
    shares = [share for _, holder in held if (share := number(holder.get("shares"))) is not None]
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
    mark = facts.condition(pod, conditions.POD_DEVICE_HEALTHY)
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
IDLE = Kind(
    "Idle",
    "devices that are held and not used",
    (
        Column("NAMESPACE", "namespace"),
        Column("POD", "pod"),
        Column("NODE", "node"),
        Column("DEVICE", "device"),
        Column("MODEL", "model"),
        Column("IDLE", "idle"),
        Column("FOR", "since", facts.age),
        Column("HELD-FOR", "heldSince", facts.age, wide=True),
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
