"""Many requests, one call."""

from __future__ import annotations

import asyncio

from nodedevices_plugin.runtime.threads import Later


async def test_many_requests_are_one_call_and_a_later_one_is_another() -> None:
    called = asyncio.Event()
    calls: list[int] = []

    def call() -> None:
        calls.append(1)
        called.set()

    later = Later(call, seconds=0.001)
    for _ in range(100):
        later.request()
    assert not calls, "nothing is called while the requester still has the loop"
    await called.wait()
    assert len(calls) == 1
    called.clear()
    later.request()
    await called.wait()
    assert len(calls) == 2
