"""The operator's knowledge of the cluster: slim records of NodeDevices, Nodes and DevicePolicies, by name.

Everything enters through `Cache.observe` and leaves through `Cache.remove`; both return which keys are to be
reconciled. An older resourceVersion never replaces a newer one, so the watch, the authoritative LIST and the answers to
our own writes may arrive in any order; except where a LIST proves that the cluster itself went back, as after a
restored etcd (relist.py). The cache is `synced` only after one complete LIST of all three kinds; before that nothing is
decided. An object goes only by a DELETED event or by the API server's own 404, never by its absence from a list.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from msgspec import Struct, field
from nodedevices_api.conditions import STALE

from nodedevices_operator.records.kinds import Kind, Record
from nodedevices_operator.records.objects import HeartbeatArrival, NodeDevicesRecord, NodeRecord, PolicyRecord


class Dirty(Struct, frozen=True):
    """The keys that are to be reconciled because of a change."""

    nodes: frozenset[str] = frozenset()
    policies: frozenset[str] = frozenset()
    faults: frozenset[str] = frozenset()  # those of the nodes whose faults are others than before
    urgent: frozenset[str] = frozenset()  # those that go before the others for another reason

    def __bool__(self) -> bool:
        return bool(self.nodes or self.policies)


NOTHING = Dirty()
HEALTHY = "Healthy"


class Cache(Struct):
    """Records by name. One event loop only; records are frozen.

    What is in one stays the same objects for as long as nothing changes: with each heartbeat's own copies kept, the
    garbage collector would go through everything again and again, 0.2 s at a time with 5,000 nodes.
    """

    node_devices: dict[str, NodeDevicesRecord] = field(default_factory=dict)
    nodes: dict[str, NodeRecord] = field(default_factory=dict)
    policies: dict[str, PolicyRecord] = field(default_factory=dict)
    synced: bool = False
    clock: Callable[[], float] = time.monotonic
    last_event: float | None = None  # clock
    changed_at: dict[str, float] = field(default_factory=dict)  # node -> clock of the last change of its devices
    heartbeats: dict[str, HeartbeatArrival] = field(default_factory=dict)  # node -> when its heartbeat came
    revised: set[str] = field(default_factory=set)  # nodes whose NodeDevices or Node is another than the survey knows
    removed: set[str] | None = None  # uids of objects that are gone since a LIST began; None: none is under way

    def records(self, kind: Kind) -> Mapping[str, Record]:
        known: dict[Kind, Mapping[str, Record]] = {
            Kind.NODE_DEVICES: self.node_devices,
            Kind.NODE: self.nodes,
            Kind.POLICY: self.policies,
        }
        return known[kind]

    def observe(self, kind: Kind, record: Record, *, force: bool = False) -> Dirty:
        """Take a newer state of an object in (with `force`, any). Returns what is to be reconciled; nothing when no
        decision can change."""
        before = self.records(kind).get(record.name)
        order = None if before is None else compared(record.resource_version, before.resource_version)
        if order is not None and order <= 0 and not force:
            return NOTHING
        if isinstance(record, NodeDevicesRecord):
            return self._observe_node_devices(record)
        if isinstance(record, NodeRecord):
            return self._observe_node(record)
        return self._observe_policy(record)

    def remove(self, kind: Kind, name: str, uid: str) -> Dirty:
        """The object of that uid is gone; another of its name stays."""
        if self.removed is not None:
            self.removed.add(uid)
        before = self.records(kind).get(name)
        if before is None or before.uid != uid:
            return NOTHING
        if isinstance(before, PolicyRecord):
            del self.policies[name]
            return Dirty(frozenset(self._concerned(before)))
        policies = frozenset[str]()
        if isinstance(before, NodeDevicesRecord):
            del self.node_devices[name]
            self.changed_at.pop(name, None)
            self.heartbeats.pop(name, None)
            policies = frozenset(self.policies)
        else:
            del self.nodes[name]
        self.revised.add(name)
        return Dirty(frozenset({name}), policies)

    def not_heard(self, name: str, at: float) -> None:
        """It is not known whether a heartbeat has come: count as if it had come then, if that is later."""
        arrival = self.heartbeats.get(name)
        if arrival is not None and arrival.at < at:
            self.heartbeats[name] = replace(arrival, at=at)

    def _observe_node_devices(self, record: NodeDevicesRecord) -> Dirty:
        before = self.node_devices.get(record.name)
        if before is None or before.heartbeat != record.heartbeat:
            self.heartbeats[record.name] = HeartbeatArrival(self.clock(), first=before is None)
        if before == record:
            seen = replace(
                before,
                heartbeat=record.heartbeat,
                resource_version=record.resource_version,
                fingerprints=record.fingerprints,
            )
            self.node_devices[record.name] = seen
            beats = before.heartbeat != record.heartbeat and record.is_true(STALE)
            return Dirty(frozenset({record.name})) if beats else NOTHING
        self.node_devices[record.name] = record
        self.revised.add(record.name)
        name = frozenset({record.name})
        if before is not None and before.devices == record.devices:
            return Dirty(name)
        self.changed_at[record.name] = self.clock()
        others = faults(record) != (faults(before) if before is not None else frozenset())
        return Dirty(name, faults=name if others else frozenset())

    def _observe_node(self, record: NodeRecord) -> Dirty:
        before = self.nodes.get(record.name)
        if before == record:
            self.nodes[record.name] = replace(before, resource_version=record.resource_version)
            return NOTHING
        self.nodes[record.name] = record
        self.revised.add(record.name)
        return Dirty(frozenset({record.name}))

    def _observe_policy(self, record: PolicyRecord) -> Dirty:
        before = self.policies.get(record.name)
        self.policies[record.name] = record
        own = frozenset({record.name})
        if before is None or (before.uid, before.generation) != (record.uid, record.generation):
            earlier = set() if before is None else self._concerned(before)
            return Dirty(frozenset(earlier | self._concerned(record)), own)
        return Dirty(policies=own) if before != record else NOTHING

    def _concerned(self, policy: PolicyRecord) -> set[str]:
        """Nodes with devices that the policy selects, or that have it in effect already."""
        return {
            name
            for name, record in self.node_devices.items()
            if (name in self.nodes and policy.selects(self.nodes[name].labels))
            or any(ref.name == policy.name for ref in record.policies)
        }


def faults(record: NodeDevicesRecord) -> frozenset[tuple[str, str, str, str]]:
    """Return what is not well on a node, and for whom: pods are marked by it, and pods and Nodes acted on."""
    found = set()
    for device in record.devices:
        for part in device.parts:
            healths = [(holder.health or part.health, f"{holder.namespace}/{holder.pod}") for holder in part.holders]
            healths.append((part.health, ""))
            found |= {(part.id, it.state, it.reason, of) for it, of in healths if it.state != HEALTHY}
    return frozenset(found)


def compared(version: str, than: str) -> int | None:
    """Return a number below, at or above 0 for an earlier, the same and a later version: those of one kind are
    comparable integers (KEP-5504; in fact they always were). None: they are no numbers, and what comes is taken."""
    try:
        return int(version) - int(than)
    except ValueError:
        return None
