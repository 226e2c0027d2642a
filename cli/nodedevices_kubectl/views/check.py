"""The chain from a node's driver to its pods, link by link, and where it breaks.

    node -> agent -> driver -> devices -> health -> configuration -> kubelet -> allocatable -> holders -> pods

(on nodes that serve by DRA with more, in views.claims.)

Each link is judged by what agent and operator report, so behind a broken `agent` all else is of the past: links after
one that is broken are not judged where they would only repeat it. `ok`; `warning`: it works, or will by itself;
`pending`: something changed less than a minute ago, and what follows from it is not there yet; `broken`: a person is
needed; `unknown`: it cannot be read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from nodedevices_api import conditions as names
from nodedevices_common.quantity import whole_units
from nodedevices_common.raw import Raw, mapping, mappings, number, text
from nodedevices_common.table import Row
from nodedevices_common.text import some
from nodedevices_common.times import zoned_time

from nodedevices_kubectl.views import claims, facts
from nodedevices_kubectl.views.claims import SeenClaims
from nodedevices_kubectl.views.findings import (
    BROKEN,
    CLUSTER,
    OK,
    PENDING,
    UNKNOWN,
    WARNING,
    Finding,
    about,
    lately,
    rows,
)

HEARTBEAT_OVERDUE = timedelta(minutes=15)  # three of the agent's heartbeats
LEASE_OVERDUE = timedelta(minutes=1)
MOST_HURT = 4  # pods, named
AWAY = "nodedevices.io/agent"  # a Node label; away: no agent is wanted there
# Reasons that are a warning where a condition is not as it should be; any other, also one that is not known here, is
# broken. `Stopped` is of single nodes' actions too: the policy's ActionsStopped, which is broken, says why.
_WAITS = {
    *("WaitingForHolders", "WaitingForKubelet", "WaitingForDaemon", "NoConfig"),  # the agent's
    *("Pending", "Refused", "Blocked", "Progressing", "Paused", "NoNodes", "SamePriority"),  # the operator's
}
# A DevicePolicy's conditions, each with its status where all is well.
_POLICY_WELL = {
    "Accepted": "True",
    "Applied": "True",
    "ActionsStopped": "False",
    "Conflicted": "False",
    "RolledOut": "True",
}
_SAID_ELSEWHERE = {"Applied": ("NotAccepted", "DryRun"), "RolledOut": ("Progressing", "Failed")}
_POLICY_NEXT = {  # where it is broken
    "ActionsStopped": "find the common cause of the faults (docs/runbooks/NodeDevicesActionsStopped.md); then: "
    "kubectl nodedevices confirm actions resumed",
    "RolledOut": "correct the policy (kubectl describe dp {0}): the roll-out then continues. To continue without a "
    "change: kubectl nodedevices confirm policy/{0} resumed",
}
_DESCRIBE = "kubectl describe dp {0}"
_AGENTS = "kubectl get pods -A -l app.kubernetes.io/component=agent"
_OPERATORS = "kubectl get pods -A -l app.kubernetes.io/component=operator"
_OF_THE_KUBELET = {"KubeletUnreachable", "RegistrationRejected", "ServedByAnother"}


@dataclass(frozen=True, slots=True)
class Seen:
    """What was read of a cluster. `whole`: all of it, so that links of the cluster are judged, and Nodes without an
    agent are found. None: this person may not read it."""

    items: Sequence[Raw]
    nodes: Mapping[str, Raw] | None = None  # by name
    whole: bool = False
    policies: Sequence[Raw] | None = None
    lease: Raw | None = None  # the operator's; empty: there is none
    agents: Sequence[Raw] = ()  # pods; only of an installation, and where no node has reported
    claims: SeenClaims | None = None  # None: no node serves by DRA


def judge(seen: Seen, now: datetime) -> list[Row]:
    """Every link."""
    if not seen.items:
        begun = any(lately(mapping(pod.get("metadata")).get("creationTimestamp"), now) for pod in seen.agents)
        # A check that saw nothing must not pass.
        return rows(CLUSTER, [Finding("agents", PENDING if begun else BROKEN, "no node has reported", _AGENTS)])
    found: list[Row] = []
    if seen.whole:
        found += rows(CLUSTER, [operator(seen.lease, now), *policies(seen.policies)])
    if seen.claims is not None:
        changed = any(changed_lately(item, now) for item in seen.items)
        found += rows(CLUSTER, list(claims.classes(seen.items, seen.claims, changed=changed)))
        found += rows(CLUSTER, [claims.unallocated(seen.items, seen.claims)]) if seen.whole else []
    for item in seen.items:
        name = facts.name_of(item)
        found += rows(name, chain(item, None if seen.nodes is None else seen.nodes.get(name, {}), seen.claims, now))
    if seen.whole:
        reported_on = {facts.name_of(item) for item in seen.items}
        for name, node in (seen.nodes or {}).items():
            if name not in reported_on:
                found += rows(name, without_agent(node))
    return found


def judge_installation(seen: Seen, now: datetime, *, elected: bool = True) -> list[Row]:
    """Return the operator, and the agent of every Node that is Ready and has a pod of one. What else breaks, a device
    at fault above all, was not installed. `seen.agents`: all pods of agents. `elected`: operators agree by a Lease."""
    nodes, items = seen.nodes or {}, {facts.name_of(item): item for item in seen.items}
    staying = [pod for pod in seen.agents if not mapping(pod.get("metadata")).get("deletionTimestamp")]
    pods = {text(mapping(pod.get("spec")).get("nodeName")): pod for pod in staying}
    ready = {name for name, node in nodes.items() if facts.condition(node, names.READY).get("status") == "True"}
    if not pods.keys() & ready:
        return rows(CLUSTER, [Finding("agents", BROKEN, "no Ready Node has an agent pod", _AGENTS)])
    found = rows(CLUSTER, [operator(seen.lease, now)]) if elected else []
    for name in sorted(pods.keys() & nodes.keys()):
        if name in ready:
            found += rows(name, [_installed(items.get(name, {}), pods[name], name, now)])
        else:
            found += rows(name, [Finding("node", UNKNOWN, "not checked, because the Node is not Ready")])
    return found


def watched(seen: Seen, found: Sequence[Row]) -> str:
    """Return for people how many nodes of an installation were looked at, and what these report."""
    names = {row.fields["node"] for row in found if row.fields["link"] == "agent"}
    sums = [mapping(facts.status_of(item).get("summary")) for item in seen.items if facts.name_of(item) in names]
    devices, healthy = (sum(number(summary.get(key)) or 0 for summary in sums) for key in ("devices", "healthy"))
    return f"{len(names)} node{'' if len(names) == 1 else 's'} with {devices} devices, {healthy} healthy"


def _installed(item: Raw, pod: Raw, name: str, now: datetime) -> Finding:
    """Return whether the agent of this node runs, is ready, and was seen by the operator."""
    if waits := _waits(pod):
        return Finding("agent", BROKEN, f"its pod does not run ({waits})", _agent_pods(name))
    agent, ready = _agent(item, name, now), facts.condition(item, names.READY)
    if agent.status == OK and ready.get("status") != "True":
        return Finding("agent", BROKEN, about(ready) or "it is not ready", "docs/troubleshooting.md")
    if agent.status == OK and not facts.condition(item, names.STALE):
        return Finding("agent", BROKEN, "it reports, but no operator has seen it", _OPERATORS)
    return agent


def _waits(pod: Raw) -> str:
    """Return why a pod does not run; empty: it does."""
    containers = mappings(facts.status_of(pod).get("containerStatuses"))
    for container in containers:
        state = mapping(container.get("state"))
        if "running" not in state:
            return text(mapping(state.get("waiting")).get("reason")) or "Ended"
    return "" if containers else "Pending"


def not_installed(context: str) -> Finding:
    detail = f"the cluster of context {context} has no kind NodeDevices"
    return Finding("installed", BROKEN, detail, "docs/operations.md#install")


def without_agent(node: Raw) -> list[Finding]:
    """A Node that has no NodeDevices."""
    if mapping(mapping(node.get("metadata")).get("labels")).get(AWAY) == "away":
        return [Finding("agent", OK, f"switched off here (label {AWAY}=away)")]
    return [Finding("agent", WARNING, "no agent has reported on this node", _agent_pods(facts.name_of(node)))]


def chain(item: Raw, node: Raw | None, seen: SeenClaims | None, now: datetime) -> list[Finding]:
    """`node`: the Node; empty: there is none of this name; None: Nodes cannot be read. `seen`: of claims."""
    name = facts.name_of(item)
    found = [_node(name, node, item)]
    agent = _agent(item, name, now)
    found.append(agent)
    if agent.status in {BROKEN, PENDING}:
        return found
    for link in (_driver, _devices, _health, _configuration, _kubelet):
        found.append(link(item, name))
        if found[-1].status == BROKEN and link in {_driver, _devices}:
            return found
    changed = changed_lately(item, now)
    serves_by_dra = seen if claims.by_dra(item) else None
    if found[-1].status != BROKEN:
        if serves_by_dra is None or _by_plugin(item):
            found.append(_allocatable(item, node, changed=changed))
        if serves_by_dra is not None:
            found.append(claims.slices(item, serves_by_dra, changed=changed))
    found.append(_holders(item))
    if serves_by_dra is not None:
        found.append(claims.unprepared(item, serves_by_dra, now))
    return [*found, _pods(item)]


def _agent_pods(node: str) -> str:
    return f"{_AGENTS} --field-selector spec.nodeName={node}"


def _node(name: str, node: Raw | None, item: Raw) -> Finding:
    """With what others say on it, as its NodeDevices shows that: the cloud, and monitors of its health."""
    if node is not None and not node:
        return Finding("node", BROKEN, "there is no Node with this name", f"kubectl delete nodedevices {name}")
    ready = facts.condition(node or {}, names.READY)
    if node is None or ready.get("status") == "True":
        said = [
            f"{kind}: {about(found)}"
            for kind in (names.MAINTENANCE_SCHEDULED, names.PROBLEM_REPORTED)
            if (found := facts.condition(item, kind)).get("status") == "True"
        ]
        if said:
            return Finding("node", WARNING, "; ".join(said), f"kubectl describe node {name}; docs/neighbours.md")
        return Finding("node", UNKNOWN, "you may not read Nodes") if node is None else Finding("node", OK, "Ready")
    return Finding("node", BROKEN, about(ready) or "not Ready", f"kubectl describe node {name}")


def _agent(item: Raw, name: str, now: datetime) -> Finding:
    stale, agent = facts.condition(item, names.STALE), mapping(facts.status_of(item).get("agent"))
    if not agent:
        made = mapping(item.get("metadata")).get("creationTimestamp")
        return Finding("agent", PENDING if lately(made, now) else BROKEN, "it has not reported yet", _agent_pods(name))
    if stale.get("status") == "True":
        return Finding("agent", BROKEN, about(stale), _agent_pods(name))
    beat = zoned_time(agent.get("heartbeatTime"))
    shown = facts.reported(agent, now)
    if beat is None or now - beat > HEARTBEAT_OVERDUE:
        return Finding("agent", BROKEN, shown, _agent_pods(name))
    return Finding("agent", OK, shown)


def _driver(item: Raw, name: str) -> Finding:
    bad = [probe for probe in mappings(facts.status_of(item).get("probes")) if probe.get("state") != "Ready"]
    ready = facts.condition(item, names.READY)
    if text(ready.get("reason")) in {"DriverNotLoaded", "ProbeUnavailable"}:
        return Finding("driver", BROKEN, about(ready), "docs/troubleshooting.md; on the node: lsmod, nvidia-smi")
    if bad:
        said = "; ".join(
            f"{text(probe.get('name'))} is {text(probe.get('state'))}: {text(probe.get('message'))}" for probe in bad
        )
        starting = all(probe.get("state") == "Starting" for probe in bad)
        # One without which the node is ready: that of the kernel's log, which lists no devices.
        spare = all(f"ProbeUnavailable: {text(probe.get('name'))}: " in text(ready.get("message")) for probe in bad)
        return Finding(
            "driver", WARNING if starting or spare else BROKEN, said, "" if starting else f"kubectl describe nd {name}"
        )
    return Finding("driver", OK, facts.drivers(item) or "no driver is reported")


def _devices(item: Raw, name: str) -> Finding:
    ready = facts.condition(item, names.READY)
    if ready.get("reason") == "DevicesLost":
        return Finding("devices", BROKEN, about(ready), "docs/operations.md#roll-out-of-the-agents")
    expected = facts.condition(item, names.EXPECTED_DEVICES)
    if expected.get("status") == "False":
        return Finding("devices", BROKEN, about(expected), "docs/troubleshooting.md#conditions-of-nodedevices")
    count = number(mapping(facts.status_of(item).get("summary")).get("devices"))
    if not count:
        return Finding(
            "devices",
            WARNING,
            "the node has none",
            "no device is expected here? label the node nodedevices.io/agent=away",
        )
    return Finding("devices", OK, f"{count} found")


def _health(item: Raw, name: str) -> Finding:
    found = facts.condition(item, names.DEVICES_HEALTHY)
    if found.get("status") == "True":
        out = number(mapping(facts.status_of(item).get("summary")).get("unschedulable")) or 0
        return Finding("health", OK, "all healthy" + (f", {out} out of service" if out else ""))
    status = BROKEN if found.get("status") == "False" else WARNING
    return Finding("health", status, about(found), f"kubectl nodedevices devices {name} --unhealthy")


def _configuration(item: Raw, name: str) -> Finding:
    explain = f"kubectl nodedevices policy explain {name}"
    conditions = {kind: facts.condition(item, kind) for kind in (names.POLICY_RESOLVED, names.CONFIG_APPLIED)}
    bad = {kind: found for kind, found in conditions.items() if found.get("status", "True") != "True"}
    bad |= facts.not_in_sync(item)
    if bad:
        waits = all(text(found.get("reason")) in _WAITS | {"Stopped"} for found in bad.values())
        said = "; ".join(f"{what}: {about(found)}" for what, found in bad.items())
        return Finding("configuration", WARNING if waits else BROKEN, said, explain)
    if not facts.condition(item, names.CONFIG_APPLIED):
        return Finding("configuration", WARNING, "not known yet", explain)
    if unmatched := mappings(mapping(facts.status_of(item).get("configuration")).get("unmatched")):
        return Finding("configuration", WARNING, f"entries without effect on this node: {len(unmatched)}", explain)
    return Finding("configuration", OK, "applied")


def _kubelet(item: Raw, name: str) -> Finding:
    ready = facts.condition(item, names.READY)
    if ready.get("status") == "True":
        offered = [text(resource.get("name")) for resource in mappings(facts.status_of(item).get("resources"))]
        return Finding("kubelet", OK, f"registered: {', '.join(offered)}" if offered else "nothing is offered")
    if text(ready.get("reason")) in _OF_THE_KUBELET:
        return Finding("kubelet", BROKEN, about(ready), "docs/troubleshooting.md")
    status = WARNING if ready.get("status") == "Unknown" else BROKEN
    return Finding("kubelet", status, about(ready) or "not known yet", _agent_pods(name))


def changed_lately(item: Raw, now: datetime) -> bool:
    """True when what the agent offers to the kubelet may have changed less than a minute ago: it registered, its spec
    was written (a policy, a device out of service), or a device changed its state."""
    metadata, status = mapping(item.get("metadata")), facts.status_of(item)
    spec = (it for it in mappings(metadata.get("managedFields")) if not it.get("subresource"))
    times = [
        metadata.get("creationTimestamp"),
        mapping(status.get("agent")).get("startTime"),
        *(facts.condition(item, kind).get("lastTransitionTime") for kind in (names.READY, names.CONFIG_APPLIED)),
        *(fields.get("time") for fields in spec),
        *(unit.health.get("since") for unit in facts.units(item)),
    ]
    return any(lately(time_, now) for time_ in times)


def _by_plugin(item: Raw) -> list[Raw]:
    return [it for it in mappings(facts.status_of(item).get("resources")) if it.get("managedBy") == "plugin"]


def _allocatable(item: Raw, node: Raw | None, *, changed: bool) -> Finding:
    """What the Node says to the scheduler, beside what the agent has offered to the kubelet."""
    if not node:
        return Finding("allocatable", UNKNOWN, "you may not read Nodes" if node is None else "there is no Node")
    shown = mapping(facts.status_of(node).get("allocatable"))
    offered = {text(it.get("name")): number(it.get("healthy")) for it in _by_plugin(item)}
    known = {name: whole_units(shown.get(name)) for name, healthy in offered.items() if healthy is not None}
    differ = {name: count for name, count in known.items() if count != offered[name]}
    if differ:
        nothing = 0 in differ.values()  # of a resource is allocatable, though it is offered
        status = (PENDING if changed else BROKEN) if nothing else WARNING
        later = "" if status == PENDING else "; then: docs/troubleshooting.md"
        said = [f"{name}: {count}, but the agent offers {offered[name]}" for name, count in differ.items()]
        return Finding("allocatable", status, "; ".join(said), f"the kubelet updates it within a minute{later}")
    same = ", ".join(f"{name}: {count}" for name, count in known.items())
    return Finding("allocatable", OK, same or "nothing is offered")


def _holders(item: Raw) -> Finding:
    once, known = facts.condition(item, names.ALLOCATED_ONCE), facts.condition(item, names.HOLDERS_KNOWN)
    if once.get("status") == "False":
        return Finding("holders", BROKEN, about(once), "docs/runbooks/NodeDevicesDoubleAllocation.md")
    if known.get("status") != "True":
        return Finding("holders", WARNING, about(known) or "not known yet")
    held = number(mapping(facts.status_of(item).get("summary")).get("held")) or 0
    return Finding("holders", OK, f"devices held: {held}")


def _pods(item: Raw) -> Finding:
    hurt = [
        f"{facts.pod_of(holder)} has {unit.name} ({text(health.get('reason'))})"
        for unit in facts.units(item)
        for holder in unit.holders
        if (health := facts.health_for(holder, unit)).get("state") == facts.UNHEALTHY
    ]
    if hurt:
        evictions = facts.not_in_sync(item).get(names.ACTION_EVICTIONS)
        policy = "" if evictions is None else f"; the policy does not evict them: {about(evictions)}"
        advice = f"delete these pods{policy or ', or let a policy evict them: docs/faults.md'}"
        return Finding("pods", BROKEN, some(list(dict.fromkeys(hurt)), MOST_HURT), advice)
    return Finding("pods", OK, "no pod holds a faulty device")


def policies(items: Sequence[Raw] | None) -> Iterator[Finding]:
    """Of all nodes: every condition of a policy that is not as it is where all is well."""
    if items is None:
        yield Finding("policies", UNKNOWN, "you may not read DevicePolicies")
        return
    wrong = [
        (facts.name_of(item), kind, found)
        for item in items
        for kind, well in _POLICY_WELL.items()
        if (found := facts.condition(item, kind)).get("status", well) != well
        and text(found.get("reason")) not in _SAID_ELSEWHERE.get(kind, ())
    ]
    for name, kind, found in wrong:
        status = WARNING if text(found.get("reason")) in _WAITS else BROKEN
        advice = _POLICY_NEXT.get(kind, _DESCRIBE) if status == BROKEN else _DESCRIBE
        yield Finding(f"policy {name}", status, f"{kind}: {about(found)}", advice.format(name))
    if not wrong:
        yield Finding("policies", OK, f"policies: {len(items)}")


def operator(lease: Raw | None, now: datetime) -> Finding:
    """`lease`: the operator's; empty: there is none; None: it cannot be read."""
    if lease is None:
        return Finding("operator", UNKNOWN, "you may not read its Lease")
    if not lease:
        absent = "no Lease in --system-namespace: one replica without election, or none"
        return Finding("operator", WARNING, absent, _OPERATORS)
    spec = mapping(lease.get("spec"))
    renewed, holder = zoned_time(spec.get("renewTime")), text(spec.get("holderIdentity"))
    if holder and renewed is not None and now - renewed <= LEASE_OVERDUE:
        return Finding("operator", OK, f"led by {holder}")
    return Finding("operator", BROKEN, f"no replica leads since {facts.age(spec.get('renewTime'), now)}", _OPERATORS)
