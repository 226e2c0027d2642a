"""The fleet as it is now, for the fleet gate: a node is read again only where its objects or the policies have changed.

What is kept of a node has no part of the objects themselves, which would live on. It is only ever compared: the survey
equals that of `desired.pools.survey`, whatever was kept.

All nodes at once, as after a start or a change of a policy, are read some at a time (`catch_up`), so that faults are
handled meanwhile.
"""

from __future__ import annotations

import asyncio
from itertools import islice

from nodedevices_operator.cache.store import Cache
from nodedevices_operator.desired.fleet import Survey
from nodedevices_operator.desired.pools import FleetNode, Reacting, fleet_node, surveyed

AT_ONCE = 200  # nodes, some 5 ms


class Surveyor:
    """Over one cache, of which it is the only one. Event loop only."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._reacting = Reacting()
        self._kept: dict[str, FleetNode] = {}
        self._survey: Survey | None = None  # of what is kept
        cache.revised |= cache.node_devices.keys()

    async def catch_up(self) -> None:
        """Have so little left to read that `survey` is done at once."""
        left = True
        while left:
            left = self._renew(AT_ONCE) == AT_ONCE
            await asyncio.sleep(0)

    def survey(self) -> Survey:
        self._renew()
        if self._survey is None:
            self._survey = surveyed(self._kept, self._cache.nodes)
        return self._survey

    def _renew(self, most: int | None = None) -> int:
        """Read so many nodes that are others than what is kept, or all. Returns how many."""
        cache = self._cache
        if (reacting := Reacting(cache.policies.values())) != self._reacting:
            self._reacting = reacting
            cache.revised |= cache.node_devices.keys()
        names = list(islice(cache.revised, most))
        for name in names:
            record, before = cache.node_devices.get(name), self._kept.pop(name, None)
            found = None if record is None else fleet_node(record, cache.nodes.get(name), self._reacting)
            if found is not None:
                self._kept[name] = found
            if found is None or found != before:
                self._survey = None
        cache.revised.difference_update(names)
        return len(names)
