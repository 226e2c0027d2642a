"""Changes that a DryRun policy would make on one node, for people: sections, names of ids, what is done about faults.

What Enforce would do now is also what budget and breaker allow: the actions are named here, the fleet answers for all
nodes together (`desired.fleet.would_answer`), and the text says what would be done and what would not, and why. Which
ids there are is the agent's to say: `kubectl nodedevices policy dry-run` counts them by the agent's own code.

Pods are those that NodeDevices names as holders: whether one belongs to a DaemonSet, has the annotation that keeps it,
or got the device after its fault was known, is not checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

from msgspec import Struct
from nodedevices_api.conditions import HOLDERS_KNOWN
from nodedevices_api.defaults import Resolved
from nodedevices_api.matching import described
from nodedevices_api.sections import ExpectedDevices, SharedResource, Sharing
from nodedevices_common.grouping import grouped
from nodedevices_common.observing import without_effect, would_observe
from nodedevices_common.text import some

from nodedevices_operator.desired.configuration import DryRun, understood
from nodedevices_operator.desired.consequences import ON_OFFER, evictions, on_offer, read_faults, tainting
from nodedevices_operator.desired.fleet import EVICT, Action, ActionAnswer
from nodedevices_operator.records.names import is_pod
from nodedevices_operator.records.objects import DeviceRecord, NodeDevicesRecord, TaintRecord

SECTIONS = ("serving", "resources", "sharing", "partitions")  # that decide names and ids
MAX_NAMES = 5  # of resources, said
SHARES_OF_MEMORY = "nodedevices.io/gpu-memory"  # of sharing by memory, without rename
WHOLE, MEMORY = "none", "memory"  # Sharing.strategy
MAX_PODS = 5  # named
APIS = {"DRA": "DRA", "DevicePlugin": "the device plugin API"}  # serving.api
DRA_SINCE = (1, 34)  # Kubernetes that has resource.k8s.io/v1
BY_NAME_SINCE = (1, 36)  # Kubernetes by which pods get devices of DRA by an extended resource's name, by default
_VERSION = re.compile(r"v?(\d+)\.(\d+)")


class Eviction(Struct, frozen=True):
    action: Action
    pod: str  # namespace/name
    grace_seconds: int
    kept: str = ""  # why the pod would not be evicted now, whatever the fleet answers


class DryRunEffect(Struct, frozen=True):
    """The effect that the policy would have on one node. Empty: nothing would change."""

    changes: str = ""  # of the configuration
    taint: Action | None = None
    evictions: tuple[Eviction, ...] = ()

    @property
    def actions(self) -> tuple[Action, ...]:
        """The actions that would be proposed, now or after a grace."""
        return (
            *(() if self.taint is None else (self.taint,)),
            *(eviction.action for eviction in self.evictions if not eviction.kept),
        )

    def text(self, answers: Mapping[Action, ActionAnswer]) -> str:
        """Empty: nothing would change. What has no answer would be done."""
        told: dict[str, list[str]] = {}  # by why it would not be done; empty: it would
        if self.taint is not None:
            what = f"taint the Node {self.taint.target} for {self.taint.reason}"
            told.setdefault(_refusal(answers, self.taint), []).append(what)
        groups = grouped(
            ((eviction.kept or _refusal(answers, eviction.action), eviction.grace_seconds), eviction.pod)
            for eviction in self.evictions
        )
        for (why, grace), pods in sorted(groups.items()):
            after = f" when {grace} s after it was marked" if grace else ""
            told.setdefault(why, []).append(f"evict {some(sorted(pods), MAX_PODS)}{after}")
        done = [f"would {what}" for what in told.pop("", ())]
        refused = [f"would not {', nor '.join(them)}: {why}" for why, them in told.items()]
        return ", ".join([*filter(None, [self.changes]), *done, *refused])


def dry_run_effect(
    dry_run: DryRun, record: NodeDevicesRecord, taints: Sequence[TaintRecord], kubelet: str = ""
) -> DryRunEffect:
    """Return the effect on this node. `taints`: those of our key that the Node has; `kubelet`: its version."""
    if dry_run.misfit:
        return DryRunEffect(f"could not be combined with the other policies: {dry_run.misfit}")
    changes = f"would change {', '.join(dry_run.changes)}" if dry_run.changes else ""
    ids = id_changes(record, dry_run.now, dry_run.then) if changes else IdChanges()
    by_name = without_names(ids.switched, kubelet, by_memory=ids.by_memory) if ids.api == "DRA" else ""
    details = [ids.text(), no_dra(ids, kubelet) or by_name]
    if "expect" in dry_run.changes:
        details += lacking(understood(dry_run.then).sections.expect, record.devices).values()
    if would_observe(dry_run.now, dry_run.then, observing=record.observes):
        details += [text for section, text in without_effect(dry_run.then) if section in dry_run.changes]
    if said := "; ".join(filter(None, details)):
        changes += f" ({said})"
    if dry_run.faults is None or (section := read_faults(dry_run.faults)) is None:
        return DryRunEffect(changes)
    wanted = tainting(record, section, taints)
    taint = None if wanted is None else wanted.action(record.name, taints)
    due = []
    for eviction in evictions(record, section):
        holder, health = eviction.holding.holder, eviction.holding.health
        pod = f"{holder.namespace}/{holder.pod}"
        action = Action(health.since, record.name, EVICT, f"{pod}/", health.reason)
        kept = ON_OFFER if on_offer(record, eviction.holding, taints if wanted is None else (wanted.taint,)) else ""
        due.append(Eviction(action, pod, int(eviction.grace.total_seconds()), kept))
    return DryRunEffect(changes, taint, tuple(due))


def lacking(expect: Iterable[ExpectedDevices], devices: Sequence[DeviceRecord]) -> dict[int, str]:
    """Return the entries, by place, of which a node has fewer devices, a text each. `devices`: all of one node."""
    here = [device for device in devices if not device.health.missing]
    counted = ((entry, sum(device.selected_by(entry.match) for device in here)) for entry in expect)
    return {
        at: f"{described(entry.match)}: {found} of {entry.count} found"
        for at, (entry, found) in enumerate(counted)
        if found < entry.count
    }


def _refusal(answers: Mapping[Action, ActionAnswer], action: Action) -> str:
    answer = answers.get(action)
    return "" if answer is None or answer.granted else answer.reason


# --- names and their ids ---------------------------------------------------------------------------------------------
class IdChanges(Struct, frozen=True):
    """What may change on one node. `switched`: of the names those that would be served by another `api`; `by_memory`:
    of these the shares of memory."""

    names: tuple[str, ...] = ()  # of resources
    switched: tuple[str, ...] = ()
    by_memory: frozenset[str] = frozenset()
    api: str = ""
    pods: tuple[str, ...] = ()  # namespace/name of those that hold devices by these names
    pods_known: bool = True  # whether these are all

    def text(self) -> str:
        """Return the changes as a text for people; empty: there are none."""
        if not self.names:
            return ""
        others = [name for name in self.names if name not in self.switched]
        by = f"{some(self.switched, MAX_NAMES)} by {APIS[self.api]}" if self.switched else ""
        ids = "; ".join(filter(None, (by, f"ids of {some(others, MAX_NAMES)}" if others else "")))
        if self.pods:
            more = "" if self.pods_known else " and perhaps others"
            return f"{ids}; held by {some(self.pods, MAX_PODS)}{more}: these keep what they hold until they end"
        return ids if self.pods_known else f"{ids}; which pods hold them is not known"


def id_changes(record: NodeDevicesRecord, now: Mapping[str, Any], then: Mapping[str, Any]) -> IdChanges:
    """`now` and `then` are the node's whole configuration without and with the change, in wire form."""
    present = {resource.name for resource in record.resources if resource.served}
    after = understood(then)
    if not present or after.misfit or would_observe(now, then, observing=record.observes):
        return IdChanges()
    before = understood(now).sections
    api = after.sections.serving.api if after.sections.serving.api != before.serving.api else ""
    names = _names(before, after.sections, present)
    switched = _switched(record, after.sections, present | names) if api else set()
    names |= switched
    by_claims = any(resource.managed_by == "dra" and resource.name in names for resource in record.resources)
    pods = {
        f"{holder.namespace}/{holder.pod}"
        for device in record.devices
        for part in device.parts
        for holder in part.holders
        if (holder.resource in names & present or (holder.claim and by_claims)) and is_pod(holder.namespace, holder.pod)
    }
    complete = record.is_true(HOLDERS_KNOWN) and not any(device.unlisted for device in record.devices)
    by_memory = frozenset(offered[-1] for _, strategy, offered in _shared(after.sections.sharing) if strategy == MEMORY)
    return IdChanges(
        names=tuple(sorted(names)),
        switched=tuple(sorted(switched)),
        by_memory=by_memory & switched,
        api=api,
        pods=tuple(sorted(pods)),
        pods_known=complete,
    )


def _switched(record: NodeDevicesRecord, after: Resolved, names: set[str]) -> set[str]:
    """Return the names that would be served by the other API, as far as it is known: DRA carries no computing power."""
    if after.serving.api == "DRA":
        rules = _shared(after.sharing)
        with_cores = (offered[1:] for rule, _, offered in rules if rule.cores or rule.core_resource is not None)
        return names.difference(*with_cores)
    return {resource.name for resource in record.resources if resource.managed_by == "dra"}


def no_dra(ids: IdChanges, kubelet: str) -> str:
    """Return why a node with this version of Kubernetes cannot serve by DRA what it would switch; empty: it can, or the
    version is not known."""
    version = _version(kubelet)
    if ids.api != "DRA" or version is None or version >= DRA_SINCE:
        return ""
    return f"serving.api: DRA needs Kubernetes {'.'.join(map(str, DRA_SINCE))} or later, and the kubelet is {kubelet}"


def without_names(names: Iterable[str], kubelet: str, *, by_memory: Set[str]) -> str:
    """Return for people what pods lose that request these names without a claim, once DRA serves them on a node with
    this version of Kubernetes; empty: nothing. Older servers drop DeviceClass.spec.extendedResourceName (KEP-5004), and
    the class of shares of memory has none."""
    version, since = _version(kubelet), ".".join(map(str, BY_NAME_SINCE))
    why = f" (kubelet {kubelet}; that needs {since})" if version else f", unless its kubelet is {since} or later"
    kept = version is not None and version >= BY_NAME_SINCE
    lost = [name for name in names if name not in by_memory and not kept]
    parts = {why: lost, " (amounts of memory need one)": [name for name in names if name in by_memory]}
    return "; ".join(
        f"pods that request {some(of_them, MAX_NAMES)} without a claim get none of this node{reason}"
        for reason, of_them in parts.items()
        if of_them
    )


def _version(kubelet: str) -> tuple[int, ...] | None:
    found = _VERSION.match(kubelet)
    return None if found is None else tuple(map(int, found.groups()))


def _names(before: Resolved, after: Resolved, present: set[str]) -> set[str]:
    """Return the names of the rules of `sharing` that differ; where another section does, every one that is there."""
    renamed = before.resources != after.resources
    old, new = _shared(before.sharing), _shared(after.sharing)
    rules = [rule for rule in old if rule not in new] + [rule for rule in new if rule not in old]
    names = {name for *_, offered in rules if renamed or not present.isdisjoint(offered) for name in offered}
    if renamed or before.partitions != after.partitions:
        names |= present
    return names | ({rule.name for rule in after.resources.devices} if renamed else set())


def _shared(sharing: Sharing) -> list[tuple[SharedResource, str, tuple[str, ...]]]:
    """Return each rule with its strategy, and every name under which it has something offered."""
    if sharing.strategy == WHOLE:
        return []
    found = []
    for rule in sharing.resources:
        strategy = sharing.strategy_of(rule)
        usual = f"{rule.name}.shared" if sharing.rename_by_default else rule.name
        usual = SHARES_OF_MEMORY if strategy == MEMORY and not sharing.rename_by_default else usual
        cores = () if rule.core_resource is None else (rule.core_resource,)
        found.append((rule, strategy, (rule.name, *cores, rule.rename or usual)))
    return found
