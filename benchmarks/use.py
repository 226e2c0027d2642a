"""What it costs a node at rest to know who uses its devices: of one poll of the `nvml` probe the calls to NVML and the
CPU, and of one step of the agent the CPU, with eight GPUs that a container holds each.

The library is the C stand-in of the tests, which answers at once: a call's own time in a driver is not in these
numbers, so their count is a row of its own. The floor is the same without telemetry and without `idle`, which are the
defaults.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pynvml
from msgspec.structs import replace
from nodedevices_plugin.model import Holder
from nodedevices_plugin.pipeline.configuration import SeenObject
from nodedevices_probe.nvidia.calls import Library
from nodedevices_probe.nvidia.probe import NvmlSource
from support.facts import gpu, gpu_id
from support.nvml_library import compiled, compiler
from support.stepped_node import NOBODY, Node
from support.traces import reading

from benchmarks.offer import GPU
from benchmarks.table import NotHere, Row

GPUS = 8
POLLS = 200
STEPS = 400
TODAY = "without telemetry and idle"


def measure() -> list[Row]:
    by = compiler()
    if by is None:
        raise NotHere("no C compiler: the stand-in for libnvidia-ml.so.1 cannot be built")
    with tempfile.TemporaryDirectory(prefix="nd-bench-") as name:
        folder = Path(name)
        (folder / "usr").mkdir()
        compiled(folder / "usr/lib64", by)
        state = folder / "state"
        processes = "".join(f"gpu{each}.processes=1\ngpu{each}.nvlink=switch\n" for each in range(GPUS))
        state.write_text(f"count={GPUS}\n{processes}")
        os.environ["NVML_STATE"] = str(state)
        return [*of_polls(str(folder)), *of_steps()]


def of_polls(root: str) -> list[Row]:
    found = {}
    for what, telemetry, use in (
        (TODAY, False, False),
        ("telemetry", True, False),
        ("idle", False, True),
        ("telemetry and idle", True, True),
    ):
        source = NvmlSource(poll_seconds=5.0, telemetry=telemetry, library=Library(root))
        source.use = use
        with silent():
            source.poll()
        with counted() as calls:
            source.poll()
        found[what] = len(calls), milliseconds(source.poll, POLLS)
    today = found.pop(TODAY)
    rows = []
    for what, (calls_made, took) in found.items():
        where = f"one poll of {GPUS} GPUs, {what}"
        rows += [
            Row(what=f"{where}: calls", measured=calls_made, unit="calls", floor=today[0], floor_is=TODAY),
            Row(what=f"{where}: CPU", measured=took, unit="ms", floor=today[1], floor_is=TODAY),
        ]
    return rows


def of_steps() -> list[Row]:
    """A line after the other, 5 s apart."""
    found = {what: of_step(config) for what, config in ((TODAY, {}), ("idle", {"idle": {"afterSeconds": 1800}}))}
    return [
        Row(
            what=f"one step of the agent with {GPUS} held GPUs, idle: CPU",
            measured=found["idle"],
            unit="ms",
            floor=found[TODAY],
            floor_is=TODAY,
        )
    ]


def of_step(config: dict[str, Any]) -> float:
    node = Node(*(gpu(index, readings=reading(0, processes=1, gib=1)) for index in range(GPUS)))
    node.given(seen=SeenObject(exists=True, generation=1, config=config)).line().line()
    holders = tuple(
        Holder(namespace="ml", pod=f"p{each}", container="main", resource=GPU, ids=(gpu_id(each),), since=node.time)
        for each in range(GPUS)
    )
    node.given(holdings=replace(NOBODY, holders=holders, taken=node.clock)).line()
    return milliseconds(lambda: node.line(after=5.0), STEPS)


def milliseconds(call: Callable[[], object], count: int) -> float:
    """CPU of one call, by this thread."""
    began = time.thread_time()
    for _ in range(count):
        call()
    return (time.thread_time() - began) * 1000 / count


@contextmanager
def silent() -> Iterator[None]:
    """The stand-in prints when it is initialised."""
    kept = os.dup(1)
    with open(os.devnull, "w") as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


@contextmanager
def counted() -> Iterator[list[str]]:
    """The functions of NVML that were called in the block."""
    calls: list[str] = []
    before = pynvml._nvmlGetFunctionPointer

    def noted(name: str) -> Any:
        calls.append(name)
        return before(name)

    pynvml._nvmlGetFunctionPointer = noted
    try:
        yield calls
    finally:
        pynvml._nvmlGetFunctionPointer = before
