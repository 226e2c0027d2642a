"""MPS, where NVIDIA's programs are installed: a daemon of ours with limits, and two clients that meet them.

The card's compute mode stays as it is: MPS works in the default mode, too. With --may-set-compute-mode the program that
a node runs does all of it (nodedevices-mps), which sets EXCLUSIVE_PROCESS, and back to DEFAULT at its end; only a card
that is in DEFAULT before is given to it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hardware import processes
from hardware.processes import GPU
from hardware.step import Json, Report, Request, SkippedError
from nodedevices_plugin.model import cuda_mps
from nodedevices_plugin.mps import records
from nodedevices_plugin.mps.control import CONTROL, DEFAULT, SMI, Control, ControlError
from nodedevices_plugin.sharing import mps
from nodedevices_plugin.sharing.mps import Gpu, MpsDaemon

LIMIT_MIB = 1024
PERCENTAGE = 50
READY_SECONDS = 15.0


async def run(report: Report, request: Request) -> None:
    if request.nvml_state:
        raise SkippedError("no MPS on a stand-in")
    if shutil.which(CONTROL) is None:
        raise SkippedError(f"no {CONTROL}")
    processes.need_cuda()
    if runs := processes.mps_runs():
        raise SkippedError(f"MPS runs already: {runs}")
    device = processes.free_card(processes.line_of_use())
    gpu = Gpu(id=device["id"], index=0, limit_mib=LIMIT_MIB)  # the only one that the daemon is shown
    os.environ["CUDA_VISIBLE_DEVICES"] = gpu.id
    report.add("device", gpu.id)
    with tempfile.TemporaryDirectory(prefix="nd-mps-") as folder:
        report.part("in the card's compute mode", lambda: _by_control(Path(folder) / "plain", gpu))
        report.part("by nodedevices-mps", lambda: _by_runner(Path(folder) / "runner", gpu, request))


def _by_control(root: Path, gpu: Gpu) -> Json:
    root.mkdir()
    control = Control(str(root))
    began = time.monotonic()
    control.start(GPU)
    try:
        for command in (*mps.memory_commands([gpu]), mps.thread_command(PERCENTAGE)):
            control.send(GPU, command)
        found: Json = {
            "compute mode": _compute_mode(gpu.id),
            "ready after ms": round((time.monotonic() - began) * 1000),
            "percentage": control.percentage(GPU),
            **_clients(root, gpu.id),
        }
        found["servers"] = len(mps.servers(control.send(GPU, mps.SERVERS)))
    finally:
        process = control.process(GPU)
        control.quit(GPU)
    found["ended"] = process is not None and not control.alive(process)
    return found


def _by_runner(root: Path, gpu: Gpu, request: Request) -> Json:
    if not request.may_set_compute_mode:
        raise SkippedError("no --may-set-compute-mode")
    if os.geteuid():
        raise SkippedError("needs root")
    if (mode := _compute_mode(gpu.id)) != "Default":
        raise SkippedError(f"the compute mode is {mode}, and not Default")
    root.mkdir()
    daemon = MpsDaemon(resource=GPU, percentage=PERCENTAGE, gpus=(gpu,))
    (root / records.WANTED_FILE).write_text(records.text([daemon]))
    control = Control(str(root))
    try:
        with _runner(root, request.out / "nodedevices-mps.log"):
            _until("its daemon has the limits", lambda: _percentage(control) == PERCENTAGE)
            found: Json = {"compute mode": _compute_mode(gpu.id), **_clients(root, gpu.id)}
    finally:
        if _compute_mode(gpu.id) != "Default":
            control.set_mode(gpu.id, DEFAULT)
    found["compute mode afterwards"] = _compute_mode(gpu.id)
    return found


@contextmanager
def _runner(root: Path, log: Path) -> Iterator[None]:
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "nodedevices_plugin.mps.main", "--root", str(root)], stdout=file, stderr=file
        )
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


def _percentage(control: Control) -> int:
    try:
        return control.percentage(GPU)
    except ControlError:
        return 0


def _until(what: str, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {READY_SECONDS:.0f} s: {what}")
        time.sleep(0.1)


def _clients(root: Path, gpu: str) -> Json:
    """Run two clients at once, and tell what each got of memory and multiprocessors."""
    environment = {cuda_mps.PIPE_DIRECTORY: mps.pipe_folder(str(root), GPU)}
    with processes.cuda("limits", gpu, **environment) as first, processes.cuda("limits", gpu, **environment) as second:
        clients = []
        for program in (first, second):
            memory = program.wait_for("memory")
            clients.append({key: memory[key] for key in ("taken_mib", "refused", "multiprocessors")})
            program.wait_for("ready")
        time.sleep(0.5)
        for program, client in zip((first, second), clients, strict=True):
            program.end()
            client["kernels"] = program.wait_for("computed")["kernels"]
    held = all(0 < client["taken_mib"] <= LIMIT_MIB for client in clients)
    return {"clients": clients, "limit MiB": LIMIT_MIB, "limits hold": held}


def _compute_mode(gpu: str) -> str:
    done = processes.run([SMI, "-i", gpu, "--query-gpu=compute_mode", "--format=csv,noheader"])
    return done.stdout.strip() or f"unknown: {done.stderr.strip()}"
