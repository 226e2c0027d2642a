"""Polls the kubelet for the holders of devices: every five seconds, sooner after an Allocate.

The kubelet's limit of PodResources calls is shared by all callers of the node, so there is one List after an Allocate,
as late as `wanted_after_allocate` allows. While the kubelet does not know its pods yet, it is polled every second.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from nodedevices_plugin.kubelet.podresources import PodResourcesClient, wanted_after_allocate
from nodedevices_plugin.model import HoldersState, RecentAllocate

LIST_SECONDS = 5.0
INCOMPLETE_SECONDS = 1.0  # while the kubelet does not know its pods yet


class HolderPoller:
    """`run` until cancelled; `on_change` is called when `client.holdings` is another than before."""

    def __init__(
        self,
        client: PodResourcesClient,
        *,
        recent: Callable[[], Sequence[RecentAllocate]],
        on_change: Callable[[], None],
    ) -> None:
        self._client = client
        self._recent = recent
        self._on_change = on_change
        self._allocated = asyncio.Event()

    def allocated(self) -> None:
        """Poll soon: there was an Allocate."""
        self._allocated.set()

    async def run(self) -> None:
        while True:
            before = self._client.holdings
            holdings = await self._client.list()
            if replace(holdings, taken=0.0) != replace(before, taken=0.0) or before.taken == 0.0:
                self._on_change()
            await self._pause(LIST_SECONDS if holdings.state is not HoldersState.INCOMPLETE else INCOMPLETE_SECONDS)

    async def _pause(self, seconds: float) -> None:
        self._allocated.clear()
        with contextlib.suppress(TimeoutError):
            while True:
                wanted_from = wanted_after_allocate(self._client.holdings, self._recent())
                if wanted_from is not None:
                    await asyncio.sleep(max(0.0, min(seconds, wanted_from - time.monotonic())))
                    return
                began = time.monotonic()
                async with asyncio.timeout(seconds):
                    await self._allocated.wait()
                self._allocated.clear()
                seconds = max(0.0, seconds - (time.monotonic() - began))
