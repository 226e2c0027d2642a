"""Runs the steps one after the other, each in a process with a time limit, and writes the record after each.

Nothing here asks the driver anything: what hangs is a step's process, which is ended from outside with all that it has
started. The record says of each step whether it was done, was skipped and why, or has failed.

Exit status: 0 every step was done or skipped with a reason, 1 a step failed, 2 a wrong command line.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

from hardware.row import HEAD, row
from hardware.step import FAILED, SKIPPED, Json, Request, write_json

WHOLE_SECONDS = 240.0
END_SECONDS = 5.0  # from a SIGTERM to a SIGKILL, and from there to giving the process up
MPS_END_SECONDS = 25.0  # a daemon is ended, and a compute mode put back
WATCH_SECONDS = 60.0
REHEARSAL = 3  # times as long for all of it on a stand-in, beside a test run that has all processors
MARK = "HARDWARE_RUN"  # a variable of all that a run starts: what is left after a step is found by it
LOG_LINES = 15


@dataclass(frozen=True, slots=True)
class Step:
    module: str
    does: str
    seconds: float  # at most
    end_seconds: float = END_SECONDS  # from a SIGTERM to a SIGKILL


def steps(watch: float, patience: int = 1) -> tuple[Step, ...]:
    return (
        Step("probing", "the nvml probe beside nvidia-smi, and at rest", patience * (60 + watch)),
        Step("checking", "nodedevices-check", patience * 45),
        Step("serving", "the agent beside a stand-in kubelet", patience * 90),
        Step("faults", "a real XID 31 and 13", patience * 75),
        Step("use", "who uses it, by real processes", patience * 75),
        Step("mps", "MPS with limits", patience * 60, MPS_END_SECONDS),
    )


def main(arguments: Sequence[str] | None = None, *, about: Json | None = None) -> int:
    """`about`: what the record says of this program, from the bundle's manifest."""
    request = _request(arguments)
    os.environ[MARK] = secrets.token_hex(8)
    signal.signal(signal.SIGTERM, _end)
    began = time.monotonic()
    record: Json = {"format": 1, **(about or {}), "began": datetime.now(UTC).isoformat(timespec="seconds"), "steps": {}}
    request.write(request.out / "request.json")
    patience = REHEARSAL if request.nvml_state else 1
    for step in steps(request.seconds, patience):
        left = WHOLE_SECONDS * patience - step.end_seconds - END_SECONDS - (time.monotonic() - began)
        _say(began, f"{step.module}: {step.does}")
        result = run_step(step, request, left)
        record["steps"][step.module] = result
        record["seconds"] = round(time.monotonic() - began, 1)
        record["row"] = row(record)
        write_json(request.out / "record.json", record)
        _say(began, f"{step.module}: {result['outcome']}" + (f": {result['why']}" if result["why"] else ""))
        for name, found in result["found"].items():
            if isinstance(found, str) and found.startswith(SKIPPED):
                _say(began, f"{step.module}: {name}: {found}")
    (request.out / "row.md").write_text(f"{HEAD}\n{record['row']}\n")
    print(f"\n{HEAD}\n{record['row']}\n\n{request.out / 'record.json'}", flush=True)
    return int(any(result["outcome"] == FAILED for result in record["steps"].values()))


def _request(arguments: Sequence[str] | None) -> Request:
    parser = argparse.ArgumentParser(
        prog="run.py", description="Runs NodeDevices on this machine's NVIDIA GPUs, in at most four minutes."
    )
    parser.add_argument(
        "--out", type=Path, default=Path("hardware-record"), help="folder of the record (default: %(default)s)"
    )
    parser.add_argument(
        "--seconds", type=_seconds, default=WATCH_SECONDS, help="how long probe and agent are watched at rest"
    )
    parser.add_argument("--no-faults", dest="faults", action="store_false", help="make no XID")
    parser.add_argument("--nvidia-plugin", default="", metavar="PATH", help="NVIDIA's device plugin, to run beside")
    parser.add_argument(
        "--may-set-compute-mode",
        action="store_true",
        help="let nodedevices-mps set EXCLUSIVE_PROCESS, and the compute mode back afterwards",
    )
    parser.add_argument("--nvml-state", default="", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    try:
        given.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"argument --out: {given.out}: {error.strerror}")
    return Request(**{**vars(given), "out": given.out.absolute()})


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 1 <= seconds <= 120:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; give 1 to 120")
    return seconds


def run_step(step: Step, request: Request, left: float) -> Json:
    """Run a step, and return its result, with what it had found when its time was over."""
    if left < END_SECONDS:
        return {"outcome": SKIPPED, "why": "no time left", "seconds": 0.0, "found": {}}
    result, log = request.out / f"{step.module}.json", request.out / f"{step.module}.log"
    result.unlink(missing_ok=True)
    seconds, began = min(step.seconds, left), time.monotonic()
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "hardware.child", step.module, str(request.out / "request.json"), str(result)],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        in_time = _ended(process, seconds)
    finally:
        _end_group(process, step.end_seconds)
        _end_marked()
    try:
        found: Json = json.loads(result.read_text())
    except (OSError, ValueError) as error:
        found = {"outcome": FAILED, "why": f"it left no result ({error})", "found": {}}
    if not in_time:
        done = ", ".join(found["found"]) or "nothing"
        found |= {"outcome": FAILED, "why": f"ended after {seconds:.0f} s; it had found: {done}"}
    elif process.returncode:
        found |= {"outcome": FAILED, "why": f"its process ended with {process.returncode}; {found['why']}"}
    if found["outcome"] == FAILED:
        found["log"] = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
    return {**found, "seconds": round(time.monotonic() - began, 1)}


def _ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    return process.returncode is not None


def _end_group(process: subprocess.Popen[bytes], seconds: float) -> None:
    """End the step's process: by SIGTERM, so that it puts back what it has set, and then by SIGKILL."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        _ended(process, seconds)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    _ended(process, END_SECONDS)  # one that the driver holds is left behind


def _end_marked() -> None:
    """End whatever this run has started and is still there: daemons have sessions of their own."""
    mark = f"{MARK}={os.environ[MARK]}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        pid = int(path.parent.name)
        with contextlib.suppress(OSError):
            if pid != os.getpid() and mark in path.read_bytes().split(b"\0"):
                os.kill(pid, signal.SIGKILL)


def _say(began: float, text: str) -> None:
    print(f"[{time.monotonic() - began:6.1f} s] {text}", flush=True)


def _end(*_: object) -> NoReturn:
    raise SystemExit("ended by a signal")


if __name__ == "__main__":
    manifest = Path(__file__).parents[2] / "manifest.json"
    known = json.loads(manifest.read_text()) if manifest.is_file() else {}
    sys.exit(main(about={key: known.get(key, "") for key in ("version", "commit")}))
