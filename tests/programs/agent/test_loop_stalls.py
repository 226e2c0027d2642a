"""Nothing that comes from outside stops the agent's loop, which serves the kubelet, for more than a tenth of a second.

A stall is counted in the processor time of this process, whatever thread had it, so that a busy machine is not taken
for one; the floor is what the same clock sees beside nothing at all. On a slower machine it may be as much longer as
the same piece of work takes longer there.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from nodedevices_api.base import to_dict
from nodedevices_api.bounds import MAX_DEVICES
from nodedevices_plugin.host.cdi_files import ToolkitSpecs
from nodedevices_plugin.inputs.config_file import ConfigFile
from nodedevices_plugin.inputs.probe_sessions import ProbeProcess
from nodedevices_plugin.inputs.reader import parse_line
from nodedevices_plugin.kubelet.server import snapshot as encoded
from nodedevices_plugin.model import HoldersState, Holdings
from nodedevices_plugin.pipeline.state import State
from nodedevices_plugin.pipeline.world import Inputs, begin
from nodedevices_plugin.runtime.threads import Worker
from nodedevices_plugin.settings.file import MAX_BYTES, FileOutcome
from nodedevices_plugin.settings.flags import parse
from nodedevices_plugin.vendors.nvidia.cdi import SOURCE
from nodedevices_probe.loop import encode
from nodedevices_probe.protocol import MAX_LINE_BYTES
from support.facts import START, gpu, partition, snapshot
from support.probes import cancelled, eventually
from support.stepped_node import report_of
from support.steps import step

LOCAL = parse(["--standalone", "--mig-strategy=mixed"], {})
ATTEMPTS = 3
LIMIT_SECONDS = 0.1
WORK, WORK_SECONDS = 1_000_000, 0.07  # so many rounds of a loop, and how long they take where the limit holds
TICK_SECONDS = 0.002
WRITER = """
import os, sys
fd, line = int(sys.argv[-1]), open(sys.argv[-3], "rb").read() + b"\\n"
while True:
    rest = memoryview(line)
    while rest:
        rest = rest[os.write(fd, rest):]
"""
CUT = [[partition(one, part, id=f"MIG-{one}-{part}") for part in range(2)] for one in range(MAX_DEVICES)]
VALID = encode(snapshot(*(gpu(one, partitions=tuple(parts)) for one, parts in enumerate(CUT)))).rstrip(b"\n")
HOSTILE_LINES = {
    "events that are none": b'{"events":[' + b"{}," * 340_000 + b"{}]}",
    "as many lists as are read": VALID[:-1] + b',"zz":[' + b"[]," * 11_000 + b"[]]}",
    "as many numbers as are read": VALID[:-1] + b',"zz":[' + b"1," * 22_000 + b"1]}",
    "nested": VALID[:-1] + b',"zz":[' + (b'{"a":' * 190 + b"1" + b"}" * 190 + b",") * 100 + b"1]}",
    "the longest valid one": VALID,
    "no line at all": b"x" * (MAX_LINE_BYTES - 1),
}
HOSTILE_FILES = {
    "brackets": b"[" * (MAX_BYTES - 1),
    "numbers": b"[" + b"1," * (MAX_BYTES // 2 - 1) + b"]",
    "resources": b"sharing:\n  timeSlicing:\n    resources:\n" + b"    - {name: nvidia.com/gpu, replicas: 4}\n" * 5_000,
    "unknown keys": b"".join(b"k%d: 1\n" % number for number in range(7_000)),
    "one long text": b"a: '" + b"x" * (MAX_BYTES - 10) + b"'",
}
HOSTILE_SPECS = {
    "a.json": b'{"kind": "nvidia.com/gpu", "devices": [' + b"{}," * 90_000 + b"{}]}",
    "b.json": b'{"kind": "nvidia.com/gpu", "devices": [' + b"{}," * 600_000 + b"{}]}",
    "c.yaml": b"kind: nvidia.com/gpu\ndevices: [" + b"{}," * 600_000 + b"{}]\n",
    "d.yaml": b"kind: nvidia.com/gpu\ndevices:\n" + b"- {name: a, containerEdits: {}}\n" * 20_000,
}


@pytest.fixture(autouse=True)
def without_the_heap_of_other_tests() -> Iterator[None]:
    """The garbage collector stops every thread, and it takes as long as there are objects."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


async def worst_stall(during: Callable[[], Awaitable[object]]) -> float:
    """The longest time, in processor seconds of this process, for which the loop did not come round."""
    worst, done = 0.0, asyncio.Event()

    async def tick() -> None:
        nonlocal worst
        while not done.is_set():
            began, used = time.monotonic(), time.process_time()
            await asyncio.sleep(TICK_SECONDS)
            worst = max(worst, min(time.monotonic() - began - TICK_SECONDS, time.process_time() - used))

    ticking = asyncio.create_task(tick())
    await during()
    done.set()
    await ticking
    return worst


def slowness() -> float:
    """How many times as long as there this machine takes for the same work, 1 at least."""
    began, total = time.process_time(), 0
    for each in range(WORK):
        total += each & 7
    return max(1.0, (time.process_time() - began) / WORK_SECONDS)


async def check(during: Callable[[], Awaitable[object]]) -> None:
    """`during` does its work anew at each call: what the work costs, it costs each time, and a neighbour does not."""
    found = []
    for _ in range(ATTEMPTS):
        limit = LIMIT_SECONDS * slowness()
        floor = await worst_stall(lambda: asyncio.sleep(0.2))
        worst = await worst_stall(during)
        if worst < floor + limit:
            return
        found.append(f"{worst:.3f} s, beside nothing for {floor:.3f} s")
    raise AssertionError(f"the loop stood still for {'; for '.join(found)}")


@pytest.mark.parametrize("what", HOSTILE_LINES)
async def test_no_line_of_a_probe_stops_the_loop(what: str, tmp_path: Path) -> None:
    line = tmp_path / "line"
    line.write_bytes(HOSTILE_LINES[what])
    command = [sys.executable, "-c", WRITER, str(line)]
    process = ProbeProcess(on_snapshot=lambda _: None, command=command)

    def read() -> int:
        return process.counters.lines + process.counters.bad_lines

    async def lines() -> None:
        before = read()
        await eventually(lambda: read() >= before + 2)

    running = asyncio.create_task(process.run())
    try:
        await check(lines)
    finally:
        await cancelled(running)


async def test_no_pass_over_an_accepted_line_stops_the_loop() -> None:
    holdings = Holdings(state=HoldersState.SYNCED, taken=1.0)
    inputs = Inputs(snapshot=parse_line(VALID), arrived=1.0, holdings=holdings)
    world = begin(State(), LOCAL, now=START, monotonic=0.0)

    async def one_pass() -> None:
        after = step(world, inputs, LOCAL, now=START, monotonic=1.0).world
        assert after.plan is not None
        for resource in after.plan.resources:
            encoded(resource)
        to_dict(report_of(after, START))

    await one_pass()  # the first one makes what is made once
    await check(one_pass)


@pytest.mark.parametrize("what", HOSTILE_FILES)
async def test_no_configuration_file_stops_the_loop(what: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(HOSTILE_FILES[what])

    async def read() -> None:
        outcomes: list[FileOutcome] = []
        file = ConfigFile(path, worker=Worker("config-file"), on_change=outcomes.append)
        following = asyncio.create_task(file.run())
        try:
            file.soon()
            await eventually(lambda: outcomes)
        finally:
            following.cancel()

    await check(read)


@pytest.mark.parametrize("name", HOSTILE_SPECS)
async def test_no_specification_of_the_toolkit_stops_the_loop(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(HOSTILE_SPECS[name])
    await check(lambda: ToolkitSpecs([tmp_path], SOURCE, worker=Worker("cdi"), on_change=lambda: None).ready())
