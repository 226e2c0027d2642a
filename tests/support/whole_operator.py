"""The whole operator over an API server in memory, for tests of the node n1: how it starts and what it is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nodedevices_operator.manager import Manager
from nodedevices_operator.metrics import OperatorMetrics
from nodedevices_operator.records import names
from nodedevices_operator.records.kinds import Kind, read
from support.fakekube import FakeKube, Raw, settle
from support.opfacts import GPU, node_devices, raw_node

NODE = f"{names.NODES}/n1"
ITEM = f"{names.NODE_DEVICES}/n1"
POD = names.pod_path("ml", "trainer")
POLICY = f"{names.POLICIES}/p"


def one_node(*devices: Mapping[str, Any], gpus: int = 1) -> FakeKube:
    """The node n1 with so many GPUs, and its NodeDevices with these devices."""
    made = FakeKube()
    made.put(NODE, raw_node({GPU: gpus}))
    made.put(ITEM, node_devices(*devices))
    return made


async def started(kube: Any, **settings: Any) -> Manager:
    """An operator that has listed everything and reconciled what was due."""
    manager = Manager(kube, OperatorMetrics(), **settings)
    await manager.relister.once()
    await settle(manager)
    return manager


def arrive(manager: Manager, kube: FakeKube, path: str, raw: Mapping[str, Any]) -> None:
    """Somebody else writes the object, and the operator's watch says so."""
    kind = Kind(path.rpartition("/")[0])
    manager.arrived(kind, False, read(kind, kube.put(path, raw)))


def end(manager: Manager, kube: FakeKube, path: str) -> None:
    """Somebody else deletes the object, and the operator's watch says so."""
    kind = Kind(path.rpartition("/")[0])
    manager.arrived(kind, True, read(kind, kube.objects.pop(path)))


def with_status(kube: FakeKube, path: str = ITEM, **fields: Any) -> Raw:
    """The object as it is, but for these fields of its status."""
    raw = kube.objects[path]
    return raw | {"status": raw["status"] | fields}


def condition(kube: FakeKube, path: str, kind: str) -> Raw:
    """The condition that the object shows; empty: it shows none."""
    shown = kube.objects[path].get("status", {}).get("conditions", [])
    return next((entry for entry in shown if entry["type"] == kind), {})


def verdict(kube: FakeKube, path: str, kind: str) -> tuple[str, str]:
    """Status and reason of the condition; empty: it shows none."""
    found = condition(kube, path, kind)
    return (found["status"], found["reason"]) if found else ("", "")


def action(kube: FakeKube, name: str) -> Raw:
    """The action that the NodeDevices shows; empty: it shows none."""
    shown = kube.objects[ITEM].get("status", {}).get("actions", [])
    return next((entry for entry in shown if entry["name"] == name), {})


def writes(manager: Manager, concern: str) -> float:
    """How much the concern has written so far, by the metric."""
    counter = "nodedevices_operator_writes_total"
    return manager.metrics.registry.get_sample_value(counter, {"concern": concern}) or 0.0


def said(kube: FakeKube) -> list[tuple[str, str]]:
    """Reasons and messages of the Events."""
    return [(event["reason"], event["message"]) for event in kube.events]
