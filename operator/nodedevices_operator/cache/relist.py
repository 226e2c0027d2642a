"""The authoritative LIST: what really exists, whatever the watch has delivered or missed.

It is the only LIST: kopf watches without one (kube/handlers.py). So it comes when a watch has begun, and shows what
was before: once at the start, and again after a watch that was too old (410) or has ended. What a LIST shows and the
watch delivers meet in the cache, where the newer state counts; an object that the watch has reported as deleted while
a LIST was under way is not taken from that LIST.

Every ten minutes, with jitter, everything is listed, because a watch can stall; and a moment after a write
has met an object that is gone. Objects that the LIST shows
are taken in. An object that a complete LIST does not show is read by name, and goes only on the API server's own
404: a failed, partial or empty LIST never removes anything. A change that the LIST shows and the watch of that kind
does not deliver within a few seconds means that this watch has stalled; the watches are restarted. In between, one
page of policies every 30 s shows whether the API server answers at all: when it is back, everything is listed at once.

A LIST is a consistent read, so it can show nothing older than what was known before it began. Where it does, the
cluster went back in time (etcd was restored from a backup): the LIST wins, and what else was remembered is
dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import structlog
from nodedevices_api import GROUP
from nodedevices_common.backoff import Backoff

from nodedevices_operator.cache.store import Cache, Dirty, older
from nodedevices_operator.kube.port import Kube, KubeError
from nodedevices_operator.metrics import OperatorMetrics
from nodedevices_operator.records.kinds import Kind, Record, read
from nodedevices_operator.records.names import NO_OBJECT, POLICIES, named

RELIST_SECONDS = 600.0
JITTER = 0.1
BACKOFF = Backoff(initial_seconds=1.0, max_seconds=30.0, jitter=0.2)  # after a failed LIST
MAX_CONFIRMED = 500  # by name, for one LIST: a list that misses more is not trusted this time
MISSING_BACKOFF = replace(BACKOFF, max_seconds=5.0)  # while the CRDs are missing: a LIST costs next to nothing
CHECK_SECONDS = 30.0  # between two small questions: kopf does not report that the API server is away
AGAIN_SECONDS = 5.0  # after the first write that met an object that is gone
BEGIN_SECONDS = 10.0  # for the watches to begin, before a LIST; one that begins later has another LIST
AT_ONCE = 100  # objects that are read before others go on: some 15 ms
HEARING_SECONDS = 10.0  # for the watch to deliver what a LIST has shown
KINDS = (Kind.POLICY, Kind.NODE, Kind.NODE_DEVICES)  # in the order in which they are listed
CRDS = {kind: f"{kind.value.rpartition('/')[2]}.{GROUP}" for kind in (Kind.NODE_DEVICES, Kind.POLICY)}

log = structlog.get_logger()


class MissingCRDs(KubeError):  # noqa: N818  a state of the cluster that an administrator has to end
    """The API server knows nothing of these kinds."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(f"these CRDs are not installed: {', '.join(sorted(names))}", status=404)


class Relister:
    """Fills the cache and keeps it honest."""

    def __init__(
        self,
        kube: Kube,
        cache: Cache,
        metrics: OperatorMetrics,
        dirty: Callable[[Dirty], None],
        *,
        period: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube = kube
        self._cache = cache
        self._metrics = metrics
        self._dirty = dirty
        self._period = period
        self._clock = clock
        self.synced: Callable[[], None] = _nothing  # called once, after the first complete LIST of everything
        self.begin_watches: Callable[[], None] | None = None  # called when every kind is there; None: nothing watches
        self.complete: Callable[[], None] = _nothing  # called each time that everything was listed
        self.stalled: Callable[[], None] = _nothing  # called when the watch misses what the LIST shows
        self.went_back: Callable[[], None] = _nothing  # called when the cluster shows an earlier state than it did
        self._soon = asyncio.Event()
        self._all = True  # everything is to be listed
        self._due: set[Kind] = set()  # else these kinds
        self._watching = False  # the watches have been begun, and have not ended
        self._begun: set[Kind] = set()  # kinds whose watch began after their last LIST did
        self._news = asyncio.Event()  # a watch has begun, or they have ended
        self._again: asyncio.TimerHandle | None = None
        self._unconfirmed: dict[Kind, float | None] = {}  # kinds with changes by LIST alone, and their last watch event
        self.last_complete: float | None = None  # clock
        self.problem = ""  # why the last LIST failed

    def soon(self) -> None:
        """LIST everything as soon as possible."""
        if self._again is not None:
            self._again.cancel()
            self._again = None
        self._all = True
        self._soon.set()

    def again(self) -> None:
        """LIST a few seconds after this, and after what calls it meanwhile: no watch delivers what was deleted."""
        if self._again is None:
            self._again = asyncio.get_running_loop().call_later(AGAIN_SECONDS, self.soon)

    def positioned(self, kind: Kind) -> None:
        """The watch of this kind has begun anew: what was before is for a LIST."""
        self._begun.add(kind)
        self._due.add(kind)
        self._news.set()
        self._soon.set()

    def ended(self) -> None:
        """The watches have ended: they begin again, and then everything is listed."""
        self._watching = False
        self._begun.clear()
        self._news.set()
        self.soon()

    async def run(self) -> None:
        """LIST for ever. Until the first complete LIST of everything the cache is not synced."""
        failures = 0
        while True:
            self._soon.clear()
            try:
                await self.once()
            except KubeError as error:
                failures += 1
                self._all = True
                backoff = MISSING_BACKOFF if isinstance(error, MissingCRDs) else BACKOFF
                wait = backoff.after(failures, at_least=error.retry_after)
                self._explain(error, wait)
            else:
                if self.problem:
                    log.info("relist succeeded again")
                failures = 0
                self.problem = ""
                if not (self._all or self._due):
                    self._soon.clear()  # what was wanted meanwhile has been listed
                wait = self._period * random.uniform(1 - JITTER, 1 + JITTER)
                if self._unconfirmed:
                    await asyncio.sleep(HEARING_SECONDS)
                    self.check_watch()
            await self._rest(wait)

    async def _rest(self, seconds: float) -> None:
        """Until the next LIST is due, or wanted, or a small question says that something is wrong."""
        until = self._clock() + seconds
        while (left := until - self._clock()) > 0 and not self._soon.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left, CHECK_SECONDS)):
                    await self._soon.wait()
            if self._clock() < until and not self.problem and not self._soon.is_set():
                try:
                    async for _ in self._kube.pages(POLICIES):
                        break
                except KubeError as error:
                    if error.status != 429:
                        break
        if not self._soon.is_set():
            self._all = True

    async def once(self) -> None:
        """One LIST of every kind that is due, once its watch has begun. KubeError when one could not be completed; what
        was seen until then is kept."""
        self._unconfirmed = {}
        if self.begin_watches is not None and not self._watching:
            await self._each(KINDS, self._look_for)
            self._watching = True
            self.begin_watches()
            await self._until_begun()
        some = [] if self._all else [kind for kind in KINDS if kind in self._due]
        self._all = False
        kinds = some or KINDS
        back = await self._each(kinds, self._relist)
        if len(kinds) == len(KINDS):
            self.last_complete = self._clock()
            self.complete()
        if not self._cache.synced:
            self._cache.synced = True
            log.info(
                "cache synced",
                node_devices=len(self._cache.node_devices),
                nodes=len(self._cache.nodes),
                policies=len(self._cache.policies),
            )
            self.synced()
        if back:
            log.warning(
                "resource versions went backwards (etcd restored from a backup?), accepting the older state",
                objects=back,
            )
            self.went_back()
            self.stalled()  # a watch may wait for versions that are far away again

    async def _each(self, kinds: Sequence[Kind], do: Callable[[Kind], Awaitable[int]]) -> int:
        """Do it for these kinds; returns the sum. MissingCRDs names all that are not installed."""
        missing: list[str] = []
        count = 0
        for kind in kinds:
            try:
                count += await do(kind)
            except KubeError as error:
                if error.status != 404 or error.absent is not None or kind not in CRDS:
                    raise
                missing.append(CRDS[kind])
        if missing:
            raise MissingCRDs(missing)
        return count

    async def _look_for(self, kind: Kind) -> int:
        """KubeError where the API server does not have the kind, or does not let us list it."""
        async for _ in self._kube.pages(kind.value, fieldSelector=NO_OBJECT):
            break
        return 0

    async def _until_begun(self) -> None:
        """Until every kind is watched. A LIST does not depend on it: what begins later is listed again."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BEGIN_SECONDS):
                while self._watching and not self._begun.issuperset(KINDS):
                    self._news.clear()
                    await self._news.wait()

    async def _relist(self, kind: Kind) -> int:
        """Returns how many objects are older than known."""
        last, begun = self._cache.last_event.get(kind), kind in self._begun
        self._begun.discard(kind)
        self._due.discard(kind)
        try:
            missed, back = await self._list(kind)
        except KubeError:
            self._metrics.relists.labels(kind.name.lower(), "failed").inc()
            raise
        self._metrics.relists.labels(kind.name.lower(), "complete").inc()
        if missed and self._cache.synced and not begun:
            self._unconfirmed[kind] = last
        return back

    def check_watch(self) -> None:
        """Restart the watch when it has delivered nothing of the kinds of which a LIST showed changes since it
        began."""
        last_event = self._cache.last_event
        silent = [kind for kind, last in self._unconfirmed.items() if last_event.get(kind) == last]
        self._unconfirmed = {}
        if silent:
            log.warning("watch stalled, restarting", kinds=[kind.name.lower() for kind in silent])
            self.stalled()

    async def _list(self, kind: Kind) -> tuple[int, int]:
        """Returns how many changes the LIST showed that were not known, and how many objects are older than known."""
        before = dict(self._cache.records(kind))
        removed = self._cache.removed = set()
        seen: set[str] = set()
        missed = back = 0
        gc.disable()  # nearly all of it stays: the collector would look through it again and again
        try:
            async for page in self._kube.pages(kind.value):
                for number, raw in enumerate(page, start=1):
                    if number % AT_ONCE == 0:
                        await asyncio.sleep(0)  # others go first
                    record = read(kind, raw, before.get(_name(raw)))
                    seen.add(record.name)
                    if record.uid in removed:
                        continue
                    earlier = self._earlier(kind, record, before.get(record.name))
                    back += earlier
                    missed += self._take(self._cache.observe(kind, record, force=earlier))
                await asyncio.sleep(0)
        finally:
            gc.enable()
            self._cache.removed = None
        absent = sorted(set(before) - seen)
        if len(absent) > MAX_CONFIRMED:
            log.warning(
                "relist lacks many known objects, confirming deletions one by one", kind=kind.name, missing=len(absent)
            )
        for name in absent[:MAX_CONFIRMED]:
            missed += await self._confirm(kind, before[name])
        if self._cache.synced and missed:
            self._metrics.missed.labels(kind.name.lower()).inc(missed)
        return missed, back

    def _earlier(self, kind: Kind, record: Record, before: Record | None) -> bool:
        """True when a LIST shows an earlier state than the one that was known before it began, and still is."""
        return before is not None and self._cache.records(kind).get(record.name) is before and older(record, before)

    async def _confirm(self, kind: Kind, before: Record) -> int:
        """An object that a complete LIST did not show: is it really gone?"""
        if before.name not in self._cache.records(kind):
            return 0
        try:
            raw = await self._kube.get(named(kind.value, before.name))
        except KubeError as error:
            if error.status != 404 or error.absent != before.name:
                raise  # also where the whole collection is gone (a CRD deleted): that is no news of this object
            log.info("deletion found by relist", kind=kind.name, name=before.name)
            return self._take(self._cache.remove(kind, before.name, before.uid))
        return self._take(self._cache.observe(kind, read(kind, raw)))

    def _take(self, dirty: Dirty) -> int:
        if not dirty:
            return 0
        self._dirty(dirty)
        return 1

    def _explain(self, error: KubeError, wait: float) -> None:
        """Once for each new kind of problem, not once for each try."""
        if isinstance(error, MissingCRDs):
            what = f"{error}; install them: kubectl apply --server-side -k crds"
        elif error.forbidden:
            what = "forbidden to list, retrying; install the operator's RBAC"
        elif error.status == 401:
            what = "unauthorized: the API server rejects the token; waiting for a new one"
        else:
            what = "failed to list"
        if what != self.problem:
            why = {} if isinstance(error, MissingCRDs) else {"error": str(error)}
            log.warning(what, retry_seconds=round(wait, 1), **why)
        self.problem = what


def _name(raw: Mapping[str, Any]) -> str:
    return str(raw.get("metadata", {}).get("name", ""))


def _nothing() -> None:
    return None
