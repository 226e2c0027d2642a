"""Keeps the node's ResourceSlices in the API server equal to what DRA serves here.

The kubelet deletes all slices of its node at each of its starts, and a driver's 30 seconds after its connection has
ended (Kubernetes 1.37.2, pkg/kubelet/cm/dra/plugin). So the slices are watched, and come back. Devices are added only
while the kubelet has the driver registered: a pod that is bound before that fails once. They are taken away at any
time. Nothing is written where nothing differs.

A server may drop a taint or how a device is shared, without an error (dropped). So the first device that has such a
field is created in a dry run: until the answer is there it is in no slice, and never as something else than it is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import structlog
from nodedevices_api.dra import RESOURCE_API
from nodedevices_common.periodic import within
from nodedevices_kube.errors import ApiError

from nodedevices_plugin.claims.slices import (
    MAX_NAME,
    SHARING,
    TAINTS,
    Json,
    Stored,
    Writes,
    devices_of,
    dropped,
    has,
    slice_name,
    stored,
    writes,
)
from nodedevices_plugin.status.client import WRITE_BACKOFF, ChangedItem, KubeStore, ListedItems, Object, keep_watching

SETTLING_SECONDS = 10.0  # after a device has left the slices: a scheduler may not have seen that yet

log = structlog.get_logger(__name__)


class SlicePublisher:
    """`store` None: without an API server there are none. `problem`: why the slices are not as they should be; empty:
    they are. `on_change` is called on the loop when
    `problem`, `devices` or `drops` may be another. `may_add`: False while the kubelet has not registered the driver;
    asked before each write."""

    def __init__(
        self,
        store: KubeStore | None,
        *,
        node: str,
        driver: str,
        on_change: Callable[[], None],
        may_add: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.problem = ""
        self.refused = False  # by the API server: it has no such API, or we have no right to it
        self.written = 0  # slices, since the start; deletions too
        self.drops: frozenset[str] = frozenset()  # fields that the server drops: devices that have them are left out
        self._tried: frozenset[str] = frozenset()  # fields of which that is known
        self._store = store
        self._node = node
        self._driver = driver
        self._on_change = on_change
        self._may_add = may_add
        self._clock = clock
        self._wanted: tuple[Json, ...] | None = None
        self._told = False  # what is wanted: until then the slices of an earlier run stay
        self._stored: dict[str, Stored] | None = None  # None: not listed yet
        self._gone: dict[str, float] = {}  # device -> when it left the slices
        self._owner: str | None = None
        self._owner_known = False
        self._wake = asyncio.Event()

    def want(self, devices: Sequence[Json] | None) -> None:
        """Take the devices that the slices should have; None: there should be no slice. Call it as well when `may_add`
        has another answer."""
        self._wanted, self._told = None if devices is None else tuple(devices), True
        self._wake.set()

    @property
    def devices(self) -> frozenset[str]:
        """The devices that are in the slices, or were a moment ago: a claim may still be allocated one of them."""
        since = self._clock() - SETTLING_SECONDS
        return _names(self._stored).union(name for name, at in self._gone.items() if at > since)

    @property
    def settles_at(self) -> float | None:
        """Return when `devices` changes without news (time.monotonic()); None: it does not."""
        now = self._clock()
        ends = (at + SETTLING_SECONDS for at in self._gone.values())
        return min((end for end in ends if end > now), default=None)

    async def run(self) -> None:
        """Until cancelled."""
        if self._store is None:
            await asyncio.Event().wait()
            return
        watch = partial(self._store.watch_slices, self._node, self._driver)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(keep_watching(watch, self._seen, self._not_watched))
            tasks.create_task(self._write(self._store))

    @property
    def listed(self) -> bool:
        """True when the slices that exist are known."""
        return self._stored is not None

    def _not_watched(self, error: ApiError) -> None:
        self.refused = error.status in (403, 404)
        if not error.expired:
            self._settle(str(error))

    def _seen(self, news: ListedItems[Stored] | ChangedItem[Stored]) -> None:
        self.refused = False
        now = dict(self._stored or {})
        if isinstance(news, ListedItems):
            now = {found.name: found for found in news.items}
        elif news.gone:
            now.pop(news.item.name, None)
        elif _version(now.get(news.item.name)) < _version(news.item):
            now[news.item.name] = news.item
        self._take(now)
        self._wake.set()

    def _take(self, slices: dict[str, Stored]) -> None:
        first, before, now = self._stored is None, _names(self._stored), _names(slices)
        self._stored = slices
        at = self._clock()
        self._gone = {
            name: left
            for name, left in {**self._gone, **dict.fromkeys(before - now, at)}.items()
            if name not in now and left > at - SETTLING_SECONDS
        }
        if before != now or first:
            self._on_change()

    async def _write(self, store: KubeStore) -> None:
        failures = 0
        while True:
            self._wake.clear()
            try:
                await self._try(store)
                await self._carry_out(store, self._needed())
            except ApiError as error:
                failures += 1
                self._settle(str(error))
                await within(WRITE_BACKOFF.after(failures, at_least=error.retry_after), self._wake.wait())
                continue
            failures = 0
            if self._stored is not None:
                self._settle("")
            await self._wake.wait()

    def _needed(self) -> Writes:
        """What has to be written now; nothing before the slices were listed, and what they should have is known."""
        if self._stored is None or not self._told:
            return Writes()
        if self._wanted is None:
            return Writes(deletes=tuple(sorted(self._stored)))
        wanted = [device for device in self._wanted if not self._lacks(device)]
        if not self._may_add():
            there = _names(self._stored)
            wanted = [device for device in wanted if device["name"] in there]
            if not self._stored and not wanted:
                return Writes()
        return writes(self._node, self._driver, wanted, tuple(self._stored.values()))

    async def _try(self, store: KubeStore) -> None:
        """Learn what the server drops of devices that are to be in a slice."""
        wanted = self._wanted if self._stored is not None and self._may_add() else ()
        for field in {TAINTS, SHARING} - self._tried:
            device = next((device for device in wanted or () if has(device, field)), None)
            if device is not None:
                pool = {"name": self._node, "generation": 0, "resourceSliceCount": 1}
                spec = {"driver": self._driver, "nodeName": self._node, "pool": pool, "devices": [device]}
                body = self._body(f"dry-run-{slice_name(0, self._driver, self._node)}"[:MAX_NAME].rstrip("-."), spec)
                answer = await store.create_slice(body, dry_run=True)
                self._learn(dropped(spec, stored(answer).spec))
                self._tried |= {field}

    def _learn(self, lacking: frozenset[str]) -> None:
        if lacking - self.drops:
            self.drops |= lacking
            log.warning("the API server drops fields: devices that have them are in no slice", fields=sorted(lacking))
            self._wake.set()
            self._on_change()

    async def _carry_out(self, store: KubeStore, needed: Writes) -> None:
        for name in needed.deletes:
            self.written += 1
            try:
                await store.delete_slice(name)
            except ApiError as error:
                if error.status != 404:
                    raise
            self._take({key: found for key, found in (self._stored or {}).items() if key != name})
        if (needed.updates or needed.creates) and not self._owner_known:
            self._owner, self._owner_known = await store.node_uid(), True
        for (name, version), spec in needed.updates.items():
            body = self._body(name, spec)
            body["metadata"]["resourceVersion"] = version
            self._wrote(spec, await store.update_slice(body))
        for name, spec in needed.creates.items():
            self._wrote(spec, await store.create_slice(self._body(name, spec)))

    def _wrote(self, sent: Json, answer: Object) -> None:
        self.written += 1
        found = stored(answer)
        self._take({**(self._stored or {}), found.name: found})
        self._learn(dropped(sent, found.spec))

    def _lacks(self, device: Json) -> bool:
        """True when the server would store the device as something else than it is."""
        return any(has(device, field) for field in self.drops)

    @property
    def left_out(self) -> frozenset[str]:
        """The devices that should be in the slices and are not, since the server drops what they must not lack."""
        return frozenset(str(device["name"]) for device in self._wanted or () if self._lacks(device))

    def _body(self, name: str, spec: Json) -> dict[str, Any]:
        metadata: dict[str, Any] = {"name": name}
        if self._owner is not None:
            owner = {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": self._owner, "controller": True}
            metadata["ownerReferences"] = [owner]
        return {"apiVersion": RESOURCE_API, "kind": "ResourceSlice", "metadata": metadata, "spec": spec}

    def _settle(self, problem: str) -> None:
        if problem != self.problem:
            if problem:
                log.warning("ResourceSlices not up to date", error=problem)
            else:
                log.info("ResourceSlices up to date", devices=len(_names(self._stored)))
            self.problem = problem
            self._on_change()


def _version(found: Stored | None) -> int:
    return int(found.resource_version) if found is not None and found.resource_version.isdecimal() else 0


def _names(slices: Mapping[str, Stored] | None) -> frozenset[str]:
    return frozenset(str(device.get("name")) for found in (slices or {}).values() for device in devices_of(found.spec))
