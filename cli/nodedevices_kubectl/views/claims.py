"""The links of `check` that claims (DRA) take, on nodes that serve devices by it.

    configuration -> kubelet -> slices -> class -> claims

What a node lacks for DRA (the API, a component, a right) its `configuration` says. The slices are compared with what
the agent reports, since others delete them, and an API server drops fields that it does not know. A claim that no
device satisfies is the scheduler's to explain, and one that is not prepared the kubelet's: their words are shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime

from nodedevices_api import conditions as names
from nodedevices_api.dra import DRA_DRIVER, RESOURCE_API, RESOURCE_ATTRIBUTE, class_name
from nodedevices_common.quantity import whole_units
from nodedevices_common.raw import Raw, mapping, mappings, number, text
from nodedevices_common.text import some

from nodedevices_kubectl.views import facts
from nodedevices_kubectl.views.findings import BROKEN, OK, PENDING, UNKNOWN, WARNING, Finding, about, lately

NOT_PREPARED = "FailedPrepareDynamicResources"  # reason of the kubelet's Events on pods
MOST_PODS = 4  # named
_PAGE = "docs/dra.md#when-something-fails"
_NO_API = f"this API server has no {RESOURCE_API}; DRA needs Kubernetes 1.34.2 or later"


@dataclass(frozen=True, slots=True)
class SeenClaims:
    """What was read of DRA. None: this person may not read it."""

    api: bool = True  # the API server has it
    slices: Sequence[Raw] | None = None  # of our driver
    classes: Sequence[Raw] | None = None
    pods: Sequence[Raw] | None = None  # that are Pending
    claims: Mapping[str, Raw] | None = None  # by namespace/name
    events: Sequence[Raw] | None = None  # of NOT_PREPARED


def served(item: Raw) -> dict[str, int]:
    """Return the resources that the node serves by DRA, with how many healthy devices each has."""
    return {
        text(resource.get("name")): number(resource.get("healthy")) or 0
        for resource in mappings(facts.status_of(item).get("resources"))
        if resource.get("managedBy") == "dra"
    }


def by_dra(item: Raw) -> bool:
    return bool(served(item) or facts.condition(item, names.SLICES_PUBLISHED))


# --- slices and classes -----------------------------------------------------------------------------------------------
def slices(item: Raw, seen: SeenClaims, *, changed: bool) -> Finding:
    """`changed`: less than a minute ago, so that the API server may be behind."""
    published = facts.condition(item, names.SLICES_PUBLISHED)
    if published.get("status") == "False":
        return Finding("slices", BROKEN, about(published), _PAGE)
    if not seen.api:
        return Finding("slices", BROKEN, _NO_API, "docs/dra.md#what-is-needed")
    if seen.slices is None:
        return Finding("slices", UNKNOWN, "you may not read ResourceSlices")
    later = PENDING if changed else BROKEN
    node = facts.name_of(item)
    own = [spec for piece in seen.slices if (spec := mapping(piece.get("spec"))).get("nodeName") == node]
    pools = [mapping(spec.get("pool")) for spec in own]
    newest = max((number(pool.get("generation")) or 0 for pool in pools), default=0)
    current = [(spec, pool) for spec, pool in zip(own, pools, strict=True) if pool.get("generation") == newest]
    if not current:
        return Finding("slices", later, "the node has no ResourceSlice, although its agent published it", _PAGE)
    wanted = number(current[0][1].get("resourceSliceCount")) or 0
    if len(current) < wanted:
        missing = f"{len(current)} of {wanted} ResourceSlices are there: the scheduler uses none of them"
        return Finding("slices", later, missing, _PAGE)
    offered = Counter[str]()
    devices = [device for spec, _ in current for device in mappings(spec.get("devices"))]
    for device in devices:
        resource = mapping(mapping(device.get("attributes")).get(RESOURCE_ATTRIBUTE)).get("string")
        offered[text(resource)] += 0 if mappings(device.get("taints")) else _shares(device)
    few = {name: healthy for name, healthy in served(item).items() if offered[name] < healthy}
    if few:
        said = "; ".join(f"{name}: {offered[name]} of {healthy} healthy devices" for name, healthy in few.items())
        dropped = "where the API server drops taints or shares, devices are left out: see the agent's log"
        lost = any(not offered[name] for name in few)
        return Finding("slices", later if lost else WARNING, f"in ResourceSlices are only {said}", dropped)
    counts = ", ".join(f"{name}: {offered[name]}" for name in served(item))
    return Finding("slices", OK, f"published: {counts}" if counts else "published")


def _shares(device: Raw) -> int:
    """Return how many claims can have the device at once: its amount of what each consumes some of."""
    amounts = map(mapping, mapping(device.get("capacity")).values()) if device.get("allowMultipleAllocations") else ()
    counts = (
        whole_units(amount.get("value")) // least
        for amount in amounts
        if (least := whole_units(mapping(amount.get("requestPolicy")).get("default")))
    )
    return max(counts, default=1)


def classes(items: Sequence[Raw], seen: SeenClaims, *, changed: bool) -> Iterator[Finding]:
    """Yield the class of each resource that some node serves by DRA."""
    wanted = {class_name(name): name for item in items for name in served(item)}
    if not wanted or not seen.api:
        return
    if seen.classes is None:
        yield Finding("class", UNKNOWN, "you may not read DeviceClasses")
        return
    known = {facts.name_of(item): mapping(item.get("spec")) for item in seen.classes}
    by_memory = {
        text(resource.get("name"))
        for item in items
        for resource in mappings(facts.status_of(item).get("resources"))
        if resource.get("sharing") == "memory"
    }
    for name, resource in sorted(wanted.items()):
        link = f"class {name}"
        if name not in known:
            operators = "give the operator the component dra; its log says more (device classes are not kept)"
            yield Finding(link, PENDING if changed else BROKEN, f"there is no DeviceClass for {resource}", operators)
        elif not _selects_ours(known[name]):
            theirs = f"another's DeviceClass: it selects no device of {DRA_DRIVER}"
            yield Finding(link, BROKEN, theirs, "delete or rename it; ours follows within ten minutes")
        elif resource in by_memory:
            yield Finding(link, OK, f"for claims alone: pods that request {resource} run where the plugin serves it")
        elif not known[name].get("extendedResourceName"):
            why = "this API server drops extendedResourceName (feature gate DRAExtendedResource; on from 1.36)"
            what = f"pods that request {resource} without a claim are not placed on nodes that serve it by DRA"
            yield Finding(link, WARNING, f"{why}: {what}", "give these pods a claim, or nodes with the device plugin")
        else:
            yield Finding(link, OK, f"for {resource}")


def _selects_ours(spec: Raw) -> bool:
    found = (text(mapping(it.get("cel")).get("expression")) for it in mappings(spec.get("selectors")))
    return any(f'"{DRA_DRIVER}"' in expression or f"'{DRA_DRIVER}'" in expression for expression in found)


# --- claims of pods that wait -----------------------------------------------------------------------------------------
def unallocated(items: Iterable[Raw], seen: SeenClaims) -> Finding:
    """Return the pods that no node has got yet because of a claim for a device of ours."""
    if (unread := _unread(seen)) is not None:
        return unread
    ours = {class_name(name) for item in items for name in served(item)}
    ours |= {facts.name_of(item) for item in seen.classes or () if _selects_ours(mapping(item.get("spec")))}
    waiting = []
    for pod in seen.pods or ():
        if mapping(pod.get("spec")).get("nodeName"):
            continue
        for name, claim in _claims_of(pod, seen):
            if claim is None:
                waiting.append(f"{facts.namespaced(pod)}: there is no ResourceClaim {name}")
            elif not _allocation(claim) and ours & _classes_of(claim):
                why = text(facts.condition(pod, "PodScheduled").get("message")) or "not scheduled yet"
                waiting.append(f"{facts.namespaced(pod)}: ResourceClaim {name} is not allocated: {why}")
    if waiting:
        return Finding("claims", WARNING, some(waiting, MOST_PODS), f"kubectl describe pod; {_PAGE}")
    return Finding("claims", OK, "no pod waits for a claim to be allocated")


def unprepared(item: Raw, seen: SeenClaims, now: datetime) -> Finding:
    """Return the pods of the node whose claims its driver has not prepared."""
    if (unread := _unread(seen)) is not None:
        return unread
    name = facts.name_of(item)
    have = {facts.pod_of(holder) for unit in facts.units(item) for holder in unit.holders if holder.get("claim")}
    messages = {_object(event): text(event.get("message")) for event in sorted(seen.events or (), key=facts.last_time)}
    failed: list[str] = []
    late: list[str] = []
    begun: list[str] = []
    for pod in seen.pods or ():
        key = facts.namespaced(pod)
        if mapping(pod.get("spec")).get("nodeName") != name or key in have or not _is_ours(pod, name, seen):
            continue
        if why := messages.get((key, text(mapping(pod.get("metadata")).get("uid")))):
            failed.append(f"{key}: {why}")
        else:
            scheduled = facts.condition(pod, "PodScheduled").get("lastTransitionTime")
            (begun if lately(scheduled, now) else late).append(key)
    if failed:
        return Finding("claims", BROKEN, some(failed, MOST_PODS), _PAGE)
    if late:
        return Finding("claims", WARNING, f"not prepared yet, of pods {some(late, MOST_PODS)}", "kubectl describe pod")
    if begun:
        return Finding("claims", PENDING, f"being prepared, of pods {some(begun, MOST_PODS)}")
    return Finding("claims", OK, "no pod waits for its claim to be prepared")


def _unread(seen: SeenClaims) -> Finding | None:
    if not seen.api:
        return Finding("claims", UNKNOWN, _NO_API)
    if seen.pods is None or seen.claims is None:
        return Finding("claims", UNKNOWN, f"you may not list {'pods' if seen.pods is None else 'ResourceClaims'}")
    return None


def named(pod: Raw) -> list[str]:
    """Return the claims of the pod by name; one that is still to be made of a template has none."""
    spec, status = mapping(pod.get("spec")), facts.status_of(pod)
    entries = [*mappings(spec.get("resourceClaims")), *mappings(status.get("resourceClaimStatuses"))]
    entries.append(mapping(status.get("extendedResourceClaimStatus")))
    return [name for entry in entries if (name := text(entry.get("resourceClaimName")))]


def _claims_of(pod: Raw, seen: SeenClaims) -> Iterator[tuple[str, Raw | None]]:
    namespace = text(mapping(pod.get("metadata")).get("namespace"))
    for name in named(pod):
        yield name, (seen.claims or {}).get(f"{namespace}/{name}")


def _is_ours(pod: Raw, node: str, seen: SeenClaims) -> bool:
    """True when a claim of the pod has a device of ours, on that node."""
    return any(
        (result.get("driver"), result.get("pool")) == (DRA_DRIVER, node)
        for _, claim in _claims_of(pod, seen)
        for result in mappings(mapping(_allocation(claim or {}).get("devices")).get("results"))
    )


def _allocation(claim: Raw) -> Raw:
    return mapping(facts.status_of(claim).get("allocation"))


def _classes_of(claim: Raw) -> Set[str]:
    requests = mappings(mapping(mapping(claim.get("spec")).get("devices")).get("requests"))
    either = [choice for request in requests for choice in mappings(request.get("firstAvailable"))]
    exact = [mapping(request.get("exactly")) for request in requests]
    return {text(choice.get("deviceClassName")) for choice in (*exact, *either)}


def _object(event: Raw) -> tuple[str, str]:
    about_ = mapping(event.get("involvedObject"))
    return f"{text(about_.get('namespace'))}/{text(about_.get('name'))}", text(about_.get("uid"))
