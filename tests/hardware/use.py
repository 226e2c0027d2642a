"""Who uses it: the words of a policy's section `idle`, with real processes on a real GPU.

The readings are the probe's, and the words are those of pipeline.idle with the least that a policy can ask for, 60 s
of rest. The clock alone runs ten times as fast: a second here is ten there, which is two readings of an agent.
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
from nodedevices_plugin.model.use import Uses
from nodedevices_plugin.pipeline import idle

FASTER = 10
AFTER_SECONDS = 60  # sections.MIN_IDLE_SECONDS
POLL_SECONDS = 0.5
SETTLED_SECONDS = 2.0  # held before something begins: an idle reading of before is none of this holder's
USED_SECONDS = 9.0  # more than AFTER_SECONDS / FASTER: no word came in all of it
WORD_SECONDS = 30.0  # for a word, on a machine that is busy
PROCESS, MEMORY = "processes", "memoryAllocatedBytes"
CASES = {"context": "a context that computes nothing", "compute": "computes", "memory": "memory only"}


async def run(report: Report, request: Request) -> None:
    device = processes.free_card(processes.line_of_use())
    gpu = device["id"]
    report.add("device", gpu)
    report.add("processes are seen", PROCESS in device.get("readings", {}))
    report.part("held and never used", lambda: _case(gpu, "", lambda _: "NeverUsed"))
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
        follower.take(lines, SETTLED_SECONDS)
        if action:
            ending.enter_context(processes.cuda(action, gpu)).wait_for("ready")
        if action == "compute":
            follower.take(lines, USED_SECONDS)
        else:
            follower.take(lines, WORD_SECONDS, until_word=True)
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
        self._began = time.monotonic()
        self._since = datetime.now(UTC)
        self._uses: Uses | None = Uses(at=0.0)  # the agent was there before the container
        self.words: list[str] = [""]
        self.readings: list[Json] = []

    def take(self, lines: processes.Lines, seconds: float, *, until_word: bool = False) -> None:
        for _, line in lines.until(time.monotonic() + seconds):
            self._follow(line)
            if until_word and self.words[-1]:
                break

    def _follow(self, line: Json) -> None:
        passed = (time.monotonic() - self._began) * FASTER
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
        if self._uses is not None and self._gpu in self._uses.devices:
            self.words.append(self._uses.devices[self._gpu].word)
        keys = (PROCESS, MEMORY, "utilizationPercent")
        for device in line.get("devices", ()):
            if device["id"] == self._gpu:
                self.readings.append({key: device["readings"][key] for key in keys if key in device["readings"]})
