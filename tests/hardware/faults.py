"""A real XID: a kernel that reads out of bounds and one that traps, as the probe, the verdict and the notices say it.

Both are errors of a program: the driver ends its context and goes on. They are made only where no other process is on
the card, and no MPS server, whose clients would all end. Nothing is reset, and the card is looked at afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from hardware import processes
from hardware.probing import check, result_of
from hardware.processes import GPU
from hardware.step import Json, Report, Request, SkippedError, why
from support.kubelet import StandInKubelet
from support.running_agent import RunningAgent

CASES = {"read-out-of-bounds": 31, "trap": 13}  # with the XID that NVIDIA's catalogue has for it
EVENT_SECONDS = 10.0
STATUS_SECONDS = 15.0
MESSAGE = "NVRM: Xid"
Cause = Callable[[str], Json]


async def run(report: Report, request: Request) -> None:
    if not request.faults:
        raise SkippedError("--no-faults")
    if request.nvml_state:
        device = processes.line_of_use()["devices"][0]
        cause = _by_state_file(Path(request.nvml_state), device["index"])
    else:
        processes.need_cuda()
        if runs := processes.mps_runs():
            raise SkippedError(f"an MPS server may be on the card: {runs}")
        device = processes.free_card(processes.line_of_use())
        cause = _by_cuda(device["id"])
    report.add("device", device["id"])
    async with StandInKubelet() as kubelet:
        running = RunningAgent(kubelet.root, kubelet, "--probe=nvml", "--driver-root-ctr-path=")
        async with running.running():
            await kubelet.until(lambda: kubelet.allocatable(GPU) > 0, patience=request.start_seconds)
            with processes.probe(1.0) as lines:
                seen = Seen(device["id"], running, kubelet, lines)
                await asyncio.to_thread(_first_line, lines, request.start_seconds)
                for action, xid in CASES.items():
                    await report.part_of(action, _fault(seen, action, xid, cause))
            report.add("status afterwards", seen.status())
    report.part("afterwards", lambda: _afterwards(request, device["id"]))


@dataclass(frozen=True)
class Seen:
    """Where a fault of the GPU shows: the agent's status, the kubelet, and a probe of our own."""

    gpu: str
    running: RunningAgent
    kubelet: StandInKubelet
    lines: processes.Lines

    def status(self) -> Json:
        """Return the verdict and the notices of the last status."""
        for device in self.running.status.get("devices", ()):
            if self.gpu in {device.get("uuid"), device.get("id")}:
                return {"health": device.get("health"), "notices": device.get("notices", [])}
        return {}


def _by_cuda(gpu: str) -> Cause:
    def cause(action: str) -> Json:
        with processes.cuda(action, gpu) as program:
            launched = program.wait_for("launching")
            answered = program.wait_for("answered", 10)
        if not answered["code"]:
            raise RuntimeError(f"{action}: the driver answers that nothing is wrong")
        passed = round((answered["time"] - launched["time"]) * 1000, 1)
        return {
            "at": launched["time"],
            "driver answers": f"{answered['code']} {answered['name']}",
            "answers after ms": passed,
        }

    return cause


def _by_state_file(file: Path, index: int) -> Cause:
    """Return what has the stand-in library say it."""
    counts = iter(range(len(CASES)))

    def cause(action: str) -> Json:
        number = next(counts)
        text = f"{file.read_text()}event{number}={index} 8 {CASES[action]} -1 -1\nevents={number + 1}\n"
        new = file.with_suffix(".hardware")
        new.write_text(text)
        at = time.time()
        new.replace(file)
        return {"at": at, "driver answers": "nothing: a stand-in"}

    return cause


def _first_line(lines: processes.Lines, seconds: float) -> None:
    """Wait for the first line, with which the probe watches the GPU's events."""
    for _ in lines.until(time.monotonic() + seconds):
        return
    raise TimeoutError("the probe wrote no line")


async def _fault(seen: Seen, action: str, xid: int, cause: Cause) -> Json:
    log = KernelLog()
    before = seen.status()
    found = await asyncio.to_thread(cause, action)
    at = found.pop("at")
    found["expected XID"] = xid
    found["events"] = await asyncio.to_thread(_events, seen.lines, seen.gpu, at, xid)
    found["as expected"] = any(event["xid"] == xid for event in found["events"])
    deadline = time.monotonic() + STATUS_SECONDS
    while seen.status() == before and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    found["status after ms"] = round((time.time() - at) * 1000) if seen.status() != before else None
    found["status"] = seen.status()
    found["kubelet offers it"] = seen.gpu in seen.kubelet.views[GPU].healthy
    found["kernel's log"] = log.since()
    return found


def _events(lines: processes.Lines, gpu: str, at: float, xid: int) -> list[Json]:
    """Return the events since then: when the driver's call returned them, and when their line came, in ms after it."""
    found: dict[int, Json] = {}
    deadline = time.monotonic() + EVENT_SECONDS
    for came, line in lines.until(deadline):
        for event in line.get("events", ()):
            when = datetime.fromisoformat(event["time"]).timestamp()
            if when < at or event["sequence"] in found:
                continue
            found[event["sequence"]] = {
                **{key: event[key] for key in ("kind", "xid", "deviceId", "count", "gi", "ci") if key in event},
                "xid": event.get("xid"),
                "event after ms": round((when - at) * 1000, 1),
                "line after ms": round((came - at) * 1000, 1),
                "of this GPU": event.get("deviceId") == gpu,
            }
        if any(event["xid"] == xid for event in found.values()):
            break
    return list(found.values())


class KernelLog:
    """The lines of the kernel's log from now on, where this user may read it."""

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self._problem = ""
        try:
            self._descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
            os.lseek(self._descriptor, 0, os.SEEK_END)
        except OSError as error:
            self._problem = f"skipped: needs root ({error.strerror})"

    def since(self) -> list[str] | str:
        """Return what the driver wrote of XIDs, and close it."""
        if self._descriptor is None:
            return self._problem
        found = []
        with contextlib.suppress(OSError):  # EAGAIN: no more
            while chunk := os.read(self._descriptor, 8192):
                text = chunk.decode(errors="replace").partition(";")[2].strip()
                if MESSAGE in text:
                    found.append(text)
        os.close(self._descriptor)
        return found


def _afterwards(request: Request, gpu: str) -> Json:
    """Return how the card is: by the probe's readings, by nodedevices-check, and whether it computes."""
    [device] = [one for one in processes.line_once()["devices"] if one["id"] == gpu]
    answer = check()
    found: Json = {"readings": device.get("readings", {}), "check": result_of(answer)}
    if request.nvml_state:
        found["computes"] = "skipped: a stand-in"
        return found
    try:
        with processes.cuda("compute", gpu) as program:
            program.wait_for("ready")
            time.sleep(0.5)
            program.end()
            found["computes"] = program.wait_for("computed")["kernels"] > 0
    except Exception as error:
        found["computes"] = f"no: {why(error)}"
        raise RuntimeError(f"the card does not compute afterwards: {found}") from error
    return found
