"""A probe's process that starts beside the agent, before it is known which probe it will be."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from nodedevices_common.backoff import Backoff
from nodedevices_plugin.inputs.probe_child import Spare
from nodedevices_plugin.inputs.probe_sessions import ProbeProcess
from nodedevices_plugin.inputs.probes import Probes
from nodedevices_plugin.settings import flags
from nodedevices_probe.protocol import Snapshot
from support.patience import PATIENCE_SECONDS
from support.probes import busy, cancelled, eventually

QUICK = Backoff(initial_seconds=0.05, max_seconds=0.2, jitter=0.0)
ONE = ("simulated", "--profile", "l4 x 1")
COMMAND = (sys.executable, "-m", "nodedevices_plugin")


@pytest.fixture
def spare() -> Iterator[Spare]:
    made = Spare()
    yield made
    made.end()


def exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def test_the_first_probe_takes_the_spare_and_the_next_one_is_a_new_process(spare: Spare) -> None:
    seen: list[Snapshot] = []
    waiting = spare.pid
    process = ProbeProcess(lambda: ONE, on_snapshot=seen.append, backoff=QUICK, spare=spare)
    running = asyncio.create_task(process.run())
    try:
        await eventually(lambda: seen)
        assert (process.pid, spare.pid) == (waiting, None)
        os.kill(waiting or 0, signal.SIGKILL)
        await eventually(lambda: len({each.instance for each in seen}) == 2)
        assert process.pid != waiting
    finally:
        await cancelled(running)


async def test_a_spare_that_was_taken_reads_what_the_agent_wants(spare: Spare, tmp_path: Path) -> None:
    seen: list[Snapshot] = []
    process = ProbeProcess(lambda: busy(tmp_path), on_snapshot=seen.append, backoff=QUICK, spare=spare)
    process.want(use=True)
    running = asyncio.create_task(process.run())
    try:
        await eventually(lambda: seen and seen[-1].devices[0].readings.processes == 1)
        assert process.counters.starts == 1
    finally:
        await cancelled(running)


async def test_a_spare_that_has_ended_is_not_missed(spare: Spare) -> None:
    seen: list[Snapshot] = []
    pid = spare.pid or 0
    os.kill(pid, signal.SIGKILL)
    await asyncio.to_thread(os.waitid, os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    process = ProbeProcess(lambda: ONE, on_snapshot=seen.append, backoff=QUICK, spare=spare)
    running = asyncio.create_task(process.run())
    try:
        await eventually(lambda: seen)
        assert process.counters.starts == 1
    finally:
        await cancelled(running)


async def test_a_spare_takes_no_argument_that_no_command_line_can_hold(spare: Spare) -> None:
    process = ProbeProcess(lambda: (*ONE, "\0"), on_snapshot=lambda _: None, backoff=QUICK, spare=spare)
    running = asyncio.create_task(process.run())
    await eventually(lambda: process.last_error)
    assert (process.last_error or "").endswith("embedded null byte")
    await cancelled(running)


async def test_no_spare_stays_where_no_probe_needs_a_process_of_ours(spare: Spare) -> None:
    async def keep(_: str, run: Callable[[], Awaitable[None]]) -> None:
        await run()

    pid = spare.pid or 0
    local = flags.parse(["--node-name", "n1", "--standalone"], {})
    probes = Probes(local, driver_root=lambda: Path("/"), on_line=lambda: None, keep=keep, spare=spare)
    probes.use(())
    assert not exists(pid)
    await probes.stop()


def test_wrong_flags_leave_nothing_behind() -> None:
    """`run` returns when the last process that has our pipe has ended."""
    done = subprocess.run(
        [*COMMAND, "--no-such-flag"], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert done.returncode == 2
    assert "no-such-flag" in done.stderr
    assert done.stdout == ""


def test_an_agent_that_is_killed_as_it_starts_leaves_nothing_behind() -> None:
    program = "import os; from nodedevices_plugin.inputs.probe_child import Spare; Spare(); os.kill(os.getpid(), 9)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=PATIENCE_SECONDS, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGKILL, b"")


def test_the_spare_starts_before_the_agent_is_loaded() -> None:
    program = "import sys, nodedevices_plugin.__main__; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"asyncio", "dataclasses", "grpc", "nodedevices_api", "nodedevices_probe", "pydantic"}
