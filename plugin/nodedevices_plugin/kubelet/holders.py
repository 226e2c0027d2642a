"""Which container holds which device: what the Lists of a kubelet and its checkpoint show together.

One holder per container and resource, its ids sorted; one per container and claim for DRA. The list has one entry per
device id, every pod of the node (older kubelets: finished ones too), and no pod UID. After a problem the last good list
stays and its `state` says that it may be old: an unreachable or rate-limited kubelet never means that a device is free.

Two things are missing in a List, and neither is an error. Init containers that are not restartable are never in it,
although they keep their devices until their pod has ended (server_v1.go of 1.36.3). And a kubelet that has just started
answers without its pods for a second, or for as long as the API server is away, and then adds them one by one, oldest
first (HandlePodAdditions): with 72 pods a List had only some of them for 15 to 114 ms. So the kubelet's checkpoint is
read beside every List, and ids that it gives to a container that no List shows count as held (`Holdings.possible`).

The entry of a pod that has ended stays in that file until the file is written again, maybe for ever. When this kubelet
has listed an entry's container and no longer lists it, its pod has ended (`ShownEntries`). For other entries that is
not known. Where such an entry withholds a device (`with_rewrites`), the agent makes the kubelet write the file: a List
makes the kubelet forget the pods that have ended, and any message of a ListAndWatch makes it write its checkpoint
(`rewrite`). What the file then has is really held.

A known holder stays one until a List that is known to be complete no longer shows it. The first List of a kubelet is
complete if it has all that the checkpoint gives to containers and all known holders; or if it is settled: it has the
agent's own pod (an agent that is not a pod: any pod), and the pods in it have been the same for some seconds. Every
List after a complete one is complete, until the kubelet starts again, which makes a new socket.

Where another plugin serves the kubelet (`with_offers`), GetAllocatableResources is called just before List: for an id
that the first answer no longer offers, the second one has the pod that got it.

A DRA device's id here is "<driver>/<pool>/<device>", for example "gpu.nvidia.com/node-a/gpu-3". A pool's name may hold
slashes, a driver's and a device's may not. The claim is "<namespace>/<name>".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace
from nodedevices_common.text import listing

from nodedevices_plugin.kubelet import checkpoint
from nodedevices_plugin.kubelet.api import podresources_v1_pb2 as api
from nodedevices_plugin.model import Holder, HoldersState, Holdings, Offer, RecentAllocate, tenure_key

SETTLED_SECONDS = 2.0  # with the same pods: between two of them there are the disk writes of one pod's admission


def listed(response: api.ListPodResourcesResponse, now: datetime) -> tuple[Holder, ...]:
    """The List's answer, grouped and sorted: a container's devices of one resource or claim are a holder, since now as
    far as this List shows. Entries without a pod, a container or an id are left out."""
    ids: dict[tuple[str, str, str, str | None, str | None], set[str]] = {}
    for pod in response.pod_resources:
        for container in pod.containers:
            if not (pod.namespace and pod.name and container.name):
                continue
            owner = (pod.namespace, pod.name, container.name)
            for devices in container.devices:
                ids.setdefault((*owner, devices.resource_name, None), set()).update(filter(None, devices.device_ids))
            for claim in container.dynamic_resources:
                name = f"{claim.claim_namespace}/{claim.claim_name}"
                ids.setdefault((*owner, None, name), set()).update(
                    f"{device.driver_name}/{device.pool_name}/{device.device_name}"
                    for device in claim.claim_resources
                    if device.driver_name and device.pool_name and device.device_name
                )
    found = (
        Holder(
            namespace=namespace,
            pod=pod,
            container=container,
            resource=resource,
            claim=claim,
            ids=tuple(sorted(held)),
            since=now,
        )
        for (namespace, pod, container, resource, claim), held in ids.items()
        if held
    )
    return tuple(sorted(found, key=lambda holder: holder.key))


def offers(response: api.AllocatableResourcesResponse) -> tuple[Offer, ...]:
    """Return the ids that the kubelet may allocate, by resource."""
    ids: dict[str, set[str]] = {}
    for devices in response.devices:
        ids.setdefault(devices.resource_name, set()).update(filter(None, devices.device_ids))
    return tuple(
        Offer(resource=name, ids=tuple(sorted(found))) for name, found in sorted(ids.items()) if name and found
    )


def track(
    previous: Holdings,
    now_listed: Sequence[Holder],
    recent: Sequence[RecentAllocate],
    *,
    recorded: Sequence[checkpoint.CheckpointEntry] | None = None,
    saved: Mapping[str, datetime] | None = None,
    taken: float,
) -> Holdings:
    """The holders now, each with its `since` and `uid`.

    `since` is when one of its ids was last handed out by an Allocate of ours; without one (a DRA claim, another plugin)
    it is the first List that showed this container with one of these ids. An agent that was restarted has it `saved`,
    by `tenure_key`, where the checkpoint says which pod it is. `recent` is oldest first; `recorded`: the checkpoint's
    entries, which tell a pod from one made anew under its name; `taken` is time.monotonic() when the List was called.
    """
    uids: dict[tuple[str, str | None, tuple[str, ...]], set[str]] = {}
    for record in recorded or ():
        uids.setdefault((record.container, record.resource, record.ids), set()).add(record.pod_uid)
    handed_out: Mapping[tuple[str | None, str], datetime] = {
        (allocate.resource, id_): allocate.time for allocate in recent for id_ in allocate.ids
    }
    before = {earlier.key: earlier for earlier in previous.holders}

    def holder(entry: Holder) -> Holder:
        found = uids.get((entry.container, entry.resource, entry.ids), ())
        uid = "".join(found) if len(found) == 1 else ""
        known = before.get(entry.key)
        if known is not None and (set(known.ids).isdisjoint(entry.ids) or (uid and known.uid and uid != known.uid)):
            known = None
        times = (handed_out.get((entry.resource, id_)) for id_ in entry.ids)
        first = entry.since if known is None else known.since
        if uid and saved:
            first = min(first, saved.get(tenure_key(uid, entry.container, entry.resource), first))
        since = max(filter(None, times), default=first)
        uid = known.uid if not uid and known is not None and known.since == since else uid
        return replace(entry, since=since, uid=uid)

    return Holdings(state=HoldersState.SYNCED, holders=tuple(map(holder, now_listed)), taken=taken)


Recorded = tuple[tuple[checkpoint.CheckpointEntry, ...] | None, str]
"""The entries of the kubelet's checkpoint, None where there is none; and why it cannot be read."""

Pods = frozenset[tuple[str, str]]
"""Namespace and name of every pod in a List, also of pods without devices."""


class Settling(Struct, frozen=True):
    """Since when the Lists of one kubelet have the same pods, by time.monotonic()."""

    kubelet: object = None
    pods: Pods = frozenset()
    since: float = 0.0

    def after(self, kubelet: object, pods: Pods, now: float) -> Settling:
        return self if (kubelet, pods) == (self.kubelet, self.pods) else Settling(kubelet, pods, now)

    def settled(self, own_pod: tuple[str, str] | None, now: float) -> bool:
        """True when the kubelet has added all of its pods, as far as its Lists can tell."""
        begun = bool(self.pods) if own_pod is None else own_pod in self.pods
        return begun and now - self.since >= SETTLED_SECONDS


def lacks(
    now_listed: Sequence[Holder],
    *,
    own_pod: tuple[str, str] | None,
    known: Sequence[Holder],
    recorded: Sequence[checkpoint.CheckpointEntry] | None,
    unreadable: str = "",
) -> str:
    """Return what a List that is not settled lacks to be the first complete one of its kubelet, as text for people; ""
    when it is complete.

    `known`: holders before it. `recorded`: what the kubelet's checkpoint gives to containers, None where it has no
    checkpoint (it writes one when the first plugin registers) or where that is `unreadable`.
    """
    listed_ids = {(holder.resource, id_) for holder in now_listed for id_ in holder.ids}
    before = [holder for holder in known if holder.resource is None or recorded is None]
    held = (
        *(
            (entry.resource, id_, "which its checkpoint assigns to a container")
            for entry in recorded or ()
            for id_ in entry.ids
        ),
        *((holder.resource, id_, "which a container had before") for holder in before for id_ in holder.ids),
    )
    lacking = (f"{name or 'claim'} {id_}, {why}" for name, id_, why in held if (name, id_) not in listed_ids)
    missing = f"the contents of its checkpoint ({unreadable})" if unreadable else next(lacking, "")
    if not missing:
        return ""
    own = f" and, for {SETTLED_SECONDS:g} s, this agent's own pod {'/'.join(own_pod)}" if own_pod is not None else ""
    return f"the kubelet does not list all of its pods yet: it lacks {missing}{own}"


Given = frozenset[tuple[str, str | None, tuple[str, ...]]]
"""Container, resource and ids of all that a List shows."""


class ShownEntries(Struct, frozen=True):
    """Those of the checkpoint's entries that the Lists of one kubelet have shown. An init container's is never among
    them; and while an entry's pod has not ended, that kubelet lists it."""

    kubelet: object = None
    entries: frozenset[checkpoint.CheckpointEntry] = frozenset()

    def after(
        self,
        kubelet: object,
        before: Sequence[checkpoint.CheckpointEntry] | None,
        recorded: Sequence[checkpoint.CheckpointEntry] | None,
        given: Given,
    ) -> ShownEntries:
        """`before` and `recorded`: the file's entries before and after the List. An entry that came in between may be
        of another pod than the listed one."""
        known = self.entries if kubelet == self.kubelet else frozenset()
        there = {*(recorded or ())}
        matching = {
            checkpointed
            for checkpointed in before or ()
            if (checkpointed.container, checkpointed.resource, checkpointed.ids) in given
        }
        return ShownEntries(kubelet, frozenset((known | matching) & there))

    def without_ended(
        self, recorded: tuple[checkpoint.CheckpointEntry, ...], given: Given
    ) -> tuple[checkpoint.CheckpointEntry, ...]:
        """The entries of pods that have not ended, as far as it is known."""
        ended = {entry.pod_uid for entry in self.entries if (entry.container, entry.resource, entry.ids) not in given}
        return tuple(checkpointed for checkpointed in recorded if checkpointed.pod_uid not in ended)


def given(now_listed: Sequence[Holder]) -> Given:
    return frozenset((holder.container, holder.resource, holder.ids) for holder in now_listed)


def unlisted(recorded: Sequence[checkpoint.CheckpointEntry], holders: Sequence[Holder]) -> tuple[Offer, ...]:
    """The checkpoint's entries with an id that none of these has."""
    held = {(holder.resource, id_) for holder in holders for id_ in holder.ids}
    found = {
        (checkpointed.resource, checkpointed.ids)
        for checkpointed in recorded
        if any((checkpointed.resource, id_) not in held for id_ in checkpointed.ids)
    }
    return tuple(Offer(resource=resource, ids=ids) for resource, ids in sorted(found))


def merged(previous: Holdings, incomplete: Holdings, *, message: str) -> Holdings:
    """Return the known holders and the listed ones: an incomplete List does not show that a holder has ended."""
    known = {holder.key: holder for holder in previous.holders}
    for holder in incomplete.holders:
        ids = {*holder.ids, *(known[holder.key].ids if holder.key in known else ())}
        known[holder.key] = replace(holder, ids=tuple(sorted(ids)))
    return Holdings(
        state=HoldersState.INCOMPLETE,
        message=message,
        holders=tuple(known[key] for key in sorted(known)),
        forgotten=previous.forgotten,
        taken=previous.taken,
    )


class HeldBefore(Struct, frozen=True):
    """What pods held before this kubelet was started, as long as it lists nothing of it. A kubelet takes no device from
    a pod that runs: where it lists such a pod, it has lost its record (Holdings.forgotten). Up to 1.33 it lists pods
    that have ended as well."""

    kubelet: object = None
    holders: tuple[Holder, ...] = ()

    def after(
        self, kubelet: object, known: Sequence[Holder], now_listed: Sequence[Holder], pods: Pods, *, settled: bool
    ) -> HeldBefore:
        """Return it after a complete List. `known`: holders before it. A pod that a settled List lacks has ended."""
        have = {(holder.namespace, holder.pod, holder.resource) for holder in now_listed}
        before = {holder.key: holder for holder in (*self.holders, *(known if kubelet != self.kubelet else ()))}
        return HeldBefore(
            kubelet,
            tuple(
                holder
                for holder in before.values()
                if holder.resource is not None
                and (holder.namespace, holder.pod, holder.resource) not in have
                and ((holder.namespace, holder.pod) in pods or not settled)
            ),
        )

    def forgotten(self, pods: Pods) -> tuple[Holder, ...]:
        return tuple(holder for holder in self.holders if (holder.namespace, holder.pod) in pods)


def forgotten_text(holders: Sequence[Holder]) -> str:
    """For people; "" where there are none."""
    if not holders:
        return ""
    pods = listing(dict.fromkeys(f"{holder.namespace}/{holder.pod}" for holder in holders))
    return (
        f"the kubelet lists {pods} without the devices held before it was started again: it has lost its record, and "
        "may allocate them to other pods; delete the pods"
    )


def with_checkpoint(
    holdings: Holdings, previous: Holdings, recorded: Sequence[checkpoint.CheckpointEntry] | None, unreadable: str
) -> Holdings:
    """Return the holdings with the checkpoint's entries that no List shows; the last known ones where it is
    `unreadable`."""
    if unreadable:
        return replace(holdings, possible=previous.possible, unread_because=unreadable)
    return replace(holdings, possible=unlisted(recorded or (), holdings.holders), unread_because="")


def taken_from(
    now_listed: Sequence[Holder],
    previous: Holdings,
    recent: Sequence[RecentAllocate],
    *,
    complete: bool,
    own_pod: tuple[str, str] | None,
    recorded: Sequence[checkpoint.CheckpointEntry] | None,
    unreadable: str = "",
    saved: Mapping[str, datetime] | None = None,
    taken: float,
) -> Holdings:
    """Return the holders after this List. `complete`: it is settled, or the same kubelet has given a complete one
    before. The other arguments: as in `lacks` and `track`."""
    holdings = track(previous, now_listed, recent, recorded=recorded, saved=saved, taken=taken)
    if not complete:
        why = lacks(now_listed, own_pod=own_pod, known=previous.holders, recorded=recorded, unreadable=unreadable)
        if why:
            holdings = merged(previous, holdings, message=why)
    return with_checkpoint(holdings, previous, recorded, unreadable)


def pods_of(response: api.ListPodResourcesResponse) -> Pods:
    return frozenset((resource.namespace, resource.name) for resource in response.pod_resources)
