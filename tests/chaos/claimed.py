"""What must hold of ResourceClaims and ResourceSlices (DRA): pure functions, each of which says what is wrong.

Of a claim's devices there are witnesses that know nothing of each other: the allocation, which a scheduler wrote, the
driver's record, the kubelet's PodResources, and the device nodes in the containers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from chaos.machines import DEVICES
from chaos.model import NodePlan, Plan
from chaos.seen import ClaimSeen, Ids, NodeSeen, PodSeen, Seen
from nodedevices_common.devices import grouped

Container = tuple[str, str]  # pod, container
Devices = frozenset[tuple[str, str]]  # claim, device's name
CLAIM = "claim:"  # and its name, where a resource's name stands; alone: no claim's yet, in a slice
Granted = Mapping[tuple[str, str], Sequence[str]]  # claim, device's name -> its id, or those of its shares
ENDED = ("Succeeded", "Failed")
# A policy has changed between allocation and prepare, or the shares of one request are of several devices.
SHARED_OTHERWISE = ("whose shares are of", "which is not shared", "is free, and the claim has", "of one device")


def class_name(resource: str) -> str:
    """Of the DeviceClass that the operator makes for a resource."""
    domain, _, own = resource.partition("/")
    return own.lower().replace("_", "-") + f".{domain}"


def devices_of(pod: PodSeen, claims: Mapping[str, ClaimSeen]) -> dict[str, Devices]:
    """By container what it has of its claims, as they are allocated."""
    return {
        container: frozenset(
            (name, device)
            for name, wanted in uses
            for request, device in (claims[name].devices if name in claims else ())
            if wanted in ("", request.partition("/")[0])
        )
        for container, uses in pod.claims.items()
    }


def ids(devices: Devices, granted: Granted) -> Ids:
    """Ids of the devices, by what the driver's records have said."""
    return frozenset((CLAIM + claim, id_) for claim, name in devices for id_ in granted.get((claim, name), ()))


def recorded(node: NodeSeen) -> list[tuple[Container, Ids]]:
    return [
        (
            (f"the record of {each.claim}", ""),
            frozenset((CLAIM + each.claim, id_) for some in each.devices.values() for id_ in some),
        )
        for each in node.records
    ]


def free(node: NodeSeen, granted: Granted) -> Ids:
    """What a claim could get by the slices."""
    named = {part.get("name", ""): part["id"] for part in node.shown.get("status", {}).get("devices", ())}
    known = set(named.values()) | {id_.partition("::")[0] for some in granted.values() for id_ in some}
    found = (each.uuid if each.uuid in known else named.get(each.name, "") for each in node.published)
    return frozenset((CLAIM, id_) for id_ in found if id_)


# --- at every moment --------------------------------------------------------------------------------------------------
def running_ones_are_recorded(
    node: NodeSeen, names: Mapping[str, Container], claimed: Mapping[Container, Devices], ended: frozenset[str]
) -> list[str]:
    """What a container that runs has of a claim is in a record with the device that was allocated, so that nobody else
    gets it. `names`: of containers, by id. `ended`: uids of pods that are over."""
    have = {(each.claim, name) for each in node.records for name in each.devices}
    return [
        f"{node.name}: {'/'.join(container)} runs with {name} of claim {claim}, and no record says so"
        for process in node.processes
        if process.pod not in ended and (container := names.get(process.container)) is not None
        for claim, name in sorted(claimed.get(container, ()))
        if (claim, name) not in have
    ]


# --- once everything had time -----------------------------------------------------------------------------------------
def in_the_end(seen: Seen, claimed: Mapping[Container, Devices], plan: Plan) -> list[str]:
    assert seen.pods is not None
    return [
        *(said for node in seen.nodes.values() for said in records_are_of_pods(node, seen)),
        *(said for node in seen.nodes.values() for said in the_kubelet_agrees(node, seen.pods, claimed)),
        *(said for node in seen.nodes.values() for said in slices_are_what_is_offered(node, plan.nodes[node.name])),
        *no_claim_is_left(seen, plan),
        *every_pod_runs_or_says_why(seen),
        *classes_are_of_what_is_served(seen),
    ]


def records_are_of_pods(node: NodeSeen, seen: Seen) -> list[str]:
    """A record is of a claim that a pod here uses, and has just its devices."""
    used = {
        claim
        for pod in (seen.pods or {}).values()
        if pod.node == node.name and pod.phase not in ENDED
        for uses in pod.claims.values()
        for claim, _ in uses
    }
    found = []
    for record in node.records:
        claim = seen.claims.get(record.claim)
        devices = {name for _, name in claim.devices} if claim is not None and claim.node == node.name else set()
        if claim is None or claim.uid != record.uid or record.claim not in used:
            found.append(f"{node.name}: there is a record of claim {record.claim}, which no pod here uses")
        elif devices != set(record.devices):
            found.append(f"{node.name}: claim {record.claim} has {sorted(devices)}, its record {record.devices}")
    return found


def the_kubelet_agrees(node: NodeSeen, pods: Mapping[str, PodSeen], claimed: Mapping[Container, Devices]) -> list[str]:
    """PodResources has the claims of each container that runs (of one that a scheduler made all devices), and the
    container runtime finds them, should the container start again."""
    running = [each for each in node.holders if each.pod in pods and pods[each.pod].phase == "Running"]
    return [
        f"{node.name}: {each.pod}/{each.container} has {sorted(have)}, by the kubelet {sorted(each.claims)}"
        for each in running
        if not (have := claimed.get((each.pod, each.container), frozenset())) <= each.claims
    ] + [
        f"{node.name}: {each.pod}/{each.container} was given {sorted(each.cdi - node.cdi)}, which no file has"
        for each in running
        if not each.cdi <= node.cdi
    ]


def slices_are_what_is_offered(node: NodeSeen, plan: NodePlan) -> list[str]:
    """The slices have the devices that NodeDevices counts, those at fault or out of service tainted or not at all."""
    status = node.shown.get("status", {})
    numbers = {each["name"]: each for each in status.get("resources", ()) if each["managedBy"] == "dra"}
    fit: dict[str, int] = defaultdict(int)
    for each in node.published:
        fit[each.resource] += 0 if each.tainted else each.shares
    found = [
        f"{node.name}: {name}: the slices have {fit.get(name, 0)}, NodeDevices {healthy}"
        for name in sorted({*fit, *numbers})
        if fit.get(name, 0) != (healthy := numbers.get(name, {}).get("healthy", 0))
    ]
    wrong = {index for index in range(len(DEVICES[node.name])) if index in plan.faults or index in plan.cordoned}
    for device, *others in grouped(status.get("devices")):
        parts = {part.get("name") for part in (device, *others)}
        bad = [each.name for each in node.published if each.name in parts and not each.tainted]
        if device["index"] in wrong and bad:
            found.append(f"{node.name}: device {device['index']} is in a slice without a taint: {bad}")
    return found


def no_claim_is_left(seen: Seen, plan: Plan) -> list[str]:
    return [
        f"claim {each.name} is still there"
        for each in seen.claims.values()
        if each.name not in plan.claims and each.owner not in plan.pods
    ]


def every_pod_runs_or_says_why(seen: Seen) -> list[str]:
    """A pod whose claims' devices are all in the slices runs. Any other one that does not run has an Event, or a
    scheduler's word."""
    found = []
    for pod in (seen.pods or {}).values():
        wanted = {claim for uses in pod.claims.values() for claim, _ in uses}
        if pod.phase != "Pending" or not wanted:
            continue
        if not pod.node:
            found += [] if pod.unscheduled else [f"{pod.name} is on no node, and nothing says why"]
            continue
        here = {each.name for each in seen.nodes[pod.node].published}
        devices = {name for claim in wanted if claim in seen.claims for _, name in seen.claims[claim].devices}
        if devices <= here and not any(why in pod.refused for why in SHARED_OTHERWISE):
            found.append(f"{pod.name} does not run, and its {sorted(devices)} are in slices: {pod.refused}")
        elif not pod.refused:
            found.append(f"{pod.name} does not run, and no Event says why")
    return found


def classes_are_of_what_is_served(seen: Seen) -> list[str]:
    """There is a DeviceClass for each resource that DRA serves, and no other."""
    served = {
        class_name(each["name"])
        for node in seen.nodes.values()
        for each in node.shown.get("status", {}).get("resources", ())
        if each["managedBy"] == "dra"
    }
    if served == seen.classes:
        return []
    return [f"the classes are {sorted(seen.classes)}, and DRA serves {sorted(served)}"]
