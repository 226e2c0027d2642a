"""The probe `nvml` on the real driver: one line beside nvidia-smi, its calls, and some time at rest with the agent."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import shutil
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
from hardware import processes
from hardware.compare import compare
from hardware.step import Json, Report, Request, SkippedError, seconds_since
from nodedevices_probe.nvidia.calls import describe
from nodedevices_probe.nvidia.probe import NvmlSource
from support.kubelet import StandInKubelet

SMI = "nvidia-smi"
SMI_FILE = "nvidia-smi.xml"


async def run(report: Report, request: Request) -> None:
    report.part("machine", machine)
    began = time.monotonic()
    line = processes.need_gpu()
    report.add("line", line)
    report.add("once seconds", seconds_since(began))
    report.part("nvidia-smi", lambda: beside_smi(line, request.out / SMI_FILE))
    report.part("calls", calls)
    report.part("devices in /dev", lambda: sorted(str(path) for path in Path("/dev").glob("nvidia*")))
    await report.part_of("at rest", at_rest(request))


def machine() -> Json:
    return {
        "system": platform.platform(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "processors": os.cpu_count(),
        "root": os.geteuid() == 0,
        "node's pid namespace": Path("/proc/2/comm").exists() and Path("/proc/2/comm").read_text() == "kthreadd\n",
        "kernel module": _first_line(Path("/proc/driver/nvidia/version")),
    }


def _first_line(path: Path) -> str:
    try:
        return path.read_text().partition("\n")[0]
    except OSError as error:
        return str(error)


def beside_smi(line: Json, file: Path) -> list[Json]:
    """Return every field of every GPU beside nvidia-smi's; its XML is kept in the file."""
    if shutil.which(SMI) is None:
        raise SkippedError(f"no {SMI}")
    done = processes.run([SMI, "-q", "-x"])
    if done.returncode:
        raise RuntimeError(f"{SMI} -q -x ended with {done.returncode}: {done.stdout[-300:]}{done.stderr[-300:]}")
    file.write_text(done.stdout)
    return compare(done.stdout, line)


def calls() -> Json:
    """Poll twice in this process with every function of pynvml counted: what each answered, and how long it took."""
    answers: dict[str, Counter[str]] = defaultdict(Counter)
    longest: dict[str, float] = defaultdict(float)

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            began = time.monotonic()
            said = "Success"
            try:
                value = function(*arguments, **named)
                for field in value if name == "nvmlDeviceGetFieldValues" else ():
                    answers[f"field {field.fieldId}"][_said(field.nvmlReturn)] += 1
                return value
            except pynvml.NVMLError as error:
                said = _said(error.value)
                raise
            finally:
                longest[name] = max(longest[name], time.monotonic() - began)
                answers[name][said] += 1

        return call

    for name, function in list(vars(pynvml).items()):
        if name.startswith("nvml") and callable(function) and not isinstance(function, type):
            setattr(pynvml, name, counted(name, function))
    source = NvmlSource(poll_seconds=5.0, telemetry=True, use=True)
    polls = []
    for _ in range(3):
        began = time.monotonic()
        source.poll()
        polls.append(round((time.monotonic() - began) * 1000, 1))
    return {
        "polls milliseconds": polls,
        "answers": {
            name: {"answered": dict(counts), "longest milliseconds": round(longest.get(name, 0.0) * 1000, 2)}
            for name, counts in sorted(answers.items())
        },
    }


def _said(code: int) -> str:
    return "Success" if code == 0 else f"{code} {describe(code)}"


async def at_rest(request: Request) -> Json:
    """Run a probe alone, and an agent with its own, for the time of the watch."""
    async with StandInKubelet() as kubelet:
        with processes.probe() as lines:
            began = time.monotonic()
            async with processes.agent(kubelet, request.out / "agent-at-rest.log") as agent:
                await kubelet.until(lambda: kubelet.registered, patience=request.start_seconds)
                first = seconds_since(began)
                await kubelet.until(lambda: kubelet.allocatable(processes.GPU) > 0, patience=request.start_seconds)
                await asyncio.sleep(min(3.0, request.seconds / 4))
                pids = {"probe": [lines.process.pid], "agent": [agent.pid], "agent's": processes.children(agent.pid)}
                before = {name: sum(map(processes.cpu_seconds, found)) for name, found in pids.items()}
                began = time.monotonic()
                await asyncio.sleep(request.seconds)
                passed = time.monotonic() - began
                used = {name: sum(map(processes.cpu_seconds, found)) - before[name] for name, found in pids.items()}
                memory = {name: sum(map(processes.resident_mib, found)) for name, found in pids.items()}
        came = [line for _, line in lines.until(time.monotonic() + 0.2)]
    reads = [line["readMilliseconds"] for line in came if "readMilliseconds" in line]
    return {
        "seconds to the first Register": first,
        "seconds": round(passed, 1),
        "lines": len(came),
        "problems": sorted({json.dumps(problem) for line in came for problem in line.get("problems", ())}),
        "poll milliseconds": {"least": min(reads), "median": statistics.median(reads), "most": max(reads)}
        if reads
        else None,
        "CPU seconds per hour": {name: round(value / passed * 3600, 1) for name, value in used.items()},
        "resident MiB": memory,
    }


def check(seconds: int = 25) -> Json:
    """Return what nodedevices-check says as JSON."""
    argv = ["-m", "nodedevices_plugin.check.main", "--probe", "nvml", "--driver-root-ctr-path", "", "--output", "json"]
    done = processes.run([sys.executable, *argv, "--timeout-seconds", str(seconds)], seconds + 15)
    try:
        answer: Json = json.loads(done.stdout)
    except ValueError:
        raise RuntimeError(f"nodedevices-check ended with {done.returncode}: {done.stderr[-500:]}") from None
    return answer


def result_of(answer: Json) -> str:
    """Return in a line what a check has found."""
    [passed] = [each for each in answer["status"]["conditions"] if each["type"] == "CheckPassed"]
    return str(passed["message"])
