"""The client of the kubelet's PodResources v1 List, and who calls it: every five seconds, sooner after an Allocate.

After a problem the last good list stays and its `state` says that it may be old: an unreachable or rate-limited kubelet
never means that a device is free. The kubelet's limit of PodResources calls is shared by all callers of the node, so
there is one List after an Allocate, as late as `wanted_after_allocate` allows. While the kubelet does not know its pods
yet, it is polled every second. What the answers mean: holders.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import monotonic

import grpc.aio
import structlog
from msgspec.structs import replace
from nodedevices_common.backoff import Backoff
from nodedevices_common.files import identity
from nodedevices_common.periodic import within
from nodedevices_probe.protocol import MAX_MESSAGE, text

from nodedevices_plugin.kubelet import checkpoint, rpc, sockets
from nodedevices_plugin.kubelet.holders import (
    HeldBefore,
    Pods,
    Recorded,
    Settling,
    ShownEntries,
    forgotten_text,
    given,
    listed,
    offers,
    pods_of,
    taken_from,
    unlisted,
    with_checkpoint,
)
from nodedevices_plugin.model import Holder, HoldersState, Holdings, Offer, RecentAllocate
from nodedevices_plugin.runtime.threads import Worker

LIST_DEADLINE_SECONDS = 5.0
CHECKPOINT_SECONDS = 2.0  # a disk that hangs must not make holders old
REWRITE_SECONDS = 0.5  # in which the kubelet has written its checkpoint: milliseconds
REWRITE_LOOK_SECONDS = 0.02
REWRITE_AGAIN_SECONDS = 30.0  # while the same pods are listed, and the same containers have what no List shows
SHOWN_AFTER_SECONDS = 0.5  # an Allocate is in List once the kubelet has taken our answer: milliseconds
OFFERS_DEADLINE_SECONDS = 0.5  # before a first registration, which must not wait long for it
OFFERS_RETRY_SECONDS = 0.05  # after "rejected by rate limit": the kubelet's bucket gets 100 tokens a second
OFFERS_SHARED_SECONDS = 0.25  # several resources that are registered together are one question
LEAST_GAP_SECONDS = 1.0  # between two Lists: the kubelet allows 100/s with a burst of 10, to all callers together
BACKOFF = Backoff(initial_seconds=2.0, max_seconds=60.0)

LIST_SECONDS = 5.0
INCOMPLETE_SECONDS = 1.0  # while the kubelet does not know its pods yet

log = structlog.get_logger(__name__)


def wanted_after_allocate(holdings: Holdings, recent: Sequence[RecentAllocate]) -> float | None:
    """Return from when (time.monotonic()) a List is worth a call because of the newest Allocate.

    None: there was one since; or the last List failed, and then the usual period (5 s or more) is soon enough,
    because a List that fails at once must not be called again at once.
    """
    if not recent or holdings.state is not HoldersState.SYNCED:
        return None
    shown_at = recent[-1].monotonic + SHOWN_AFTER_SECONDS
    return max(shown_at, holdings.taken + LEAST_GAP_SECONDS) if holdings.taken < shown_at else None


class PodResourcesClient:
    """A client of one kubelet; `run` calls it, and then `on_change` where `holdings` has changed. `recent` gives the
    Allocates that we answered, oldest first. `with_offers`: also get what is offered. `checkpoint_file`: the kubelet's,
    read on `files`. `own_pod`: namespace and name of the agent's pod, None for a plain process. `rewrite` makes the
    kubelet write its checkpoint, and returns whether it can. `with_rewrites`: call it; a device is withheld that
    perhaps only the file still names."""

    def __init__(
        self,
        socket: Path,
        *,
        recent: Callable[[], Sequence[RecentAllocate]],
        checkpoint_file: Path,
        files: Worker,
        own_pod: tuple[str, str] | None = None,
        rewrite: Callable[[], bool] = lambda: False,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._socket = socket
        self._recent = recent
        self._checkpoint = checkpoint.CheckpointFile(checkpoint_file)
        self._rewrite = rewrite
        self._on_change = on_change
        self._allocated = asyncio.Event()
        self._rewritten: tuple[tuple[Pods, tuple[Offer, ...]] | None, float] = (None, 0.0)  # its entries then, and when
        self._settling = Settling()
        self._shown = ShownEntries()
        self._held_before = HeldBefore()
        self._files = files
        self._own_pod = own_pod
        self._complete_since: sockets.FileIdentity | None = None  # the kubelet that has given a complete List
        self._refusals = 0
        self._not_before = 0.0
        self._looking = asyncio.Lock()
        self._listing = asyncio.Lock()  # one List at a time, so that a later one is newer
        # What was offered last, by which kubelet, and from when that is.
        self._offered: tuple[tuple[Offer, ...] | None, sockets.FileIdentity | None, float] = (None, None, float("-inf"))
        self.with_offers = False
        self.with_rewrites = False
        self.saved: Mapping[str, datetime] = {}  # as in `track`
        self.holdings = Holdings(state=HoldersState.UNAVAILABLE, message="the kubelet has not been queried yet")

    async def list(self) -> Holdings:
        """Return the current holders. Never raises for the kubelet's reasons; takes at most 5 s, with offers 10 s.

        While it backs off after "rejected by rate limit", or after an answer that was too large, it does not query the
        kubelet, and returns the last holders.
        """
        async with self._listing:
            started = monotonic()
            if started < self._not_before:
                return self.holdings
            offered, message = None, ""
            kubelet = sockets.identity(self._socket)
            before = await self._recorded()
            try:
                if self.with_offers:
                    offered, message = await self._offers()
                response = await rpc.list_pod_resources(self._socket, timeout_seconds=LIST_DEADLINE_SECONDS)
            except grpc.aio.AioRpcError as error:
                return self._problem(error, before)
            self._refusals = 0
            same = kubelet if sockets.identity(self._socket) == kubelet else None  # None: another has come
            pods = pods_of(response)
            self._settling = self._settling.after(same, pods, started)
            settled = same is not None and self._settling.settled(self._own_pod, started)
            now_listed = await asyncio.to_thread(listed, response, datetime.now(UTC))  # 0.4 s for 100,000 ids
            recorded, unreadable = await self._recorded()
            if not unreadable:
                self._shown = self._shown.after(same, before[0], recorded, given(now_listed))
                recorded, unreadable = await self._still_recorded(recorded, now_listed, pods)
            holdings = await asyncio.to_thread(
                taken_from,
                now_listed,
                self.holdings,
                self._recent(),
                complete=settled or (same is not None and self._complete_since == same),
                own_pod=self._own_pod,
                recorded=recorded,
                unreadable=unreadable,
                saved=self.saved,
                taken=started,
            )
            if holdings.state is not HoldersState.SYNCED:
                return self._set(replace(holdings, offered=offered))
            self._held_before = self._held_before.after(
                kubelet, self.holdings.holders, now_listed, pods, settled=settled
            )
            lost = self._held_before.forgotten(pods)
            self._complete_since = same
            not_read = f"what init containers hold is not known: {unreadable}" if unreadable else ""
            message = "; ".join(filter(None, (message, not_read, forgotten_text(lost))))
            return self._set(replace(holdings, offered=offered, message=message, forgotten=lost))

    async def _still_recorded(
        self, recorded: tuple[checkpoint.CheckpointEntry, ...] | None, now_listed: Sequence[Holder], pods: Pods
    ) -> Recorded:
        """Return the checkpoint without the entries of pods that have ended. Where it has entries that this List does
        not show, and a device is withheld for one, make the kubelet write it first."""
        if not recorded:
            return recorded, ""
        now_given = given(now_listed)
        current = self._shown.without_ended(recorded, now_given)
        missing = unlisted(current, now_listed)
        before, at = self._rewritten
        unchanged = before == (pods, missing) and monotonic() - at < REWRITE_AGAIN_SECONDS
        if not missing or unchanged or not self.with_rewrites:
            return current, ""
        if not await self._written_again():
            return current, ""
        new, unreadable = await self._recorded()
        if new is not None:
            new = self._shown.without_ended(new, now_given)
            self._rewritten = (pods, unlisted(new, now_listed)), monotonic()
        return new, unreadable

    async def _written_again(self) -> bool:
        """Make the kubelet write its checkpoint; True when it has."""
        written = partial(identity, self._checkpoint.path)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REWRITE_SECONDS):
                before = await self._files.run(written)
                if not self._rewrite():
                    return False
                now = before
                while now == before:
                    await asyncio.sleep(REWRITE_LOOK_SECONDS)
                    now = await self._files.run(written)
                return True
        return False

    async def _recorded(self) -> Recorded:
        """Read the kubelet's checkpoint; or return why it cannot be read."""
        try:
            async with asyncio.timeout(CHECKPOINT_SECONDS):
                return await self._files.run(self._checkpoint.read), ""
        except checkpoint.CheckpointError as error:
            return None, text(str(error), MAX_MESSAGE // 2)
        except TimeoutError:
            return None, f"{self._checkpoint.path}: reading it took more than {CHECKPOINT_SECONDS:g} s"

    async def offered_now(self) -> tuple[Offer, ...] | None:
        """Return what the kubelet may allocate now, of every plugin; None where it does not answer within half a
        second."""
        async with self._looking:
            kubelet, started = sockets.identity(self._socket), monotonic()
            offered, known_of, at = self._offered
            if kubelet != known_of or started - at > OFFERS_SHARED_SECONDS:
                offered = await self._list_offers()
                self._offered = offered, kubelet, started
            return offered

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
        """Return the offers; or None and why, where only this method fails: List may still answer."""
        try:
            answer = await rpc.allocatable_resources(self._socket, timeout_seconds=LIST_DEADLINE_SECONDS)
        except grpc.aio.AioRpcError as error:
            if error.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE):
                raise  # List would fail as well, or would not be worth its cost
            return None, f"GetAllocatableResources failed: {text(rpc.reason(error), MAX_MESSAGE // 2)}"
        return offers(answer), ""

    def _problem(self, error: grpc.aio.AioRpcError, found: Recorded) -> Holdings:
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
        recorded, unreadable = found
        holdings = with_checkpoint(self.holdings, self.holdings, recorded, unreadable)
        return self._set(replace(holdings, state=state, message=message))

    def _set(self, holdings: Holdings) -> Holdings:
        if holdings.state is not self.holdings.state:
            level = log.info if holdings.state is HoldersState.SYNCED else log.warning
            level("pod resources", state=holdings.state.value, why=holdings.message)
        self.holdings = holdings
        return holdings

    # --- when it is called --------------------------------------------------------------------------------------------
    def allocated(self) -> None:
        """Call List soon: there was an Allocate."""
        self._allocated.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            before = self.holdings
            holdings = await self.list()
            if replace(holdings, taken=0.0) != replace(before, taken=0.0) or before.taken == 0.0:
                self._on_change()
            await self._pause(LIST_SECONDS if holdings.state is not HoldersState.INCOMPLETE else INCOMPLETE_SECONDS)

    async def _pause(self, seconds: float) -> None:
        self._allocated.clear()
        end = monotonic() + seconds
        while (wanted_from := wanted_after_allocate(self.holdings, self._recent())) is None:
            if not await within(end - monotonic(), self._allocated.wait()):
                return
            self._allocated.clear()
        await asyncio.sleep(max(0.0, min(end, wanted_from) - monotonic()))
