"""A probe that listens on a unix socket: its lines arrive, and whatever it does, the agent comes back to it."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from nodedevices_common.backoff import Backoff
from nodedevices_plugin.inputs.probe_sessions import SOCKET_BACKOFF as BACKOFF, ProbeSocket
from nodedevices_probe import loop
from nodedevices_probe.loop import encode
from nodedevices_probe.protocol import MAX_LINE_BYTES, Driver, DriverState, Snapshot
from support.probes import cancelled, eventually

NOBODY = 65534
QUICK = Backoff(initial_seconds=0.05, max_seconds=0.2, jitter=0.0)
GOOD = Snapshot(
    probe="fake",
    probe_version="0",
    instance="one",
    sequence=0,
    time=datetime(2026, 1, 1, tzinfo=UTC),
    boot_id="b",
    driver=Driver(state=DriverState.LOADED),
)


def line(sequence: int) -> bytes:
    return encode(replace(GOOD, sequence=sequence))


@dataclass
class Listening:
    """What a probe does with its clients: `greet` is written to each at once."""

    path: Path
    greet: bytes = b""
    clients: list[asyncio.StreamWriter] = field(default_factory=list)
    read: list[bytes] = field(default_factory=list)
    _server: asyncio.Server | None = None

    async def start(self) -> Listening:
        self._server = await asyncio.start_unix_server(self._accept, self.path)
        return self

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.clients.append(writer)
        writer.write(self.greet)
        while said := await reader.readline():
            self.read.append(said)

    def say(self, text: bytes) -> None:
        self.clients[-1].write(text)

    async def stop(self) -> None:
        """As a container that ends: its connections close, its socket's file stays."""
        assert self._server is not None
        self._server.close()
        for each in self.clients:
            each.close()
        await asyncio.sleep(0)


@asynccontextmanager
async def connected(
    path: Path, on_snapshot: Callable[[Snapshot], None], *, end_after_silence_seconds: float = 45.0
) -> AsyncIterator[ProbeSocket]:
    source = ProbeSocket(
        str(path), on_snapshot=on_snapshot, backoff=QUICK, end_after_silence_seconds=end_after_silence_seconds
    )
    running = asyncio.create_task(source.run())
    try:
        yield source
    finally:
        await cancelled(running)


@pytest.fixture
async def probe(tmp_path: Path) -> AsyncIterator[Listening]:
    listening = await Listening(tmp_path / "probe.sock").start()
    yield listening
    await listening.stop()


async def test_good_lines_arrive_in_order(probe: Listening) -> None:
    seen: list[Snapshot] = []
    probe.greet = line(1) + line(2)
    async with connected(probe.path, seen.append) as source:
        await eventually(lambda: len(seen) == 2)
        probe.say(line(3))
        await eventually(lambda: len(seen) == 3)
        assert [each.sequence for each in seen] == [1, 2, 3]
        assert (source.last_error, source.counters.lines, source.counters.starts) == (None, 3, 1)


async def test_a_probe_that_comes_later_is_found_and_until_then_the_reason_is_said(tmp_path: Path) -> None:
    path, seen = tmp_path / "probe.sock", list[Snapshot]()
    async with connected(path, seen.append) as source:
        await eventually(
            lambda: source.last_error == f"failed to connect to the probe at {path}: No such file or directory"
        )
        probe = await Listening(path, greet=line(1)).start()
        await eventually(lambda: seen)
        await probe.stop()


async def test_a_probe_that_ends_and_comes_back_is_read_again(probe: Listening) -> None:
    seen: list[Snapshot] = []
    probe.greet = line(1)
    async with connected(probe.path, seen.append) as source:
        await eventually(lambda: seen)
        await probe.stop()
        await eventually(
            lambda: source.last_error == f"failed to connect to the probe at {probe.path}: Connection refused"
        )
        probe.path.unlink()
        again = await Listening(probe.path, greet=line(7)).start()
        await eventually(lambda: [each.sequence for each in seen] == [1, 7])
        await again.stop()


async def test_garbage_is_counted_and_the_next_good_line_counts(probe: Listening) -> None:
    seen: list[Snapshot] = []
    probe.greet = b"garbage\n{}\n\xff\n" + b"x" * (MAX_LINE_BYTES + 10) + b"\n" + line(5)
    async with connected(probe.path, seen.append) as source:
        await eventually(lambda: seen)
        assert (source.counters.bad_lines, source.counters.starts, source.last_error) == (4, 1, None)


async def test_half_a_line_at_a_connections_end_is_not_a_part_of_the_next_ones_first_line(probe: Listening) -> None:
    seen: list[Snapshot] = []
    probe.greet = line(1) + line(2)[:50]
    async with connected(probe.path, seen.append) as source:
        await eventually(lambda: seen)
        probe.greet = line(3)
        probe.clients[0].close()
        await eventually(lambda: len(seen) == 2)
        assert [each.sequence for each in seen] == [1, 3]
        assert source.counters.bad_lines == 0


async def test_a_probe_that_says_nothing_good_is_connected_to_again(probe: Listening) -> None:
    seen: list[Snapshot] = []
    async with connected(probe.path, seen.append, end_after_silence_seconds=0.3) as source:
        await eventually(lambda: probe.clients)
        probe.greet = line(4)
        await eventually(lambda: seen)
        assert source.counters.kills >= 1
        assert len(probe.clients) >= 2


async def test_a_probe_reads_what_the_agent_wants_after_each_connection(probe: Listening) -> None:
    async with connected(probe.path, lambda _: None) as source:
        await eventually(lambda: probe.clients)
        source.want(use=True)
        await eventually(lambda: probe.read)
        probe.clients[0].close()
        await eventually(lambda: len(probe.read) == 2)
        source.want(use=False)
        await eventually(lambda: len(probe.read) == 3)
        assert [loop.decode_wanted(each) for each in probe.read] == [True, True, False]


async def test_two_clients_each_get_every_line(probe: Listening) -> None:
    one: list[Snapshot] = []
    other: list[Snapshot] = []
    probe.greet = line(1)
    async with connected(probe.path, one.append), connected(probe.path, other.append):
        await eventually(lambda: one and other)
        assert one == other


async def test_what_is_not_a_socket_is_an_error_with_its_reason(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    async with connected(path, lambda _: None) as source:
        await eventually(lambda: source.last_error == f"failed to connect to the probe at {path}: Connection refused")
        assert source.counters.starts == 0


@contextmanager
def without_privileges() -> Iterator[None]:
    """Root may connect to any socket; the agent in its container has no such capability."""
    was = os.geteuid()
    os.seteuid(was or NOBODY)
    try:
        yield
    finally:
        os.seteuid(was)


async def test_a_socket_that_the_agent_may_not_connect_to_is_an_error_with_its_reason(probe: Listening) -> None:
    probe.path.chmod(stat.S_IRUSR)
    with without_privileges():
        async with connected(probe.path, lambda _: None) as source:
            await eventually(
                lambda: source.last_error == f"failed to connect to the probe at {probe.path}: Permission denied"
            )


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_the_end_of_the_agent_closes_the_connection(probe: Listening) -> None:
    seen: list[Snapshot] = []
    probe.greet = line(1)
    before = open_files()
    async with connected(probe.path, seen.append):
        await eventually(lambda: seen)
    for each in probe.clients:
        each.close()
    await eventually(lambda: open_files() <= before)


def test_a_probe_that_is_back_is_read_before_its_absence_would_be_reported() -> None:
    assert BACKOFF.after(10_000, lambda _, high: high) < 15
