"""One odd part never costs the report: what kubelets, drivers and other programs say may be anything."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from nodedevices_api.base import to_dict
from nodedevices_plugin.kubelet.server import snapshot as encoded
from nodedevices_plugin.model import (
    CoresHeld,
    HealthState,
    Holder,
    HoldersState,
    Holdings,
    Notice,
    OfferedResource,
    Plan,
    Refused,
    Registration,
    RegistrationState,
    SchedulableId,
    SharingFacts,
    Unmatched,
    Verdict,
)
from nodedevices_plugin.pipeline.configuration import ConfigStatus
from nodedevices_plugin.sharing.registry import TimeSlicing
from nodedevices_plugin.status.facts import ProbeFacts
from nodedevices_plugin.status.report import report
from nodedevices_probe.protocol import DeviceFact, Link, Machine, Partition
from support.cases import cases
from support.facts import START, gpu, gpu_id, healthy, inventory_of, mig_id, partition
from support.reports import node_facts
from support.stepped_node import Node

SHARED = "nvidia.com/gpu.shared"
ODD: tuple[Any, ...] = ("", "x" * 400, "\U0001f4a5 \x00\n", "::", "-", "A/b/c+", -1, 1 << 70)
FAULTY = gpu_id(1)
NOTICE = Notice(code="Xid31", message="a page fault", since=START, time=START, count=3, counted=START, newest=START)


def node() -> dict[str, Any]:
    """One of everything that a report is made of; GPU 1 has a fault."""
    first = gpu(
        0,
        mig_enabled=True,
        links=(Link(kind="NVLink", to=FAULTY, count=18),),
        partitions=(partition(0, 0, name="gpu-0-a", start=0, size=1),),
        pci_bus_id="0000:17:00.0",
        pcie_root="pci0000:16",
    )
    inventory = inventory_of(first, gpu(1))
    inventory = replace(inventory, machine=Machine(type="Box", mode="compute", clique="c.1", vgpu_version="17"))
    fault = Verdict(state=HealthState.UNHEALTHY, reason="Xid79", message="it fell off",
                    since=START, offered=False, recovery_action="RebootNode", fault_domain="Device")  # fmt: skip
    ids = tuple(
        SchedulableId(id=f"{gpu_id(0)}::{n}", device_id=gpu_id(0), partition_id=None, replica=n) for n in range(2)
    )
    pods = (
        Holder(namespace="ml", pod="a", container="c", resource=SHARED, ids=(f"{gpu_id(0)}::0",), since=START),
        Holder(namespace="ml", pod="b", container="c", claim="ml/gpu", ids=(mig_id(0, 0),), since=START),
    )
    return {
        "inventory": inventory,
        "verdicts": {**healthy(first), FAULTY: fault},
        "plan": Plan(
            resources=(OfferedResource(name=SHARED, ids=ids, sharing=SharingFacts(mode=TimeSlicing(), replicas=2)),)
        ),
        "holdings": Holdings(state=HoldersState.SYNCED, taken=1.0, holders=pods),
        "cores": CoresHeld(devices={gpu_id(0): 30}, holders={("ml", "a", "c", SHARED): 30}),
        "registrations": (Registration(resource=SHARED, state=RegistrationState.REGISTERED),),
        "config": ConfigStatus(
            refused=Refused(field="sharing.x", message="no"),
            unmatched=(Unmatched(section="sharing", entry="x", message="no"),),
            waiting_for=("ml/b",),
        ),
        "retired": {"example.com/gone": START},
        "notices": {gpu_id(0): (NOTICE,)},
        "exclude": ("NONE-*",),
        "unschedulable": {gpu_id(0): "RMA"},
        "started": START,
        "probes": (ProbeFacts(name="simulated", inventory=inventory),),
        "now": START,
    }


def named(value: Any) -> tuple[str, ...]:
    """Return the names of a record's fields."""
    if isinstance(value, Struct):
        return value.__struct_fields__
    return tuple(each.name for each in fields(value)) if is_dataclass(value) else ()


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where texts and numbers are, in values, and keys."""
    if isinstance(value, str | int) and not isinstance(value, Enum | bool):
        yield path
    elif names := named(value):
        for name in names:
            yield from leaves(getattr(value, name), (*path, name))
    elif isinstance(value, tuple):
        for at, each in enumerate(value):
            yield from leaves(each, (*path, at))
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from leaves(each, (*path, key))


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    first, *rest = path
    if named(value):
        of = replace if isinstance(value, Struct) else dataclasses.replace
        return of(value, **{first: changed(getattr(value, first), tuple(rest), new)})
    if isinstance(value, tuple):
        return tuple(changed(each, tuple(rest), new) if at == first else each for at, each in enumerate(value))
    return {key: changed(each, tuple(rest), new) if key == first else each for key, each in value.items()}


def test_whatever_is_odd_about_a_device_a_pod_or_a_driver_the_fault_of_another_is_reported() -> None:
    known = node()
    # What this agent alone writes, and what it reads of its own object, is as the API server took it.
    ours = {"previous", "previous_probes", "started", "now", "running_seconds"}
    constant = {("config", "reason"), ("config", "applied_hash"), ("config", "generation")}
    places = [each for each in leaves(known) if each[0] not in ours and FAULTY not in each and each not in constant]
    assert len(places) > 60
    faulty = ("inventory", "devices", 1)
    for place in places:
        if place[:3] == faulty or place[0] == "probes":
            continue
        for new in ODD:
            if isinstance(new, str) is not isinstance(_at(known, place), str):
                continue
            status = report(node_facts(**changed(known, place, new)))
            to_dict(status)
            found = {each.id: each.health.reason for each in status.devices}
            assert found.get(FAULTY) == "Xid79", (place, new)


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for each in path:
        value = getattr(value, each) if named(value) else value[each]
    return value


def test_what_is_left_out_is_named_and_of_a_device_its_health_stays() -> None:
    known = node()
    odd = changed(known, ("inventory", "devices", 0, "fact", "vendor"), "nvidia")
    odd = changed(odd, ("inventory", "devices", 0, "fact", "numa_node"), -7)
    status = report(node_facts(**odd | {"config": ConfigStatus()}))
    [first, _, _] = status.devices
    assert (first.id, first.health.state, first.attributes) == (gpu_id(0), "Healthy", None)
    [ready] = [each for each in status.conditions if each.type == "Ready"]
    assert f"left out of this object: device {gpu_id(0)}: numaNode: " in ready.message


@cases("profile", "1g.10gb+me", "x" * 48)
def test_a_partition_whose_profile_makes_no_name_costs_no_other_device_its_place(profile: str) -> None:
    """As a probe of one's own may write it."""
    odd = DeviceFact(
        id="0000:10:00.0",
        index=0,
        type="gpu",
        vendor="amd",
        partitions=tuple(Partition(id=f"p{number}", profile=profile, index=number) for number in range(2)),
    )
    stepped = Node(odd, gpu(0)).now({"partitions": {"strategy": "mixed"}})
    assert stepped.offers["nvidia.com/gpu"] == [gpu_id(0)]
    for each in stepped.plan.resources:
        encoded(each)
    known, plan = stepped.world.known, stepped.plan
    offer = {"inventory": known.inventory, "plan": plan, "verdicts": known.verdicts, "registrations": ()}
    status = report(node_facts(**node() | offer))
    assert {each.name for each in status.resources} == {each.name for each in plan.resources if each.ids}
