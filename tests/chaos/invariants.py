"""What must hold at every moment, and what must hold once everything had time: pure functions over what was seen.

Each returns what is wrong, in words; nothing is right. `History` is what earlier moments showed: who had what, so that
a device that leaves a running container is found, and which partition is of which device.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from chaos import claimed
from chaos.claimed import CLAIM, ENDED, Container
from chaos.machines import DEVICES, MIB, UNUSED
from chaos.model import NodePlan, Plan
from chaos.seen import Holder, Ids, NodeSeen, PodSeen, Seen
from nodedevices_api.conditions import CONFIG_INVALID
from support.audit import Request
from support.kubectl import condition

OURS = ("nvidia.com/", "amd.com/", "example.com/", "nodedevices.io/", "tencent.com/")
COUNTED = "shared::"  # ids of computing power that belong to no device
WRITES = ("create", "update", "patch", "delete", "deletecollection")
NOT_CLUSTER = ("leases", "tokenreviews", "selfsubjectreviews")  # say nothing of devices
FIT = ("Healthy", "Degraded")


@dataclass(frozen=True)
class Device:
    """What an id is of, and in which form."""

    root: str  # the physical device
    part: str  # the same, or one of its partitions
    form: str  # whole, slices, memory
    mib: int = 0


@dataclass(frozen=True)
class History:
    """What earlier moments showed."""

    parents: Mapping[str, str] = field(default_factory=dict)  # partition -> device
    mib: Mapping[str, int] = field(default_factory=dict)  # device -> its memory
    held: Mapping[Container, Ids] = field(default_factory=dict)
    uids: Mapping[str, str] = field(default_factory=dict)  # pod's uid -> name
    names: Mapping[str, Container] = field(default_factory=dict)  # container's id -> pod, container
    init: frozenset[Container] = frozenset()
    ran: frozenset[str] = frozenset()  # pods that were seen Running
    claimed: Mapping[Container, claimed.Devices] = field(default_factory=dict)  # as their claims were allocated
    granted: Mapping[tuple[str, str], Sequence[str]] = field(default_factory=dict)  # claimed.Granted, by the records
    indices: Mapping[tuple[str, str], str] = field(default_factory=dict)  # node, device node -> device


def remember(history: History, seen: Seen) -> History:
    parents, mib, indices = dict(history.parents), dict(history.mib), dict(history.indices)
    for node in seen.nodes.values():
        devices = node.shown.get("status", {}).get("devices", ())
        ids = {device["name"]: device["id"] for device in devices}
        for device in devices:
            mib[device["id"]] = mebibytes(device.get("capacity", {}).get("memory", "0"))
            if "parent" in device:
                parents[device["id"]] = ids[device["parent"]]
            else:
                indices[node.name, f"nvidia{device.get('index')}"] = device["id"]
    held = dict(history.held)
    for node in seen.nodes.values():
        for each in node.holders:
            key = (each.pod, each.container)
            held[key] = held.get(key, frozenset()) | _added(held.get(key, frozenset()), shown_to_have(each))
    pods = seen.pods or {}
    return replace(
        history,
        parents=parents,
        indices=indices,
        claimed={
            **history.claimed,
            **{
                (pod.name, container): devices
                for pod in pods.values()
                for container, devices in claimed.devices_of(pod, seen.claims).items()
            },
        },
        granted={
            **history.granted,
            **{
                (record.claim, name): ids
                for node in seen.nodes.values()
                for record in node.records
                for name, ids in record.devices.items()
            },
        },
        mib=mib,
        held=held,
        uids={**history.uids, **{each.uid: each.name for each in pods.values()}},
        names={
            **history.names,
            **{id_: (pod.name, name) for pod in pods.values() for id_, name in pod.containers.items()},
        },
        init=history.init | {(pod.name, name) for pod in pods.values() for name in pod.init},
        ran=history.ran | {each.name for each in pods.values() if each.phase == "Running" and not each.deleting},
    )


def mebibytes(amount: str) -> int:
    """Of a quantity in the units that NodeDevices has memory in."""
    for suffix, factor in (("Ki", 1 / 1024), ("Mi", 1), ("Gi", 1024), ("Ti", 1024 * 1024)):
        if amount.endswith(suffix):
            return int(float(amount.removesuffix(suffix)) * factor)
    return int(float(amount or 0) / 1024 / 1024)


def device_of(id_: str, parents: Mapping[str, str]) -> Device:
    part, _, share = id_.partition("::")
    root = parents.get(part, part)
    unit, dot, _ = share.partition(".")
    if not share:
        return Device(root, part, "whole")
    if dot and unit == "core":
        return Device(root, part, "cores")
    return Device(root, part, "memory", mebibytes(unit)) if dot else Device(root, part, "slices")


# --- at every moment --------------------------------------------------------------------------------------------------
def at_every_moment(seen: Seen, history: History, plan: Plan, evicting: Iterable[str]) -> list[str]:
    """`evicting`: nodes where a policy may have pods evicted now, or had when the last step began."""
    return [
        *(said for node in seen.nodes.values() for said in nothing_twice(node, history, over(seen))),
        *(said for node in seen.nodes.values() for said in containers_see_what_they_have(node, history)),
        *(said for node in seen.nodes.values() for said in claims_are_recorded(node, history, over(seen))),
        *(said for node in seen.nodes.values() for said in nothing_lost(node, history)),
        *(said for node in seen.nodes.values() for said in counts_add_up(node)),
        *(said for node in seen.nodes.values() for said in the_agent_saw_nothing_twice(node)),
        *nobody_evicted(seen, history, plan, frozenset(evicting)),
    ]


def in_any_test(seen: Seen, history: History) -> list[str]:
    """Those that hold at every moment of any test of the real cluster, whatever it does."""
    return [
        said
        for node in seen.nodes.values()
        for said in (
            *nothing_twice(node, history, over(seen)),
            *nothing_lost(node, history),
            *claims_are_recorded(node, history, over(seen)),
            *counts_add_up(node),
            *the_agent_saw_nothing_twice(node),
            *the_healthy_need_nothing(node),
            *each_field_has_one_writer(node),
        )
    ]


def over(seen: Seen) -> frozenset[str]:
    """Uids of pods that are over, of which processes are left: a kubelet frees the devices of a pod that has failed, or
    was deleted by force, and its containers may take a moment to end."""
    return frozenset(
        process.pod
        for node in seen.nodes.values()
        for process in node.processes
        if seen.pods is not None
        if not any(each.uid == process.pod and each.phase not in ENDED for each in seen.pods.values())
    )


def truth(node: NodeSeen, history: History, ended: frozenset[str]) -> dict[Container, Ids]:
    """What every container that runs has: by the kubelet, and where that does not know it just now, as it once said.
    `ended`: uids of pods that are over, whose containers are about to end."""
    listed = {(each.pod, each.container): each.ids for each in node.holders}
    found: dict[Container, Ids] = {}
    written: dict[Container, set[tuple[str, str]]] = defaultdict(set)
    for each in node.checkpoint:
        written[history.uids.get(each.pod, each.pod), each.container] |= each.ids
    for process in node.processes:
        container = history.names.get(process.container)
        if container is not None and process.pod not in ended:
            before = frozenset(each for each in history.held.get(container, ()) if not each[0].startswith(CLAIM))
            by_plugin = listed.get(container) or frozenset(written.get(container, ())) or before
            if ids := by_plugin | claimed.ids(history.claimed.get(container, frozenset()), history.granted):
                found[container] = ids
    return found


def claims_are_recorded(node: NodeSeen, history: History, ended: frozenset[str]) -> list[str]:
    return claimed.running_ones_are_recorded(node, history.names, history.claimed, ended)


def shown_to_have(holder: Holder) -> Ids:
    """What the kubelet shows of a container: ids, and devices of claims by their names."""
    return holder.ids | {(CLAIM + claim, name) for claim, name in holder.claims}


@dataclass(frozen=True)
class Claim:
    """Ids of one resource on one device in one form, that a container has, or that a new one could get (`by` None)."""

    by: Container | None
    resource: str
    root: str
    part: str
    form: str
    ids: frozenset[str]
    mib: int

    def __str__(self) -> str:
        first, *more = sorted(self.ids)
        return f"{self.resource} {first}" + (f" and {len(more)} more" if more else "")

    def excludes(self, other: Claim) -> bool:
        """Whether two containers must not have both."""
        if self.root != other.root or (self.part != other.part and self.root not in (self.part, other.part)):
            return False
        if self.part == other.part and self.resource.startswith(CLAIM) and other.resource.startswith(CLAIM):
            # Containers may share a claim, and a device that one has is still in a slice.
            if self.resource == other.resource or CLAIM in (self.resource, other.resource):
                return False
            return self.form != other.form or self.form == "whole" or bool(self.ids & other.ids)
        shared = self.part == other.part and self.resource == other.resource and self.form == other.form != "whole"
        return not shared or bool(self.ids & other.ids)


def claims(by: Container | None, ids: Iterable[tuple[str, str]], history: History) -> list[Claim]:
    found: dict[tuple[str, Device], set[str]] = defaultdict(set)
    for resource, id_ in ids:
        if not id_.startswith(COUNTED):
            found[resource, device_of(id_, history.parents)].add(id_)
    return [
        Claim(by, resource, of.root, of.part, of.form, frozenset(some), of.mib * len(some))
        for (resource, of), some in sorted(found.items(), key=str)
    ]


def nothing_twice(node: NodeSeen, history: History, ended: frozenset[str] = frozenset()) -> list[str]:
    """No device is with two containers, but as shares of one kind that fit into it or by one claim; and no second one
    could get it. What a claim was given is held also while no container of it runs."""
    have = [*sorted(truth(node, history, ended).items()), *claimed.recorded(node)]
    held = [each for container, ids in have for each in claims(container, ids, history)]
    taken = {each for _, ids in have for each in ids}
    free = claims(None, (node.offered - taken) | claimed.free(node, history.granted), history)
    found = [
        f"{node.name}: {'/'.join(one.by)} has {one}, and {'/'.join(other.by)} has {other}"
        for number, one in enumerate(held)
        for other in held[number + 1 :]
        if one.by is not None and other.by is not None and one.by != other.by
        if one.excludes(other) and not _successors(one.by, other.by, history)
    ]
    found += [
        f"{node.name}: {'/'.join(one.by)} has {one}, and another container could get {other.resource} of {other.part}"
        for one in held
        for other in free
        if one.by is not None and one.excludes(other)
    ]
    for part in sorted({each.part for each in held}):
        # By id: an init container of a pod has the shares of its others.
        ids = {id_: each.mib // len(each.ids) for each in held if each.part == part for id_ in each.ids}
        total = sum(ids.values())
        if history.mib.get(part) and total > history.mib[part]:
            found.append(f"{node.name}: {part} has {history.mib[part]} MiB, and containers have {total} MiB of it")
    return found


def _successors(one: Container, other: Container, history: History) -> bool:
    """Init containers of a pod and its others use the same devices, one after the other."""
    return one[0] == other[0] and (one in history.init or other in history.init)


def containers_see_what_they_have(node: NodeSeen, history: History) -> list[str]:
    """The variable of a container names just the GPUs that the kubelet gave it, or it has the nodes of just these."""
    have = {(each.pod, each.container): each.ids for each in node.holders}
    found = []
    for process in node.processes:
        container = history.names.get(process.container)
        if container is None or (container not in have and container not in history.claimed):
            continue
        ids = have.get(container, frozenset()) | claimed.ids(
            history.claimed.get(container, frozenset()), history.granted
        )
        gpus = {device_of(id_, {}).part for _, id_ in ids if id_.startswith(("GPU-", "MIG-"))}
        by_name = process.visible or frozenset()
        by_node = {history.indices.get((node.name, each), each) for each in process.nodes}
        seen = by_name | {each for each in gpus if history.parents.get(each, each) in by_node}
        others = by_node - {history.parents.get(each, each) for each in gpus}
        if gpus and (seen != gpus or others):
            sees = sorted(seen | others) or "none"
            found.append(f"{node.name}: {'/'.join(container)} has {sorted(gpus)} and sees {sees}")
    return found


def nothing_lost(node: NodeSeen, history: History) -> list[str]:
    """What a container was once given it has as long as it is listed."""
    return [
        f"{node.name}: {each.pod}/{each.container} had {sorted(had)}, and has {sorted(has)}"
        for each in node.holders
        for has in [shown_to_have(each)]
        if (had := history.held.get((each.pod, each.container), has)) | _added(had, has) != has
    ]


def _added(had: Ids, now: Ids) -> Ids:
    """Ids of resources that the container had nothing of: the kubelet allocates one resource after the other, and may
    be seen in between."""
    known = {resource for resource, _ in had}
    return frozenset((resource, id_) for resource, id_ in now if resource not in known)


def counts_add_up(node: NodeSeen) -> list[str]:
    """healthy and withheld are capacity; what is free is healthy and not held."""
    found = []
    for each in node.shown.get("status", {}).get("resources", ()):
        withheld = sum(one["count"] for one in each.get("withheld", ()))
        if each["managedBy"] == "plugin" and each["healthy"] + withheld != each["capacity"]:
            found.append(
                f"{node.name}: {each['name']}: healthy {each['healthy']} and withheld {withheld} "
                f"are not capacity {each['capacity']}"
            )
        if each.get("free", 0) > each["healthy"]:
            found.append(f"{node.name}: {each['name']}: free {each['free']} of healthy {each['healthy']}")
    return found


def the_agent_saw_nothing_twice(node: NodeSeen) -> list[str]:
    """The agent, which compares each of the kubelet's lists for itself, has found no device with two pods."""
    return [
        f"{node.name}: AllocatedOnce is False: {each.get('message')}"
        for each in node.shown.get("status", {}).get("conditions", ())
        if each["type"] == "AllocatedOnce" and each["status"] == "False"
    ]


def the_healthy_need_nothing(node: NodeSeen) -> list[str]:
    """No device is Healthy and needs something to be done."""
    return [
        f"{node.name}: {part.get('name', part['id'])} is Healthy, and {part['health']['recoveryAction']} would help"
        for part in node.shown.get("status", {}).get("devices", ())
        if part.get("health", {}).get("state") == "Healthy" and part["health"].get("recoveryAction", "None") != "None"
    ]


def each_field_has_one_writer(node: NodeSeen) -> list[str]:
    """No two of our parts own one field of a NodeDevices."""
    owners: dict[str, list[str]] = defaultdict(list)
    for entry in node.shown.get("metadata", {}).get("managedFields", ()):
        if entry["manager"].startswith("nodedevices-"):
            for each in fields(entry.get("fieldsV1", {})):
                owners[each].append(entry["manager"])
    return [
        f"{node.name}: {field} is written by {' and '.join(sorted(set(by)))}"
        for field, by in sorted(owners.items())
        if len(set(by)) > 1
    ]


def fields(owned: Mapping[str, Any], place: str = "") -> Iterator[str]:
    """The fields and list entries that an entry of managedFields names."""
    for name, below in owned.items():
        if below and name != ".":
            yield from fields(below, f"{place}.{name}")
        else:
            yield f"{place}.{name}"


def without_evicted(history: History, seen: Seen, plan: Plan, evicting: frozenset[str]) -> History:
    """Nothing more is expected of a pod that went while a policy may have evicted it, whatever the policy is later."""
    if seen.pods is None:
        return history
    there = {name for name, pod in seen.pods.items() if not pod.deleting}
    gone = {name for name in history.ran - there if name in plan.pods and plan.pods[name].node in evicting}
    return replace(history, ran=history.ran - gone)


def nobody_evicted(seen: Seen, history: History, plan: Plan, evicting: frozenset[str]) -> list[str]:
    """A pod that ran, and that no one deleted, runs."""
    if seen.pods is None:
        return []
    found = []
    for name in sorted(history.ran & plan.pods.keys()):
        pod = seen.pods.get(name)
        if plan.pods[name].node in evicting:
            continue
        if pod is None or pod.deleting:
            found.append(f"{name} was deleted, and no policy says so")
        elif pod.phase in ENDED and not rejected_by_a_new_kubelet(pod, plan):
            found.append(f"{name} ran, and is {pod.phase}: {pod.reason}")
    return found


def rejected_by_a_new_kubelet(pod: PodSeen, plan: Plan) -> bool:
    """A kubelet that has started admits a pod with devices of an init container that has ended like a new one: before
    any plugin has registered, it rejects it (kubernetes/kubernetes#138446)."""
    init = any(part.kind == "init" and part.limits for part in plan.pods[pod.name].parts)
    return init and pod.reason.startswith("UnexpectedAdmissionError")


# --- once everything had time -----------------------------------------------------------------------------------------
def in_the_end(seen: Seen, history: History, plan: Plan) -> list[str]:
    """What must hold once nothing is away and everything had time."""
    if seen.pods is None:
        return ["the API server does not answer"]
    return [
        *(f"{name} is not Ready" for name, ready in sorted(seen.parts.items()) if not ready),
        *(
            said
            for node in seen.nodes.values()
            for said in node_is_right(node, seen.pods, history, plan.nodes[node.name])
        ),
        *(said for node in seen.nodes.values() for said in owned_capacity_follows(node, plan)),
        *policies_are_accepted(seen, plan),
        *every_pod_is_there(seen, plan),
        *claimed.in_the_end(seen, history.claimed, plan),
    ]


def node_is_right(node: NodeSeen, pods: Mapping[str, PodSeen], history: History, plan: NodePlan) -> list[str]:
    if not node.answers:
        return [f"{node.name}: the kubelet does not answer"]
    if not node.shown.get("status"):
        return [f"{node.name}: there is no NodeDevices"]
    return [
        *capacity_is_what_is_offered(node),
        *holders_are_true(node, history, plan),
        *faults_are_seen(node, plan),
        *conditions_agree(node, plan),
        *marks_are_right(node, pods),
    ]


def capacity_is_what_is_offered(node: NodeSeen) -> list[str]:
    """NodeDevices, the kubelet's list and the Node have the same numbers."""
    found = []
    shown = {each["name"]: each for each in node.shown["status"].get("resources", ()) if each["managedBy"] == "plugin"}
    offered: dict[str, int] = defaultdict(int)
    for resource, _ in node.offered:
        offered[resource] += 1
    status = node.node.get("status", {})
    kept = kept_for_holders(node)
    on_node = {each for each in status.get("capacity", {}) if each.startswith(OURS)}
    for name in sorted({*shown, *offered, *on_node} - {MIB}):
        healthy, capacity = shown.get(name, {}).get("healthy", 0), shown.get(name, {}).get("capacity", 0)
        numbers = {
            "the kubelet": (offered.get(name, 0), None),
            "the Node": (int(status.get("allocatable", {}).get(name, 0)), int(status.get("capacity", {}).get(name, 0))),
        }
        for where, (many, all_) in numbers.items():
            known = all_ is None or name not in shown or capacity <= all_ <= capacity + kept.get(name, 0)
            if many != healthy or not known:
                found.append(f"{node.name}: {name}: {where} has {many} of {all_}, NodeDevices {healthy} of {capacity}")
    return found


def kept_for_holders(node: NodeSeen) -> dict[str, int]:
    """Ids of a former configuration that pods have of faulty devices: the kubelet is shown them as Unhealthy, so that
    the pods say so, and NodeDevices does not count them."""
    ill = {part["id"] for part in node.shown["status"].get("devices", ()) if part["health"]["state"] not in FIT}
    found: dict[str, int] = defaultdict(int)
    for each in node.holders:
        for resource, id_ in each.ids:
            found[resource] += device_of(id_, {}).part in ill
    return found


def owned_capacity_follows(node: NodeSeen, plan: Plan) -> list[str]:
    """The memory that the operator counts is that of the devices that new pods can get. It shrinks no further than what
    pods have requested."""
    fit = [
        each
        for each in node.shown.get("status", {}).get("devices", ())
        if each["type"] == "gpu" and each["health"]["state"] in FIT
        if not each.keys() & {"unschedulable", "excluded", "parent"}
    ]
    right = sum(mebibytes(each.get("capacity", {}).get("memory", "0")) for each in fit)
    if not plan.nodes[node.name].chosen.get("capacity"):
        right = 0
    is_ = int(node.node.get("status", {}).get("capacity", {}).get(MIB, 0))
    requested = any(
        resource == MIB
        for pod in plan.pods.values()
        if pod.node == node.name
        for part in pod.parts
        for resource, _ in part.limits
    )
    if is_ == right or (requested and is_ > right):
        return []
    return [f"{node.name}: {MIB} is {is_}, and the devices that new pods can get have {right}"]


def holders_are_true(node: NodeSeen, history: History, plan: NodePlan) -> list[str]:
    """NodeDevices names, on each device and partition, the containers that the kubelet names. A device or partition
    that is absent, and whose memory went with the state file, has no place there: HoldersKnown names it, where the
    agent still offers its resource, and else nobody knows whose it was."""
    real: dict[str, set[Container]] = defaultdict(set)
    offered = {each["name"] for each in node.shown["status"].get("resources", ())}
    elsewhere: set[str] = set()
    for each in node.holders:
        for resource, id_ in each.ids | claimed.ids(each.claims, history.granted):
            if not id_.startswith(COUNTED):
                part = device_of(id_, {}).part
                real[part].add((each.pod, each.container))
                elsewhere |= {part} if resource not in offered else set()
    listed: set[str] = set()
    unlisted = condition(node.shown, "HoldersKnown").get("message", "")
    said: dict[str, set[Container]] = defaultdict(set)
    for device in node.shown["status"].get("devices", ()):
        listed.add(device["id"])
        for holder in device.get("holders", ()):
            said[device["id"]].add((holder["pod"], holder["container"]))
    return [
        f"{node.name}: {part} is held by {sorted(real[part])}, and NodeDevices says {sorted(said[part])}"
        for part in sorted({*real, *said})
        # The agent knows an init container while it runs; the kubelet's list has none.
        if real[part] != said[part] - history.init
        and not (plan.has_forgotten and part not in listed and (part in elsewhere or f"{part} (by " in unlisted))
    ]


def faults_are_seen(node: NodeSeen, plan: NodePlan) -> list[str]:
    """Just the devices that were struck are not fit for use, and nothing of them is offered."""
    found = []
    every = node.shown["status"].get("devices", ())
    devices = {each["index"]: each for each in every if each["index"] < 20 and "parent" not in each}
    for index, kind in enumerate(DEVICES[node.name]):
        device = devices.get(index)
        if device is None and index in plan.forgotten:
            continue
        if device is None:
            found.append(f"{node.name}: device {index} ({kind}) is not listed")
            continue
        state, fault = device["health"]["state"], plan.faults.get(index)
        right = "Healthy" if fault is None else "Unhealthy"
        parts = [each for each in every if device["name"] in {each["name"], each.get("parent")}]
        used = any(each.get("holders") for each in parts) or _in_a_resource(device, node, plan)
        if fault is not None and fault[0] in UNUSED and not used:
            right = "Degraded"
        if state != right:
            found.append(
                f"{node.name}: device {index} ({device['id']}) is {state} {device['health'].get('reason', '')}, "
                f"and what was done to it is {fault[0] if fault else 'nothing'}"
            )
        if right == "Unhealthy" or index in plan.cordoned:
            ids = {each["id"] for each in parts}
            bad = sorted(id_ for _, id_ in node.offered if device_of(id_, {}).part in ids)
            found += [f"{node.name}: device {index} is offered: {bad[:3]}"] if bad else []
        if ("unschedulable" in device) != (index in plan.cordoned):
            found.append(f"{node.name}: device {index}: unschedulable is {device.get('unschedulable')!r}")
    return found


def _in_a_resource(device: dict[str, Any], node: NodeSeen, plan: NodePlan) -> bool:
    """As the policies say, or, where they are not possible here, as the configuration before them says."""
    if condition(node.shown, "ConfigApplied").get("reason") != CONFIG_INVALID:
        return bool(plan.chosen.get("resources"))
    withheld = [each for one in node.shown["status"].get("resources", ()) for each in one.get("withheld", ())]
    return any(f"{device['type']}-{device['index']}" in each["devices"] for each in withheld)


def conditions_agree(node: NodeSeen, plan: NodePlan) -> list[str]:
    status = node.shown["status"]
    conditions = {each["type"]: each for each in status.get("conditions", ())}
    expected = {
        "Ready": "True",
        "HoldersKnown": "True",
        "AllocatedOnce": "True",
        "PolicyResolved": "True",
        "Stale": "False",
    }
    if "SlicesPublished" in conditions:
        expected["SlicesPublished"] = "True"
    states = {each["health"]["state"] for each in status.get("devices", ())}
    if "Unhealthy" in states or states <= {*FIT}:
        expected["DevicesHealthy"] = "False" if "Unhealthy" in states else "True"
    found = [
        f"{node.name}: {name} is {conditions.get(name, {}).get('status')}: {conditions.get(name, {}).get('reason')}: "
        f"{conditions.get(name, {}).get('message')}"
        for name, right in expected.items()
        if conditions.get(name, {}).get("status") != right
    ]
    for action in status.get("actions", ()):
        # Evictions may wait; of a capacity, pods may have requested more than there is left.
        allowed = {"InSync", "Pending"} if action["name"] == "capacity" else {"InSync"}
        if action["name"] in {"capacity", "labels", "taint"} and action["reason"] not in allowed:
            found.append(f"{node.name}: action {action['name']} is {action['reason']}: {action.get('message')}")
    applied, configuration = conditions.get("ConfigApplied", {}), status.get("configuration", {})
    waits, refused = bool(configuration.get("waitingForPods")), bool(configuration.get("refusals"))
    match applied.get("reason"):
        case "Applied":
            right = applied["status"] == "True" and not waits and not refused
        case "WaitingForHolders":
            right = applied["status"] == "False" and waits
        case "ConfigInvalid":
            right = applied["status"] == "False" and refused
        case _:
            right = False
    if not right:
        found.append(f"{node.name}: ConfigApplied is {applied}, beside {configuration}")
    if applied.get("reason") == "Applied" and status.get("appliedConfigHash") != node.shown["spec"].get("configHash"):
        found.append(f"{node.name}: another configuration is applied than the one in spec")
    tainted = any(each["key"].startswith("nodedevices.io/") for each in node.node.get("spec", {}).get("taints", ()))
    # A taint that is there stays while the state of a device is not known.
    blind = any(each["health"]["state"] == "Unknown" for each in status.get("devices", ()))
    wanted = plan.chosen.get("faults") == "taint" and (bool(plan.faults) or blind)
    if tainted and not wanted:
        found.append(f"{node.name} is tainted, and no policy says so or nothing is wrong")
    return found


def marks_are_right(node: NodeSeen, pods: Mapping[str, PodSeen]) -> list[str]:
    """A pod that runs with a device at fault says so, and no other does. One whose device fell off the bus under it and
    is back does so until its container has started again, which is not seen here."""
    ill: set[str] = set()
    lost: set[str] = set()
    for device in node.shown["status"].get("devices", ()):
        for holder in device.get("holders", ()):
            if device["health"]["state"] == "Unhealthy":
                ill.add(holder["pod"])
            if "health" in holder:
                lost.add(holder["pod"])
    return [
        f"{node.name}: {pod.name} is marked {pod.healthy or 'not at all'}, and its devices are "
        + ("at fault" if pod.name in ill else "well")
        for pod in pods.values()
        if pod.node == node.name and pod.phase == "Running" and (pod.healthy == "False") != (pod.name in ill)
        if pod.name not in lost - ill
    ]


def policies_are_accepted(seen: Seen, plan: Plan) -> list[str]:
    wanted = {policy_name(section, name) for name, node in plan.nodes.items() for section in node.chosen}
    found = [f"policy {name} is not there" for name in sorted(wanted - seen.policies.keys())]
    for name in sorted(wanted & seen.policies.keys()):
        conditions = {each["type"]: each for each in seen.policies[name].get("status", {}).get("conditions", ())}
        if conditions.get("Accepted", {}).get("status") != "True":
            found.append(f"policy {name} is not accepted: {conditions.get('Accepted')}")
    return found


def every_pod_is_there(seen: Seen, plan: Plan) -> list[str]:
    """Nothing is left of pods that were deleted, and each other one waits, runs or was refused, but starts no more."""
    assert seen.pods is not None
    found = [f"{name} is still there" for name in sorted(seen.pods.keys() - plan.pods.keys())]
    known = {process.pod for node in seen.nodes.values() for process in node.processes}
    found += [
        f"{pod.name} is Running, and none of its processes is there"
        for pod in seen.pods.values()
        if pod.phase == "Running" and pod.uid not in known
    ]
    return found


def needless(requests: Iterable[Request]) -> list[str]:
    """Writes other than the Lease's and one report of each agent, which has a heartbeat every five minutes."""
    found, beats = [], set()
    for each in requests:
        if each.right is None or each.right[2] not in WRITES or each.right[1] in NOT_CLUSTER:
            continue
        agent, what = each.account.endswith("-agent"), each.text.partition(": ")[0]
        if agent and what not in beats:
            beats.add(what)
        else:
            found.append(each.text)
    return found


def policy_name(section: str, node: str) -> str:
    return f"{section}-{node}"
