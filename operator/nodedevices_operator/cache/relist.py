"""The LIST of what exists, whatever kopf has delivered or missed.

kopf lists and watches (kube/watch.py), and two things it does not report: what was deleted before it lists anew
(after a 410, or started again), and that a watch has stalled. So names and resourceVersions alone are listed
(PartialObjectMetadataList): at the start, every ten minutes with jitter, and a moment after kopf has listed or a write
has met an object that is gone.

- What is known and a complete LIST does not show is read by name, and goes only on the API server's own 404: a failed,
  partial or empty LIST never removes anything.
- What the LIST shows and is not known in that version yet comes by kopf as a rule. Where nothing of it comes for some
  seconds the kind is listed in full, and the watches are restarted. At the start the cache counts as synced after that.
- A LIST is a consistent read, so it shows nothing older than what was known before it began. Where it does, the cluster
  went back in time (etcd was restored from a backup): the LIST wins, and what else was remembered is dropped.

In between, one page of policies every 30 s shows whether the API server answers at all: when it is back, everything is
listed at once.
"""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus

import structlog
from nodedevices_api import GROUP, VERSION
from nodedevices_common.backoff import Backoff
from nodedevices_common.periodic import within

from nodedevices_operator.cache.store import Cache, Dirty, compared
from nodedevices_operator.kube.port import Kube, KubeError, find
from nodedevices_operator.metrics import OperatorMetrics
from nodedevices_operator.records.kinds import Kind, Record, read
from nodedevices_operator.records.names import POLICIES, named

RELIST_SECONDS = 600.0
JITTER = 0.1
BACKOFF = Backoff(initial_seconds=1.0, max_seconds=30.0, jitter=0.2)  # after a failed LIST
MAX_CONFIRMED = 500  # by name, for one LIST: a list that misses more is not trusted this time
MISSING_BACKOFF = replace(BACKOFF, max_seconds=5.0)  # while the CRDs are missing: a LIST costs next to nothing
CHECK_SECONDS = 30.0  # between two small questions: kopf does not report that the API server is away
AGAIN_SECONDS = 5.0  # after the first write that met an object that is gone
HEARING_SECONDS = 20.0  # for kopf to deliver any of what a LIST has shown
LOOK_SECONDS = 0.25  # between two looks at what it has delivered
OFFERED = f"/apis/{GROUP}/{VERSION}"  # of these kinds, by discovery: kopf goes by it, too
KINDS = (Kind.POLICY, Kind.NODE, Kind.NODE_DEVICES)  # in the order in which they are listed
CRDS = {kind: f"{kind.value.rpartition('/')[2]}.{GROUP}" for kind in (Kind.NODE_DEVICES, Kind.POLICY)}

Listed = dict[str, tuple[str, str]]  # name -> uid, resourceVersion

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
        self.synced: Callable[[], None] = lambda: None  # called once, when everything that is listed is known
        self.begin_watches: Callable[[], None] | None = None  # called when every kind is there; None: nothing watches
        self.complete: Callable[[], None] = lambda: None  # called each time that everything was listed
        self.stalled: Callable[[], None] = lambda: None  # called when the watch misses what the LIST shows
        self.went_back: Callable[[], None] = lambda: None  # called when the cluster shows an earlier state than it did
        self._soon = asyncio.Event()
        self._watching = False  # the watches have been begun, and have not ended
        self._again: asyncio.TimerHandle | None = None
        self.last_complete: float | None = None  # clock
        self.problem = ""  # why the last LIST failed

    def soon(self) -> None:
        """LIST everything as soon as possible."""
        if self._again is not None:
            self._again.cancel()
            self._again = None
        self._soon.set()

    def again(self) -> None:
        """LIST a few seconds after this, and after what calls it meanwhile: no watch delivers what was deleted."""
        if self._again is None:
            self._again = asyncio.get_running_loop().call_later(AGAIN_SECONDS, self.soon)

    def listed(self) -> None:
        """Take note that kopf has listed objects: what was deleted before that, it does not say."""
        if self._cache.synced:
            self.again()

    def ended(self) -> None:
        """The watches have ended: they begin again, and then everything is listed."""
        self._watching = False
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
                backoff = MISSING_BACKOFF if isinstance(error, MissingCRDs) else BACKOFF
                wait = backoff.after(failures, at_least=error.retry_after)
                self._explain(error, wait)
            else:
                if self.problem:
                    log.info("relist succeeded again")
                failures = 0
                self.problem = ""
                wait = self._period * random.uniform(1 - JITTER, 1 + JITTER)
            await self._rest(wait)

    async def _rest(self, seconds: float) -> None:
        """Until the next LIST is due, or wanted, or a small question says that something is wrong."""
        until = self._clock() + seconds
        while (left := until - self._clock()) > 0 and not self._soon.is_set():
            await within(min(left, CHECK_SECONDS), self._soon.wait())
            if self._clock() < until and not self.problem and not self._soon.is_set():
                try:
                    async for _ in self._kube.pages(POLICIES):
                        break
                except KubeError as error:
                    if error.status != 429:
                        break

    async def once(self) -> None:
        """One LIST of every kind, until everything that it shows is known. KubeError when one could not be completed;
        what was seen until then is kept."""
        if self.begin_watches is not None and not self._watching:
            await self._look_for_kinds()
            self._watching = True
            self.begin_watches()
        before = {kind: dict(self._cache.records(kind)) for kind in KINDS}
        self._cache.removed = set()
        try:
            listed = await self._list_all(before)
            await self._hear(listed)
            missed = [kind for kind in KINDS if self._differs(kind, listed[kind], before[kind])]
            back = [await self._catch_up(kind, before[kind]) for kind in missed]
        finally:
            self._cache.removed = None
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
        if any(back):
            log.warning(
                "resource versions went backwards (etcd restored from a backup?), accepting the older state",
                objects=sum(back),
            )
            self.went_back()
            self.stalled()  # a watch may wait for versions that are far away again
        elif missed and self._watching:
            log.warning("watch stalled, restarting", kinds=[kind.name.lower() for kind in missed])
            self.stalled()

    async def _look_for_kinds(self) -> None:
        """MissingCRDs where the API server does not say that it has our kinds."""
        found = await find(self._kube, OFFERED) or {}
        offered = {f"{OFFERED}/{resource.get('name')}" for resource in found.get("resources") or ()}
        if missing := [name for kind, name in CRDS.items() if kind.value not in offered]:
            raise MissingCRDs(missing)

    async def _list_all(self, before: Mapping[Kind, Mapping[str, Record]]) -> dict[Kind, Listed]:
        """List the metadata of every kind, and remove what is gone."""
        listed: dict[Kind, Listed] = {}
        for kind in KINDS:
            result = "failed"
            try:
                listed[kind] = await self._list(kind)
                absent = sorted(before[kind].keys() - listed[kind].keys())
                if len(absent) > MAX_CONFIRMED:
                    what = "relist lacks many known objects, confirming deletions one by one"
                    log.warning(what, kind=kind.name, missing=len(absent))
                for name in absent[:MAX_CONFIRMED]:
                    await self._confirm(kind, before[kind][name])
                result = "complete"
            except KubeError as error:
                if error.status == HTTPStatus.NOT_FOUND and error.absent is None:  # no object, but all of the kind
                    await self._look_for_kinds()
                raise
            finally:
                self._metrics.relists.labels(kind.name.lower(), result).inc()
        return listed

    async def _list(self, kind: Kind) -> Listed:
        listed: Listed = {}
        async for page in self._kube.pages(kind.value, metadata_only=True):
            found = [raw["metadata"] for raw in page["items"]]
            listed |= {metadata["name"]: (metadata["uid"], metadata["resourceVersion"]) for metadata in found}
            await asyncio.sleep(0)
        return listed

    async def _hear(self, listed: Mapping[Kind, Listed]) -> None:
        """Wait while kopf delivers what the LIST has shown."""
        left = [(kind, name, *at) for kind in KINDS for name, at in listed[kind].items()]
        before, since = len(left) + 1, self._clock()
        while self._watching:
            left = [item for item in left if self._age(*item) > 0]
            if len(left) < before:
                before, since = len(left), self._clock()
            if not left or self._clock() - since > HEARING_SECONDS:
                return
            await asyncio.sleep(LOOK_SECONDS)

    def _differs(self, kind: Kind, listed: Listed, before: Mapping[str, Record]) -> bool:
        """True when an object is not known in the state that was listed; or in a later one, from before the LIST."""
        for name, at in listed.items():
            age = self._age(kind, name, *at)
            if age > 0 or (age < 0 and before.get(name) is self._cache.records(kind)[name]):
                return True
        return False

    def _age(self, kind: Kind, name: str, uid: str, version: str) -> int:
        """Return more than 0 where what is known is older than this, less than 0 where it is newer."""
        record = self._cache.records(kind).get(name)
        if record is None:
            return 0 if uid in (self._cache.removed or ()) else 1
        return compared(version, record.resource_version) or 0

    async def _catch_up(self, kind: Kind, before: Mapping[str, Record]) -> int:
        """List the kind in full. Returns of how many objects an older state was taken in than was known."""
        back = 0
        gc.disable()  # nearly all of it stays: the collector would look through it again and again
        try:
            async for page in self._kube.pages(kind.value):
                for raw in page["items"]:
                    known = self._cache.records(kind).get(raw["metadata"]["name"])
                    record = read(kind, raw, known)
                    if record.uid in (self._cache.removed or ()):
                        continue
                    age = 0 if known is None else compared(record.resource_version, known.resource_version) or 0
                    earlier = age < 0 and known is before.get(record.name)
                    back += earlier
                    self._missed(kind, self._cache.observe(kind, record, force=earlier))
                await asyncio.sleep(0)  # others go first
        finally:
            gc.enable()
        return back

    async def _confirm(self, kind: Kind, before: Record) -> None:
        """An object that a complete LIST did not show: is it really gone?"""
        if before.name not in self._cache.records(kind):
            return
        try:
            raw = await self._kube.get(named(kind.value, before.name))
        except KubeError as error:
            if error.status != HTTPStatus.NOT_FOUND or error.absent != before.name:
                raise  # also where the whole collection is gone (a CRD deleted): that is no news of this object
            log.info("deletion found by relist", kind=kind.name, name=before.name)
            self._missed(kind, self._cache.remove(kind, before.name, before.uid))
        else:
            self._dirty(self._cache.observe(kind, read(kind, raw)))

    def _missed(self, kind: Kind, dirty: Dirty) -> None:
        """A LIST has shown what the watch has not."""
        self._dirty(dirty)
        if dirty and self._cache.synced:
            self._metrics.missed.labels(kind.name.lower()).inc()

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
