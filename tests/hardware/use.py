"""Who uses it: the words of a policy's section `idle`, with real processes on a real GPU.

The readings are the probe's, twice a second, and the words are those of pipeline.idle with the least that a policy can
ask for, 60 s of rest. The clock alone is not real: each reading counts for five seconds, as an agent has them.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial

from hardware import processes
from hardware.step import Json, Report, Request, SkippedError
from nodedevices_plugin.inputs.reader import parse_line
from nodedevices_plugin.model import Holder, HoldersState, Holdings, Inventory, InventoryDevice
from nodedevices_plugin.model.holders import Uses
from nodedevices_plugin.pipeline import idle

AFTER_SECONDS = 60  # the least that idle.afterSeconds can be
READ_SECONDS = 5  # what a reading counts for
POLL_SECONDS = 0.5
SETTLED = 4  # readings before something begins: a reading of before is none of this holder's
USED = 20  # readings of one that computes, more than AFTER_SECONDS: no word came in all of them
MOST = 40  # readings until there is a word
PATIENCE_SECONDS = 60.0
PROCESS, MEMORY = "processes", "memoryAllocatedBytes"
CASES = {"context": "a context that computes nothing", "compute": "computes", "memory": "memory only"}


async def run(report: Report, request: Request) -> None:
    device = processes.free_card(processes.line_of_use())
    gpu = device["id"]
    report.add("device", gpu)
    report.add("processes are seen", PROCESS in device.get("readings", {}))
    report.part("held and never used", lambda: _case(gpu, "", lambda _: "NeverUsed"))
    if request.nvml_state:
        raise SkippedError("no CUDA on a stand-in")
    processes.need_cuda()
    for action, name in CASES.items():
        report.part(name, partial(_case, gpu, action, _in_use if action == "compute" else _at_rest))


def _at_rest(readings: Json) -> str:
    """Return which word is right for a program that rests: by whether its process is seen."""
    return "Idle" if readings.get(PROCESS) else "MemoryOnly"


def _in_use(_: Json) -> str:
    return ""


def _case(gpu: str, action: str, expected: Callable[[Json], str]) -> Json:
    """Hold the GPU, start the program ("": none), and follow it until it would have a word."""
    follower = Follower(gpu)
    with processes.probe(POLL_SECONDS, use=True) as lines, contextlib.ExitStack() as ending:
        follower.take(lines, SETTLED)
        if action:
            ending.enter_context(processes.cuda(action, gpu)).wait_for("ready")
            lines.forget()  # what was read while it began is of neither
        if action == "compute":
            follower.take(lines, USED)
        else:
            follower.take(lines, MOST, until_word=True)
    if not follower.readings:
        raise SkippedError("the probe wrote no line of it")
    wanted = expected(follower.readings[-1])
    return {
        "word": follower.words[-1],
        "expected": wanted,
        "as expected": follower.words[-1] == wanted,
        "words": list(dict.fromkeys(follower.words)),
        "last readings": follower.readings[-1],
        "most busy percent": max((reading.get("utilizationPercent", 0) for reading in follower.readings), default=None),
    }


class Follower:
    """Feeds the lines to the agent's rule, as of one container that holds the GPU from now on."""

    def __init__(self, gpu: str) -> None:
        self._gpu = gpu
        self._since = datetime.now(UTC)
        self._uses: Uses | None = Uses(at=0.0)  # the agent was there before the container
        self.words: list[str] = [""]
        self.readings: list[Json] = []

    def take(self, lines: processes.Lines, count: int, *, until_word: bool = False) -> None:
        """Follow so many lines, or until there is a word."""
        for _, line in lines.until(time.monotonic() + PATIENCE_SECONDS):
            self._follow(line)
            count -= 1
            if not count or (until_word and self.words[-1]):
                break

    def _follow(self, line: Json) -> None:
        passed = float(len(self.words) * READ_SECONDS)
        now = self._since + timedelta(seconds=passed)
        facts = [fact for fact in parse_line(json.dumps(line).encode()).devices if fact.id == self._gpu]
        devices = tuple(InventoryDevice(fact=fact, present=True, last_seen=now, probe="nvml") for fact in facts)
        holder = Holder(
            namespace="default",
            pod="hardware",
            container="main",
            resource=processes.GPU,
            ids=(self._gpu,),
            since=self._since,
        )
        self._uses = idle.follow(
            self._uses,
            Inventory(devices=devices),
            Holdings(state=HoldersState.SYNCED, holders=(holder,), taken=1.0),
            saved={},
            lines={"nvml": passed},
            after_seconds=AFTER_SECONDS,
            now=now,
            monotonic=passed,
        )
        device_use = self._uses.devices.get(self._gpu) if self._uses is not None else None
        self.words.append(device_use.word if device_use is not None else "")
        keys = (PROCESS, MEMORY, "utilizationPercent")
        for device in line.get("devices", ()):
            if device["id"] == self._gpu:
                self.readings.append({key: device["readings"][key] for key in keys if key in device["readings"]})
