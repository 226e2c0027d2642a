"""The processes that the steps start and look at: the probe as the agent runs it, the agent, programs on the GPU."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hardware.step import Json, SkippedError
from nodedevices_plugin.inputs.probe_child import spawn
from nodedevices_probe.loop import encode_wanted
from support.kubelet import StandInKubelet

NVML = ("nvml", "--driver-root-ctr-path", "")
GPU = "nvidia.com/gpu"
ANSWER_SECONDS = 30.0
CONTEXT_BYTES = 64 << 20  # of memory in use: a program is there (pipeline.idle)
NO_CUDA = 3  # cuda.NO_DRIVER


def run(argv: Sequence[str], seconds: float = ANSWER_SECONDS) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, with its output as text."""
    return subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=seconds, check=False)


def line_once(*more: str) -> Json:
    """Return the line of `nodedevices-probe nvml --once`."""
    done = run([sys.executable, "-m", "nodedevices_probe.main", *NVML, "--once", *more])
    try:
        line: Json = json.loads(done.stdout)
    except ValueError:
        raise RuntimeError(f"the probe ended with {done.returncode}: {done.stderr[-500:]}") from None
    return line


@dataclass
class Lines:
    """A running probe, and its lines with the time at which each came (time.time())."""

    process: subprocess.Popen[bytes]
    came: queue.Queue[tuple[float, Json]] = field(default_factory=queue.Queue)

    def until(self, deadline: float) -> Iterator[tuple[float, Json]]:
        """Yield the lines that come before that time.monotonic()."""
        while (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                yield self.came.get(timeout=min(left, 0.5))

    def forget(self) -> None:
        """Leave out the lines that have come."""
        with contextlib.suppress(queue.Empty):
            while True:
                self.came.get_nowait()


@contextmanager
def probe(interval: float | None = None, *, use: bool = False) -> Iterator[Lines]:
    """Run the probe as the agent does, for the block."""
    often = [] if interval is None else [f"--interval-seconds={interval:g}"]
    process, descriptor, _ = spawn([sys.executable, "-m", "nodedevices_probe.main", *NVML, *often])
    lines = Lines(process)

    def read() -> None:
        with os.fdopen(descriptor, "rb") as file, contextlib.suppress(ValueError):
            for line in file:
                lines.came.put((time.time(), json.loads(line)))

    threading.Thread(target=read, daemon=True).start()
    if process.stdin is not None and use:
        process.stdin.write(encode_wanted(use=True))
    try:
        yield lines
    finally:
        process.kill()
        process.wait(5)


@contextlib.asynccontextmanager
async def agent(
    kubelet: StandInKubelet, log: Path, *arguments: str, **variables: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run nodedevices-agent without an API server on this kubelet, for the block."""
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "nodedevices_plugin", "--standalone", "--node-name", "hardware"),
            *("--probe", "nvml", "--driver-root-ctr-path", ""),
            *("--http-address", "off", "--kubelet-dir", str(kubelet.root)),
            *("--cdi-spec-dirs", f"/etc/cdi,/var/run/cdi,{kubelet.root / 'cdi'}"),
            *arguments,
            stdout=file,
            stderr=file,
            env={**os.environ, "NODEDEVICES_HEALTH_ADDRESS": "off", **variables},
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError, TimeoutError):
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(10):
                await process.wait()
        with contextlib.suppress(ProcessLookupError):
            process.kill()


def children(pid: int) -> list[int]:
    direct = [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return direct + [below for child in direct for below in children(child)]


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kib = next((int(line.split()[1]) for line in lines if line.startswith("VmRSS:")), 0)
    return round(kib / 1024, 1)


@dataclass
class CudaProgram:
    """A running `python -m hardware.cuda`. `said`: its lines so far."""

    process: subprocess.Popen[str]
    said: list[Json] = field(default_factory=list)
    _change: threading.Event = field(default_factory=threading.Event)

    def wait_for(self, what: str, seconds: float = ANSWER_SECONDS) -> Json:
        """Return the line with that word; raise where the program fails, SkippedError where there is no CUDA."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            ended = self.process.poll() is not None
            for line in list(self.said):
                if line["what"] == what:
                    return line
                if line["what"] == "failed":
                    raise SkippedError(f"no CUDA: {line['why']}") if self._no_driver() else RuntimeError(line["why"])
            if ended and not self._change.wait(0.2):
                raise RuntimeError(f"the CUDA program ended with {self.process.returncode}, and said {self.said}")
            time.sleep(0.01)
        raise TimeoutError(f"the CUDA program did not say {what!r} within {seconds:.0f} s: {self.said}")

    def end(self) -> None:
        """Close its standard input, and wait."""
        if self.process.stdin is not None and not self.process.stdin.closed:
            self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)

    def _no_driver(self) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(5) == NO_CUDA
        return False


@contextmanager
def cuda(action: str, gpu: str, **environment: str) -> Iterator[CudaProgram]:
    """Run a program on that GPU, for the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "hardware.cuda", action],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": gpu, **environment},
    )
    program = CudaProgram(process)

    def read() -> None:
        for line in process.stdout or ():
            with contextlib.suppress(ValueError):
                program.said.append(json.loads(line))

    threading.Thread(target=read, daemon=True).start()
    try:
        yield program
    finally:
        program.end()
        process.kill()


def need_gpu() -> Json:
    """Return a line with GPUs; SkippedError says why there are none."""
    line = line_once("--telemetry")
    if not line.get("devices"):
        problems = "; ".join(problem["message"] for problem in line.get("problems", ()))
        raise SkippedError(f"no GPU: {problems or 'the driver lists none'}")
    return line


def need_cuda() -> None:
    """Raise SkippedError where a program that creates a context cannot run; nothing is created."""
    look = "import ctypes; ctypes.CDLL('libcuda.so.1')"
    done = run([sys.executable, "-c", look])
    if done.returncode:
        raise SkippedError(f"no CUDA: {done.stderr.strip().splitlines()[-1]}")


def free_card(line: Json) -> Json:
    """Return the first GPU of a line with `use` that no program is on; SkippedError says why there is none."""
    reasons = []
    for device in line.get("devices", ()):
        reason = busy(device)
        if not reason:
            found: Json = device
            return found
        reasons.append(f"GPU {device['index']}: {reason}")
    raise SkippedError("; ".join(reasons) or "no GPU")


def busy(device: Json) -> str:
    """Say why programs of ours may not disturb the GPU; "" where it is free."""
    readings = device.get("readings", {})
    if readings.get("lost") or readings.get("error"):
        return f"it does not answer: {readings.get('error', 'lost')}"
    if device.get("extra", {}).get("migEnabled", {}).get("bool"):
        return "it is in MIG mode"
    if readings.get("processes"):
        return f"{readings['processes']} other processes are on it"
    memory: Any = readings.get("memoryAllocatedBytes")
    if memory is None and readings.get("processes") is None:
        return "whether other processes are on it is not known"
    if (memory or 0) >= CONTEXT_BYTES:
        return f"{memory >> 20} MiB of it are in use"
    return ""


def mps_runs() -> str:
    """Return the MPS programs that run here, as text."""
    found = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            name = path.read_text().strip()
            if name.startswith("nvidia-cuda-mps"):
                found.append(f"{name} ({path.parent.name})")
    pipe = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")) / "control"
    return ", ".join(found) or (f"{pipe} is there" if pipe.exists() else "")


def line_of_use() -> Json:
    """Return a line that says who uses the GPUs."""
    with probe(1.0, use=True) as lines:
        for _, line in lines.until(time.monotonic() + ANSWER_SECONDS):
            readings = [device.get("readings", {}) for device in line.get("devices", ())]
            if not line.get("devices") and line.get("problems"):
                return line
            if readings and all("memoryAllocatedBytes" in one or "processes" in one for one in readings):
                return line
    raise SkippedError("the probe does not say who uses the GPUs")
