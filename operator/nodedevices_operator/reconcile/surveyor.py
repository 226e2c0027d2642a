"""The fleet as it is now, for the fleet gate: a node is read again only where its objects or the policies have changed.

Each node's own part is kept with the cache's revision of it and the policies that it was made for, never with the
objects themselves, which would live on. What is kept is only ever compared: the survey equals that of
`desired.pools.survey`, whatever was kept.

All nodes at once, as after a start or a change of a policy, are read some at a time (`catch_up`), so that faults are
handled meanwhile.
"""

from __future__ import annotations

import asyncio
from itertools import islice

from msgspec import Struct

from nodedevices_operator.cache.store import Cache
from nodedevices_operator.desired.fleet import Survey
from nodedevices_operator.desired.pools import FleetNode, Reacting, fleet_node, surveyed

AT_ONCE = 200  # nodes, some 5 ms


class _Kept(Struct, frozen=True):
    revision: int
    reacting: Reacting
    node: FleetNode


class Surveyor:
    """Over one cache. Event loop only."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._reacting = Reacting()
        self._kept: dict[str, _Kept] = {}
        self._changes: int | None = None  # of the cache, of which all is kept
        self._survey: Survey | None = None  # of what is kept
        self._nodes: frozenset[str] = frozenset()  # Nodes, with a NodeDevices or without

    async def catch_up(self) -> None:
        """Have so little left to read that `survey` is done at once."""
        left = True
        while left:
            left = self._renew(AT_ONCE) == AT_ONCE
            await asyncio.sleep(0)

    def survey(self) -> Survey:
        self._renew()
        if self._survey is None:
            self._survey = surveyed({name: kept.node for name, kept in self._kept.items()}, self._nodes)
        return self._survey

    def _renew(self, most: int | None = None) -> int:
        """Read so many nodes that are others than what is kept, or all. Returns how many."""
        if (now := Reacting(self._cache.policies.values())) != self._reacting:
            self._reacting, self._changes = now, None
        if self._changes == self._cache.changes:
            return 0
        if self._cache.nodes.keys() != self._nodes:
            self._nodes, self._survey = frozenset(self._cache.nodes), None
        for name in self._kept.keys() - self._cache.node_devices.keys():
            del self._kept[name]
            self._survey = None
        revisions, kept, reacting = self._cache.revisions, self._kept, self._reacting
        others = (
            name
            for name in self._cache.node_devices
            if (its := kept.get(name)) is None or its.revision != revisions[name] or its.reacting is not reacting
        )
        names = list(islice(others, most))
        for name in names:
            self._read(name)
        self._changes = self._cache.changes if most is None or len(names) < most else None
        return len(names)

    def _read(self, name: str) -> None:
        before = self._kept.get(name)
        found = fleet_node(self._cache.node_devices[name], self._cache.nodes.get(name), self._reacting)
        self._kept[name] = _Kept(self._cache.revisions[name], self._reacting, found)
        if before is None or before.node != found:
            self._survey = None
