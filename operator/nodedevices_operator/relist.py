"""The authoritative LIST: what really exists, whatever the watch has told or missed.

kopf forgets deletions across a 410 and a watch can go deaf, so every ten minutes, with jitter, each kind is read in
pages. Objects that the LIST shows are taken in. An object that a complete LIST does not show is asked for by name, and
goes only on the API server's own 404: a failed, partial or empty LIST never removes anything. A LIST that shows changes
which a silent watch has not means that the watch is deaf; it is started anew.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

import structlog

from nodedevices_operator.cache import Cache, Dirty, Kind, read
from nodedevices_operator.kube import Kube, KubeError, named
from nodedevices_operator.metrics import Metrics

JITTER = 0.1
RETRY_SECONDS = (1.0, 30.0)  # after a failed LIST, growing
MAX_QUESTIONS = 500  # by name, for one LIST: a list that misses more is not believed this time
DEAF_AFTER_SECONDS = 60.0  # without any watch event, while the LIST shows changes: bookmarks come every minute

log = structlog.get_logger()


class Relister:
    """Fills the cache and keeps it honest."""

    def __init__(
        self,
        kube: Kube,
        cache: Cache,
        metrics: Metrics,
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
        self.synced: Callable[[], None] = _nothing  # told once, after the first complete LIST of everything
        self.watch: Callable[[], None] = _nothing  # told each time that a LIST was complete: the CRDs are there
        self.deaf: Callable[[], None] = _nothing  # told when the watch misses what the LIST shows
        self.last_complete: float | None = None  # clock
        self.trouble = ""  # why the last LIST failed

    async def run(self) -> None:
        """LIST for ever. Until the first complete LIST of everything the cache is not synced."""
        failures = 0
        while True:
            try:
                await self.once()
            except KubeError as error:
                failures += 1
                first, most = RETRY_SECONDS
                wait = min(most, first * 2.0 ** min(failures - 1, 8)) * random.uniform(1 - JITTER, 1 + JITTER)
                wait = max(wait, error.retry_after or 0.0)
                self._explain(error, wait)
            else:
                failures = 0
                self.trouble = ""
                wait = self._period * random.uniform(1 - JITTER, 1 + JITTER)
            await asyncio.sleep(wait)

    async def once(self) -> None:
        """One LIST of every kind. KubeError when one could not be completed; what was seen until then is kept."""
        missed = 0
        for kind in (Kind.POLICY, Kind.NODE, Kind.NODE_DEVICES):
            try:
                missed += await self._list(kind)
            except KubeError:
                self._metrics.relists.labels(kind.name.lower(), "failed").inc()
                raise
            self._metrics.relists.labels(kind.name.lower(), "complete").inc()
        self.last_complete = self._clock()
        self.watch()
        if not self._cache.synced:
            self._cache.synced = True
            log.info(
                "cache synced",
                node_devices=len(self._cache.node_devices),
                nodes=len(self._cache.nodes),
                policies=len(self._cache.policies),
            )
            self.synced()
        elif missed and self._clock() - self._cache.last_event > DEAF_AFTER_SECONDS:
            log.warning("watch is deaf, starting it anew", missed=missed)
            self.deaf()

    async def _list(self, kind: Kind) -> int:
        """Returns how many changes the LIST showed that were not known."""
        before = {name: record.uid for name, record in self._cache.records(kind).items()}
        seen: set[str] = set()
        missed = 0
        async for page in self._kube.pages(kind.value):
            for raw in page:
                record = read(kind, raw)
                seen.add(record.name)
                missed += self._take(self._cache.observe(kind, record))
            await asyncio.sleep(0)  # a page of 500 takes a while to read; others go first
        absent = sorted(set(before) - seen)
        if len(absent) > MAX_QUESTIONS:
            log.warning("list misses too many objects to be believed at once", kind=kind.name, missing=len(absent))
        for name in absent[:MAX_QUESTIONS]:
            missed += await self._ask(kind, name, before[name])
        if self._cache.synced and missed:
            self._metrics.missed.labels(kind.name.lower()).inc(missed)
        return missed

    async def _ask(self, kind: Kind, name: str, uid: str) -> int:
        """An object that a complete LIST did not show: is it really gone?"""
        if name not in self._cache.records(kind):
            return 0
        try:
            raw = await self._kube.get(named(kind.value, name))
        except KubeError as error:
            if error.status != 404 or error.absent != name:
                raise  # also where the whole collection is gone (a CRD deleted): that is no news of this object
            log.info("deletion found by list", kind=kind.name, name=name)
            return self._take(self._cache.remove(kind, name, uid))
        return self._take(self._cache.observe(kind, read(kind, raw)))

    def _take(self, dirty: Dirty) -> int:
        if not dirty:
            return 0
        self._dirty(dirty)
        return 1

    def _explain(self, error: KubeError, wait: float) -> None:
        """Once for each new kind of trouble, not once for each try."""
        if error.status == 404:
            what = "the CRDs of NodeDevices are not installed: kubectl apply -k crds; waiting for them"
        elif error.forbidden:
            what = "not allowed to list: install the operator's RBAC; waiting"
        else:
            what = "could not list"
        if what != self.trouble:
            log.warning(what, error=str(error), retry_seconds=round(wait, 1))
        self.trouble = what


def _nothing() -> None:
    return None
