"""Who holds what: the kubelet's PodResources v1 List, as holders.

One holder per container and resource, its ids sorted; one per container and claim for DRA. The list has one entry per
device id, every pod of the node (older kubelets: finished ones too), and no pod UID. After a problem the last good list
stays and its `state` says that it may be old: an unreachable or rate-limited kubelet never means "nobody holds it".

A kubelet that has just started answers without its pods, and without an error: for a second, or for as long as the API
server is away. So who was known to hold something goes on holding it until a List that is known to be complete no
longer shows it. A List is complete if it has the agent's own pod, since the pods of the API server reach the kubelet in
one piece; or if it has everything that the kubelet's checkpoint gives to containers (an agent that is no pod has only
this); and every List after a complete one is, until the kubelet starts again, which makes a new socket.

Where another plugin serves the kubelet (`with_offers`), GetAllocatableResources is called just before List: what is no
longer offered in the first answer has every pod that got it in the second.

A DRA device's id here is "<driver>/<pool>/<device>", for example "gpu.nvidia.com/node-a/gpu-3". A pool's name may hold
slashes, a driver's and a device's may not, so `dra_device` takes the first and the last one apart. The claim is
"<namespace>/<name>".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import grpc.aio
import structlog
from nodedevices_common.backoff import Backoff
from nodedevices_probe.protocol import MAX_MESSAGE, text

from nodedevices_plugin.kubelet import checkpoint, rpc, sockets
from nodedevices_plugin.kubelet.api import podresources_v1_pb2 as api
from nodedevices_plugin.model import Holder, HoldersState, Holdings, Offer, RecentAllocate
from nodedevices_plugin.runtime.worker import Worker

DEFAULT_SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
LIST_DEADLINE_SECONDS = 5.0
CHECKPOINT_SECONDS = 2.0  # a disk that hangs must not make holders old
SHOWN_AFTER_SECONDS = 0.5  # an Allocate is in List once the kubelet has taken our answer: milliseconds
OFFERS_DEADLINE_SECONDS = 0.5  # before a first registration, which must not wait long for it
OFFERS_RETRY_SECONDS = 0.05  # after "rejected by rate limit": the kubelet's bucket gets 100 tokens a second
OFFERS_SHARED_SECONDS = 0.25  # several resources that are registered together are one question
LEAST_GAP_SECONDS = 1.0  # between two Lists: the kubelet allows 100/s with a burst of 10, to all callers together
BACKOFF = Backoff(initial_seconds=2.0, max_seconds=60.0)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A container's devices of one resource or claim, as one List shows them."""

    namespace: str
    pod: str
    container: str
    resource: str | None
    claim: str | None
    ids: tuple[str, ...]


class DraDevice(NamedTuple):
    driver: str
    pool: str
    device: str


def dra_device(id_: str) -> DraDevice:
    """The parts of a DRA holder's id. Raises ValueError for another kind of id."""
    driver, _, rest = id_.partition("/")
    pool, _, device = rest.rpartition("/")
    if not (driver and pool and device):
        raise ValueError(f"{id_!r} is not <driver>/<pool>/<device>")
    return DraDevice(driver, pool, device)


def listed(response: api.ListPodResourcesResponse) -> tuple[Listed, ...]:
    """The List's answer, grouped and sorted. Entries without a pod, a container or an id are left out."""
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
                    f"{each.driver_name}/{each.pool_name}/{each.device_name}"
                    for each in claim.claim_resources
                    if each.driver_name and each.pool_name and each.device_name
                )
    found = [
        Listed(namespace=namespace, pod=pod, container=container, resource=resource, claim=claim, ids=tuple(sorted(of)))
        for (namespace, pod, container, resource, claim), of in ids.items()
        if of
    ]
    return tuple(sorted(found, key=_order))


def offers(response: api.AllocatableResourcesResponse) -> tuple[Offer, ...]:
    """What the kubelet may allocate, by resource."""
    ids: dict[str, set[str]] = {}
    for devices in response.devices:
        ids.setdefault(devices.resource_name, set()).update(filter(None, devices.device_ids))
    return tuple(Offer(resource=name, ids=tuple(sorted(of))) for name, of in sorted(ids.items()) if name and of)


def track(
    previous: Holdings, now_listed: Sequence[Listed], recent: Sequence[RecentAllocate], *, now: datetime, taken: float
) -> Holdings:
    """The holders now, each with its `since`.

    `since` is when one of its ids was last handed out by an Allocate of ours; without one (a DRA claim, another plugin,
    an agent that restarted) it is the first List that shows this container with one of these ids. `recent` is oldest
    first; `taken` is time.monotonic() when the List was called.
    """
    handed_out: Mapping[tuple[str, str], datetime] = {
        (each.resource, id_): each.time for each in recent for id_ in each.ids
    }
    before = {(each.namespace, each.pod, each.container, each.resource, each.claim): each for each in previous.holders}

    def since(entry: Listed) -> datetime:
        if entry.resource is not None:
            times = [handed_out[entry.resource, id_] for id_ in entry.ids if (entry.resource, id_) in handed_out]
            if times:
                return max(times)
        known = before.get((entry.namespace, entry.pod, entry.container, entry.resource, entry.claim))
        return known.since if known is not None and not set(known.ids).isdisjoint(entry.ids) else now

    holders = tuple(
        Holder(
            namespace=each.namespace,
            pod=each.pod,
            container=each.container,
            resource=each.resource,
            claim=each.claim,
            ids=each.ids,
            since=since(each),
        )
        for each in now_listed
    )
    return Holdings(state=HoldersState.SYNCED, holders=holders, taken=taken)


def lacks(
    now_listed: Sequence[Listed],
    pods: Collection[tuple[str, str]],
    *,
    own_pod: tuple[str, str] | None,
    known: Sequence[Holder],
    recorded: Sequence[Offer] | None,
    unreadable: str = "",
) -> str:
    """What a List lacks to be the first complete one of its kubelet, for people; "" when it is complete.

    `pods`: namespace and name of every pod in it, those without devices too. `known`: holders before it. `recorded`:
    what the kubelet's checkpoint gives to containers, None where it has no checkpoint (it writes one when the first
    plugin registers) or where that is `unreadable`.
    """
    if own_pod is not None and own_pod in pods:
        return ""
    listed_ids = {(each.resource, id_) for each in now_listed for id_ in each.ids}
    if recorded is not None:
        held = [(each.resource, id_) for each in recorded for id_ in each.ids]
        why = "which its checkpoint assigns to a container"
    else:
        held = [(each.resource, id_) for each in known if each.resource is not None for id_ in each.ids]
        why = "which a container had before"
    missing = next((f"{resource} {id_}, {why}" for resource, id_ in held if (resource, id_) not in listed_ids), "")
    if unreadable:
        missing = f"the contents of its checkpoint ({unreadable})"
    if not missing:
        return ""
    own = f"this agent's own pod {'/'.join(own_pod)} and " if own_pod is not None else ""
    return f"the kubelet does not list all of its pods yet: it lacks {own}{missing}"


def merged(previous: Holdings, incomplete: Holdings, *, message: str, possible: tuple[Offer, ...] | None) -> Holdings:
    """Who was known, and who is listed now: nobody is known to have ended."""
    ids: dict[tuple[str, str, str, str | None, str | None], Holder] = {
        (each.namespace, each.pod, each.container, each.resource, each.claim): each for each in previous.holders
    }
    for each in incomplete.holders:
        key = (each.namespace, each.pod, each.container, each.resource, each.claim)
        before = ids.get(key)
        ids[key] = each if before is None else replace(each, ids=tuple(sorted({*before.ids, *each.ids})))
    return Holdings(
        state=HoldersState.INCOMPLETE,
        message=message,
        holders=tuple(ids[key] for key in sorted(ids, key=_key_order)),
        possible=possible,
        taken=previous.taken,
    )


def wanted_after_allocate(holdings: Holdings, recent: Sequence[RecentAllocate]) -> float | None:
    """time.monotonic() from which a List is worth a call because of the newest Allocate.

    None: there was one since; or the last List failed, and then the usual period (5 s or more) is soon enough,
    because a List that fails at once must not be called again at once.
    """
    if not recent or holdings.state is not HoldersState.SYNCED:
        return None
    shown_at = recent[-1].monotonic + SHOWN_AFTER_SECONDS
    return max(shown_at, holdings.taken + LEAST_GAP_SECONDS) if holdings.taken < shown_at else None


def taken_from(
    response: api.ListPodResourcesResponse,
    previous: Holdings,
    recent: Sequence[RecentAllocate],
    *,
    proven: bool,
    own_pod: tuple[str, str] | None,
    recorded: tuple[Offer, ...] | None,
    unreadable: str = "",
    now: datetime,
    taken: float,
) -> Holdings:
    """The holders after this List. `proven`: the same kubelet has given a complete one before; else as in `lacks`."""
    now_listed = listed(response)
    holdings = track(previous, now_listed, recent, now=now, taken=taken)
    pods = {(each.namespace, each.name) for each in response.pod_resources}
    why = ""
    if not proven:
        why = lacks(now_listed, pods, own_pod=own_pod, known=previous.holders, recorded=recorded, unreadable=unreadable)
    if not why:
        return holdings
    return merged(previous, holdings, message=why, possible=None if unreadable else recorded or ())


class PodResourcesClient:
    """A client of one kubelet. `recent` gives the Allocates that we answered, oldest first; `with_offers`: also get
    what is offered. `checkpoint_file`: the kubelet's, read on `files`; `own_pod`: namespace and name of the agent's
    pod, None for a plain process."""

    def __init__(
        self,
        socket: Path = DEFAULT_SOCKET,
        *,
        recent: Callable[[], Sequence[RecentAllocate]],
        checkpoint_file: Path,
        files: Worker,
        own_pod: tuple[str, str] | None = None,
    ) -> None:
        self._socket = socket
        self._recent = recent
        self._checkpoint_file = checkpoint_file
        self._files = files
        self._own_pod = own_pod
        self._complete_since: sockets.Identity | None = None  # the kubelet that has given a complete List
        self._refusals = 0
        self._not_before = 0.0
        self._looking = asyncio.Lock()
        self._listing = asyncio.Lock()  # a List that was called later is newer, and none is overtaken
        self._latest_offers: tuple[float, tuple[Offer, ...] | None] | None = None  # time.monotonic() of the call
        self.with_offers = False
        self.holdings = Holdings(state=HoldersState.UNAVAILABLE, message="the kubelet has not been queried yet")

    async def list(self) -> Holdings:
        """Who holds what now. Never raises for the kubelet's reasons; takes at most 5 s, with offers 10 s.

        While it backs off after "rejected by rate limit", or after an answer that was too large, the kubelet is not
        asked, and the answer is the last one.
        """
        async with self._listing:
            return await self._list()

    async def _list(self) -> Holdings:
        started = monotonic()
        if started < self._not_before:
            return self.holdings
        offered, message = None, ""
        kubelet = sockets.identity(self._socket)
        try:
            if self.with_offers:
                offered, message = await self._offers()
            response = await rpc.list_pod_resources(self._socket, timeout_seconds=LIST_DEADLINE_SECONDS)
        except grpc.aio.AioRpcError as error:
            return self._problem(error, await self._recorded())
        self._refusals = 0
        same_kubelet = kubelet is not None and sockets.identity(self._socket) == kubelet
        proven = same_kubelet and self._complete_since == kubelet
        recorded, unreadable = (None, "") if proven else await self._recorded()
        holdings = await asyncio.to_thread(  # 0.4 s for 100,000 ids
            taken_from,
            response,
            self.holdings,
            self._recent(),
            proven=proven,
            own_pod=self._own_pod,
            recorded=recorded,
            unreadable=unreadable,
            now=datetime.now(UTC),
            taken=started,
        )
        if holdings.state is not HoldersState.SYNCED:
            return self._set(replace(holdings, offered=offered))
        self._complete_since = kubelet if same_kubelet else None
        return self._set(replace(holdings, offered=offered, message=message))

    async def _recorded(self) -> tuple[tuple[Offer, ...] | None, str]:
        """The kubelet's checkpoint, or why it cannot be read."""
        try:
            async with asyncio.timeout(CHECKPOINT_SECONDS):
                return await self._files.run(lambda: checkpoint.read(self._checkpoint_file)), ""
        except checkpoint.CheckpointError as error:
            return None, text(str(error), MAX_MESSAGE // 2)
        except TimeoutError:
            return None, f"{self._checkpoint_file}: reading it took more than {CHECKPOINT_SECONDS:g} s"

    async def offered_now(self) -> tuple[Offer, ...] | None:
        """What the kubelet may allocate just now, of every plugin. None where it does not answer within half a
        second."""
        async with self._looking:
            started = monotonic()
            if self._latest_offers is None or started - self._latest_offers[0] > OFFERS_SHARED_SECONDS:
                self._latest_offers = (started, await self._list_offers())
            return self._latest_offers[1]

    async def _list_offers(self) -> tuple[Offer, ...] | None:
        deadline = monotonic() + OFFERS_DEADLINE_SECONDS
        while (left := deadline - monotonic()) > 0:
            try:
                return offers(await rpc.allocatable_resources(self._socket, timeout_seconds=left))
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED or rpc.answer_too_large(error):
                    log.debug("failed to list allocatable devices", why=rpc.reason(error))
                    return None
            await asyncio.sleep(OFFERS_RETRY_SECONDS)
        return None

    async def _offers(self) -> tuple[tuple[Offer, ...] | None, str]:
        """None and why, where only this method fails: List may still answer."""
        try:
            answer = await rpc.allocatable_resources(self._socket, timeout_seconds=LIST_DEADLINE_SECONDS)
        except grpc.aio.AioRpcError as error:
            if error.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE):
                raise  # List would fail as well, or would not be worth its cost
            return None, f"GetAllocatableResources failed: {text(rpc.reason(error), MAX_MESSAGE // 2)}"
        return offers(answer), ""

    def _problem(self, error: grpc.aio.AioRpcError, checkpoint: tuple[tuple[Offer, ...] | None, str]) -> Holdings:
        details = text(rpc.reason(error), MAX_MESSAGE // 2)
        state = HoldersState.UNAVAILABLE
        message = f"PodResources on {self._socket} does not answer: {details}"
        if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
            self._refusals += 1
            self._not_before = monotonic() + BACKOFF.after(self._refusals)
            if rpc.answer_too_large(error):
                allowed = rpc.MAX_PODRESOURCES_BYTES >> 20
                message = (
                    f"PodResources on {self._socket}: the answer is larger than the {allowed} MiB allowed: {details}"
                )
            else:
                state, message = HoldersState.RATE_LIMITED, f"the kubelet refused to list pods: {details}"
        recorded, unreadable = checkpoint
        possible = None if unreadable else recorded or ()
        return self._set(replace(self.holdings, state=state, message=message, possible=possible))

    def _set(self, holdings: Holdings) -> Holdings:
        if holdings.state is not self.holdings.state:
            level = log.info if holdings.state is HoldersState.SYNCED else log.warning
            level("pod resources", state=holdings.state.value, why=holdings.message)
        self.holdings = holdings
        return holdings


def _order(entry: Listed) -> tuple[str, str, str, str, str]:
    return _key_order((entry.namespace, entry.pod, entry.container, entry.resource, entry.claim))


def _key_order(key: tuple[str, str, str, str | None, str | None]) -> tuple[str, str, str, str, str]:
    namespace, pod, container, resource, claim = key
    return (namespace, pod, container, resource or "", claim or "")
