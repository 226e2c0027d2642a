"""Which lines wait for a step: what a probe's process has said, nobody says again once it has ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from nodedevices_plugin.health.events import EventCursor, fresh_events
from nodedevices_plugin.inputs.probes import MAX_EVENTS_WAITING, MAX_WAITING, Probes
from nodedevices_plugin.settings.flags import parse
from nodedevices_probe.loop import EventKey, EventLog, encode
from nodedevices_probe.protocol import Snapshot
from support.facts import gpu, gpu_id, snapshot, xid
from support.probes import eventually
from support.there import there

LOCAL = parse(["--node-name=n1"], {})
FIRST = snapshot(gpu(0), instance="one")
FATAL = replace(FIRST, sequence=2, events=(xid(79, sequence=1),))
SECOND = replace(FIRST, instance="two")


@asynccontextmanager
async def connected(folder: Path) -> AsyncIterator[tuple[Probes, Callable[[Snapshot], Awaitable[None]]]]:
    """A probe behind a socket, no step that takes its lines, and what has the probe say one and the agent read it."""
    writers: list[asyncio.StreamWriter] = []
    came = 0

    def on_line() -> None:
        nonlocal came
        came += 1

    async def keep(_: str, run: Callable[[], Awaitable[None]]) -> None:
        await run()

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)

    server = await asyncio.start_unix_server(accept, folder / "probe.sock")
    probes = Probes(LOCAL, driver_root=lambda: Path("/"), on_line=on_line, keep=keep)
    probes.use([f"gpus=unix:{folder}/probe.sock"])

    async def say(line: Snapshot) -> None:
        before = came
        await eventually(lambda: bool(writers))
        writers[-1].write(encode(line))
        await eventually(lambda: came > before)

    try:
        yield probes, say
    finally:
        await probes.stop()
        for each in writers:
            each.close()
        server.close()


def taken(probes: Probes) -> list[tuple[str, int, int]]:
    """Of all that wait: process, line, how many events."""
    found = []
    while (line := probes.take()) is not None:
        found.append((line.snapshot.instance, line.snapshot.sequence, len(line.snapshot.events)))
    return found


async def test_a_line_of_the_next_process_takes_nothing_from_that_of_the_one_before(tmp_path: Path) -> None:
    async with connected(tmp_path) as (probes, say):
        for line in (FIRST, FATAL, SECOND):
            await say(line)
        assert taken(probes) == [("one", 2, 1), ("two", 1, 0)]


async def test_of_one_process_the_latest_line_waits_with_the_arrival_of_the_first(tmp_path: Path) -> None:
    async with connected(tmp_path) as (probes, say):
        await say(FIRST)
        before = asyncio.get_running_loop().time()
        await say(FATAL)
        line = there(probes.take())
        assert (line.snapshot, probes.more) == (FATAL, False)
        assert line.arrived <= before


async def test_of_a_probe_that_is_always_a_new_process_what_has_events_waits_the_longest(tmp_path: Path) -> None:
    async with connected(tmp_path) as (probes, say):
        await say(FATAL)
        for number in range(2 * MAX_WAITING):
            await say(replace(SECOND, instance=f"of-{number}"))
        waiting = taken(probes)
        assert len(waiting) == MAX_WAITING
        assert waiting[0] == ("one", 2, 1)
        assert waiting[-1][0] == f"of-{2 * MAX_WAITING - 1}"


async def test_of_equal_events_in_lines_that_no_step_has_taken_every_count_is_handed_on_once(tmp_path: Path) -> None:
    log, cursor, counts = EventLog(), EventCursor(), list[int]()
    async with connected(tmp_path) as (probes, say):
        for number in range(6):
            log.record(EventKey(kind="xid", device_id=gpu_id(0), xid=31), count=number + 1)
            await say(replace(FIRST, sequence=number + 1, events=log.for_line()))
            if number % 3 == 2:
                line = there(probes.take())
                cursor, fresh = fresh_events(cursor, line.snapshot)
                counts += [event.count for event in fresh]
    assert counts == [1, 2, 3, 4, 5, 6]


async def test_a_flood_that_no_step_takes_is_bounded_and_its_latest_line_is_whole(tmp_path: Path) -> None:
    events = [tuple(xid(code, sequence=100 * number + code) for code in range(100)) for number in range(20)]
    async with connected(tmp_path) as (probes, say):
        for number, some in enumerate(events):
            await say(replace(FIRST, sequence=number + 1, events=some))
        line = probes.take()
    assert line is not None
    assert len(line.snapshot.events) == MAX_EVENTS_WAITING
    assert line.snapshot.events[-100:] == events[-1]
