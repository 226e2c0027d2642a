"""The agent's hold on a probe: whatever its process does, good lines arrive, bad ones are counted, nothing blocks.

In both forms: as a child of the agent, and as a process of the probe server. What the server alone has is in
test_probe_server.py.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
from nodedevices_common.backoff import Backoff
from nodedevices_plugin.inputs.probe_sessions import PROCESS_BACKOFF as BACKOFF, ProbeProcess, ProbeSocket
from nodedevices_plugin.inputs.probe_source import MIN_LINE_SPACING_SECONDS, split_lines
from nodedevices_probe.loop import encode
from nodedevices_probe.protocol import MAX_LINE_BYTES, Driver, DriverState, Snapshot
from support.probes import busy, cancelled, eventually
from support.served import programs_server

QUICK = Backoff(initial_seconds=0.05, max_seconds=0.2, jitter=0.0)
PROLOGUE = """
import os, sys, time
fd = int(sys.argv[sys.argv.index("--fd") + 1])
def say(sequence):
    line = GOOD.replace(b'"sequence":0', b'"sequence":%d' % sequence).replace(b"INSTANCE", b"p%d" % os.getpid())
    os.write(fd, line)
"""


def good_line() -> bytes:
    from datetime import UTC, datetime

    return encode(
        Snapshot(
            probe="fake",
            probe_version="0",
            instance="INSTANCE",
            sequence=0,
            time=datetime(2026, 1, 1, tzinfo=UTC),
            boot_id="b",
            driver=Driver(state=DriverState.LOADED),
        )
    )


class Seen(list[Snapshot]):
    @property
    def instances(self) -> list[str]:
        return list(dict.fromkeys(each.instance for each in self))

    @property
    def pid(self) -> int:
        """Of the process that wrote the last line."""
        return int(self[-1].instance.removeprefix("p"))


Source = ProbeProcess | ProbeSocket
Probe = Callable[..., AbstractAsyncContextManager[tuple[Source, Seen]]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("server") / "probes.sock"
    with programs_server(path):
        yield path


@pytest.fixture(params=["child", "server"])
def probe(request: pytest.FixtureRequest) -> Probe:
    """A supervised process that runs a program after the prologue; it ends after so many seconds of silence."""

    def made(body: str, seen: Seen, silence: float) -> Source:
        program = f"GOOD = {good_line()!r}\n{PROLOGUE}\n{body}"
        if request.param == "child":
            command = [sys.executable, "-c", program]
            return ProbeProcess(
                on_snapshot=seen.append, command=command, backoff=QUICK, kill_after_silence_seconds=silence
            )
        path = str(request.getfixturevalue("server"))
        return ProbeSocket(
            path, lambda: [program], on_snapshot=seen.append, backoff=QUICK, end_after_silence_seconds=silence
        )

    @asynccontextmanager
    async def running(body: str, *, silence: float = 45.0) -> AsyncIterator[tuple[Source, Seen]]:
        seen = Seen()
        source = made(body, seen, silence)
        task = asyncio.create_task(source.run())
        try:
            yield source, seen
        finally:
            await cancelled(task)

    return running


async def test_good_lines_arrive_in_order(probe: Probe) -> None:
    async with probe("for n in range(1, 4): say(n)\ntime.sleep(60)") as (process, seen):
        await eventually(lambda: len(seen) == 3)
        assert [each.sequence for each in seen] == [1, 2, 3]
        assert process.last_error is None
        assert process.counters.lines == 3


async def test_a_child_that_ends_is_replaced_and_its_status_reported(probe: Probe) -> None:
    async with probe("say(1)\nsys.exit(3)") as (process, seen):
        await eventually(lambda: len(seen.instances) >= 3)
        await eventually(lambda: process.last_error == "the probe exited with status 3")


async def test_what_is_said_of_a_child_that_never_reports_does_not_grow_with_each_one(probe: Probe) -> None:
    async with probe("sys.exit(3)") as (process, _):
        await eventually(lambda: process.counters.starts >= 3)
        assert process.last_error == "the probe exited with status 3"


async def test_a_child_is_replaced_when_it_is_to_have_other_arguments() -> None:
    seen, wanted = Seen(), ["simulated", "--profile", "l4 x 1"]
    process = ProbeProcess(lambda: wanted, on_snapshot=seen.append, backoff=QUICK)
    running = asyncio.create_task(process.run())
    try:
        await eventually(lambda: seen and len(seen[-1].devices) == 1)
        wanted = ["simulated", "--profile", "l4 x 2"]
        await eventually(lambda: len(seen[-1].devices) == 2)
        assert len(seen.instances) == 2
    finally:
        await cancelled(running)


async def test_a_command_that_cannot_be_is_said_and_the_next_one_is_started() -> None:
    seen, wanted = Seen(), ["simulated", "--profile", "l4\0 x 1"]
    process = ProbeProcess(lambda: wanted, on_snapshot=seen.append, backoff=QUICK)
    running = asyncio.create_task(process.run())
    await eventually(lambda: process.last_error)
    assert (process.last_error or "").endswith("embedded null byte")
    wanted = ["simulated", "--profile", "l4 x 1"]
    await eventually(lambda: seen)
    running.cancel()
    await asyncio.wait([running])


async def test_a_killed_child_is_replaced(probe: Probe) -> None:
    async with probe("say(1)\ntime.sleep(60)") as (_, seen):
        await eventually(lambda: seen)
        os.kill(seen.pid, signal.SIGKILL)
        await eventually(lambda: len(seen.instances) == 2)


async def test_garbage_is_counted_and_the_next_good_line_counts(probe: Probe) -> None:
    body = "os.write(fd, b'garbage\\n{}\\n\\xff\\n'); say(5); time.sleep(60)"
    async with probe(body) as (process, seen):
        await eventually(lambda: seen)
        assert process.counters.bad_lines == 3
        assert process.last_error is None


async def test_a_line_without_end_is_dropped_up_to_its_newline(probe: Probe) -> None:
    body = f"os.write(fd, b'x' * {MAX_LINE_BYTES + 10}); os.write(fd, b'y\\n'); say(2); time.sleep(60)"
    async with probe(body) as (process, seen):
        await eventually(lambda: seen)
        assert process.counters.bad_lines == 1
        assert seen[0].sequence == 2


async def test_what_a_library_prints_is_not_a_line(probe: Probe, capfd: pytest.CaptureFixture[str]) -> None:
    body = "print('noise', flush=True); os.system('echo noise of a child'); say(1); time.sleep(60)"
    async with probe(body) as (process, seen):
        await eventually(lambda: seen)
        assert process.counters.bad_lines == 0
    if isinstance(process, ProbeProcess):
        assert "noise of a child" in capfd.readouterr().err


async def test_a_silent_child_is_killed_and_replaced(probe: Probe) -> None:
    async with probe("say(1)\ntime.sleep(60)", silence=2.0) as (process, seen):  # longer than the start of one
        await eventually(lambda: len(seen.instances) >= 2)
        assert process.counters.kills >= 1


async def test_a_child_that_writes_only_garbage_counts_as_silent(probe: Probe) -> None:
    body = "while True: os.write(fd, b'garbage\\n'); time.sleep(0.05)"
    async with probe(body, silence=0.5) as (process, seen):
        await eventually(lambda: process.counters.kills >= 1)
        assert not seen


async def test_a_flood_of_lines_does_not_starve_the_loop(probe: Probe) -> None:
    async with probe("n = 0\nwhile True:\n  n += 1\n  say(n)") as (_, seen):
        await eventually(lambda: seen)
        started = time.monotonic()
        before = len(seen)
        await asyncio.sleep(0.3)  # the loop serves others meanwhile
        most = (time.monotonic() - started) / MIN_LINE_SPACING_SECONDS
        assert len(seen) - before <= most + 1


async def test_a_child_whose_grandchild_holds_the_pipe_is_noticed_to_have_ended(probe: Probe) -> None:
    body = "say(1)\nif os.fork() == 0: time.sleep(60)\nos._exit(4)"
    async with probe(body) as (_, seen):
        await eventually(lambda: len(seen.instances) >= 2)


async def test_a_program_that_cannot_be_started_is_an_error_and_tried_again() -> None:
    process = ProbeProcess(on_snapshot=lambda _: None, command=["/nonexistent/probe"], backoff=QUICK)
    running = asyncio.create_task(process.run())
    await eventually(lambda: process.last_error)
    assert process.last_error == "failed to start the probe /nonexistent/probe: No such file or directory"
    await cancelled(running)


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def open_files() -> set[str]:
    return {each.name for each in Path("/proc/self/fd").iterdir()}


async def test_stop_leaves_no_process_and_no_open_file(probe: Probe) -> None:
    async with probe("say(1)\nos.fork()\ntime.sleep(60)") as (process, seen):
        before = open_files()
        await eventually(lambda: seen)
    if isinstance(process, ProbeProcess):
        assert process.pid is None
        assert not is_there(seen.pid)
    await eventually(lambda: not is_there(seen.pid))  # the server sees it when the agent has gone
    await eventually(lambda: len(open_files()) <= len(before))


@pytest.mark.parametrize("moment", [0.0, 0.05, 0.3, 0.45])
async def test_stop_at_any_moment_reaps_the_child(probe: Probe, moment: float) -> None:
    async with probe("say(1)\ntime.sleep(0.2)\nos.close(fd)\ntime.sleep(60)") as (process, seen):
        await asyncio.sleep(moment)
    assert not isinstance(process, ProbeProcess) or process.pid is None
    await eventually(lambda: not seen or not is_there(seen.pid))


def test_the_back_off_doubles_to_its_end_and_is_spread() -> None:
    longest = [BACKOFF.after(failures, lambda _, high: high) for failures in (1, 2, 3, 8, 9, 10_000)]
    assert longest == [0.2, 0.4, 0.8, 25.6, 30.0, 30.0]
    assert all(0.16 <= BACKOFF.after(1) <= 0.2 for _ in range(100))


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_lines_are_cut_the_same_however_they_arrive(size: int) -> None:
    stream = b"one\n\ntwo\n" + b"x" * 11 + b"\nten bytes!\nrest"
    lines: list[bytes | None] = []
    rest = b""
    for at in range(0, len(stream), size):
        whole, rest = split_lines(rest + stream[at : at + size], limit=10)
        lines += whole
    assert lines == [b"one", b"", b"two", None, b"ten bytes!"]


async def test_a_child_reads_what_the_agent_wants_and_so_does_the_next_one(probe: Probe) -> None:
    body = """
import json
say(0)
for line in sys.stdin:
    say(7 if json.loads(line)["use"] else 99)
    if "false" in line: sys.exit(0)
"""
    async with probe(body) as (process, seen):
        await eventually(lambda: seen)
        for use in (True, True, False):
            process.want(use=use)
        await eventually(lambda: len(seen.instances) == 2)
        await eventually(lambda: len(seen) >= 4)
        assert [each.sequence for each in seen[:4]] == [0, 7, 99, 0]
        process.want(use=True)
        await eventually(lambda: seen[-1].sequence == 7)


async def test_a_child_that_reads_nothing_is_none_the_worse_for_it(probe: Probe) -> None:
    async with probe("say(1)\nsys.stdin.close()\ntime.sleep(0.3)\nsay(2)\ntime.sleep(60)") as (process, seen):
        await eventually(lambda: seen)
        for number in range(5000):  # more than a pipe holds
            process.want(use=number % 2 == 0)
        await eventually(lambda: len(seen) == 2)
        assert process.counters.starts == 1


async def test_our_own_probe_reads_who_uses_a_device_once_the_agent_wants_to_know(tmp_path: Path) -> None:
    seen = Seen()
    process = ProbeProcess(lambda: busy(tmp_path), on_snapshot=seen.append, backoff=QUICK)
    running = asyncio.create_task(process.run())
    try:
        await eventually(lambda: seen)
        assert seen[-1].devices[0].readings.processes is None
        process.want(use=True)
        await eventually(lambda: seen[-1].devices[0].readings.processes == 1)
        process.want(use=False)
        await eventually(lambda: seen[-1].devices[0].readings.processes is None)
        assert len(seen.instances) == 1
    finally:
        await cancelled(running)


BURST = "os.write(fd, b'\\n' * 65536)\n"


async def test_a_burst_of_bad_lines_does_not_keep_a_hung_probe_alive(probe: Probe) -> None:
    async with probe(f"{BURST}time.sleep(60)", silence=0.5) as (process, _):
        await eventually(lambda: process.counters.kills)
        assert process.counters.bad_lines < 1000


async def test_a_burst_of_bad_lines_does_not_keep_a_probe_that_has_ended_from_being_replaced(probe: Probe) -> None:
    async with probe(f"{BURST}sys.exit(3)") as (process, _):
        await eventually(lambda: process.counters.starts > 1)
        assert process.counters.bad_lines < 1000


async def test_the_good_line_before_a_probes_end_is_read(probe: Probe) -> None:
    async with probe("say(1)\nsay(2)\nsay(3)\nsys.exit(3)") as (_, seen):
        await eventually(lambda: len(seen.instances) >= 2)
        assert [each.sequence for each in seen if each.instance == seen.instances[0]] == [1, 2, 3]
