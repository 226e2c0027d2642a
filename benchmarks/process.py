"""What a process uses, from /proc: CPU, memory, and whether it rests."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
WINDOW_SECONDS = 0.5
RESTS_BELOW = 0.05  # of a core
LONGEST_SECONDS = 900.0


def cpu_seconds(pid: int) -> float:
    """User and system time of all its threads, to a hundredth of a second."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def memory_mib(pid: int, key: str = "VmRSS") -> float:
    """Resident now; `VmHWM`: at most since it began."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) / 1024
    return 0.0


@dataclass(frozen=True)
class Rest:
    at: float  # time.monotonic(), when it began to rest
    cpu_seconds: float  # used until then


def until_it_rests(pid: int, quiet_seconds: float, done: Callable[[], bool] = lambda: True) -> Rest:
    """Until it has done next to nothing for so long. Only then it is queried whether it has done everything (that is
    work as well): on a busy machine it may have waited for an answer."""
    used, busy = cpu_seconds(pid), time.monotonic()
    deadline = busy + LONGEST_SECONDS
    while (now := time.monotonic()) < deadline:
        if now - busy >= quiet_seconds:
            if done():
                return Rest(busy, used)
            busy, used = now, cpu_seconds(pid)
        time.sleep(WINDOW_SECONDS)
        before, used = used, cpu_seconds(pid)
        if used - before > RESTS_BELOW * WINDOW_SECONDS:
            busy = time.monotonic()
    raise RuntimeError(f"process {pid} did not rest within {LONGEST_SECONDS:.0f} s")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
